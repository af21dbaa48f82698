"""Every order of events for three nodes and a few attempts: the shipped rules never break a promise, each of
the obvious simplifications does."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from holdfast.protocols.quorum.tally import Counted, ToStamp, Verdict, after_acquire
from holdfast.rules import node
from holdfast.rules.node import transitions
from model.explorer import Bounds, ClientRule, Explorer, NodeRule, RejoinRule
from support.thorough import THOROUGH

TWO = Bounds(attempts=2, copies=1)
TWO_AND_A_NODE_THAT_FORGETS = Bounds(attempts=2, forgets=1)
TWO_AND_ALL_OF_IT = Bounds(attempts=2, hints=(1,), copies=1, forgets=1)
TWO_THAT_SPREAD = Bounds(attempts=2, copies=1, spreads=1)
TWO_THAT_SPREAD_AND_A_NODE_THAT_FORGETS = Bounds(attempts=2, forgets=1, spreads=1)
THREE_THAT_SPREAD = Bounds(attempts=3, hints=(1,), spreads=1)
THREE = Bounds(attempts=3, hints=(1,))
"""The bounds keep each of them well within a minute; a busy machine may take longer."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "states"),
    [
        pytest.param(TWO, 70_000, id="two attempts"),
        pytest.param(TWO_AND_A_NODE_THAT_FORGETS, 80_000, id="a node forgets"),
        pytest.param(TWO_THAT_SPREAD, 300_000, id="what is held is spread"),
        pytest.param(TWO_THAT_SPREAD_AND_A_NODE_THAT_FORGETS, 400_000, id="it is spread, and a node forgets"),
        pytest.param(THREE, 400_000, id="three attempts"),
        *([pytest.param(TWO_AND_ALL_OF_IT, 300_000, id="a node forgets, and copies")] if THOROUGH else []),
        *([pytest.param(THREE_THAT_SPREAD, 3_000_000, id="three attempts that spread")] if THOROUGH else []),
    ],
)
def test_tokens_are_unique_and_grow_and_succeed_each_other(bounds: Bounds, states: int) -> None:
    """Whatever is late, lost or copied, whatever runs out, whichever client crashes, and should a node
    forget."""
    found = Explorer(bounds).explore()
    assert found.violation == ""
    assert found.states > states
    assert found.decided


def violation_of(explorer: Explorer) -> str:
    """Broken with fewer events than what ships survives."""
    return explorer.explore().violation


# --- simplifications of the client --------------------------------------------------------------


def largest(answers: Any, size: int, final: bool = False) -> Verdict | None:
    verdict = after_acquire(answers, size, final)
    return Counted(verdict.number) if isinstance(verdict, ToStamp) else verdict


def test_the_maximum_of_what_nodes_counted_is_no_token() -> None:
    """Every node counts for itself (INCR), and the client takes the largest of the answers."""
    naive = ClientRule(after_acquire=largest, stamps=False)
    assert violation_of(Explorer(TWO, clients=naive)).startswith("not ")


def test_a_number_that_is_only_being_written_is_no_token() -> None:
    """The same with the largest number on its way to the others: nobody waits until they have it."""
    assert violation_of(Explorer(TWO, clients=ClientRule(after_acquire=largest))).startswith("not ")


def test_a_minority_is_not_enough() -> None:
    def few(answers: Any, size: int, final: bool = False) -> Verdict | None:
        return Counted(max(reply.number for reply in answers.values())) if answers else None

    assert violation_of(Explorer(TWO, clients=ClientRule(after_acquire=few)))


# --- simplifications of the node ----------------------------------------------------------------


def node_with(request: type, replacement: Any) -> NodeRule:
    def apply(
        mark: node.Mark, record: node.NodeRecord, ask: node.NodeRequest, expected: str, now: int
    ) -> node.NodeStep:
        with mock.patch.dict(transitions._HANDLERS, {request: replacement}):
            return node.apply(mark, record, ask, expected, now)

    return NodeRule(apply)


def test_a_stamp_needs_the_claim() -> None:
    def stamp(record: node.NodeRecord, ask: node.Stamp, now: int) -> tuple[node.NodeRecord, node.NodeReply]:
        if ask.number > record.fence:
            return record._replace(fence=ask.number), node.Issued(ask.number)
        return record, node.Lost("stolen")

    assert "no succession" in violation_of(Explorer(TWO, node_with(node.Stamp, stamp)))


def test_an_equal_number_may_belong_to_another_attempt() -> None:
    shipped = transitions._HANDLERS[node.Stamp]

    def stamp(record: node.NodeRecord, ask: node.Stamp, now: int) -> tuple[node.NodeRecord, node.NodeReply]:
        if ask.number == record.fence:
            return record, node.Issued(ask.number)
        return shipped(record, ask, now)

    assert "not unique" in violation_of(Explorer(TWO, node_with(node.Stamp, stamp)))


def test_a_number_must_not_be_issued_twice() -> None:
    shipped = transitions._HANDLERS[node.Acquire]

    def acquire(
        record: node.NodeRecord, ask: node.Acquire, now: int
    ) -> tuple[node.NodeRecord, node.NodeReply]:
        return shipped(record._replace(fence=max(record.fence - 1, 0)), ask, now)

    assert violation_of(Explorer(TWO, node_with(node.Acquire, acquire)))


# --- simplifications of what a node does that forgot --------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        RejoinRule(needs_mark=False),
        RejoinRule(copies=False),
        RejoinRule(waits=False),
        RejoinRule(waits=False, copies=False),
    ],
    ids=["takes part at once", "waits without copying", "copies without waiting", "neither"],
)
def test_a_node_that_forgot_has_to_wait_and_to_get_the_numbers(rule: RejoinRule) -> None:
    assert violation_of(Explorer(TWO_AND_A_NODE_THAT_FORGETS, rejoin=rule)).startswith("not ")
