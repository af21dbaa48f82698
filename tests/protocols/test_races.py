"""Races that the simulation found, step by step: a coroutine gets its replies one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from holdfast.core.arguments import Spec
from holdfast.core.deadlines import lease_deadline
from holdfast.core.effects import (
    Apply,
    Effect,
    Listen,
    Nonce,
    NotApplied,
    Now,
    OutcomeUnknown,
    Pause,
    ProtocolCoroutine,
    RenewBatch,
    Signal,
    SleepUntil,
    Unlisten,
)
from holdfast.errors import EngineUnavailable
from holdfast.protocols import records
from holdfast.protocols.client_state import ClientState, LeaseState
from holdfast.protocols.keeper import deadline_loop, renewal_loop
from holdfast.rules.record import EMPTY
from holdfast.rules.requests import Busy, Done, Gone, Granted, Release, Renew, Snapshot, Withdraw

SPEC = Spec(
    name="x",
    kind="lock",
    mode="exclusive",
    ttl=10.0,
    timeout=None,
    fair=True,
    renew=True,
    max_hold=None,
    grace=0.0,
    if_lost="raise",
)


class Driven:
    """A script whose operations are answered by the test. The clock is the test's as well."""

    running: ClassVar[Driven]
    """Whose clock and names the book tells."""

    def __init__(self, script: ProtocolCoroutine[Any]) -> None:
        self.now = 100.0
        self._script = script
        self._nonces = 0
        self.result: Any = None
        self.op: Effect | None = None
        self._go_on(None, None)

    def reply(self, value: Any = None) -> Effect | None:
        return self._go_on(value, None)

    def fail(self, trouble: BaseException) -> Effect | None:
        return self._go_on(None, trouble)

    def abandon(self) -> None:
        """The test has seen enough: let the script end, whatever it still wants to do."""
        try:
            while True:
                self._script.throw(SystemExit())
        except SystemExit:
            self.op = None

    def _go_on(self, value: Any, trouble: BaseException | None) -> Effect | None:
        """Until the next operation that is not about the clock or a name."""
        Driven.running = self
        while True:
            try:
                self.op = self._script.throw(trouble) if trouble is not None else self._script.send(value)
            except StopIteration as end:
                self.op, self.result = None, end.value
                return None
            trouble = None
            if isinstance(self.op, Now):
                value = self.now
            elif isinstance(self.op, Nonce):
                value = self.new_nonce()
            elif isinstance(self.op, Unlisten):
                value = None
            else:
                return self.op

    def new_nonce(self) -> str:
        self._nonces += 1
        return f"n{self._nonces}"


def next_nonce() -> str:
    return Driven.running.new_nonce()


def a_book() -> ClientState:
    return ClientState(
        "me",
        io_timeout=5.0,
        linger=5.0,
        wake_timer=lambda timer: None,
        now=lambda: Driven.running.now,
        new_nonce=next_nonce,
    )


def test_an_engine_that_refuses_to_listen_is_asked_again() -> None:
    """The refusal is between us and the engine: it never reaches the one who waits for the lock."""
    client_state = a_book()
    acquire = Driven(records.acquire(client_state, SPEC, "me", None))
    acquire.reply(Busy((), 0.0))
    assert isinstance(acquire.op, Listen)
    assert isinstance(acquire.fail(NotApplied("no")), Pause)
    assert isinstance(acquire.reply(), Apply)
    acquire.reply(Busy((), 0.0))
    assert isinstance(acquire.op, Listen)
    acquire.abandon()

    watch = Driven(records.subscribe(client_state, "x"))
    assert isinstance(watch.fail(NotApplied("no")), Pause)
    assert isinstance(watch.reply(), Listen)
    assert isinstance(watch.reply(), Apply)
    watch.reply(Snapshot(EMPTY, 0.0))
    assert watch.result == ("n1", Snapshot(EMPTY, 0.0))


def test_the_end_of_a_clean_up_is_noticed_without_the_engine() -> None:
    """The keeper of the same client tells it: an engine that cannot be reached is not asked to."""
    acquire = Driven(records.acquire(a_book(), SPEC, "me", None))
    listening = acquire.fail(KeyboardInterrupt())
    assert isinstance(listening, Listen)
    assert listening.name is None
    acquire.abandon()


def granted(client_state: ClientState, **changes: Any) -> LeaseState:
    acquire = Driven(records.acquire(client_state, replace(SPEC, **changes), "me", None))
    acquire.reply(Granted(7, (), "lock", "exclusive", 10.0, None, {}))
    assert isinstance(acquire.result, LeaseState)
    return acquire.result


def test_a_renewal_overtaken_by_the_release_is_no_loss() -> None:
    """It finds the lock gone, because we gave it back."""
    client_state = a_book()
    state = granted(client_state)
    keeper = Driven(renewal_loop(client_state))
    state.renew_at = 0.0
    assert isinstance(keeper.reply(), RenewBatch)
    release = Driven(records.release(client_state, state, 5.0))
    assert isinstance(keeper.reply([Gone("expired")]), SleepUntil)
    release.reply(Done())
    assert (state.ended, state.reason, state.is_loss_reported) == ("released", None, False)
    keeper.abandon()


def test_a_release_begun_in_time_is_no_loss_however_long_it_takes() -> None:
    client_state = a_book()
    state = granted(client_state)
    timer = Driven(deadline_loop(client_state))
    release = Driven(records.release(client_state, state, 5.0))
    timer.now += 20.0
    assert timer.reply() == SleepUntil("timer", None)
    release.reply(Done())
    assert (state.ended, state.reason, state.is_loss_reported) == ("released", None, False)
    timer.abandon()


def test_after_a_failed_release_the_loss_is_signalled_in_time() -> None:
    client_state = a_book()
    state = granted(client_state)
    timer = Driven(deadline_loop(client_state))
    release = Driven(records.release(client_state, state, 0.0))
    timer.reply()
    with pytest.raises(EngineUnavailable):
        release.fail(NotApplied("no"))
    assert timer.reply() == SleepUntil("timer", state.deadline)
    timer.now = state.deadline
    assert timer.reply() == Signal(state)
    timer.abandon()


@pytest.mark.parametrize(("first", "lost"), [(OutcomeUnknown("no answer"), False), (NotApplied("no"), True)])
def test_a_second_release_tells_a_loss_only_if_the_first_cannot_have_happened(
    first: Exception, lost: bool
) -> None:
    client_state = a_book()
    state = granted(client_state)
    with pytest.raises(EngineUnavailable):
        Driven(records.release(client_state, state, 0.0)).fail(first)
    again = Driven(records.release(client_state, state, 5.0))
    again.reply(Gone("expired"))
    assert (state.reason is not None) == lost
    if again.op is not None:
        again.reply()


def test_a_grant_that_an_earlier_copy_may_have_got_is_counted_from_a_renewal() -> None:
    """The first request is in flight when the second is queued: it may arrive before the third."""
    client_state = a_book()
    acquire = Driven(records.acquire(client_state, SPEC, "me", None))
    acquire.fail(OutcomeUnknown("no answer"))
    acquire.reply()
    acquire.reply(Busy((), 0.0))
    assert isinstance(acquire.reply(), Apply)
    acquire.reply(Granted(7, (), "lock", "exclusive", 10.0, 3.0, {}))
    assert acquire.op == Apply("x", Renew("n1", 10.0))
    acquire.now += 1.0
    acquire.fail(NotApplied("no"))
    acquire.reply()
    acquire.reply(Granted(7, (), "lock", "exclusive", 10.0, 3.0, {}))
    asked_at = acquire.now
    acquire.now += 1.0
    assert acquire.op == Apply("x", Renew("n1", 10.0))
    acquire.reply(Done())
    state = acquire.result
    assert isinstance(state, LeaseState)
    assert state.held_until is not None
    assert state.deadline == state.held_until <= lease_deadline(asked_at, 3.0)


def test_a_renewal_extends_by_the_ttl_it_asked_for() -> None:
    """Not by the one that the lease was given while the renewal was under way."""
    client_state = a_book()
    state = granted(client_state)
    keeper = Driven(renewal_loop(client_state))
    state.renew_at = 0.0
    keeper.now += 5.0
    assert keeper.reply() == RenewBatch((("x", Renew(state.nonce, 10.0)),))
    state.ttl = 1000.0
    keeper.reply([Done()])
    assert state.deadline == lease_deadline(keeper.now, 10.0)
    keeper.abandon()


def test_late_copies_of_the_first_request_of_an_adopter_are_refused() -> None:
    """The adopter cannot know whether the exporter left any under way."""
    client_state = a_book()
    adopt = Driven(records.adopt(client_state, SPEC, "theirs", "me", "secret"))
    adopt.reply(Granted(7, (), "lock", "exclusive", 10.0, None, {}))
    assert isinstance(adopt.result, LeaseState)
    release = Driven(records.release(client_state, adopt.result, 5.0))
    assert release.op == Apply("x", Release("theirs", client_state.linger))
    release.reply(Done())


@pytest.mark.parametrize("uncertain", [False, True])
def test_late_copies_of_the_request_for_a_downgraded_lease_are_refused(uncertain: bool) -> None:
    client_state = a_book()
    writer = granted(client_state, kind="rwlock", mode="write")
    writer.uncertain = uncertain
    Driven(records.downgrade(client_state, writer)).reply(Granted(8, (), "rwlock", "read", 10.0, None, {}))
    asked = [job.request for job in client_state.cleanup_tasks]
    assert asked == ([Withdraw(writer.nonce, client_state.linger)] if uncertain else [])
