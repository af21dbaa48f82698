"""What locks mean to those who use them: who may release, re-entry, leaving ``with``."""

from __future__ import annotations

import logging
import weakref
from typing import Any

import pytest

from holdfast.core.arguments import Spec
from holdfast.errors import EngineUnavailable, LockLost, LockTimeout, NotHeld
from holdfast.protocols import locks, records
from holdfast.protocols.client_state import LeaseState
from holdfast.protocols.locks import LockCore, ReentrantCore
from holdfast.rules.requests import Acquire, Release
from protocols.driver import (
    LOST_REPLY,
    LOST_REQUEST,
    REFUSED,
    SPEC,
    Client,
    Task,
    World,
    a_spec,
    always,
    once,
)


class Lease:
    """What a facade makes of a grant."""

    def __init__(self, state: LeaseState) -> None:
        self._state = state


class Who:
    """A thread or a task."""

    def __init__(self) -> None:
        self.ref: weakref.ref[Any] = weakref.ref(self)


def a_lock(client: Client, spec: Spec = SPEC) -> LockCore[Lease]:
    return LockCore(client.client_state, spec, Lease)


def an_rlock(client: Client, spec: Spec = SPEC) -> ReentrantCore[Lease]:
    return ReentrantCore(client.client_state, spec, Lease)


def take(client: Client, core: LockCore[Lease], caller: Who) -> Lease:
    lease = client.run(locks.acquire(core, caller.ref, "host/1/t", None))
    assert lease is not None
    return lease


def give(client: Client, core: LockCore[Lease], caller: Who) -> None:
    client.run(locks.release(core, caller.ref))


# --- who may release --------------------------------------------------------------------------


def test_a_plain_lock_is_released_by_any_thread_and_once() -> None:
    world = World()
    a = world.client("a")
    core, one, other = a_lock(a), Who(), Who()
    take(a, core, one)
    give(a, core, other)
    assert world.is_free()
    for caller in (one, other):
        with pytest.raises(NotHeld):
            give(a, core, caller)


def test_a_release_concerns_the_callers_own_lease_first_even_a_lost_one() -> None:
    """Two threads share a lock object; the first one's lease was lost, the second one's is held."""
    world = World()
    a = world.client("a")
    core, one, other = a_lock(a), Who(), Who()
    take(a, core, one)
    a.run(records.break_lock(a.client_state, "x", None, "stuck"))
    mine = take(a, core, other)
    with pytest.raises(LockLost, match="stuck"):
        give(a, core, one)
    world.pass_time(1.0)
    assert world.holders() == [mine._state.nonce], "the second one's is untouched"
    give(a, core, other)
    assert world.is_free()


def test_a_second_acquire_by_the_same_thread_waits() -> None:
    world = World()
    a = world.client("a")
    core, caller = a_lock(a), Who()
    take(a, core, caller)
    assert a.run(locks.acquire(core, caller.ref, "o", 0.0)) is None


def test_a_release_that_failed_can_be_called_again() -> None:
    world = World()
    a = world.client("a")
    for core in (a_lock(a), an_rlock(a)):
        caller = Who()
        lease = take(a, core, caller)
        a.faults = always(LOST_REPLY, Release)
        with pytest.raises(EngineUnavailable):
            give(a, core, caller)
        a.faults = None
        assert core.current() is lease
        give(a, core, caller)
        assert world.is_free()
        with pytest.raises(NotHeld):
            give(a, core, caller)


def test_several_permits_are_given_back_or_none() -> None:
    world = World()
    a = world.client("a")
    core, caller = a_lock(a, a_spec(kind="semaphore", mode="permit", limit=3)), Who()
    for _ in range(3):
        take(a, core, caller)
    with pytest.raises(NotHeld, match=r"release\(4\)"):
        a.run(locks.release_many(core, caller.ref, 4))
    assert len(world.holders()) == 3
    a.run(locks.release_many(core, Who().ref, 2))
    assert len(world.holders()) == 1


def test_a_lease_that_was_given_back_is_not_held() -> None:
    world = World()
    a = world.client("a")
    core, caller = a_lock(a), Who()
    lease = take(a, core, caller)
    a.run(locks.release_lease(a.client_state, lease._state))
    assert core.current() is None
    with pytest.raises(NotHeld, match="released already"):
        locks.check(lease._state, world.now)
    with pytest.raises(NotHeld):
        give(a, core, caller)
    for script in (
        locks.extend(a.client_state, lease._state, 5.0),
        locks.set_value(a.client_state, lease._state, b"", 1.0),
        locks.export(a.client_state, lease._state),
    ):
        with pytest.raises(NotHeld):
            a.run(script)


# --- re-entry ---------------------------------------------------------------------------------


def test_re_entry_costs_no_round_trip_and_gives_the_same_lease() -> None:
    world = World()
    a = world.client("a")
    core, caller = an_rlock(a), Who()
    first = take(a, core, caller)
    again = world.finish(a.start(locks.acquire(core, caller.ref, "o", None)))
    assert again.result is first
    assert again.round_trips() == 0
    give(a, core, caller)
    assert world.holders() == [first._state.nonce]
    give(a, core, caller)
    assert world.is_free()
    with pytest.raises(NotHeld):
        give(a, core, caller)


def test_re_entry_is_through_whichever_object() -> None:
    world = World()
    a = world.client("a")
    one, other, caller = an_rlock(a), an_rlock(a), Who()
    assert take(a, one, caller) is take(a, other, caller)
    give(a, one, caller)
    assert not world.is_free()
    give(a, other, caller)
    assert world.is_free()


def test_others_neither_re_enter_nor_release() -> None:
    world = World()
    a = world.client("a")
    core, caller, stranger = an_rlock(a), Who(), Who()
    take(a, core, caller)
    assert a.run(locks.acquire(core, stranger.ref, "o", 0.0)) is None
    with pytest.raises(NotHeld):
        give(a, core, stranger)
    assert a.run(locks.acquire(an_rlock(a), stranger.ref, "o", 0.0)) is None


def test_a_thread_with_the_id_of_a_dead_one_does_not_re_enter() -> None:
    world = World()
    a = world.client("a")
    core, caller = an_rlock(a), Who()
    take(a, core, caller)
    ref = caller.ref
    del caller
    assert ref() is None
    assert a.run(locks.acquire(core, Who().ref, "o", 0.0)) is None


def test_re_entry_of_a_lost_lease_is_reported() -> None:
    world = World()
    a = world.client("a")
    core, caller = an_rlock(a), Who()
    take(a, core, caller)
    a.run(records.break_lock(a.client_state, "x", None, "stuck"))
    world.pass_time(0.1)
    with pytest.raises(LockLost, match="stuck"):
        take(a, core, caller)
    with pytest.raises(LockLost):
        give(a, core, caller)
    take(a, core, caller)
    give(a, core, caller)
    assert world.is_free()


# --- with -------------------------------------------------------------------------------------


def enter(client: Client, core: LockCore[Lease], caller: Who) -> Lease:
    return client.run(locks.enter(core, caller.ref, "host/1/t"))


def leave(
    client: Client, core: LockCore[Lease], caller: Who, error: BaseException | None = None
) -> Task[None]:
    return client.world.finish(client.start(locks.leave(core, caller.ref, error)))


def test_not_granted_in_time_the_body_never_runs() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    taken = take(a, a_lock(a), Who())
    core = a_lock(b, a_spec(timeout=2.0))
    with pytest.raises(LockTimeout, match="not granted in 2 s: held by host/1/t") as refusal:
        enter(b, core, Who())
    assert [h.token for h in refusal.value.holders] == [taken._state.token]
    assert world.queue() == []


def test_leaving_gives_back_this_entrys_lease() -> None:
    world = World()
    a = world.client("a")
    core, caller = a_lock(a), Who()
    enter(a, core, caller)
    assert leave(a, core, caller).error is None
    assert world.is_free()
    assert isinstance(leave(a, core, caller).error, NotHeld)


@pytest.mark.parametrize("fault", [REFUSED, LOST_REQUEST, LOST_REPLY], ids=["refused", "request", "reply"])
def test_leaving_with_the_engine_gone_is_logged_and_handed_over(
    fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    a = world.client("a")
    core, caller = a_lock(a), Who()
    enter(a, core, caller)
    a.faults = always(fault)
    started = world.now
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert leave(a, core, caller).error is None, "the body ended while it was held"
    assert world.now - started <= 0.1
    assert "tried again in the background" in caplog.text
    a.faults = None
    world.pass_time(1.0)
    assert world.is_free()
    assert a.signals == []


def test_a_loss_on_the_way_is_raised_at_the_end() -> None:
    world = World()
    a = world.client("a")
    core, caller = a_lock(a), Who()
    enter(a, core, caller)
    a.faults = always(REFUSED)
    world.pass_time(40.0)
    assert isinstance(leave(a, core, caller).error, LockLost)


def test_the_bodys_own_error_wins_and_gets_a_note() -> None:
    world = World()
    a = world.client("a")
    core, caller = a_lock(a), Who()
    enter(a, core, caller)
    a.run(records.break_lock(a.client_state, "x", None, "stuck"))
    world.pass_time(0.1)
    error = ValueError("of the body")
    assert leave(a, core, caller, error).error is None
    assert "was lost" in error.__notes__[0]


def test_a_loss_that_is_only_to_be_noted_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    a = world.client("a")
    core, caller = a_lock(a, a_spec(if_lost="note")), Who()
    enter(a, core, caller)
    a.run(records.break_lock(a.client_state, "x", None, "stuck"))
    world.pass_time(0.1)
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert leave(a, core, caller).error is None
    assert "stuck" in caplog.text


def test_what_was_released_inside_ends_quietly() -> None:
    world = World()
    a = world.client("a")
    for error in (None, ValueError("of the body")):
        core, caller = a_lock(a), Who()
        enter(a, core, caller)
        give(a, core, caller)
        left = leave(a, core, caller, error).error
        assert left is None


def test_an_inner_with_of_a_lost_lease_tells_it_too() -> None:
    world = World()
    a = world.client("a")
    core, caller = an_rlock(a), Who()
    enter(a, core, caller)
    enter(a, core, caller)
    a.run(records.break_lock(a.client_state, "x", None, "stuck"))
    world.pass_time(0.1)
    inner = leave(a, core, caller).error
    assert isinstance(inner, LockLost)
    assert leave(a, core, caller, inner).error is None
    assert inner.__notes__


def test_a_lease_that_was_downgraded_inside_is_given_back_at_the_end() -> None:
    world = World()
    a = world.client("a")
    core, caller = a_lock(a, a_spec(kind="rwlock", mode="write")), Who()
    lease = enter(a, core, caller)
    a.run(locks.downgrade(a.client_state, lease._state, lambda state: state))
    assert leave(a, core, caller).error is None
    assert world.is_free()


def test_a_lease_that_was_exported_inside_stays() -> None:
    world = World()
    a = world.client("a")
    core, caller = a_lock(a), Who()
    lease = enter(a, core, caller)
    a.run(locks.export(a.client_state, lease._state))
    assert leave(a, core, caller).error is None
    assert world.holders() == [lease._state.nonce]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupt_at_any_operation_of_entering_and_leaving(after: bool, reentrant: bool) -> None:
    def begin(world: World) -> tuple[Task[None], Who]:
        a, caller = world.client("a"), Who()
        core = an_rlock(a) if reentrant else a_lock(a)

        async def body() -> None:
            await locks.enter(core, caller.ref, "o")
            await locks.leave(core, caller.ref, None)

        return a.start(body(), once(LOST_REPLY, Acquire)), caller

    world = World()
    task, _alive = begin(world)
    for index in range(len(world.finish(task).ops)):
        world = World()
        task, _alive = begin(world)
        task.interrupt_at, task.interrupt_after = index, after
        world.finish(task)
        assert isinstance(task.error, KeyboardInterrupt)
        world.pass_time(5.0)
        assert world.is_free(), task.ops[index]
        assert world.clients["a"].client_state.leases == {}
