"""Sequences of requests to one node, as they come in a quorum: the same for the rule and for a server."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

from holdfast.rules import node

__all__ = ["EXPECTED", "READY", "NodeMove", "made", "moves"]

EXPECTED: Final = node.mark_text("5e7", 3, "run1")
READY: Final = node.Mark(EXPECTED, EXPECTED)
OTHERS: Final = node.mark_text("5e7", 3, "run0")

OWNERS: Final = ("a-1.1", "a-1.2", "b-1.1", "c-1.1")
CLIENTS: Final = ("a", "b", "")
SECOND: Final = 1_000_000
OFFSETS: Final = (
    -61 * SECOND,
    -SECOND,
    -1,
    0,
    0,
    0,
    1,
    2,
    40,
    SECOND,
    60 * SECOND,
    61 * SECOND,
)


class NodeMove(NamedTuple):
    """What is asked, with hints and numbers told relative to the node's clock and fence."""

    pause: int
    request: node.NodeRequest
    expected: str
    relative: int


owners = st.sampled_from(OWNERS)
ttls = st.sampled_from((10_000, SECOND, 5 * SECOND, 3600 * SECOND))

requests: st.SearchStrategy[node.NodeRequest] = st.one_of(
    st.builds(
        node.Acquire,
        owner=owners,
        hint=st.just(0),
        ttl=ttls,
        max_hold=st.sampled_from((0, 0, 500_000, 2 * SECOND)),
        client=st.sampled_from(CLIENTS[:2]),
        label=st.sampled_from(("host/1/main", "ätsch/2/ü")),
        metadata=st.sampled_from(("{}", '{"job":"7"}')),
        instead_of=st.one_of(st.just(()), st.lists(owners, max_size=2).map(tuple)),
        note=st.sampled_from(("", "it hangs: since noon")),
    ),
    st.builds(node.Stamp, owner=owners, number=st.just(0)),
    st.builds(node.Release, owner=owners, linger=st.sampled_from((0, 0, SECOND, 60 * SECOND))),
    st.builds(node.Renew, owner=owners, ttl=ttls),
    st.builds(node.Export, owner=owners, token=st.integers(1, 2**53 - 1)),
    st.builds(node.Adopt, owner=owners, client=st.sampled_from(CLIENTS[:2]), label=st.just("host/3/x")),
    st.just(node.Look()),
)

node_moves = st.builds(
    NodeMove,
    pause=st.sampled_from((0, 1, 700, 400_000, SECOND, 4 * SECOND)),
    request=requests,
    expected=st.sampled_from((EXPECTED, EXPECTED, EXPECTED, EXPECTED, EXPECTED, OTHERS)),
    relative=st.sampled_from(OFFSETS),
)


def moves(at_most: int = 25) -> st.SearchStrategy[list[NodeMove]]:
    return st.lists(node_moves, min_size=1, max_size=at_most)


def made(move: NodeMove, fence: int, now: int) -> Any:
    """The request with its hint or its number put in."""
    if isinstance(move.request, node.Acquire):
        return move.request._replace(hint=now + move.relative)
    if isinstance(move.request, node.Stamp):
        return move.request._replace(number=fence + move.relative)
    return move.request
