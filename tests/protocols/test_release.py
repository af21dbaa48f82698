"""Giving back: uncertain answers, failures, interrupts."""

from __future__ import annotations

import pytest

from holdfast.errors import EngineUnavailable
from holdfast.protocols import records
from holdfast.rules.requests import Acquire, Break, Release
from protocols.driver import (
    IO_TIMEOUT_SECONDS,
    LOST_REPLY,
    LOST_REQUEST,
    REFUSED,
    Fault,
    Task,
    World,
    always,
    late_copy,
    once,
)


def test_it_is_one_round_trip() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    task = world.finish(a.start(records.release(a.client_state, state, 5.0)))
    assert task.round_trips() == 1
    assert (state.ended, state.reason, a.client_state.leases) == ("released", None, {})
    assert world.is_free()


def test_a_reply_that_was_lost_is_asked_for_again_and_counts_as_released() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    a.run(records.release(a.client_state, state, 5.0), once(LOST_REPLY, Release))
    assert (state.ended, state.reason) == ("released", None)
    assert a.signals == []


@pytest.mark.parametrize("fault", [REFUSED, LOST_REQUEST, LOST_REPLY], ids=["refused", "request", "reply"])
def test_after_a_failure_it_can_be_called_again(fault: Fault) -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    started = world.now
    task = world.finish(a.start(records.release(a.client_state, state, IO_TIMEOUT_SECONDS), always(fault)))
    with pytest.raises(EngineUnavailable):
        _ = task.result
    assert task.ended_at - started <= IO_TIMEOUT_SECONDS + 0.1
    assert state.nonce in a.client_state.leases, "it is not over"
    a.run(records.release(a.client_state, state, IO_TIMEOUT_SECONDS))
    assert (state.ended, state.reason) == ("released", None)
    assert world.is_free()


def test_what_failed_to_be_released_is_not_renewed_and_runs_out() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    a.faults = always(REFUSED)
    with pytest.raises(EngineUnavailable):
        a.run(records.release(a.client_state, state, 0.0))
    a.faults = None
    world.pass_time(29.0)
    assert a.tended() == []
    world.pass_time(2.0)
    assert world.is_free()
    assert len(a.signals) == 1


def test_what_is_gone_is_reported() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    state = a.acquire()
    a.deaf = True
    b.run(records.break_lock(b.client_state, "x", None, "stuck"))
    a.run(records.release(a.client_state, state, 0.0))
    assert (state.ended, state.reason, state.note) == (None, "broken", "stuck")
    assert len(a.signals) == 1


def test_a_break_is_reported_even_if_a_release_may_have_happened() -> None:
    """Had the release come first, there would have been nothing to break."""
    world = World()
    a, b = world.client("a"), world.client("b")
    state = a.acquire()
    a.deaf = True
    with pytest.raises(EngineUnavailable):
        a.run(records.release(a.client_state, state, 0.0), once(LOST_REQUEST, Release))
    b.run(records.break_lock(b.client_state, "x", None, "stuck"))
    a.run(records.release(a.client_state, state, 5.0))
    assert state.reason == "broken"


def test_a_release_never_touches_the_next_holder() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    state = a.acquire()
    a.deaf = True
    b.run(records.break_lock(b.client_state, "x", None, "stuck"))
    taken = b.acquire()
    a.run(records.release(a.client_state, state, 0.0))
    assert world.holders() == [taken.nonce]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("times", [0, 1])
def test_an_interrupt_at_any_operation_still_gives_it_back(times: int, after: bool) -> None:
    def begin(world: World) -> Task[None]:
        a = world.client("a")
        return a.start(records.release(a.client_state, a.acquire(), 5.0), once(LOST_REQUEST, Release, times))

    world = World()
    for index in range(len(world.finish(begin(world)).ops)):
        world = World()
        task = begin(world)
        task.interrupt_at, task.interrupt_after = index, after
        world.finish(task)
        with pytest.raises(KeyboardInterrupt):
            _ = task.result
        world.pass_time(5.0)
        assert world.is_free()
        assert world.clients["a"].signals == []


def test_a_late_copy_of_the_request_is_refused_after_the_release() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire(timeout=None, faults=once(late_copy(20.0), Acquire))
    a.run(records.release(a.client_state, state, 0.0))
    b = world.client("b")
    taken = b.acquire()
    world.pass_time(21.0)
    assert world.holders() == [taken.nonce]
    b.run(records.release(b.client_state, taken, 0.0))
    world.pass_time(1.0)
    assert world.is_free()


def test_one_that_nobody_can_reach_runs_out() -> None:
    world = World()
    a = world.client("a")
    state = a.acquire()
    world.pass_time(25.0)
    assert a.tended()
    records.dropped(a.client_state, state)
    world.pass_time(31.0)
    assert world.is_free()
    assert (state.ended, a.signals) == ("dropped", [])


def test_breaking_is_not_repeated_when_it_may_have_happened() -> None:
    """A second try would break the next holder, who did nothing wrong."""
    world = World()
    a, b, c = (world.client(name) for name in "abc")
    a.acquire()
    task = c.start(records.break_lock(c.client_state, "x", None, "stuck"), once(LOST_REPLY, Break))
    world.pass_time(0.0025)
    taken = b.acquire()
    world.finish(task)
    with pytest.raises(EngineUnavailable, match="may have been broken"):
        _ = task.result
    assert world.holders() == [taken.nonce]


def test_breaking_is_repeated_when_it_was_refused() -> None:
    world = World()
    a, c = world.client("a"), world.client("c")
    state = a.acquire()
    token = c.run(
        records.break_lock(c.client_state, "x", state.token, "stuck"), once(REFUSED, Break, times=3)
    )
    assert token is not None
    assert token > state.token
    world.pass_time(0.1)
    assert (state.reason, len(a.signals)) == ("broken", 1)


def test_an_interrupt_at_the_end_of_an_abandoned_lease_does_not_lose_its_release() -> None:
    """The report of the end is the first thing that Python calls then, so this is where an interrupt
    comes."""
    world = World()
    a = world.client("a")
    state = a.acquire()

    def interrupt() -> None:
        raise KeyboardInterrupt

    state.end_callbacks.append(interrupt)
    task = world.finish(a.start(records.abandon(a.client_state, state)))
    with pytest.raises(KeyboardInterrupt):
        _ = task.result
    world.pass_time(1.0)
    assert world.is_free()
