"""The semantics of locks on every engine: re-entry, release by another thread, leaving ``with``.

Written once for threads and asyncio: a facade passes its caller (a weak reference to a thread or task) and
gets a lease of its own class that wraps the grant.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ..core import arguments
from ..core.arguments import Spec
from ..core.effects import ProtocolCoroutine
from ..core.lock_options import Duration
from ..core.printable import printable
from ..errors import Deadlock, EngineUnavailable, HoldfastError, InvalidArgument, LockTimeout, NotHeld
from ..rules.requests import Reply
from . import records
from .acquisitions import OBSERVERS
from .client_state import ClientState, Hold, LeaseState
from .lock_info import describe_holders

__all__ = [
    "Entry",
    "LockCore",
    "ReentrantCore",
    "SharedCore",
    "StartedAcquire",
    "StartedRelease",
    "acquire",
    "check",
    "check_extension",
    "downgrade",
    "enter",
    "export",
    "extend",
    "finish_release",
    "latest_state",
    "leave",
    "not_held_error",
    "release",
    "release_lease",
    "release_many",
    "set_value",
    "withdraw_interrupted",
]

log = logging.getLogger("holdfast")

ENTRIES_KEPT = 64
"""How many released entries may wait for the end of their ``with`` before they are swept."""

HOLDS_KEPT = 64
"""How many ended reentrant holds are kept before they are swept."""


class HasState(Protocol):
    """A lease of either facade."""

    @property
    def _state(self) -> LeaseState: ...


L = TypeVar("L", bound=HasState)
T = TypeVar("T")
Caller = weakref.ref[Any]


class Entry(Generic[L]):
    """One lease acquired through a lock object, and its caller."""

    __slots__ = ("caller", "claims", "entered", "last", "lease", "released_by")

    def __init__(self, caller: Caller, lease: L, entered: bool) -> None:
        self.caller = caller
        self.lease = lease
        self.entered = entered
        """Acquired by ``with``."""
        self.claims: list[object] = []
        """The releases that claim this entry; the first one has it. A single append decides, so neither
        another thread nor an interrupt can come in between."""
        self.last: bool | None = None
        """Whether leaving this entry releases the lease; inner entries of an rlock do not. None: not left."""
        self.released_by: Caller | None = None
        """The caller that released it inside its ``with``, whose end then has nothing to release."""


@dataclass(slots=True, eq=False)
class StartedAcquire:
    """An acquire whose first request was sent by ``uncontended.acquire``."""

    attempt: records.Attempt
    sent: float
    outcome: records.Outcome | None = None
    """The result of the first request; None: it was not sent."""


@dataclass(slots=True, eq=False)
class StartedRelease(Generic[L]):
    """A release whose first steps were taken by ``uncontended.release``."""

    claimed: list[Entry[L]]
    entry: Entry[L]
    outcome: Reply | Exception | None = None
    """The result of the first request; None: it was not sent."""


class LockCore(Generic[L]):
    """The part of a lock object that both facades share: its spec and the leases acquired through it."""

    __slots__ = ("client_state", "entries", "long_wait", "spec", "wrap")
    reentrant = False
    may_deadlock = False

    def refuse_deadlock(self, caller: Caller, timeout: float | None) -> None:
        """Refuse a caller that would wait for itself; only reader/writer locks can tell."""

    def remember_hold(self, caller: Caller, state: LeaseState) -> None:
        """What ``refuse_deadlock`` needs to know of a grant."""

    def __init__(self, client_state: ClientState, spec: Spec, wrap: Callable[[LeaseState], L]) -> None:
        self.client_state = client_state
        self.spec = spec
        self.wrap = wrap
        self.long_wait: records.WatchLongWait | None = None
        """What its waiters do when they wait for long."""
        self.entries: list[Entry[L]] = []
        """Threads share this list: each change is one append or removal in place."""

    def reenter(self, caller: Caller, now: float, entered: bool) -> L | None:
        """The lease that this caller holds already; only reentrant locks return one."""
        return None

    def enter(self, caller: Caller, lease: L, entered: bool) -> None:
        if self.entries:
            for entry in self.entries[:]:  # those released through their lease
                if entry.lease._state.ended is not None and (
                    not entry.entered or len(self.entries) > ENTRIES_KEPT
                ):
                    self._remove(entry)
        lease._state.caller = caller
        self.entries.append(Entry(caller, lease, entered))

    def current(self) -> L | None:
        """The latest lease acquired through this object and not released."""
        for entry in self.entries[::-1]:  # a copy, since other threads change the list
            if entry.lease._state.ended is None and not entry.claims and entry.released_by is None:
                return entry.lease
        return None

    def claim(self, caller: Caller, claimed: list[Entry[L]], entered: bool = False) -> Entry[L]:
        """The entry that a release by this caller concerns, claimed for it, and appended to ``claimed``."""
        while True:
            entry = self.find(caller, entered)
            claimed.append(entry)
            entry.claims.append(claimed)
            if entry.claims[0] is claimed:
                return entry

    def find(self, caller: Caller, entered: bool) -> Entry[L]:
        """First the caller's own entry, even a lost one; without one, the object's current lease.

        The end of ``with`` (``entered``) concerns entries acquired by ``with``, also those of another thread
        or task, as happens with test fixtures and exit stacks.
        """
        for entry in self.entries[-1:]:  # most often there is only one, and it is the caller's
            fits = (
                entry.entered if entered else entry.lease._state.ended is None and entry.released_by is None
            )
            if fits and entry.caller is caller and not entry.claims:
                return entry
        thread = caller()
        fallback = None
        for entry in self.entries[::-1]:  # a copy, since other threads change the list
            if entry.claims or (entry.released_by is not None and not entered):
                continue
            if entry.entered if entered else entry.lease._state.ended in (None, "forked"):
                if entry.caller() is thread:
                    return entry
                if fallback is None and entry.released_by is None:
                    fallback = entry
        if fallback is None:
            raise self.not_held_error()
        return fallback

    def leave(self, entry: Entry[L]) -> bool:
        """End the claimed entry. True: its lease has to be released. May be called again."""
        self._remove(entry)
        return entry.released_by is None

    def mark_released(self, entry: Entry[L], caller: Caller) -> None:
        """``release()`` inside a ``with``: keep an entry that the end of that ``with`` will find."""
        if entry.entered:
            remains = Entry(entry.caller, entry.lease, entered=True)
            remains.released_by = caller
            try:
                self.entries[self.entries.index(entry)] = remains
            except ValueError:
                self.entries.append(remains)

    def restore(self, entry: Entry[L]) -> None:
        """The release failed: it can be called again."""
        for each in self.entries[:]:
            if each.released_by is not None and each.lease is entry.lease:
                self._remove(each)
        self.entries.append(Entry(entry.caller, entry.lease, entry.entered))

    def _remove(self, entry: Entry[L]) -> None:
        try:
            self.entries.remove(entry)
        except ValueError:
            return  # another thread removed it already

    def not_held_error(self) -> NotHeld:
        error = NotHeld(
            f"the {self.spec.kind} {self.spec.name!r} is not held through this object: "
            "it was never acquired, or it was released already"
        )
        error.name = self.spec.name
        return error


class SharedCore(LockCore[L]):
    """One side of a reader/writer lock. A reader that asks for its own write side would wait for ever."""

    __slots__ = ()
    may_deadlock = True

    def enter(self, caller: Caller, lease: L, entered: bool) -> None:
        super().enter(caller, lease, entered)
        self.remember_hold(caller, lease._state)

    def remember_hold(self, caller: Caller, state: LeaseState) -> None:
        sides = self.client_state.rwlock_holds
        if len(sides) > HOLDS_KEPT + 2 * len(self.client_state.leases):
            for key, states in list(sides.items()):
                if all(latest_state(state).ended is not None for state in states):
                    sides.pop(key, None)
        key = self.spec.name, caller
        states = [state for state in sides.get(key, ()) if latest_state(state).ended is None]
        sides[key] = [*states, state]

    def refuse_deadlock(self, caller: Caller, timeout: float | None) -> None:
        """Before any request: this client knows what the thread or task holds through it."""
        if self.spec.mode != "write" or timeout == 0:
            return
        for state in self.client_state.rwlock_holds.get((self.spec.name, caller), ()):
            held = latest_state(state)
            if held.mode == "read" and held.ended is None and held.loss(self.client_state.now()) is None:
                error = Deadlock(
                    f"the rwlock {self.spec.name!r} is held to read (token {held.token}) by the same thread "
                    "or task that asks to write, which would wait for itself: release the read lease first, "
                    "or take write() from the start and downgrade() it"
                )
                error.name = self.spec.name
                raise error


class ReentrantCore(LockCore[L]):
    """Re-entry is per client, name and thread or task, through any lock object, and costs no round trip."""

    __slots__ = ()
    reentrant = True

    def reenter(self, caller: Caller, now: float, entered: bool) -> L | None:
        hold = self.client_state.holds.get((self.spec.name, caller))
        if hold is None or hold.state.ended is not None or not hold.depth:
            return None
        if hold.state.loss(now) is not None:
            raise hold.state.lost_error()
        lease: L | None = hold.lease()
        if lease is None:
            return None
        entry = Entry(caller, lease, entered)
        try:
            self.entries.append(entry)
            hold.depth += 1  # nothing can interrupt from here to the end
        except BaseException:
            self._remove(entry)
            raise
        return lease

    def enter(self, caller: Caller, lease: L, entered: bool) -> None:
        super().enter(caller, lease, entered)
        self._hold(caller, lease)

    def _hold(self, caller: Caller, lease: L) -> None:
        holds = self.client_state.holds
        if len(holds) > HOLDS_KEPT + 2 * len(self.client_state.leases):
            for key, hold in list(holds.items()):
                if hold.state.ended is not None:
                    holds.pop(key, None)
        holds[self.spec.name, caller] = Hold(lease._state, weakref.ref(lease))

    def find(self, caller: Caller, entered: bool) -> Entry[L]:
        """Only an entry of the caller."""
        thread = caller()
        for entry in self.entries[::-1]:  # a copy, since other threads change the list
            if entry.caller() is not thread or entry.claims:
                continue
            if entry.entered if entered else entry.released_by is None:
                return entry
        raise self.not_held_error()

    def leave(self, entry: Entry[L]) -> bool:
        if entry.released_by is not None:
            return super().leave(entry)
        hold = self.client_state.holds.get((self.spec.name, entry.caller))
        if entry.last is None:
            if hold is None or hold.state is not entry.lease._state:
                entry.last = True
            else:
                hold.depth -= 1  # nothing can interrupt between this and the next line
                entry.last = hold.depth == 0
        if hold is not None and not hold.depth:
            self.client_state.holds.pop((self.spec.name, entry.caller), None)
        self._remove(entry)
        return entry.last

    def restore(self, entry: Entry[L]) -> None:
        super().restore(entry)
        self._hold(entry.caller, entry.lease)


async def acquire(
    core: LockCore[L],
    caller: Caller,
    owner: str,
    timeout: float | None,
    entered: bool = False,
    begun: StartedAcquire | None = None,
) -> L | None:
    """A lease for this caller, re-entered or granted. Not granted: None, or LockTimeout for ``with``."""
    if core.reentrant:
        again = core.reenter(caller, core.client_state.now(), entered)
        if again is not None:
            return again
    if begun is None and core.may_deadlock:
        core.refuse_deadlock(caller, timeout)
    state: LeaseState | records.NotGranted | None = None
    try:
        if begun is None:
            core.client_state.check_timers_run()
            state = await records.acquire(
                core.client_state, core.spec, owner, timeout, core.long_wait, caller
            )
        else:
            state = await begun.attempt.run(begun.sent, timeout, begun.outcome)
        if isinstance(state, records.NotGranted):
            if entered:
                raise _timed_out(core, state)
            return None
        core.client_state.check_timers_run()
        lease = core.wrap(state)
        if OBSERVERS:
            for observer in OBSERVERS:
                observer((lease,), caller, timeout != 0)
        core.enter(caller, lease, entered)
        # From here to the caller's next instruction nothing is called: an interrupt in a call would lose the
        # lease.
        return lease
    except BaseException:
        if isinstance(state, LeaseState):
            await records.abandon(core.client_state, state, wait=True)
        raise


def enter(core: LockCore[L], caller: Caller, owner: str) -> ProtocolCoroutine[L]:
    """``with``: a lease, or LockTimeout; the body never runs without the lock."""
    return acquire(core, caller, owner, core.spec.timeout, entered=True)  # type: ignore[return-value]  # as said


def _timed_out(core: LockCore[L], lease: records.NotGranted) -> LockTimeout:
    timeout = core.spec.timeout
    holders = describe_holders(lease.holders, lease.now)
    detail = (
        ", ".join(f"{printable(h.owner)} (token {h.token})" for h in holders[:3])
        or "no holder is left, or other waiters come first"
    )
    error = LockTimeout(
        f"the {core.spec.kind} {core.spec.name!r} was not granted in {timeout:g} s: held by {detail}"
    )
    error.name, error.holders = core.spec.name, holders
    return error


async def withdraw_interrupted(core: LockCore[L], owner: str, nonce: str) -> None:
    """An acquire was interrupted before a coroutine began that would clean up after it."""
    state = core.client_state.leases.get(nonce)
    if state is not None:
        await records.abandon(core.client_state, state, wait=True)
    else:
        await records.Attempt(core.client_state, core.spec, owner, nonce).withdraw_in_background()


async def release(core: LockCore[L], caller: Caller, leaving: StartedRelease[L] | None = None) -> None:
    """``release()``: the caller's own lease, else the object's current one."""
    claimed: list[Entry[L]] = [] if leaving is None else leaving.claimed
    try:
        if leaving is not None:
            entry = leaving.entry
            await release_lease(core.client_state, entry.lease._state, leaving.outcome)
        else:
            entry = core.claim(caller, claimed)
            core.mark_released(entry, caller)
            if core.leave(entry):
                await release_lease(core.client_state, entry.lease._state)
    except EngineUnavailable:
        core.restore(entry)
        raise
    except HoldfastError:
        raise
    except BaseException:
        await finish_release(core, claimed)
        raise
    finally:
        claimed.clear()


async def finish_release(core: LockCore[L], claimed: list[Entry[L]]) -> None:
    """A release was interrupted: the keeper releases the claimed leases in the background."""
    for entry in list(claimed):
        if entry.claims and entry.claims[0] is claimed and core.leave(entry):
            state = latest_state(entry.lease._state)
            if state.ended is None:
                await records.abandon(core.client_state, state, wait=True)


def latest_state(state: LeaseState) -> LeaseState:
    """The state that a lease was downgraded to, else its own."""
    while state.successor is not None:
        state = state.successor
    return state


async def release_many(core: LockCore[L], caller: Caller, count: int) -> None:
    """Release several permits; refuse at once more than were acquired through this object."""
    held = [e for e in core.entries if e.released_by is None and e.lease._state.ended in (None, "forked")]
    if count > len(held):
        error = NotHeld(
            f"the semaphore {core.spec.name!r}: release({count}) asks for more permits than the "
            f"{len(held)} that are held through this object"
        )
        error.name = core.spec.name
        raise error
    for _ in range(count):
        await release(core, caller)


async def release_lease(
    client_state: ClientState,
    state: LeaseState,
    outcome: Reply | Exception | None = None,
    caller: Caller | None = None,
) -> None:
    """Release one lease; LockLost where it can no longer be relied on, NotHeld the second time.

    ``outcome``: the result of the first request, where the caller has sent it itself.
    ``caller``: the thread or task that called ``lease.release()``.
    """
    if outcome is None:
        if state.ended == "forked":
            return
        if state.ended is not None:
            raise not_held_error(state)
        state.ended_by = caller
        if state.loss(client_state.now()) is not None:
            # The engine may keep the lease a moment longer than its holder relies on it: a new acquire must
            # not find it there.
            await records.abandon(client_state, state, wait=state.reason != "unreachable")
            raise state.lost_error()
    await records.release(client_state, state, client_state.io_timeout, outcome)
    if state.reason is not None and state.ended is None:
        state.end("released")
        raise state.lost_error()


def check(state: LeaseState, now: float) -> None:
    """Raise unless the lease may still be relied on."""
    if state.loss(now) is not None:
        raise state.lost_error()
    if state.ended is not None:
        raise not_held_error(state)


def check_extension(state: LeaseState, ttl: Duration | None) -> float:
    if ttl is None:
        return state.ttl
    seconds = arguments.check_ttl(ttl)
    arguments.check_grace(state.grace, seconds)
    return seconds


async def extend(client_state: ClientState, state: LeaseState, ttl: float) -> None:
    check(state, client_state.now())
    await records.extend(client_state, state, ttl)


async def set_value(client_state: ClientState, state: LeaseState, data: bytes, retention: float) -> None:
    check(state, client_state.now())
    await records.set_value(client_state, state, data, retention)


async def export(client_state: ClientState, state: LeaseState) -> str:
    """Returns the secret that the adopter has to present."""
    check(state, client_state.now())
    return await records.export(client_state, state)


async def downgrade(client_state: ClientState, state: LeaseState, wrap: Callable[[LeaseState], T]) -> T:
    """``wrap`` makes the caller's read lease. Nothing is called between that and the caller."""
    if state.mode != "write":
        raise InvalidArgument(f"only a write lease can be downgraded; this is a lease to {state.mode}")
    check(state, client_state.now())
    try:
        return wrap(await records.downgrade(client_state, state))
    except BaseException:
        if state.successor is not None:
            await records.abandon(client_state, state.successor, wait=True)
        raise


def not_held_error(state: LeaseState) -> NotHeld:
    detail = {
        "released": "it was released already",
        "downgraded": "it was downgraded: use the lease that downgrade() returned",
        "exported": "it was exported: the process that adopts it holds it",
        "dropped": "the program dropped it, so it was left to expire",
    }.get(state.ended or "", "it ended")
    error = NotHeld(
        f"this lease of the {state.kind} {state.name!r} (token {state.token}) is not held: {detail}"
    )
    error.name = state.name
    return error


async def leave(
    core: LockCore[L], caller: Caller, error: BaseException | None, leaving: StartedRelease[L] | None = None
) -> None:
    """The end of ``with``: release this entry's lease, and report its loss."""
    claimed: list[Entry[L]] = [] if leaving is None else leaving.claimed
    try:
        if leaving is not None:
            await _release_last(
                core, leaving.entry.lease._state, leaving.entry.caller, error, leaving.outcome
            )
        else:
            await _leave(core, core.claim(caller, claimed, entered=True), error)
    except NotHeld:
        if error is None:
            raise  # else it was released inside the body, whose own error comes first
    except HoldfastError:
        raise
    except BaseException:
        await finish_release(core, claimed)
        raise
    finally:
        claimed.clear()


async def _leave(core: LockCore[L], entry: Entry[L], error: BaseException | None) -> None:
    state = entry.lease._state
    if not core.leave(entry):
        if entry.released_by is not None and entry.released_by() is not entry.caller():
            raise not_held_error(state)  # another thread released it: the body went on without the lock
        if state.ended is None and state.loss(core.client_state.now()) is not None:
            _report_loss(core.spec, state, error)
        return
    await _release_last(core, state, entry.caller, error)


async def _release_last(
    core: LockCore[L],
    state: LeaseState,
    caller: Caller,
    error: BaseException | None,
    outcome: Reply | Exception | None = None,
) -> None:
    """The outermost entry was left: release its lease."""
    state = latest_state(state)
    if state.ended in ("forked", "exported"):
        return
    if state.ended is not None:
        if state.ended_by is not None and state.ended_by() is not caller():
            raise not_held_error(state)  # another thread released it: the body went on without the lock
        return
    if outcome is not None or state.loss(core.client_state.now()) is None:
        try:
            await records.release(core.client_state, state, 0.0, outcome)
        except EngineUnavailable as trouble:
            log.warning("%s; the release is tried again in the background", trouble)
            await records.abandon(core.client_state, state)
    if state.reason is not None:
        if state.ended is None:
            await records.abandon(core.client_state, state)
        _report_loss(core.spec, state, error)


def _report_loss(spec: Spec, state: LeaseState, error: BaseException | None) -> None:
    lost = state.lost_error()
    if spec.if_lost == "note":
        log.warning("%s", lost)
    elif error is not None:
        error.add_note(f"holdfast: {lost}")
    else:
        raise lost
