"""Acquiring, with everything that can go wrong on the way."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.deadlines import lease_deadline
from holdfast.core.effects import Apply, Effect, Listen, Nonce, Now, Unlisten, Wait
from holdfast.errors import EngineUnavailable, InvalidArgument
from holdfast.protocols import records
from holdfast.protocols.client_state import LeaseState
from holdfast.rules.requests import Acquire, Release, Renew, Withdraw
from protocols.driver import (
    DOWN,
    IO_TIMEOUT_SECONDS,
    LATENCY_SECONDS,
    LOST_REPLY,
    LOST_REQUEST,
    REFUSED,
    SPEC,
    Client,
    Fault,
    Task,
    World,
    a_spec,
    always,
    late_copy,
    once,
    slow_reply,
)

SECOND_HAND = 1.0 + 0.1
"""How much longer than its timeout an acquire may take that has to have its attempt withdrawn."""

Attempt = Task[LeaseState | records.NotGranted]


def begin(client: Client, timeout: float | None = None, **changes: Any) -> Attempt:
    return client.start(
        records.acquire(client.client_state, a_spec(**changes), f"host/1/{client.name}", timeout)
    )


def kinds(task: Task[Any]) -> list[type]:
    return [type(op) for op in task.ops]


# --- what it costs ----------------------------------------------------------------------------


def test_uncontended_it_is_one_round_trip() -> None:
    world = World()
    a = world.client("a")
    task = world.finish(begin(a))
    assert kinds(task) == [Nonce, Now, Apply, Now]
    assert task.round_trips() == 1
    state = task.result
    assert isinstance(state, LeaseState)
    assert world.holders() == [state.nonce]


def test_the_deadline_is_counted_from_before_the_request() -> None:
    world = World()
    sent = world.now
    state = world.client("a").acquire(faults=once(slow_reply(2.0)))
    assert state.deadline == lease_deadline(sent, SPEC.ttl)
    assert state.deadline < world.look().record.holders[0].expires_at


def test_contended_it_listens_before_it_queues_and_is_woken_by_the_release() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    waiting = begin(b)
    world.pass_time(0.5)
    assert kinds(waiting) == [Nonce, Now, Apply, Now, Listen, Now, Apply, Now, Wait]
    assert [ask.wait for ask in waiting.asked() if isinstance(ask, Acquire)] == [False, True]
    a.run(records.release(a.client_state, held, 0.0))
    released_at = world.now
    world.finish(waiting)
    assert waiting.ended_at - released_at <= 2 * LATENCY_SECONDS
    assert kinds(waiting)[9:] == [Now, Apply, Now, Unlisten]
    assert (b.wakeups, b.client_state.waiting) == ({}, {})


def test_a_release_between_the_try_and_the_queue_is_not_missed() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    waiting = begin(b)
    while not any(isinstance(op, Listen) for op in waiting.ops):
        world._go_on(world.now + 1.0)
    a.start(records.release(a.client_state, held, 0.0))
    world.finish(waiting, within=0.1)


def test_a_try_asks_once_and_leaves_nothing() -> None:
    world = World()
    world.client("a").acquire()
    before = world.records["x"]
    task = world.finish(begin(world.client("b"), timeout=0.0))
    assert isinstance(task.result, records.NotGranted)
    assert [h.client for h in task.result.holders] == ["a"]
    assert task.round_trips() == 1
    assert world.records["x"] is before


def test_a_lost_wake_up_costs_a_second_or_so() -> None:
    """The keeper's refresh brings back that the turn has come."""
    world = World()
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    waiting = begin(b)
    world.pass_time(0.5)
    b.deaf = True
    a.run(records.release(a.client_state, held, 0.0))
    world.finish(waiting, within=1.1)


def test_a_killed_holder_costs_its_remaining_ttl_not_ours() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    a.acquire(a_spec(ttl=3.0))
    waiting = begin(b, ttl=300.0)
    world.pass_time(0.1)
    a.die()
    world.finish(waiting, within=3.0 + 1.1)


def test_waiting_longer_than_the_ttl_keeps_the_place() -> None:
    world = World()
    a, b, c = (world.client(name) for name in "abc")
    held = a.acquire(a_spec(ttl=3.0))
    first = begin(b, ttl=3.0)
    world.pass_time(0.1)
    second = begin(c, ttl=3.0)
    world.pass_time(40.0)
    a.run(records.release(a.client_state, held, 0.0))
    world.finish(first)
    assert not second.done


# --- the time it takes ------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [0.0, 0.003, 0.5, 3.0, 12.0])
def test_not_granted_in_time_nothing_stays(timeout: float) -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    a.acquire()
    started = world.now
    task = world.finish(begin(b, timeout))
    assert isinstance(task.result, records.NotGranted)
    assert timeout <= task.ended_at - started <= timeout + 4 * LATENCY_SECONDS
    assert world.queue() == []
    assert (b.wakeups, b.client_state.waiting, list(b.client_state.cleanup_tasks)) == ({}, {}, [])


FAILURES = {
    "refused": REFUSED,
    "request lost": LOST_REQUEST,
    "reply lost": LOST_REPLY,
    "late": late_copy(2.0),
    "slow": slow_reply(1.0),
    "slower than the ttl": slow_reply(7.0),
}


@pytest.mark.parametrize("held", [True, False], ids=["held", "free"])
@pytest.mark.parametrize("timeout", [0.0, 0.5, 8.0])
@pytest.mark.parametrize("failure", FAILURES)
def test_the_wait_is_bounded_whatever_fails(failure: str, timeout: float, held: bool) -> None:
    """One request more than the timeout may be under way, and then a second for the withdrawal."""
    world = World()
    a, b = world.client("a"), world.client("b")
    if held:
        a.acquire()
    fault = FAILURES[failure]
    started = world.now
    b.faults = always(fault, Acquire)
    task = begin(b, timeout, ttl=5.0)
    last = fault.answered_in or LATENCY_SECONDS
    world.finish(task, within=max(timeout, last) + last + SECOND_HAND)
    assert task.ended_at - started <= max(timeout, last) + last + SECOND_HAND
    b.faults = None
    if task.error is not None:
        assert isinstance(task.error, EngineUnavailable)
    elif isinstance(task.result, LeaseState):
        b.run(records.release(b.client_state, task.result, 5.0))
    world.pass_time(3.0)
    assert world.queue() == []
    assert [h.client for h in world.look().record.holders] == (["a"] if held else [])


@pytest.mark.parametrize("fault", [REFUSED, LOST_REQUEST, LOST_REPLY], ids=["refused", "request", "reply"])
def test_an_engine_that_is_never_reached_is_reported_after_io_timeout(fault: Fault) -> None:
    world = World()
    b = world.client("b")
    b.faults = always(fault)
    started = world.now
    task = world.finish(begin(b, timeout=60.0))
    with pytest.raises(EngineUnavailable):
        _ = task.result
    assert IO_TIMEOUT_SECONDS <= task.ended_at - started <= IO_TIMEOUT_SECONDS + SECOND_HAND


def test_an_engine_that_is_down_for_good_is_reported_at_once() -> None:
    world = World()
    task = world.finish(
        world.client("b").start(
            records.acquire(world.clients["b"].client_state, SPEC, "o", None), always(DOWN)
        )
    )
    with pytest.raises(EngineUnavailable, match="for good"):
        _ = task.result
    assert task.ended_at - 1000.0 <= SECOND_HAND


def test_once_queued_it_outlasts_the_engine() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    held = a.acquire(a_spec(ttl=300.0))
    waiting = begin(b)
    world.pass_time(0.5)
    b.faults = always(REFUSED)
    world.pass_time(60.0)
    assert not waiting.done
    b.faults = None
    a.run(records.release(a.client_state, held, 0.0))
    world.finish(waiting, within=2.0)


def test_once_queued_it_outlasts_the_engine_until_the_timeout() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    a.acquire(a_spec(ttl=300.0))
    started = world.now
    waiting = begin(b, timeout=20.0)
    world.pass_time(0.5)
    b.faults = always(REFUSED)
    world.finish(waiting)
    assert 20.0 <= waiting.ended_at - started <= 20.0 + SECOND_HAND


# --- unknown outcomes -------------------------------------------------------------------------


def test_a_grant_whose_reply_was_lost_recognises_itself() -> None:
    world = World()
    a = world.client("a")
    sent = world.now
    task = a.start(records.acquire(a.client_state, SPEC, "o", None), once(LOST_REPLY, Acquire))
    state = world.finish(task).result
    assert isinstance(state, LeaseState)
    first, second = task.asked()
    assert first == second
    assert world.look().record.token == state.token, "one number was minted, not two"
    assert state.deadline == lease_deadline(sent, SPEC.ttl), "counted from the first request"
    a.run(records.release(a.client_state, state, 0.0))
    assert world.holders() == []


def test_a_copy_that_arrives_after_the_release_is_refused() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire(timeout=None, faults=once(late_copy(8.0), Acquire))
    a.run(records.release(a.client_state, state, 0.0))
    world.pass_time(10.0)
    assert world.is_free()


def test_a_copy_that_arrives_after_giving_up_is_refused() -> None:
    """The first request is still in flight, the reply to the second is Busy, and then time is up."""
    world = World()
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    task = b.start(records.acquire(b.client_state, SPEC, "o", 0.005), once(late_copy(8.0), Acquire))
    assert isinstance(world.finish(task).result, records.NotGranted)
    a.run(records.release(a.client_state, held, 0.0))
    world.pass_time(10.0)
    assert world.is_free()


def test_a_copy_granted_behind_our_back_is_not_relied_on_for_too_long() -> None:
    """A copy that was thought lost is granted while we wait: nobody knows when."""
    world = World()
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    b.deaf = True
    task = b.start(
        records.acquire(b.client_state, a_spec(ttl=10.0), "o", None), once(late_copy(2.5), Acquire)
    )
    world.pass_time(2.0)
    a.run(records.release(a.client_state, held, 0.0))
    state = world.finish(task).result
    assert isinstance(state, LeaseState)
    assert state.deadline <= world.look().record.holders[0].expires_at


def test_a_grant_that_came_after_its_own_deadline_is_not_used() -> None:
    world = World()
    a = world.client("a")
    task = a.start(
        records.acquire(a.client_state, a_spec(ttl=3.0), "o", None), once(slow_reply(3.5), Acquire)
    )
    state = world.finish(task).result
    assert isinstance(state, LeaseState)
    world.pass_time(0.1)
    assert world.now < state.deadline
    first, second = (ask for ask in task.asked() if isinstance(ask, Acquire))
    assert first.nonce != second.nonce == state.nonce
    assert world.holders() == [state.nonce]


def test_grants_that_always_come_too_late_end_with_the_timeout() -> None:
    world = World()
    a = world.client("a")
    a.faults = always(slow_reply(4.0), Acquire)
    task = begin(a, timeout=10.0, ttl=3.0)
    world.finish(task, within=10.0 + 4.0 + SECOND_HAND)
    assert isinstance(task.result, records.NotGranted)
    world.pass_time(5.0)
    assert world.is_free()


def test_a_name_of_another_kind_is_refused() -> None:
    world = World()
    a = world.client("a")
    a.run(records.release(a.client_state, a.acquire(), 0.0))
    with pytest.raises(InvalidArgument, match="a name has one kind"):
        a.acquire(a_spec(kind="rwlock", mode="write"))
    assert world.is_free()


# --- interrupts -------------------------------------------------------------------------------


def contended(world: World) -> Attempt:
    """It tries, queues, is woken, is granted."""
    a, b = world.client("a"), world.client("b")
    held = a.acquire()
    task = begin(b)
    world.at(world.now + 2.5, lambda: void(a.start(records.release(a.client_state, held, 0.0))))
    return task


def uncontended(world: World) -> Attempt:
    return begin(world.client("b"))


def troubled(world: World) -> Attempt:
    b = world.client("b")
    return b.start(records.acquire(b.client_state, SPEC, "o", None), once(LOST_REPLY, Acquire, times=2))


def timed_out(world: World) -> Attempt:
    world.client("a").acquire(a_spec(ttl=100.0))
    return begin(world.client("b"), timeout=2.5)


def void(_: object) -> None:
    """An alarm returns nothing."""


STORIES = {f.__name__: f for f in (uncontended, contended, troubled, timed_out)}


def length(story: str) -> int:
    world = World()
    return len(world.finish(STORIES[story](world)).ops)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("story", STORIES)
def test_an_interrupt_at_any_operation_leaves_nothing(story: str, after: bool) -> None:
    for index in range(length(story)):
        world = World()
        task = STORIES[story](world)
        task.interrupt_at, task.interrupt_after = index, after
        world.finish(task)
        with pytest.raises(KeyboardInterrupt):
            _ = task.result
        world.pass_time(10.0)
        b = world.clients["b"]
        reported = f"interrupted at {index}: {task.ops[index]}"
        assert not [n for n in world.holders() + world.queue() if n.startswith("b")], reported
        assert (b.client_state.leases, b.client_state.waiting, list(b.client_state.cleanup_tasks)) == (
            {},
            {},
            [],
        ), reported
        assert len(b.wakeups) <= 1, reported


@pytest.mark.parametrize("story", STORIES)
def test_an_interrupt_with_the_network_gone_does_not_hang_and_the_keeper_cleans_up_later(story: str) -> None:
    for index in range(length(story)):
        world = World()
        task = STORIES[story](world)
        task.interrupt_at, task.interrupt_after = index, True
        while len(task.ops) <= index and not task.done:
            world._go_on(world.now + 100.0)
        interrupted_at = world.now
        b = world.clients["b"]
        b.faults = always(LOST_REQUEST)
        world.finish(task)
        with pytest.raises(KeyboardInterrupt):
            _ = task.result
        assert task.ended_at - interrupted_at <= SECOND_HAND, f"hung at {task.ops[index]}"
        world.pass_time(5.0)
        b.faults = None
        world.pass_time(5.0)
        assert not [n for n in world.holders() + world.queue() if n.startswith("b")], task.ops[index]


@pytest.mark.parametrize("story", STORIES)
def test_a_second_interrupt_while_cleaning_up_still_leaves_nothing(story: str) -> None:
    for first in range(length(story)):
        for second in range(first + 1, first + 6):
            world = World()
            task = STORIES[story](world)
            task.interrupt_at, task.interrupt_after = first, True
            while len(task.ops) <= first and not task.done:
                world._go_on(world.now + 100.0)
            world._go_on(world.now)
            task.interrupt_at = second
            world.finish(task)
            with pytest.raises(KeyboardInterrupt):
                _ = task.result
            world.pass_time(10.0)
            reported = f"interrupted at {task.ops[first]} and again at {task.ops[second : second + 1]}"
            assert not [n for n in world.holders() + world.queue() if n.startswith("b")], reported


def test_failures_while_cleaning_up_do_not_mask_the_interrupt() -> None:
    def faults(op: Effect) -> Fault | None:
        return REFUSED if isinstance(op, Apply) and isinstance(op.request, Withdraw | Release) else None

    world = World()
    task = contended(world)
    world.clients["b"].faults = faults
    world.pass_time(1.0)
    task.interrupt_at = len(task.ops)
    world.finish(task)
    with pytest.raises(KeyboardInterrupt):
        _ = task.result


def test_an_attempt_under_way_that_is_given_up_is_never_renewed() -> None:
    world = World()
    task = uncontended(world)
    task.interrupt_at, task.interrupt_after = 2, True
    world.finish(task)
    world.pass_time(60.0)
    assert not any(
        isinstance(request, Renew) for steps in world.clients["b"].tended() for _, request in steps
    )
