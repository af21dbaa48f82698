"""Sequences of requests to one node, as they come in a quorum: the same for the rule and for a server."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st

from holdfast.rules import node

__all__ = ["EXPECTED", "READY", "NodeMove", "made", "moves", "random_moves"]

EXPECTED: Final = node.mark_text("5e7", 3, "run1")
READY: Final = node.Mark(EXPECTED, EXPECTED)
OTHERS: Final = node.mark_text("5e7", 3, "run0")

OWNERS: Final = ("a-1.1", "a-1.2", "b-1.1", "c-1.1")
CLIENTS: Final = ("a", "b", "")
SEALS: Final = ("seal", "seal", "seal", "another seal")
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


PAUSES: Final = (0, 1, 700, 400_000, SECOND, 4 * SECOND)
TTLS: Final = (10_000, SECOND, 5 * SECOND, 3600 * SECOND)
MAX_HOLDS: Final = (0, 0, 500_000, 2 * SECOND)
LINGERS: Final = (0, 0, SECOND, 60 * SECOND)
LABELS: Final = ("host/1/main", "ätsch/2/ü")
NOTES: Final = ("", "it hangs: since noon")
MARKS: Final = (EXPECTED, EXPECTED, EXPECTED, EXPECTED, EXPECTED, OTHERS)

owners = st.sampled_from(OWNERS)
ttls = st.sampled_from(TTLS)

requests: st.SearchStrategy[node.NodeRequest] = st.one_of(
    st.builds(
        node.Acquire,
        owner=owners,
        hint=st.just(0),
        ttl=ttls,
        max_hold=st.sampled_from(MAX_HOLDS),
        client=st.sampled_from(CLIENTS[:2]),
        label=st.sampled_from(LABELS),
        metadata=st.sampled_from(("{}", '{"job":"7"}')),
        instead_of=st.one_of(st.just(()), st.lists(owners, max_size=2).map(tuple)),
        note=st.sampled_from(NOTES),
        token=st.one_of(st.just(0), st.integers(1, 2**53 - 1)),
    ),
    st.builds(node.Stamp, owner=owners, number=st.just(0)),
    st.builds(node.Release, owner=owners, linger=st.sampled_from(LINGERS)),
    st.builds(node.Renew, owner=owners, ttl=ttls),
    st.builds(node.Export, owner=owners, token=st.integers(1, 2**53 - 1), seal=st.sampled_from(SEALS)),
    st.builds(
        node.Adopt,
        owner=owners,
        client=st.sampled_from(CLIENTS[:2]),
        label=st.just("host/3/x"),
        seal=st.sampled_from(SEALS),
    ),
    st.just(node.Inspect()),
)

node_moves = st.builds(
    NodeMove,
    pause=st.sampled_from(PAUSES),
    request=requests,
    expected=st.sampled_from(MARKS),
    relative=st.sampled_from(OFFSETS),
)


def moves(at_most: int = 25) -> st.SearchStrategy[list[NodeMove]]:
    return st.lists(node_moves, min_size=1, max_size=at_most)


def random_moves(seed: int, count: int = 40) -> list[NodeMove]:
    """The same kind of sequences, quicker, and the same in every run."""
    chance = random.Random(seed)
    pick = chance.choice
    asks: list[Callable[[], node.NodeRequest]] = [
        lambda: node.Acquire(
            pick(OWNERS),
            0,
            pick(TTLS),
            pick(MAX_HOLDS),
            pick(CLIENTS[:2]),
            pick(LABELS),
            "{}",
            tuple(chance.sample(OWNERS, chance.randrange(3))) if chance.random() < 0.4 else (),
            pick(NOTES),
            chance.randrange(1, 2**53) if chance.random() < 0.2 else 0,
        ),
        lambda: node.Stamp(pick(OWNERS), 0),
        lambda: node.Release(pick(OWNERS), pick(LINGERS)),
        lambda: node.Renew(pick(OWNERS), pick(TTLS)),
        lambda: node.Export(pick(OWNERS), chance.randrange(1, 2**53), pick(SEALS)),
        lambda: node.Adopt(pick(OWNERS), pick(CLIENTS[:2]), "host/3/x", pick(SEALS)),
        node.Inspect,
    ]
    weights = (4, 2, 2, 2, 1, 1, 1)
    return [
        NodeMove(pick(PAUSES), ask(), pick(MARKS), pick(OFFSETS))
        for ask in chance.choices(asks, weights, k=count)
    ]


def made(move: NodeMove, fence: int, now: int) -> Any:
    """The request with its hint or its number put in."""
    if isinstance(move.request, node.Acquire):
        return move.request._replace(hint=now + move.relative)
    if isinstance(move.request, node.Stamp):
        return move.request._replace(number=fence + move.relative)
    return move.request
