"""What locks mean to those who use them, whatever the engine: who may release, re-entry, leaving ``with``.

Written once for threads and asyncio: a facade passes who calls (a weak reference to its thread or task)
and gets back what its family granted, wrapped as the facade's own kind of lease.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ..core import arguments
from ..core.arguments import Spec
from ..core.ops import Now
from ..errors import EngineUnavailable, InvalidArgument, LockTimeout, NotHeld
from . import records
from .book import Book, Hold, LeaseState
from .describe import describe_holders

__all__ = [
    "Entry",
    "LockCore",
    "ReentrantCore",
    "acquire",
    "acquire_or_none",
    "check",
    "check_extension",
    "downgrade",
    "enter",
    "export",
    "extend",
    "give_back",
    "leave",
    "release",
    "release_many",
    "set_value",
]

log = logging.getLogger("holdfast")


class HasState(Protocol):
    """A lease of either facade."""

    @property
    def _state(self) -> LeaseState: ...


L = TypeVar("L", bound=HasState)
Who = weakref.ref[Any]


@dataclass(slots=True, eq=False)
class Entry(Generic[L]):
    """One lease taken through a lock object, and by whom."""

    who: Who
    lease: L
    entered: bool
    """Taken by ``with``."""
    gives_back: bool = True
    """Leaving it gives the lease back; False: an inner entry of a reentrant lock."""


class LockCore(Generic[L]):
    """A lock object behind its facade: what was asked for and what was taken through it."""

    __slots__ = ("book", "entries", "spec", "wrap")
    reentrant = False

    def __init__(self, book: Book, spec: Spec, wrap: Callable[[LeaseState], L]) -> None:
        self.book = book
        self.spec = spec
        self.wrap = wrap
        self.entries: list[Entry[L]] = []

    def reenter(self, who: Who, now: float, entered: bool) -> L | None:
        """The lease this caller has already, where that means anything."""
        return None

    def enter(self, who: Who, lease: L, entered: bool) -> None:
        if self.entries:
            self.entries = [e for e in self.entries if e.lease._state.ended is None]
        self.entries.append(Entry(who, lease, entered))

    def current(self) -> L | None:
        """The latest lease taken through this object and not given back."""
        for entry in reversed(self.entries):
            if entry.lease._state.ended is None:
                return entry.lease
        return None

    def surrender(self, who: Who, entered: bool = False) -> Entry[L]:
        """Take out the entry that a release by this caller concerns.

        First its own, even a lost one; one who has none releases the object's current lease.
        """
        caller = who()
        fallback = None
        for entry in reversed(self.entries):
            if entered:
                if entry.entered and entry.who() is caller:
                    return self._take_out(entry)
            elif entry.lease._state.ended in (None, "forked"):
                if entry.who() is caller:
                    return self._take_out(entry)
                if fallback is None:
                    fallback = entry
        if fallback is None:
            raise self.not_held()
        return self._take_out(fallback)

    def _take_out(self, entry: Entry[L]) -> Entry[L]:
        try:
            self.entries.remove(entry)
        except ValueError:
            raise self.not_held() from None
        return entry

    def restore(self, entry: Entry[L]) -> None:
        """The release did not get through: it can be called again."""
        self.entries.append(entry)

    def not_held(self) -> NotHeld:
        error = NotHeld(
            f"the {self.spec.kind} {self.spec.name!r} is not held through this object: "
            "it was never acquired, or it was released already"
        )
        error.name = self.spec.name
        return error


class ReentrantCore(LockCore[L]):
    """Re-entry is per client, name and thread or task, through whichever object, and costs no round trip."""

    __slots__ = ()
    reentrant = True

    def _hold(self, who: Who) -> Hold | None:
        caller = who()
        for hold in self.book.holds.get(self.spec.name, ()):
            if hold.who() is caller and hold.state.ended is None:
                return hold
        return None

    def reenter(self, who: Who, now: float, entered: bool) -> L | None:
        hold = self._hold(who)
        if hold is None:
            return None
        if hold.state.loss(now) is not None:
            raise hold.state.lost_error()
        lease: L | None = hold.lease()
        if lease is None:
            return None
        hold.depth += 1
        self.entries.append(Entry(who, lease, entered, gives_back=False))
        return lease

    def enter(self, who: Who, lease: L, entered: bool) -> None:
        super().enter(who, lease, entered)
        holds = [h for h in self.book.holds.get(self.spec.name, ()) if h.state.ended is None]
        self.book.holds[self.spec.name] = [*holds, Hold(who, lease._state, weakref.ref(lease))]

    def surrender(self, who: Who, entered: bool = False) -> Entry[L]:
        caller = who()
        for entry in reversed(self.entries):
            if entry.who() is caller and (not entered or entry.entered):
                self._take_out(entry)
                entry.gives_back = self._leave_hold(entry.lease._state)
                return entry
        raise self.not_held()

    def _leave_hold(self, state: LeaseState) -> bool:
        """One entry less; True: it was the last."""
        for hold in self.book.holds.get(self.spec.name, ()):
            if hold.state is state:
                hold.depth -= 1
                if hold.depth:
                    return False
                self._forget(hold)
        return True

    def _forget(self, hold: Hold) -> None:
        rest = [h for h in self.book.holds.get(self.spec.name, ()) if h is not hold and h.state.ended is None]
        if rest:
            self.book.holds[self.spec.name] = rest
        else:
            self.book.holds.pop(self.spec.name, None)

    def restore(self, entry: Entry[L]) -> None:
        super().restore(entry)
        holds = self.book.holds.get(self.spec.name, [])
        self.book.holds[self.spec.name] = [
            *holds,
            Hold(entry.who, entry.lease._state, weakref.ref(entry.lease)),
        ]


async def acquire(
    core: LockCore[L], who: Who, owner: str, timeout: float | None, entered: bool = False
) -> L | records.NotGranted:
    """A lease for this caller, re-entered or granted anew."""
    if core.reentrant:
        again = core.reenter(who, await Now(), entered)
        if again is not None:
            return again
    state = await records.acquire(core.book, core.spec, owner, timeout)
    if isinstance(state, records.NotGranted):
        return state
    try:
        lease = core.wrap(state)
        core.enter(who, lease, entered)
    except BaseException:
        await records.abandon(core.book, state)
        raise
    return lease


async def acquire_or_none(core: LockCore[L], who: Who, owner: str, timeout: float | None) -> L | None:
    lease = await acquire(core, who, owner, timeout)
    return None if isinstance(lease, records.NotGranted) else lease


async def enter(core: LockCore[L], who: Who, owner: str) -> L:
    """``with``: granted, or LockTimeout; the body never runs without the lock."""
    timeout = core.spec.timeout
    lease = await acquire(core, who, owner, timeout, entered=True)
    if not isinstance(lease, records.NotGranted):
        return lease
    holders = describe_holders(lease.holders, lease.now)
    told = (
        ", ".join(f"{h.owner} (token {h.token})" for h in holders[:3])
        or "nobody any more, or others before us"
    )
    error = LockTimeout(
        f"the {core.spec.kind} {core.spec.name!r} was not granted in {timeout:g} s: held by {told}"
    )
    error.name, error.holders = core.spec.name, holders
    raise error


async def release(core: LockCore[L], who: Who) -> None:
    """``release()``: the caller's own lease first, else the object's current one."""
    entry = core.surrender(who)
    if not entry.gives_back:
        return
    try:
        await give_back(core.book, entry.lease._state)
    except EngineUnavailable:
        core.restore(entry)
        raise


async def release_many(core: LockCore[L], who: Who, count: int) -> None:
    """Several permits; more than were taken through the object is refused before any is given back."""
    held = [e for e in core.entries if e.lease._state.ended in (None, "forked")]
    if count > len(held):
        error = NotHeld(
            f"the semaphore {core.spec.name!r}: release({count}) asks for more permits than the "
            f"{len(held)} that are held through this object"
        )
        error.name = core.spec.name
        raise error
    for _ in range(count):
        await release(core, who)


async def give_back(book: Book, state: LeaseState) -> None:
    """Release one lease; LockLost where it can no longer be relied on, NotHeld the second time."""
    if state.ended == "forked":
        return
    if state.ended is not None:
        raise not_held(state)
    if state.loss(await Now()) is not None:
        await records.abandon(book, state)
        raise state.lost_error()
    await records.release(book, state, book.io_timeout)
    if state.reason is not None and state.ended is None:
        state.end("released")
        raise state.lost_error()


def check(state: LeaseState, now: float) -> None:
    """Raise unless the lease may still be relied on."""
    if state.loss(now) is not None:
        raise state.lost_error()
    if state.ended is not None:
        raise not_held(state)


def check_extension(state: LeaseState, ttl: float | None) -> float:
    if ttl is None:
        return state.ttl
    ttl = arguments.check_ttl(ttl)
    arguments.check_grace(state.grace, ttl)
    return ttl


async def extend(book: Book, state: LeaseState, ttl: float) -> None:
    check(state, await Now())
    await records.extend(book, state, ttl)


async def set_value(book: Book, state: LeaseState, data: bytes, retention: float) -> None:
    check(state, await Now())
    await records.set_value(book, state, data, retention)


async def export(book: Book, state: LeaseState) -> None:
    check(state, await Now())
    await records.export(book, state)


async def downgrade(book: Book, state: LeaseState) -> LeaseState:
    if state.mode != "write":
        raise InvalidArgument(f"only a write lease can be downgraded; this is a lease to {state.mode}")
    check(state, await Now())
    return await records.downgrade(book, state)


def not_held(state: LeaseState) -> NotHeld:
    told = {
        "released": "it was released already",
        "downgraded": "it was downgraded: use the lease that downgrade() returned",
        "exported": "it was exported: the process that adopts it holds it",
        "dropped": "nobody could reach it any more, so it was left to expire",
    }.get(state.ended or "", "it ended")
    error = NotHeld(
        f"this lease of the {state.kind} {state.name!r} (token {state.token}) is not held: {told}"
    )
    error.name = state.name
    return error


async def leave(core: LockCore[L], who: Who, error: BaseException | None) -> None:
    """The end of ``with``: give back this entry's lease, and say so if it was lost on the way."""
    try:
        entry = core.surrender(who, entered=True)
    except NotHeld:
        if error is None:
            raise
        return  # given back inside the body, whose own error is what the caller must see
    state = entry.lease._state
    if not entry.gives_back:
        if state.ended is None and state.loss(await Now()) is not None:
            _tell_loss(core.spec, state, error)
        return
    while state.successor is not None:
        state = state.successor
    if state.ended in ("forked", "exported"):
        return
    if state.ended is not None:
        if error is None:
            raise not_held(state)
        return
    if state.loss(await Now()) is None:
        try:
            await records.release(core.book, state, 0.0)
        except EngineUnavailable as trouble:
            log.warning("%s; the release is tried again in the background", trouble)
            await records.abandon(core.book, state)
    if state.reason is not None:
        if state.ended is None:
            await records.abandon(core.book, state)
        _tell_loss(core.spec, state, error)


def _tell_loss(spec: Spec, state: LeaseState, error: BaseException | None) -> None:
    lost = state.lost_error()
    if spec.if_lost == "note":
        log.warning("%s", lost)
    elif error is not None:
        error.add_note(f"holdfast: {lost}")
    else:
        raise lost
