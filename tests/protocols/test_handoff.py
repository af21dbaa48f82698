"""A wake-up that brings the lock along: it is held without another word, and never for too long."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.deadlines import DRIFT, lease_deadline
from holdfast.core.effects import Apply, Listen, Now, OutcomeUnknown, RenewBatch, Wait
from holdfast.errors import HoldfastError
from holdfast.protocols import records
from holdfast.protocols.client_state import LeaseState
from holdfast.rules.requests import (
    Acquire,
    Busy,
    Handoff,
    Queued,
    Release,
    Renew,
    Withdraw,
)
from protocols.driver import (
    LATENCY_SECONDS,
    LOST_REQUEST,
    SPEC,
    Client,
    World,
    always,
    late_copy,
    once,
)
from protocols.test_acquire import Attempt, begin, kinds, void
from protocols.test_races import SPEC as SHORT
from protocols.test_races import Driven, a_book

JUST_NOW = 0.0625
"""A waiter that has waited for so many seconds still gets the lock by handoff."""


def held_and_wanted(**changes: Any) -> tuple[World, Client, LeaseState, Client, Attempt]:
    """One who holds it, and one who came to wait for it just now."""
    world = World(hands_over=True)
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    waiting = begin(b, **changes)
    world.pass_time(JUST_NOW / 2)
    assert kinds(waiting)[-1] is Wait
    return world, a, held, b, waiting


def lease_of(attempt: Attempt) -> LeaseState:
    state = attempt.result
    assert isinstance(state, LeaseState)
    return state


# --- what it costs, and how long it lasts -------------------------------------------------------


def test_a_successor_sends_no_request() -> None:
    world, a, held, b, waiting = held_and_wanted(metadata={"job": "7"})
    asked = waiting.round_trips()
    a.start(records.release(a.client_state, held, 0.0))
    world.finish(waiting, within=LATENCY_SECONDS)
    state, (holder,) = lease_of(waiting), world.look().record.holders
    assert waiting.round_trips() == asked
    assert (holder.nonce, holder.client, holder.token) == (state.nonce, "b", state.token)
    assert (state.kind, state.mode, state.ttl, state.metadata) == ("lock", "exclusive", 30.0, {"job": "7"})
    assert set(kinds(waiting)[kinds(waiting).index(Wait) + 1 :]) == {Now}
    assert (b.wakeups, b.client_state.waiting) == ({}, {})
    assert b.client_state.leases == {state.nonce: state}


def test_it_is_counted_from_when_its_place_was_asked_for() -> None:
    """And from as much later as the engine says that it was handed over."""
    client_state = a_book()
    acquire = Driven(records.acquire(client_state, SHORT, "me", None))
    acquire.reply(Busy((), 0.0))
    acquire.now += 1.0
    acquire.reply()
    placed = acquire.now
    acquire.now += 1.0
    acquire.reply(Queued(0, 1.0, ()))
    assert isinstance(acquire.op, Wait)
    acquire.now += 1.0
    acquire.reply(Handoff(7, 1.5))
    state = acquire.result
    assert isinstance(state, LeaseState)
    assert state.token == 7
    assert state.deadline == lease_deadline(placed + 1.5 * (1.0 - DRIFT), SHORT.ttl)


def test_it_is_counted_from_its_first_place_however_often_it_looked() -> None:
    client_state = a_book()
    acquire = Driven(records.acquire(client_state, SHORT, "me", None))
    acquire.reply(Busy((), 0.0))
    acquire.reply()
    placed = acquire.now
    for woken in (True, False, True):
        acquire.reply(Queued(0, 1.0, ()))
        acquire.now += 1.0
        assert isinstance(acquire.reply(woken), Apply)
    acquire.reply(Queued(0, 1.0, ()))
    acquire.reply(Handoff(7, 0.5))
    assert isinstance(acquire.result, LeaseState)
    assert acquire.result.deadline == lease_deadline(placed + 0.5 * (1.0 - DRIFT), SHORT.ttl)


def test_a_place_whose_request_was_never_answered_counts_from_that_request() -> None:
    """It may have been there all the time."""
    client_state = a_book()
    acquire = Driven(records.acquire(client_state, SHORT, "me", None))
    acquire.reply(Busy((), 0.0))
    acquire.reply()
    placed = acquire.now
    acquire.fail(OutcomeUnknown("no answer"))
    acquire.now += 2.0
    acquire.reply()
    acquire.reply(Queued(0, 1.0, ()))
    acquire.reply(Handoff(7, 0.25))
    state = acquire.result
    assert isinstance(state, LeaseState)
    assert state.deadline == lease_deadline(placed + 0.25 * (1.0 - DRIFT), SHORT.ttl)
    assert state.uncertain, "a copy of its request may still be under way"


def test_it_is_relied_on_no_longer_than_the_engine_grants_it() -> None:
    world, a, held, b, waiting = held_and_wanted(ttl=3.0)
    b.told_after = 1.0
    a.start(records.release(a.client_state, held, 0.0))
    world.finish(waiting, within=1.1)
    (holder,) = world.look().record.holders
    assert lease_of(waiting).deadline < holder.expires_at
    assert lease_of(waiting).deadline > holder.expires_at - 0.1, "and hardly for less"


def test_it_is_renewed_and_given_back_as_any_other() -> None:
    world, a, held, b, waiting = held_and_wanted(ttl=3.0)
    a.start(records.release(a.client_state, held, 0.0))
    world.finish(waiting)
    state = lease_of(waiting)
    world.pass_time(10.0)
    assert world.holders() == [state.nonce]
    assert any(request == Renew(state.nonce, 3.0) for steps in b.tended() for _, request in steps)
    b.run(records.release(b.client_state, state, 0.0))
    assert state.reason is None
    assert world.is_free()


def test_in_a_row_of_handoffs_no_waiter_asks_twice() -> None:
    world = World(hands_over=True)
    a = world.client("a")
    held = a.acquire()
    others = [world.client(name) for name in "bcde"]
    waiting = [begin(each) for each in others]
    world.pass_time(JUST_NOW / 2)
    asked = [each.round_trips() for each in waiting]
    a.run(records.release(a.client_state, held, 0.0))
    tokens = [held.token]
    for client, each in zip(others, waiting, strict=True):
        state = lease_of(world.finish(each))
        tokens.append(state.token)
        client.run(records.release(client.client_state, state, 0.0))
    assert [each.round_trips() for each in waiting] == asked
    assert tokens == sorted(set(tokens))


# --- what is not taken ----------------------------------------------------------------------------


def test_what_comes_too_late_is_given_back_and_asked_for_as_another() -> None:
    world, a, held, b, waiting = held_and_wanted(ttl=3.0)
    b.told_after = 3.1
    b.faults = always(LOST_REQUEST, RenewBatch)  # nor does it notice it otherwise
    a.start(records.release(a.client_state, held, 0.0))
    world.finish(waiting, within=3.2)
    state = lease_of(waiting)
    first, last = waiting.asked()[-2:]
    assert isinstance(first, Acquire)
    assert isinstance(last, Acquire)
    assert first.nonce != last.nonce == state.nonce
    assert world.now < state.deadline
    b.faults = None
    world.pass_time(1.0)
    assert Release(first.nonce) in b.services["keeper"].asked()
    assert world.holders() == [state.nonce]
    assert list(b.client_state.leases) == [state.nonce]
    assert b.wakeups == {}


def test_as_another_it_is_counted_from_another_place() -> None:
    """What is handed to the second attempt has nothing to do with when the first asked."""
    client_state = a_book()
    acquire = Driven(records.acquire(client_state, SHORT, "me", None))
    acquire.reply(Busy((), 0.0))
    acquire.reply()
    acquire.reply(Queued(0, 1.0, ()))
    acquire.now += 20.0
    acquire.reply(Handoff(7, 0.5))
    assert [job.request for job in client_state.cleanup_tasks] == [Release("n1")]
    assert isinstance(acquire.op, Apply)
    assert isinstance(acquire.op.request, Acquire)
    assert (acquire.op.request.nonce, acquire.op.request.wait) == ("n2", False)
    acquire.reply(Busy((), 0.0))
    assert isinstance(acquire.op, Listen)
    acquire.now += 1.0
    acquire.reply()
    placed = acquire.now
    acquire.reply(Queued(0, 1.0, ()))
    acquire.now += 1.0
    acquire.reply(Handoff(9, 0.5))
    state = acquire.result
    assert isinstance(state, LeaseState)
    assert (state.nonce, state.token) == ("n2", 9)
    assert state.deadline == lease_deadline(placed + 0.5 * (1.0 - DRIFT), SHORT.ttl)


def test_too_late_for_its_timeout_as_well_it_ends_without() -> None:
    client_state = a_book()
    acquire = Driven(records.acquire(client_state, SHORT, "me", 15.0))
    acquire.reply(Busy((), 0.0))
    acquire.reply()
    acquire.reply(Queued(0, 1.0, ()))
    acquire.now += 20.0
    acquire.reply(Handoff(7, 0.5))
    assert isinstance(acquire.result, records.NotGranted)
    assert [job.request for job in client_state.cleanup_tasks] == [Release("n1")]
    assert client_state.leases == {}


@pytest.mark.parametrize("order", ["in order", "the other way round"])
def test_a_wake_up_that_brings_nothing_asks_it_to_look(order: str) -> None:
    """What was handed over was taken away again before it knew; by another, whose message may come first."""
    world, a, held, b, waiting = held_and_wanted()
    (nonce,) = b.wakeups
    b.deaf = True
    a.run(records.release(a.client_state, held, 0.0))
    (heir,) = world.look().record.holders
    assert heir.nonce == nonce
    a.run(records.break_lock(a.client_state, "x", None, "because"))
    asked = waiting.round_trips()
    messages = [Handoff(heir.token, 0.02), None]
    for handed in messages if order == "in order" else reversed(messages):
        b.post(nonce, handed)
    world.finish(waiting)
    assert waiting.round_trips() > asked
    with pytest.raises(HoldfastError, match="it is broken"):
        _ = waiting.result
    assert b.client_state.leases == {}


def test_a_waiter_that_looked_believes_a_later_handoff() -> None:
    world, a, held, b, waiting = held_and_wanted()
    (nonce,) = b.wakeups
    b.post(nonce)
    world.pass_time(2 * LATENCY_SECONDS)
    assert kinds(waiting)[-1] is Wait
    asked = waiting.round_trips()
    a.start(records.release(a.client_state, held, 0.0))
    world.finish(waiting, within=LATENCY_SECONDS)
    assert waiting.round_trips() == asked
    assert world.holders() == [lease_of(waiting).nonce]


@pytest.mark.parametrize("age", [2.5, 1e9, float("inf"), float("nan")])
def test_an_age_that_cannot_be_does_not_make_it_last_longer(age: float) -> None:
    """The engine's clock was set between the place and the grant."""
    acquire = Driven(records.acquire(a_book(), SHORT, "me", None))
    acquire.reply(Busy((), 0.0))
    acquire.reply()
    placed = acquire.now
    acquire.reply(Queued(0, 1.0, ()))
    acquire.now += 2.0
    acquire.reply(Handoff(7, age))
    assert isinstance(acquire.result, LeaseState)
    assert acquire.result.deadline == lease_deadline(placed, SHORT.ttl)


def test_an_age_below_nothing_makes_it_last_less_long() -> None:
    acquire = Driven(records.acquire(a_book(), SHORT, "me", None))
    acquire.reply(Busy((), 0.0))
    acquire.reply()
    placed = acquire.now
    acquire.reply(Queued(0, 1.0, ()))
    acquire.reply(Handoff(7, -1.0))
    assert isinstance(acquire.result, LeaseState)
    assert acquire.result.deadline <= lease_deadline(placed, SHORT.ttl)


def test_a_client_that_was_closed_meanwhile_gives_it_back() -> None:
    world, a, held, b, waiting = held_and_wanted()
    (nonce,) = b.wakeups
    b.told_after = 0.01
    a.run(records.release(a.client_state, held, 0.0))
    assert world.holders() == [nonce]
    b.client_state.closed = True
    world.finish(waiting)
    with pytest.raises(HoldfastError, match="closed"):
        _ = waiting.result
    assert isinstance(waiting.asked()[-1], Withdraw)
    assert world.is_free()
    assert (b.client_state.leases, b.client_state.waiting) == ({}, {})


def test_copies_of_the_request_for_it_are_refused_once_it_was_given_back() -> None:
    """One is under way for longer than all of this takes."""
    world = World(hands_over=True)
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    waiting = b.start(records.acquire(b.client_state, SPEC, "o", None), once(late_copy(8.0), Acquire))
    world.pass_time(JUST_NOW)
    a.start(records.release(a.client_state, held, 0.0))
    world.finish(waiting, within=1.1)
    b.run(records.release(b.client_state, lease_of(waiting), 0.0))
    world.pass_time(10.0)
    assert world.is_free()


# --- interrupts -----------------------------------------------------------------------------------


def handed_over(world: World) -> Attempt:
    """It tries, queues, and is woken with the lock."""
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    task = begin(b)
    world.at(world.now + JUST_NOW, lambda: void(a.start(records.release(a.client_state, held, 0.0))))
    return task


def handed_over_too_late(world: World) -> Attempt:
    """The same, but it is notified when that is over, and then has to ask anew."""
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    b.told_after = 3.1
    b.faults = once(LOST_REQUEST, RenewBatch, times=3)
    task = begin(b, ttl=3.0)
    world.at(world.now + JUST_NOW, lambda: void(a.start(records.release(a.client_state, held, 0.0))))
    return task


STORIES = {f.__name__: f for f in (handed_over, handed_over_too_late)}


def length(story: str) -> int:
    world = World(hands_over=True)
    return len(world.finish(STORIES[story](world)).ops)


def nothing_is_left(world: World, reported: str) -> None:
    b = world.clients["b"]
    assert not [n for n in world.holders() + world.queue() if n.startswith("b")], reported
    assert (b.client_state.leases, b.client_state.waiting, list(b.client_state.cleanup_tasks)) == (
        {},
        {},
        [],
    ), reported
    assert len(b.wakeups) <= 1, reported


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("story", STORIES)
def test_an_interrupt_at_any_operation_leaves_nothing(story: str, after: bool) -> None:
    for index in range(length(story)):
        world = World(hands_over=True)
        task = STORIES[story](world)
        task.interrupt_at, task.interrupt_after = index, after
        world.finish(task)
        with pytest.raises(KeyboardInterrupt):
            _ = task.result
        world.pass_time(10.0)
        nothing_is_left(world, f"interrupted at {index}: {task.ops[index]}")


@pytest.mark.parametrize("told_after", [0.001, 1.0], ids=["at once", "later"])
def test_an_interrupt_just_as_it_is_handed_over_leaves_nothing(told_after: float) -> None:
    """The message is under way to one who does not wait any more."""
    world, a, held, b, waiting = held_and_wanted()
    b.told_after = told_after
    a.run(records.release(a.client_state, held, 0.0))
    assert world.holders() == list(b.wakeups)
    world.interrupt(waiting)
    world.finish(waiting)
    with pytest.raises(KeyboardInterrupt):
        _ = waiting.result
    world.pass_time(10.0)
    nothing_is_left(world, "interrupted while it waited")


def test_a_grant_that_is_found_out_counts_as_ever() -> None:
    """A waiter without the wake-up asks, and the reply has the age of the grant."""
    world, a, held, b, waiting = held_and_wanted(ttl=10.0)
    b.deaf = True
    a.start(records.release(a.client_state, held, 0.0))
    world.finish(waiting, within=2.0)
    (holder,) = world.look().record.holders
    state = lease_of(waiting)
    assert (holder.nonce, holder.token) == (state.nonce, state.token)
    assert state.deadline <= holder.expires_at
