"""Replies of a node as they come: most are recognised by their bytes alone, and none is taken for another."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations_with_replacement, pairwise
from typing import Any

import hiredis
import pytest

from holdfast.core.effects import NotApplied, OutcomeUnknown
from holdfast.core.urls import parse_url
from holdfast.engines.redlock.codec import loading_commands
from holdfast.engines.redlock.config import config_from_url
from holdfast.engines.redlock.connection import NodeConnection
from holdfast.engines.redlock.keys import Keyspace
from holdfast.engines.redlock.rpc import NodeRequest
from holdfast.protocols.quorum import Broadcast
from holdfast.rules import node

HINT = 1_700_000_000_000_001
NODE = 2
ACQUIRE = node.Acquire("me.1", HINT, 30_000_000, 0, "me", "label", "")
RELEASE = node.Release("me.1", 60_000_000)
RENEW = node.Renew("me.1", 30_000_000)
ISSUED = b":%d\r\n" % HINT
DONE = b":1\r\n"
LOST = b"*3\r\n$4\r\nlost\r\n$7\r\nexpired\r\n$0\r\n\r\n"
SKEWED = b"*2\r\n$6\r\nskewed\r\n:1\r\n"
"""Its last bytes are the usual reply to a release."""


class Wire:
    """A line, and the other end of its connection."""

    def __init__(self, line: NodeConnection, theirs: socket.socket) -> None:
        self.line = line
        self.theirs = theirs

    def ask(self, *asks: Any) -> NodeRequest:
        batch = tuple(("x", ask) for ask in asks)
        op = Broadcast(((NODE, batch),), lambda answers: False, 1.0, "set/3")
        question = NodeRequest(Keyspace("holdfast"), op, batch, {}, 0.0)
        self.line.send_request(question, 0.0)
        return question

    def hear(self, *reads: bytes) -> None:
        """Each of them is read by itself."""
        for data in reads:
            if data:
                self.theirs.sendall(data)
                self.line.handle_event()


@contextmanager
def wired() -> Iterator[Wire]:
    """As it is after the greeting."""
    settings = config_from_url(parse_url("redlock://a,b,c"), {})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = NodeConnection(
            NODE, settings.nodes[NODE], "me", 60.0, select.poll(), lambda question, node: None
        )
        line._use_socket(ours, select.POLLIN)
        reader = hiredis.Reader()
        line._feed, line._gets = reader.feed, reader.gets
        line.run_id = "run"
        first = Wire(line, theirs).ask(RENEW)
        Wire(line, theirs).hear(DONE)
        assert first.answers == {NODE: (node.Applied(),)}
        assert line._is_reader_empty
        yield Wire(line, theirs)
        line.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    with wired() as wire:
        yield wire


def told(questions: Sequence[NodeRequest]) -> list[Any]:
    return [question.answers.get(NODE) for question in questions]


def issued(number: int) -> tuple[Any, ...]:
    return (node.Issued(number),)


KEPT = (node.Applied(),)


def test_the_usual_replies_are_recognised_by_their_bytes(wire: Wire) -> None:
    def feed(data: str | bytes, *_: int) -> None:
        raise AssertionError(data)

    wire.line._feed = feed
    taken, given = wire.ask(ACQUIRE), wire.ask(RELEASE)
    wire.hear(ISSUED, DONE)
    again = wire.ask(ACQUIRE), wire.ask(RELEASE)
    wire.hear(ISSUED + DONE)
    assert told([taken, given, *again]) == [issued(HINT), KEPT] * 2
    assert told([taken])[0] is taken.usual_answer


def test_the_end_of_a_reply_is_not_the_whole_reply_that_it_looks_like(wire: Wire) -> None:
    """What came of it before is in the reader."""
    first, second = wire.ask(ACQUIRE), wire.ask(RELEASE)
    wire.hear(SKEWED.removesuffix(DONE), DONE)
    assert told([first, second]) == [(node.ClockSkewed(1),), None]
    wire.hear(DONE)
    assert told([second]) == [KEPT]


def test_nor_is_it_where_that_would_be_the_usual_reply(wire: Wire) -> None:
    question = wire.ask(RELEASE)
    wire.hear(b"*2\r\n$6\r\nskewed\r\n", DONE)
    assert told([question]) == [(node.ClockSkewed(1),)]
    again = wire.ask(RELEASE)
    wire.hear(DONE)
    assert told([again]) == [KEPT]


def test_a_late_reply_belongs_to_the_question_that_was_asked_first(wire: Wire) -> None:
    """Also where it has the bytes that are the usual ones for the next."""
    late, next_ = wire.ask(ACQUIRE), wire.ask(RELEASE)
    wire.hear(DONE)
    assert told([late, next_]) == [issued(1), None]
    wire.hear(DONE)
    assert told([late, next_]) == [issued(1), KEPT]


def test_another_number_of_another_node_is_not_taken_for_the_usual_one(wire: Wire) -> None:
    question = wire.ask(ACQUIRE)
    question.answer_number(0, HINT + 5)
    wire.hear(ISSUED)
    question.answer_number(1, HINT + 5)
    assert question.answers == {0: issued(HINT + 5), 1: issued(HINT + 5), NODE: issued(HINT)}


def test_an_error_is_an_error_and_what_follows_is_not(wire: Wire) -> None:
    first, second = wire.ask(ACQUIRE), wire.ask(RELEASE)
    wire.hear(b"-READONLY You can't write against a read only replica.\r\n" + DONE)
    (error, kept) = told([first, second])
    assert isinstance(error, NotApplied)
    assert kept == KEPT


def test_a_server_that_forgot_the_scripts_gets_them_and_is_asked_again(wire: Wire) -> None:
    first, second = wire.ask(ACQUIRE), wire.ask(RELEASE)
    wire.hear(b"-NOSCRIPT No matching script.\r\n")
    loaded = b"$1\r\n-\r\n" * loading_commands()[1]
    wire.hear(DONE, loaded, ISSUED)
    assert told([first, second]) == [issued(HINT), KEPT]
    third = wire.ask(ACQUIRE)
    wire.hear(ISSUED)
    assert told([third])[0] is third.usual_answer


def test_a_connection_that_ends_answers_nothing(wire: Wire) -> None:
    question = wire.ask(RELEASE)
    wire.theirs.close()
    wire.line.handle_event()
    assert isinstance(question.answers[NODE], OutcomeUnknown)


def test_replies_mean_the_same_wherever_they_are_cut() -> None:
    asked = ((ACQUIRE,), (RELEASE,), (RENEW, RENEW), (ACQUIRE,), (RELEASE,), (RELEASE,))
    replies = (ISSUED, DONE, DONE + LOST, SKEWED, DONE, LOST)
    stream = b"".join(replies)
    expected = None
    for cuts in combinations_with_replacement(range(len(stream) + 1), 2):
        with wired() as wire:
            questions = [wire.ask(*asks) for asks in asked]
            places = (0, *cuts, len(stream))
            wire.hear(*[stream[a:b] for a, b in pairwise(places)])
            expected = expected or told(questions)
            assert None not in expected
            assert told(questions) == expected, cuts
            last = wire.ask(RELEASE)
            wire.hear(DONE)
            assert told([last])[0] is last.usual_answer
    assert expected == [
        issued(HINT),
        KEPT,
        (node.Applied(), node.Lost("expired")),
        (node.ClockSkewed(1),),
        KEPT,
        (node.Lost("expired"),),
    ]
