"""Idempotency: an operation with a key runs once, and every later caller gets the first result.

The record of a key is a lock with a value. The lock keeps a second caller waiting while the first one works,
and its token fences a caller that was taken over: the engine refuses the value of a lease that is lost. The
value says what payload the key stands for, and how the operation ended.

A caller reads the value first, so a stored result costs one request. Only a caller that finds none takes the
lock, and reads again. The payload of an attempt that is under way is in the metadata of its grant. It is not
in the value: an attempt stores its value once, so no late copy of a request can replace a result by less.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from ..core import arguments, outcomes
from ..core.arguments import Spec
from ..core.canonical import Key, fingerprint_of
from ..core.effects import OutcomeUnknown
from ..core.lock_options import Duration
from ..core.outcomes import Outcome
from ..errors import (
    Deadlock,
    EngineUnavailable,
    HoldfastError,
    InvalidArgument,
    LockTimeout,
    NotHeld,
    Unsupported,
)
from ..model import Guarantees
from ..protocols import locks, records
from ..protocols.client_state import ClientState, LeaseState
from ..protocols.locks import Caller, LockCore
from ..rules.record import Holder
from . import names

__all__ = [
    "KEEP_SECONDS",
    "TTL_SECONDS",
    "Attempt",
    "Operation",
    "OperationOptions",
    "check_engine",
    "enter",
    "give_up",
    "leave",
]

log = logging.getLogger("holdfast")

KEEP_SECONDS = 86_400.0
TTL_SECONDS = 30.0

FINGERPRINT = "fingerprint"
"""Of the payload, in the metadata of the grant, in hexadecimal digits."""


class HoldsLease(Protocol):
    """A lease of either facade."""

    @property
    def _state(self) -> LeaseState: ...

    @property
    def token(self) -> int: ...

    def check(self) -> None: ...


L = TypeVar("L", bound=HoldsLease)


def check_engine(promised: Guarantees) -> None:
    """Refuse an engine that cannot store results, before any I/O."""
    if not promised.has_values:
        raise Unsupported(
            f"{promised.engine} stores no results: its nodes agree on locks alone, and have no one place for "
            "a value. Use sqlite://, redis://, etcd://, zookeeper:// or postgresql://"
        )


# --- what is asked for --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as its caller names it, checked."""

    spec: Spec
    fingerprint: bytes
    """Empty: the payload is not compared."""
    keep: float
    errors: tuple[type[Exception], ...]
    """The classes of the errors that are stored."""

    @property
    def name(self) -> str:
        return self.spec.name


class OperationOptions:
    """The arguments of ``idempotent``. Functions among them get those of the decorated function."""

    __slots__ = ("_fingerprint", "_key", "_operation", "_scope", "_template")

    def __init__(
        self,
        key: Key | Callable[..., Key],
        scope: Key | Callable[..., Key],
        fingerprint: object,
        *,
        keep: Duration,
        on_error: str,
        store_errors: object,
        timeout: Duration | None,
        ttl: Duration,
    ) -> None:
        self._key, self._scope, self._fingerprint = key, scope, fingerprint
        spec = arguments.make_spec(
            names.idempotency("", "x"), "lock", "exclusive", 0, {"ttl": ttl, "timeout": timeout}, ("note",)
        )
        errors = outcomes.check_errors(on_error, store_errors)
        self._template = Operation(spec, b"", arguments.check_retention(keep, "keep"), errors)
        self._operation: Operation | None = None
        if not any(callable(each) for each in (key, scope, fingerprint)):
            self._operation = self._named(key, scope, fingerprint)

    def __repr__(self) -> str:
        return repr(self._operation.name if self._operation is not None else self._key)

    def operation(self) -> Operation:
        """The operation, which needs no arguments of a call."""
        if self._operation is None:
            raise InvalidArgument(
                "key, scope and fingerprint are functions of the arguments only where a function is "
                "decorated or given to run(): give the values themselves"
            )
        return self._operation

    def operation_of(self, call: tuple[Any, ...], keywords: Mapping[str, Any]) -> Operation:
        """The operation that a call of the decorated function is."""
        if self._operation is not None:
            return self._operation
        return self._named(
            *[
                each(*call, **keywords) if callable(each) else each
                for each in (self._key, self._scope, self._fingerprint)
            ]
        )

    def _named(self, key: Any, scope: Any, fingerprint: Any) -> Operation:
        template = self._template
        compared = b"" if fingerprint is None else fingerprint_of(fingerprint)
        shown = {FINGERPRINT: compared.hex()} if compared else {}
        spec = replace(template.spec, name=names.idempotency(scope, key), metadata=shown)
        return replace(template, spec=spec, fingerprint=compared)


# --- an attempt ---------------------------------------------------------------------------------


class Attempt(Generic[L]):
    """What the body of ``with client.idempotent(…) as attempt`` works with."""

    __slots__ = ("_core", "_lease", "_operation", "_outcome")

    def __init__(
        self,
        operation: Operation,
        core: LockCore[L] | None = None,
        lease: L | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        self._operation = operation
        self._core = core
        self._lease = lease
        self._outcome = outcome

    def __repr__(self) -> str:
        state = "done" if self.done else "under way"
        return f"<holdfast.Attempt {self._operation.name!r} {state}>"

    @property
    def done(self) -> bool:
        """Whether the operation was done before: ``result`` is what it returned then."""
        return self._lease is None

    @property
    def lease(self) -> L | None:
        """The lease that keeps others from the operation; None where it was done before."""
        return self._lease

    @property
    def token(self) -> int | None:
        """The fencing token of this attempt; None where the operation was done before."""
        return None if self._lease is None else self._lease.token

    def check(self) -> None:
        """Raise LockLost if another caller may have taken the operation over."""
        if self._lease is not None:
            self._lease.check()

    @property
    def result(self) -> Any:
        """The stored result, or the stored error raised again; in the first attempt what ``set_result`` got.

        It is a copy, as JSON returns it: of a tuple a list."""
        if self._outcome is None:
            raise NotHeld(
                "this attempt has no result yet: do the work, then call set_result(value), or look at "
                "attempt.done first"
            )
        return outcomes.outcome_of(self._outcome, self._operation.errors)

    def set_result(self, value: object) -> None:
        """The result, which is stored at the end of ``with``: JSON or bytes. Without it, it is None."""
        if self._lease is None:
            raise NotHeld("the operation was done before, and its result is stored: use attempt.result")
        self._outcome = outcomes.result_outcome(self._operation.fingerprint, value)


# --- the protocol -------------------------------------------------------------------------------


async def enter(
    client_state: ClientState,
    operation: Operation,
    wrap: Callable[[LeaseState], L],
    caller: Caller,
    owner: str,
    watch_long_wait: records.WatchLongWait | None = None,
) -> Attempt[L]:
    """An attempt that holds the lock, or an attempt that has the result."""
    outcome = await _look(client_state, operation, caller)
    if outcome is not None:
        return Attempt(operation, outcome=outcome)
    core = LockCore(client_state, operation.spec, wrap)
    core.long_wait = watch_long_wait
    lease = await _acquire(core, caller, owner)
    try:
        outcome = await _look(client_state, operation)
        if outcome is None:
            return Attempt(operation, core, lease)
        await locks.leave(core, caller, None)
    except HoldfastError as error:
        await locks.leave(core, caller, error)
        raise
    except BaseException:
        await records.abandon(client_state, lease._state, wait=True)
        raise
    return Attempt(operation, outcome=outcome)


async def leave(
    attempt: Attempt[L], caller: Caller, error: BaseException | None, was_cancelled: bool = False
) -> None:
    """The end of the body: store the outcome while the lock is held, then release the lock.

    ``was_cancelled``: the body was ended in its middle because the lease was lost.
    """
    core, lease = attempt._core, attempt._lease
    if core is None or lease is None:
        return
    client_state, state, operation = core.client_state, lease._state, attempt._operation
    outcome = None if was_cancelled else _outcome(attempt, error)
    try:
        if outcome is not None:
            await locks.set_value(client_state, state, outcomes.encode(outcome), operation.keep)
            attempt._outcome = outcome
    except HoldfastError as trouble:
        await locks.leave(core, caller, trouble)
        if error is None:
            is_known = not isinstance(trouble.__cause__, OutcomeUnknown)
            stored = (
                "its result is not stored" if is_known else "it is not known whether its result is stored"
            )
            trouble.add_note(f"holdfast: {operation.name!r} has run, and {stored}")
            raise
        error.add_note(f"holdfast: this error is not stored: {trouble}")
        return
    except BaseException:
        await records.abandon(client_state, state, wait=True)
        raise
    await locks.leave(core, caller, error)
    if was_cancelled and error is None:
        raise state.lost_error()


async def give_up(attempt: Attempt[L]) -> None:
    """The leaving was interrupted, maybe before its first step: release what is still held."""
    core, lease = attempt._core, attempt._lease
    if core is not None and lease is not None and lease._state.ended is None:
        await records.abandon(core.client_state, lease._state, wait=True)


def _outcome(attempt: Attempt[L], error: BaseException | None) -> Outcome | None:
    """What is to be stored; None: nothing, so that the next caller runs the operation."""
    fingerprint = attempt._operation.fingerprint
    if error is None:
        return attempt._outcome or outcomes.result_outcome(fingerprint, None)
    if isinstance(error, Exception) and isinstance(error, attempt._operation.errors):
        return outcomes.error_outcome(fingerprint, error)
    return None


async def _look(
    client_state: ClientState, operation: Operation, caller: Caller | None = None
) -> Outcome | None:
    """How the operation ended; None: it did not, yet. Conflict if it has another payload.

    ``caller``: the thread or task that would wait for an attempt that is under way; Deadlock if that is
    its own.
    """
    record = (await records.inspect(client_state, operation.name)).record
    if record.value is None:
        for holder in record.holders:
            under_way = bytes.fromhex(holder.metadata.get(FINGERPRINT, ""))
            outcomes.check_fingerprint(repr(operation.name), under_way, operation.fingerprint)
            if caller is not None and operation.spec.timeout != 0:
                _refuse_to_wait_for_itself(client_state, operation, holder, caller)
        return None
    try:
        found = outcomes.decode(record.value.data)
    except ValueError as error:
        raise EngineUnavailable(
            f"what is stored as {operation.name!r} was not written by an idempotent operation ({error}): "
            "is it another version of Holdfast, or another program?"
        ) from error
    outcomes.check_fingerprint(repr(operation.name), found.fingerprint, operation.fingerprint)
    return found if found.is_finished else None


def _refuse_to_wait_for_itself(
    client_state: ClientState, operation: Operation, holder: Holder, caller: Caller
) -> None:
    mine = client_state.leases.get(holder.nonce)
    if mine is not None and mine.caller == caller:
        error = Deadlock(
            f"the operation {operation.name!r} is under way in this same thread or task (token "
            f"{holder.token}), which would wait for itself: call it once, or give the inner one another key"
        )
        error.name = operation.name
        raise error


async def _acquire(core: LockCore[L], caller: Caller, owner: str) -> L:
    try:
        lease = await locks.enter(core, caller, owner)
    except LockTimeout as error:
        busy = LockTimeout(f"the operation is still under way, so there is no result yet: {error}")
        busy.name, busy.holders = error.name, error.holders
        raise busy from None
    return lease
