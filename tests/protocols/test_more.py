"""Beyond holding: subscriptions, hand-over, downgrading, values, looking from outside, closing."""

from __future__ import annotations

import pytest

from holdfast.core.effects import Apply, OutcomeUnknown
from holdfast.errors import EngineUnavailable, InvalidArgument, LockLost, NotHeld
from holdfast.protocols import locks, records
from holdfast.protocols.client_state import LeaseState
from holdfast.rules.requests import Adopt, Downgrade, Export, SetValue, Unwatch, Watch
from protocols.driver import (
    IO_TIMEOUT_SECONDS,
    LOST_REPLY,
    REFUSED,
    SPEC,
    Fault,
    Task,
    World,
    a_spec,
    always,
    once,
)

WRITE = a_spec(kind="rwlock", mode="write")
READ = a_spec(kind="rwlock", mode="read")


# --- subscriptions ----------------------------------------------------------------------------


def test_a_subscription_is_notified_of_each_change() -> None:
    world = World()
    a, w = world.client("a"), world.client("w")
    nonce, before = w.run(records.subscribe(w.client_state, "x"))
    assert before.record.holders == ()
    hearing = w.start(records.next_change(w.client_state, "x", nonce, None))
    world.pass_time(20.0)
    assert not hearing.done, "nothing happened"
    state = a.acquire()
    reported = world.finish(hearing, within=0.1).result
    assert reported is not None
    assert [h.nonce for h in reported.record.holders] == [state.nonce]
    hearing = w.start(records.next_change(w.client_state, "x", nonce, None))
    world.pass_time(60.0)
    assert not hearing.done, "a renewal is no change"
    a.run(records.release(a.client_state, state, 0.0))
    reported = world.finish(hearing, within=0.1).result
    assert reported is not None
    assert reported.record.holders == ()


def test_a_change_between_two_waits_is_not_missed() -> None:
    world = World()
    a, w = world.client("a"), world.client("w")
    nonce, _ = w.run(records.subscribe(w.client_state, "x"))
    a.acquire()
    world.pass_time(1.0)
    assert w.run(records.next_change(w.client_state, "x", nonce, 0.1)) is not None


def test_nothing_changed_in_time() -> None:
    world = World()
    w = world.client("w")
    nonce, _ = w.run(records.subscribe(w.client_state, "x"))
    started = world.now
    task = world.finish(w.start(records.next_change(w.client_state, "x", nonce, 12.0)))
    assert task.result is None
    assert task.ended_at - started == pytest.approx(12.0)


def test_a_subscription_that_ended_leaves_nothing() -> None:
    world = World()
    w = world.client("w")
    nonce, _ = w.run(records.subscribe(w.client_state, "x"))
    world.pass_time(20.0)
    assert len(world.look().record.watchers) == 1
    w.run(records.unsubscribe(w.client_state, "x", nonce), once(LOST_REPLY, Unwatch))
    assert world.look().record.watchers == ()
    assert (w.wakeups, w.client_state.waiting) == ({}, {})


def test_a_subscription_that_the_engine_forgot_is_made_again() -> None:
    world = World()
    a, w = world.client("a"), world.client("w")
    nonce, _ = w.run(records.subscribe(w.client_state, "x"))
    hearing = w.start(records.next_change(w.client_state, "x", nonce, None))
    world.pass_time(0.1)
    world.records.clear()
    world.finish(hearing, within=1.2)
    hearing = w.start(records.next_change(w.client_state, "x", nonce, None))
    a.acquire()
    world.finish(hearing, within=0.1)


def test_subscribing_to_an_engine_that_is_not_there_leaves_nothing() -> None:
    world = World()
    w = world.client("w")
    with pytest.raises(EngineUnavailable):
        w.run(records.subscribe(w.client_state, "x"), always(REFUSED, Watch))
    assert (w.wakeups, w.client_state.waiting) == ({}, {})


# --- hand-over --------------------------------------------------------------------------------


def test_a_lease_is_handed_to_another_process() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    state = a.acquire()
    secret = a.run(records.export(a.client_state, state), once(LOST_REPLY, Export))
    assert (state.ended, a.client_state.leases) == ("exported", {})
    world.pass_time(20.0)
    adopted = b.run(
        records.adopt(b.client_state, SPEC, state.nonce, "host/2/b", secret), once(LOST_REPLY, Adopt)
    )
    assert (adopted.token, adopted.nonce) == (state.token, state.nonce)
    world.pass_time(100.0)
    assert adopted.loss(world.now) is None
    b.run(records.release(b.client_state, adopted, 0.0))
    assert world.is_free()


def test_what_is_not_adopted_in_time_is_gone() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    state = a.acquire()
    secret = a.run(records.export(a.client_state, state))
    world.pass_time(31.0)
    assert world.is_free()
    with pytest.raises(NotHeld, match="expired"):
        b.run(records.adopt(b.client_state, SPEC, state.nonce, "o", secret))


def test_a_lease_is_adopted_once() -> None:
    world = World()
    a, b, c = (world.client(name) for name in "abc")
    state = a.acquire()
    with pytest.raises(NotHeld):
        b.run(records.adopt(b.client_state, SPEC, state.nonce, "o", "any"))
    secret = a.run(records.export(a.client_state, state))
    b.run(records.adopt(b.client_state, SPEC, state.nonce, "o", secret))
    for other in (b, c):
        with pytest.raises(NotHeld):
            other.run(records.adopt(other.client_state, SPEC, state.nonce, "o", secret))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_adoption_that_was_interrupted_does_not_live_for_ever(after: bool) -> None:
    """Where an engine renews a client as a whole, only what is known not to be renewed runs out."""
    for index in range(3):
        world = World()
        a, b = world.client("a"), world.client("b")
        state = a.acquire()
        secret = a.run(records.export(a.client_state, state))
        task = b.start(records.adopt(b.client_state, SPEC, state.nonce, "o", secret))
        task.interrupt_at, task.interrupt_after = index, after
        world.finish(task)
        if task.error is None:
            break
        assert isinstance(task.error, KeyboardInterrupt)
        world.pass_time(1.0)
        assert b.client_state.leases == {}
        for holder in world.look().record.holders:
            assert not (holder.client == "b" and holder.renews), f"interrupted at {task.ops[index]}"


def test_an_adoption_that_failed_can_be_tried_again() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    state = a.acquire()
    secret = a.run(records.export(a.client_state, state))
    b.faults = always(LOST_REPLY)
    with pytest.raises(EngineUnavailable):
        b.run(records.adopt(b.client_state, SPEC, state.nonce, "o", secret))
    b.faults = once(REFUSED)
    adopted = b.run(records.adopt(b.client_state, SPEC, state.nonce, "o", secret))
    world.pass_time(100.0)
    assert adopted.loss(world.now) is None
    assert world.look().record.holders[0].renews


# --- downgrading ------------------------------------------------------------------------------


def test_a_writer_becomes_a_reader_without_a_moment_in_between() -> None:
    world = World()
    a, b, c = (world.client(name) for name in "abc")
    writer = a.acquire(WRITE)
    reading = b.start(records.acquire(b.client_state, READ, "o", None))
    writing = c.start(records.acquire(c.client_state, WRITE, "o", None))
    world.pass_time(1.0)
    reader = a.run(records.downgrade(a.client_state, writer), once(LOST_REPLY, Downgrade))
    assert reader.token > writer.token
    assert (writer.ended, writer.successor, reader.mode) == ("downgraded", reader, "read")
    world.finish(reading, within=0.1)
    world.pass_time(100.0)
    assert not writing.done
    assert reader.loss(world.now) is None
    a.run(records.release(a.client_state, reader, 0.0))
    assert isinstance(reading.result, LeaseState)
    b.run(records.release(b.client_state, reading.result, 0.0))
    world.finish(writing, within=0.1)
    assert a.signals == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_downgrade_that_was_interrupted_leaves_no_reader(after: bool) -> None:
    def begin(world: World) -> Task[LeaseState]:
        a = world.client("a")
        return a.start(records.downgrade(a.client_state, a.acquire(WRITE)))

    world = World()
    for index in range(len(world.finish(begin(world)).ops)):
        world = World()
        task = begin(world)
        task.interrupt_at, task.interrupt_after = index, after
        world.finish(task)
        assert isinstance(task.error, KeyboardInterrupt)
        world.pass_time(2.0)
        assert all(h.mode == "write" for h in world.look().record.holders)
        world.pass_time(100.0)
        a = world.clients["a"]
        for state in list(a.client_state.leases.values()):
            assert state.loss(world.now) is None, "either it is held still, or its loss was reported"
            a.run(records.release(a.client_state, state, 0.0))
        world.pass_time(1.0)
        assert world.is_free()


def test_a_downgrade_of_what_is_lost_is_reported() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    writer = a.acquire(WRITE)
    a.deaf = True
    b.run(records.break_lock(b.client_state, "x", None, "stuck"))
    with pytest.raises(LockLost, match="stuck"):
        a.run(records.downgrade(a.client_state, writer))
    world.pass_time(1.0)
    assert len(a.signals) == 1


def test_only_a_writer_is_downgraded() -> None:
    world = World()
    a = world.client("a")
    reader = a.acquire(READ)
    with pytest.raises(InvalidArgument, match="only a write lease"):
        a.run(locks.downgrade(a.client_state, reader, lambda state: state))


# --- values and looking -----------------------------------------------------------------------


def test_a_value_is_set_while_it_is_held() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    state = a.acquire()
    a.run(records.set_value(a.client_state, state, b"leader", 600.0), once(LOST_REPLY, SetValue))
    value = b.run(records.inspect(b.client_state, "x")).record.value
    assert value is not None
    assert (value.data, value.token) == (b"leader", state.token)
    a.deaf = True
    b.run(records.break_lock(b.client_state, "x", None, "stuck"))
    with pytest.raises(LockLost):
        a.run(records.set_value(a.client_state, state, b"late", 600.0))
    world.pass_time(0.1)
    assert (state.reason, len(a.signals)) == ("broken", 1)


def test_names_are_listed_with_what_stands_there() -> None:
    world = World()
    a = world.client("a")
    for name in ("one", "other", "two"):
        a.acquire(a_spec(name))
    listed = a.run(records.list_names(a.client_state, "o"), once(REFUSED, times=2))
    assert [name for name, _ in listed] == ["one", "other"]


def test_a_semaphore_is_resized() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    spec = a_spec(kind="semaphore", mode="permit", limit=1)
    a.acquire(spec)
    waiting = b.start(records.acquire(b.client_state, spec, "o", None))
    world.pass_time(1.0)
    a.run(records.resize(a.client_state, spec, 2))
    world.finish(waiting, within=0.1)
    with pytest.raises(InvalidArgument, match="declared with limit 1"):
        a.run(records.resize(a.client_state, a_spec(kind="semaphore", mode="permit", limit=7), 3))


def test_an_engine_that_is_not_there_is_reported_after_io_timeout() -> None:
    world = World()
    a = world.client("a")
    for script in (records.inspect(a.client_state, "x"), records.list_names(a.client_state, "")):
        started = world.now
        task = world.finish(a.start(script, always(REFUSED)))
        assert isinstance(task.error, EngineUnavailable)
        assert 5.0 <= task.ended_at - started <= 5.1


# --- the end ----------------------------------------------------------------------------------


def test_closing_waits_once_for_a_hanging_engine() -> None:
    """A lease that could not be released ends all the same: nothing would report its loss later."""
    world = World()
    a = world.client("a")
    states = [a.acquire(a_spec(f"x{number}")) for number in range(10)]
    late = a.acquire(a_spec("late", ttl=1.0, renew=False))
    ended: list[str] = []
    for state in states:
        state.end_callbacks.append(lambda: ended.append("called"))
    started = world.now
    hangs = Fault(OutcomeUnknown("no answer"), arrives=False, answered_in=IO_TIMEOUT_SECONDS)
    a.run(records.close(a.client_state), always(hangs))
    assert world.now - started == pytest.approx(IO_TIMEOUT_SECONDS, abs=0.1)
    assert [state.ended for state in states] == ["released"] * 10
    assert ended == ["called"] * 10
    assert (late.ended, late.reason) == (None, "expired")
    assert a.signals
    assert not a.client_state.leases


def test_closing_tries_every_lease_if_failures_are_immediate() -> None:
    world = World()
    a = world.client("a")
    states = [a.acquire(a_spec(f"x{number}")) for number in range(3)]
    refused = iter([REFUSED, None, REFUSED])
    a.run(records.close(a.client_state), lambda op: next(refused, None) if isinstance(op, Apply) else None)
    assert [world.is_free(state.name) for state in states] == [False, True, False]
    assert [state.ended for state in states] == ["released"] * 3


def test_closing_releases_leases_and_ends_waits() -> None:
    world = World()
    a, b = world.client("a"), world.client("b")
    held = b.acquire(a_spec("other"))
    a.acquire()
    waiting = b.start(records.acquire(b.client_state, SPEC, "o", None))
    nonce, _ = b.run(records.subscribe(b.client_state, "watched"))
    hearing = b.start(records.next_change(b.client_state, "watched", nonce, None))
    world.pass_time(1.0)
    started = world.now
    b.run(records.close(b.client_state))
    assert world.now - started <= 0.1
    world.pass_time(0.1)
    for task in (waiting, hearing):
        assert isinstance(task.error, InvalidArgument)
    assert (held.ended, world.is_free("other"), world.queue()) == ("released", True, [])
