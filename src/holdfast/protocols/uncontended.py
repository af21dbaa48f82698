"""Taking a free lock and giving it back with one request each, as plain functions over ``apply``.

Most often one request is all there is to either. For a driver whose requests block, the functions here make
that request between the same steps that the coroutines of ``locks`` take, and begin a coroutine only where
more is needed. Setting up coroutines would take half of the time between a reply and the next request; and a
server that gets its next request soon after its reply has not gone to sleep.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from ..core.deadlines import CONNECT_SECONDS_MIN
from ..core.effects import ProtocolCoroutine, TransientError, never_sent
from ..errors import HoldfastError, NotHeld
from ..rules.requests import Done, Granted, Reply, Request
from . import locks, records
from .acquisitions import OBSERVERS
from .locks import Caller, Entry, HasState, LockCore

__all__ = ["acquire", "release"]

T = TypeVar("T")
L = TypeVar("L", bound=HasState)


class BlockingAdapter(Protocol):
    """What carries out a request while its caller waits."""

    def apply(self, name: str, request: Request) -> Reply: ...


class BlockingDriver(Protocol):
    """A driver that runs coroutines in the calling thread."""

    closed: bool

    @property
    def adapter(self) -> BlockingAdapter: ...

    def apply_within(self, name: str, request: Request, connect_seconds: float) -> Reply:
        """``adapter.apply``, with less time than ``io_timeout`` to connect."""
        ...

    def run(self, coroutine: ProtocolCoroutine[T], even_if_closed: bool = False) -> T: ...


def acquire(
    driver: BlockingDriver,
    core: LockCore[L],
    caller: Caller,
    owner: str,
    timeout: float | None,
    entered: bool = False,
) -> L | None:
    """``locks.acquire``, for a lock that is most likely free."""
    client_state, spec = core.client_state, core.spec
    if driver.closed or core.reentrant or client_state.stopped_timers:
        return driver.run(locks.acquire(core, caller, owner, timeout, entered))
    if core.may_deadlock:
        core.refuse_deadlock(caller, timeout)
    nonce = client_state.new_nonce()
    attempt: records.Attempt | None = None
    try:
        sent = client_state.now()
        outcome: records.Outcome | None = None
        if timeout == 0 or spec.name not in client_state.contended:
            try:
                request = records.acquire_request(client_state, spec, owner, nonce)
                if timeout is None or timeout >= client_state.io_timeout:
                    outcome = driver.adapter.apply(spec.name, request)
                else:
                    outcome = driver.apply_within(spec.name, request, max(timeout, CONNECT_SECONDS_MIN))
            except TransientError as trouble:
                outcome = trouble
            if outcome.__class__ is Granted:
                outcome = state = records.keep_grant(client_state, spec, nonce, owner, outcome, sent)
                if client_state.stopped_timers:
                    client_state.check_timers_run()
                if records.is_in_time(client_state, state):
                    lease = core.wrap(state)
                    if OBSERVERS:
                        for observer in OBSERVERS:
                            observer((lease,), caller, timeout != 0)
                    core.enter(caller, lease, entered)
                    # As in the coroutine, nothing is called from here to the caller's next instruction.
                    return lease
        attempt = records.Attempt(client_state, spec, owner, nonce, core.long_wait, caller)
        begun = locks.StartedAcquire(attempt, sent, outcome)
        return driver.run(locks.acquire(core, caller, owner, timeout, entered, begun), even_if_closed=True)
    except BaseException as error:
        if (attempt is None or not attempt.has_begun) and not never_sent(error):
            driver.run(locks.withdraw_interrupted(core, owner, nonce), even_if_closed=True)
        raise


def release(
    driver: BlockingDriver,
    core: LockCore[L],
    caller: Caller,
    entered: bool = False,
    error: BaseException | None = None,
) -> None:
    """``locks.release``; with ``entered``, ``locks.leave``: ``with`` ends, and its body raised ``error``."""
    if driver.closed or (entered and core.reentrant):
        driver.run(locks.leave(core, caller, error) if entered else locks.release(core, caller))
        return
    claimed: list[Entry[L]] = []
    try:
        leaving: locks.StartedRelease[L] | None = None
        try:
            entry = core.claim(caller, claimed, entered)
        except NotHeld:
            pass  # the coroutine words the error
        else:
            if not entered:
                core.mark_released(entry, caller)
            if not core.leave(entry):
                if entry.released_by is not None and entry.released_by() is not entry.caller():
                    raise locks.not_held_error(entry.lease._state)
                return
            state = entry.lease._state
            outcome: Reply | Exception | None = None
            if state.ended is None and state.loss(core.client_state.now()) is None:
                try:
                    outcome = driver.adapter.apply(
                        state.name, records.release_request(core.client_state, state)
                    )
                    if outcome.__class__ is Done:
                        records.mark_released(core.client_state, state)
                        return
                except (TransientError, HoldfastError) as trouble:
                    outcome = trouble
            leaving = locks.StartedRelease(claimed, entry, outcome)
        if entered:
            driver.run(locks.leave(core, caller, error, leaving), even_if_closed=True)
        else:
            driver.run(locks.release(core, caller, leaving), even_if_closed=True)
    except BaseException:
        if claimed:
            driver.run(locks.finish_release(core, claimed), even_if_closed=True)
        raise
    finally:
        claimed.clear()
