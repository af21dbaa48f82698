"""``holdfast redlock``: the nodes of a ``redlock://`` engine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast import errors

from .exits import Status, complain
from .options import Json, Url, duration

__all__ = ["app"]

EPILOG = """\b
Examples:
  holdfast redlock status --url redlock://a:6379,b:6379,c:6379
  holdfast redlock init
  holdfast redlock rejoin b:6379
"""

STATUS_EPILOG = """\b
Examples:
  holdfast redlock status --url redlock://a:6379,b:6379,c:6379
  holdfast redlock status --json | jq -r '.[] | select(.trouble != "") | .node'

Exit status: 0 when a majority takes part, 69 when it does not.
"""

INIT_EPILOG = """\b
Examples (once, for URLs that say init=manual):
  holdfast redlock init --url redlock://a:6379,b:6379,c:6379
"""

REJOIN_EPILOG = """\b
Examples:
  holdfast redlock rejoin                      every node that does not take part
  holdfast redlock rejoin b:6379
  holdfast redlock rejoin b:6379 --durable     it was restarted, and lost nothing

Exit status: 0 when all of them take part, 69 when some do not.
"""

app = typer.Typer(epilog=EPILOG, rich_markup_mode=None)

Nodes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NODE",
        help="Nodes as the URL has them; without any, all that do not take part.",
        show_default=False,
    ),
]
Wait = Annotated[
    float | None,
    typer.Option(
        metavar="TIME",
        parser=duration,
        help="Wait for so long, if nothing longer was ever granted; without it, for longer than the longest "
        "ttl that anybody asked for.",
        show_default=False,
    ),
]
Durable = Annotated[
    bool,
    typer.Option("--durable", help="Restarted nodes lost nothing, whatever their settings say: I know it."),
]


@app.callback(invoke_without_command=True)
def describe(context: typer.Context) -> None:
    """Look after the nodes of redlock://: initialise a set, see how nodes stand, have them rejoin."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(Status.USAGE)


@app.command("init", epilog=INIT_EPILOG)
def init(url: Url = None, json: Json = False) -> None:
    """Make one set of nodes that all answer and are all empty.

    Whoever comes first does that by itself, unless the URL says init=manual. On nodes that are a set already
    it changes nothing.
    """
    from holdfast.redlock import initialise

    from .output import print_json, print_lines

    set_id = initialise(chosen(url))
    if json:
        print_json({"set": set_id})
    else:
        print_lines(f"the nodes are set {set_id}")


@app.command("status", epilog=STATUS_EPILOG)
def status(url: Url = None, json: Json = False) -> int:
    """Show how every node stands and what to do about those that do not take part."""
    from holdfast import redlock

    from .output import print_json, print_table

    found = redlock.status(chosen(url))
    if json:
        print_json([{"node": each.node, "state": each.state, "trouble": each.trouble} for each in found])
    else:
        print_table("", ("node", "state", "trouble"), [(e.node, e.state, e.trouble) for e in found])
    taking_part = sum(1 for each in found if each.takes_part)
    return Status.OK if taking_part > len(found) // 2 else Status.UNAVAILABLE


@app.command("rejoin", epilog=REJOIN_EPILOG)
def rejoin(
    nodes: Nodes = None, wait: Wait = None, durable: Durable = False, url: Url = None, json: Json = False
) -> int:
    """Have nodes that forgot take part again.

    Waits until nothing that they granted before can still be relied on, tells them every number that a
    majority of the others has issued, and marks them as ready. Locks go on meanwhile, on the others.
    """
    from holdfast import redlock

    from .output import print_json, print_table

    where = chosen(url)
    told = redlock.rejoin(where, nodes or None, wait=wait, durable=durable)
    if json:
        print_json(told)
    elif told:
        print_table("", ("node", "what became of it"), list(told.items()))
    else:
        complain("every node takes part already")
    ready = {each.node for each in redlock.status(where) if each.takes_part}
    return Status.OK if told.keys() <= ready else Status.UNAVAILABLE


def chosen(url: str | None) -> str:
    if not url:
        raise errors.InvalidArgument("which nodes? write --url redlock://a:6379,b:6379,c:6379")
    return url
