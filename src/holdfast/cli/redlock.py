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

Exit status: 0 if a majority of the nodes takes part, otherwise 69.
"""

INIT_EPILOG = """
Examples (once, for URLs that say init=manual):
  holdfast redlock init --url redlock://a:6379,b:6379,c:6379
"""

REJOIN_EPILOG = """
Examples:
  holdfast redlock rejoin                      every node that does not take part
  holdfast redlock rejoin b:6379
  holdfast redlock rejoin b:6379 --durable     a restarted node that lost no data

Exit status: 0 if all of these nodes take part, otherwise 69.
"""

NODES = Argument(
    "node",
    "Nodes as written in the URL. The default is all nodes that do not take part.",
    required=False,
    many=True,
)
WAIT = Option(
    ("--wait",),
    "How long to wait. It must not be shorter than any ttl that was granted. By default it is longer than "
    "the longest ttl that any client requested.",
    metavar="TIME",
    convert=duration,
)
DURABLE = Option(
    ("--durable",), "Confirm that the restarted nodes lost no data, whatever their settings say."
)


def init(url: str | None, json: bool) -> None:
    """Make a set of nodes that all answer and are all empty.

    The first client does this by itself, unless the URL says init=manual. Nodes that are a set already are
    not changed.
    """
    from holdfast.redlock import initialise

    from .output import print_json, print_lines

    set_id = initialise(chosen(url))
    if json:
        print_json({"set": set_id})
    else:
        print_lines(f"the nodes form set {set_id}")


def status(url: str | None, json: bool) -> int:
    """Show the state of every node, and what to do about nodes that do not take part."""
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
    """Let nodes that lost data take part again.

    This waits until every lease that these nodes granted has expired, copies to them the tokens that a
    majority of the other nodes has issued, and marks them as ready. Meanwhile the other nodes serve locks.
    """
    from holdfast import redlock

    from .output import print_json, print_table

    where = chosen(url)
    results = redlock.rejoin(where, node or None, wait=wait, durable=durable)
    if json:
        print_json(results)
    elif results:
        print_table("", ("node", "result"), list(results.items()))
    else:
        complain("every node already takes part")
    ready = {each.node for each in redlock.status(where) if each.takes_part}
    return Status.OK if results.keys() <= ready else Status.UNAVAILABLE


def chosen(url: str | None) -> str:
    if not url:
        raise errors.InvalidArgument("the nodes are missing: write --url redlock://a:6379,b:6379,c:6379")
    return url


INIT = Command(init, (URL, JSON), INIT_EPILOG)
STATUS = Command(status, (URL, JSON), STATUS_EPILOG)
REJOIN = Command(rejoin, (NODES, WAIT, DURABLE, URL, JSON), REJOIN_EPILOG)
GROUP = Group(
    "Manage the nodes of redlock://: initialise a set, show its nodes, let nodes rejoin.",
    {"init": "redlock:INIT", "status": "redlock:STATUS", "rejoin": "redlock:REJOIN"},
    EPILOG,
)
