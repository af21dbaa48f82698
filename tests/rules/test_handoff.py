"""Handing over: what the first in line gets is what it would have taken, at the very same moment."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engines.sqlite.codec import decode, encode
from holdfast.rules import handoff, transitions
from holdfast.rules.handoff import CAME_SECONDS, successor_of
from holdfast.rules.record import EMPTY, MAX_TOKEN, Holder, Record, Waiter, Wants
from holdfast.rules.requests import (
    Acquire,
    Busy,
    Done,
    Gone,
    Granted,
    Handoff,
    Queued,
    Release,
    Wake,
    Watch,
    Withdraw,
)
from holdfast.rules.transitions import Step
from rules.moves import KINDS, long_moves
from rules.test_transitions import record_after
from support.thorough import examples

WALL = 5_000_000


def ask_for(number: int, kind: str = "lock", mode: str = "exclusive", fair: bool = True) -> Acquire:
    metadata = {"number": str(number)}
    return Acquire(f"n-{number}", f"c-{number}", "me", kind, mode, 30.0, True, fair, True, None, 0, metadata)


def queue_of(*asked: Acquire, at: float = 100.0) -> Record:
    """The first holds, the others wait in this order."""
    record = EMPTY
    for ask in asked:
        record = handoff.apply(record, ask, at, WALL).record
    return record


def given_back(record: Record, at: float = 100.0625) -> Step:
    return handoff.apply(record, Release("n-0"), at, WALL)


def test_the_first_in_line_has_the_lock_as_it_is_given_back() -> None:
    step = given_back(queue_of(ask_for(0), ask_for(1), ask_for(2)))
    (heir,) = step.record.holders
    who = ("n-1", "c-1", "me", "exclusive")
    assert heir == Holder(*who, WALL + 1, 100.0625, 130.0625, 30.0, True, None, {"number": "1"})
    assert step.record.token == WALL + 1
    assert [waiter.nonce for waiter in step.record.queue] == ["n-2"]
    assert step.record.queue[0].turn_at is None
    assert step.reply == Done()
    assert step.wake == (Wake("c-1", "n-1", Handoff(WALL + 1, 0.0625)),)
    assert successor_of(Release("n-0"), step) == "c-1"


def test_a_handoff_carries_the_age_of_the_place() -> None:
    """Whenever it asked again meanwhile: the place is the one that it took first."""
    record = queue_of(ask_for(0))
    for at in (100.25, 100.3125):
        record = handoff.apply(record, ask_for(1), at, WALL).record
    step = given_back(record, 100.3125)
    assert step.wake == (Wake("c-1", "n-1", Handoff(WALL + 1, 0.0625)),)


def test_only_the_successor_is_notified() -> None:
    """Those who watch are woken as well, and have been given nothing."""
    record = handoff.apply(queue_of(ask_for(0), ask_for(1)), Watch("w-1", "c-9"), 100.0, WALL).record
    step = given_back(record)
    assert set(step.wake) == {Wake("c-1", "n-1", Handoff(WALL + 1, 0.0625)), Wake("c-9", "w-1")}


def test_a_repeated_request_gets_the_time_of_the_handoff() -> None:
    record = given_back(queue_of(ask_for(0), ask_for(1))).record
    step = handoff.apply(record, ask_for(1), 101.5625, WALL)
    assert step.record is record
    assert step.reply == Granted(WALL + 1, (), "lock", "exclusive", 30.0, None, {"number": "1"}, 1.5)
    assert isinstance(handoff.apply(record, ask_for(3)._replace(wait=False), 101.5625, WALL).reply, Busy)


def test_a_waiter_that_left_gives_it_to_the_next() -> None:
    record = given_back(queue_of(ask_for(0), ask_for(1), ask_for(2))).record
    step = handoff.apply(record, Withdraw("n-1", 0.0), 100.2, WALL)
    assert step.wake == (Wake("c-2", "n-2"),)
    assert step.record.queue[0].turn_at == 100.2


def test_a_waiter_that_came_long_ago_gets_a_turn() -> None:
    record = queue_of(ask_for(0), ask_for(1))
    assert given_back(record, 100.0 + CAME_SECONDS).record.holders
    step = given_back(record, 100.01 + CAME_SECONDS)
    assert not step.record.holders
    assert step.record.queue[0].turn_at == 100.01 + CAME_SECONDS
    assert step.wake == (Wake("c-1", "n-1"),)
    assert successor_of(Release("n-0"), step) is None


@pytest.mark.parametrize(
    "kind_and_mode", [("rwlock", "read"), ("rwlock", "write"), ("semaphore", "permit")], ids="-".join
)
def test_only_locks_are_handed_over(kind_and_mode: tuple[str, str]) -> None:
    kind, mode = kind_and_mode
    first = ask_for(0, kind, "write" if kind == "rwlock" else mode)._replace(limit=int(kind == "semaphore"))
    record = queue_of(first, ask_for(1, kind, mode)._replace(limit=first.limit))
    step = given_back(record)
    assert not step.record.holders
    assert step == transitions.apply(record, Release("n-0"), 100.0625, WALL)


def test_where_others_may_barge_nothing_is_handed_over() -> None:
    step = given_back(queue_of(ask_for(0), ask_for(1, fair=False)))
    assert not step.record.holders
    newcomer = ask_for(2, fair=False)._replace(wait=False)
    assert isinstance(handoff.apply(step.record, newcomer, 100.2, WALL).reply, Granted)


def test_one_that_may_hold_it_only_for_so_long_takes_it_by_itself() -> None:
    step = given_back(queue_of(ask_for(0), ask_for(1)._replace(max_hold=60.0)))
    assert not step.record.holders


def test_what_was_queued_by_an_earlier_version_takes_it_by_itself() -> None:
    record = transitions.apply(queue_of(ask_for(0)), ask_for(1), 100.0, WALL).record
    assert record.queue[0].wants is None
    assert not given_back(record).record.holders
    asked_again = handoff.apply(record, ask_for(1), 100.0, WALL)
    assert isinstance(asked_again.reply, Queued)
    assert given_back(asked_again.record).record.holders[0].nonce == "n-1"


def test_without_a_token_left_nobody_is_handed_anything() -> None:
    record = queue_of(ask_for(0), ask_for(1))._replace(token=MAX_TOKEN - 1)
    assert not given_back(record).record.holders


def test_a_client_without_the_lock_hands_nothing_over() -> None:
    record = queue_of(ask_for(0), ask_for(1))
    step = handoff.apply(record, Release("n-9"), 100.1, WALL)
    assert isinstance(step.reply, Gone)
    assert step.record is record
    assert successor_of(Release("n-9"), step) is None


def test_what_one_wants_is_kept_as_text() -> None:
    record = queue_of(ask_for(0), ask_for(1))
    assert record.queue[0].wants == Wants(30.0, True, {"number": "1"})
    assert decode(encode(record)) == record


def test_places_of_the_first_schema_are_understood() -> None:
    first = '[1,"lock",7,[],[["n-1","c-1","me","exclusive",1.0,6.0,null]],0,0,null,[],[]]'
    (waiter,) = decode(first).queue
    assert waiter == Waiter("n-1", "c-1", "me", "exclusive", 1.0, 6.0, None, None)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_as_if_the_first_in_line_had_asked_at_that_very_moment(kind: str) -> None:
    @settings(max_examples=examples(150))
    @given(st.integers(0, 2**32), st.integers(1, 40), st.floats(0.0, 3.0))
    def check(seed: int, length: int, pause: float) -> None:
        record, now = record_after(long_moves(kind, seed, length), hands_over=True)
        now += pause
        for holder in record.holders:
            request = Release(holder.nonce)
            step = handoff.apply(record, request, now, WALL)
            plain = transitions.apply(record, request, now, WALL)
            assert step.reply == plain.reply
            assert [wake._replace(handed=None) for wake in step.wake] == list(plain.wake)
            if successor_of(request, step) is None:
                assert step == plain
                continue
            nonce, client, owner, mode, since, _, _, wants = plain.record.queue[0]
            assert wants is not None
            limit = plain.record.limit
            ttl, renews, metadata = wants
            ask = Acquire(nonce, client, owner, "lock", mode, ttl, True, True, renews, None, limit, metadata)
            taken = transitions.apply(plain.record, ask, now, WALL)
            assert isinstance(taken.reply, Granted)
            assert step.record == taken.record
            told = {wake.nonce: wake.handed for wake in step.wake if wake.handed is not None}
            assert told == {nonce: Handoff(taken.reply.token, now - since)}

    check()
