"""``holdfast redlock``: the nodes of a ``redlock://`` engine."""

from __future__ import annotations

from holdfast import errors

from .exits import Status, complain
from .options import JSON, URL, Argument, Command, Group, Option, duration

__all__ = ["GROUP", "INIT", "REJOIN", "STATUS"]

EPILOG = """
Examples:
  holdfast redlock status --url redlock://a:6379,b:6379,c:6379
  holdfast redlock init
  holdfast redlock rejoin b:6379
"""

STATUS_EPILOG = """
Examples:
  holdfast redlock status --url redlock://a:6379,b:6379,c:6379
  holdfast redlock status --json | jq -r '.[] | select(.trouble != "") | .node'

Exit status: 0 when a majority takes part, 69 when it does not.
"""

INIT_EPILOG = """
Examples (once, for URLs that say init=manual):
  holdfast redlock init --url redlock://a:6379,b:6379,c:6379
"""

REJOIN_EPILOG = """
Examples:
  holdfast redlock rejoin                      every node that does not take part
  holdfast redlock rejoin b:6379
  holdfast redlock rejoin b:6379 --durable     it was restarted, and lost nothing

Exit status: 0 when all of them take part, 69 when some do not.
"""

NODES = Argument(
    "node", "Nodes as the URL has them; without any, all that do not take part.", required=False, many=True
)
WAIT = Option(
    ("--wait",),
    "Wait for so long, if nothing longer was ever granted; without it, for longer than the longest "
    "ttl that anybody asked for.",
    metavar="TIME",
    convert=duration,
)
DURABLE = Option(("--durable",), "Restarted nodes lost nothing, whatever their settings say: I know it.")


def init(url: str | None, json: bool) -> None:
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


def status(url: str | None, json: bool) -> int:
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


def rejoin(node: list[str], wait: float | None, durable: bool, url: str | None, json: bool) -> int:
    """Have nodes that forgot take part again.

    Waits until nothing that they granted before can still be relied on, tells them every number that a
    majority of the others has issued, and marks them as ready. Locks go on meanwhile, on the others.
    """
    from holdfast import redlock

    from .output import print_json, print_table

    where = chosen(url)
    told = redlock.rejoin(where, node or None, wait=wait, durable=durable)
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


INIT = Command(init, (URL, JSON), INIT_EPILOG)
STATUS = Command(status, (URL, JSON), STATUS_EPILOG)
REJOIN = Command(rejoin, (NODES, WAIT, DURABLE, URL, JSON), REJOIN_EPILOG)
GROUP = Group(
    "Look after the nodes of redlock://: initialise a set, see how nodes stand, have them rejoin.",
    {"init": "redlock:INIT", "status": "redlock:STATUS", "rejoin": "redlock:REJOIN"},
    EPILOG,
)
