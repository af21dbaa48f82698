"""The records family: a lock is a record in an engine, moved by one transition at a time.

Each attempt carries a fresh nonce, so the engine recognises its own: after an unknown outcome the same
request is simply asked again, and what was granted is granted still. An attempt that is given up is
withdrawn, by the keeper if need be, and a copy of it that arrives late is refused.
"""

from __future__ import annotations

import contextlib
from math import inf
from typing import cast

from ..core.arguments import Spec
from ..core.deadlines import RENEW_AFTER, pause_seconds, relied_until
from ..core.ops import (
    Apply,
    ApplyInOrder,
    Listen,
    ListNames,
    Nonce,
    Now,
    Pause,
    Post,
    Signal,
    Troubled,
    Unknown,
    Unlisten,
    Wait,
)
from ..errors import EngineUnavailable, HoldfastError, InvalidArgument, LossReason, NotHeld
from ..model import Mode
from ..rules.queueing import next_event_at
from ..rules.record import Holder
from ..rules.requests import (
    Acquire,
    Adopt,
    Break,
    Broken,
    Busy,
    Done,
    Downgrade,
    Exhausted,
    Export,
    Gone,
    Granted,
    Inspect,
    Mismatch,
    Queued,
    Release,
    Renew,
    Reply,
    Request,
    Resize,
    SetValue,
    Snapshot,
    Stop,
    Unwatch,
    Watch,
    Withdraw,
    Withdrawn,
)
from .book import Book, Job, LeaseState

__all__ = [
    "NotGranted",
    "abandon",
    "acquire",
    "acquire_in_order",
    "adopt",
    "break_lock",
    "close",
    "closed",
    "downgrade",
    "dropped",
    "export",
    "extend",
    "inspect",
    "list_names",
    "next_change",
    "release",
    "resize",
    "set_value",
    "subscribe",
    "tell_of_loss",
    "unsubscribe",
]

LOOK_AGAIN_SECONDS = 5.0
"""A waiter looks at least this often, whatever it was told."""

HAND_OVER_SECONDS = 1.0
"""How long one who was interrupted waits for its attempt to be withdrawn."""

CLOSE_SECONDS = 1.0
"""How long a client that is being closed waits for its other threads or tasks to leave their queues."""

JOB_SECONDS = 60.0
"""How long the keeper tries to clean up beyond the ttl, after which there is nothing left to clean."""


class NotGranted:
    """It was not granted in time; these had it, as of ``now`` on the engine's clock."""

    __slots__ = ("holders", "now")

    def __init__(self, holders: tuple[Holder, ...] = (), now: float = 0.0) -> None:
        self.holders = holders
        self.now = now


# --- acquiring ----------------------------------------------------------------------------------


async def acquire(book: Book, spec: Spec, owner: str, timeout: float | None) -> LeaseState | NotGranted:
    """One lock, in at most ``timeout`` seconds (None: however long it takes; 0: one try)."""
    attempt = _Attempt(book, spec, owner, await Nonce())
    try:
        try:
            return await attempt.until_granted(timeout)
        finally:
            if attempt.listening:
                await attempt.stop_listening()
    except BaseException:
        await attempt.interrupted()  # also when it came after the grant, while we stopped listening
        raise


class _Attempt:
    """The attempt under way: what was asked, until when, and what of it may be left in the engine."""

    __slots__ = (
        "book",
        "ends_at",
        "failures",
        "listening",
        "nonce",
        "owner",
        "queued",
        "request",
        "sent",
        "spec",
        "traces",
        "trouble_since",
        "uncertain",
        "undated",
    )

    def __init__(self, book: Book, spec: Spec, owner: str, nonce: str) -> None:
        self.book, self.spec, self.owner, self.nonce = book, spec, owner, nonce
        self.ends_at: float | None = None
        self.sent: float | None = None
        """Before the first request was sent that may have been granted."""
        self.traces = False
        """Something of it may be in the engine."""
        self.uncertain = False
        """A copy of it may still be under way."""
        self.undated = False
        """Such a copy may have been granted since, before the request that we count from."""
        self.queued = False
        self.listening = False
        self.trouble_since: float | None = None
        self.failures = 0
        self.request = self._ask(wait=False)

    def _ask(self, wait: bool) -> Acquire:
        spec = self.spec
        return Acquire(
            self.nonce,
            self.book.client,
            self.owner,
            spec.kind,
            spec.mode,
            spec.ttl,
            wait,
            spec.fair,
            spec.renew,
            spec.max_hold,
            spec.limit,
            spec.metadata,
        )

    async def until_granted(self, timeout: float | None) -> LeaseState | NotGranted:
        now = await Now()
        self.ends_at = None if timeout is None else now + timeout
        while True:
            if self.sent is None:
                self.sent = now
            self.traces = True
            try:
                reply = await Apply(self.spec.name, self.request)
            except Troubled as trouble:
                await self.outlast(trouble)
                now = await Now()
                continue
            if self.undated and isinstance(reply, Granted):
                dated = await self.dated(reply)
                if dated is None:
                    now = await Now()
                    continue
                reply = dated
            if reply.__class__ is Granted:
                state = self.granted(reply)
                if (await Now()) < state.deadline and not self.book.closed:
                    return state
                done = await self.granted_too_late(state)
            else:
                done = await self.not_yet(reply)
            if done is not None:
                return done
            if self.book.closed:
                await self.client_closed()
            self.sent = None
            self.undated = self.uncertain
            now = await Now()

    async def dated(self, reply: Granted) -> Granted | None:
        """Nobody knows when it was granted: count from a renewal instead. None: ask again."""
        sent = await Now()
        try:
            renewed = await Apply(self.spec.name, Renew(self.nonce, reply.ttl))
        except Troubled as trouble:
            await self.outlast(trouble)
            return None
        if not isinstance(renewed, Done):
            self.sent = None
            return None
        passed = 0.0 if self.sent is None else sent - self.sent
        self.sent = sent
        return reply if reply.lasts is None else reply._replace(lasts=reply.lasts - passed)

    def granted(self, reply: Granted) -> LeaseState:
        state = _lease(self.spec, self.nonce, self.owner, reply, self.sent or 0.0)
        state.uncertain = self.uncertain
        self.book.add(state)
        return state

    async def granted_too_late(self, state: LeaseState) -> NotGranted | None:
        """The answer took longer than the grant lasts. Nothing was gained: give it back, ask as another."""
        if self.book.closed:
            return None
        await abandon(self.book, state)
        if self.listening:
            await self.stop_listening()
        self.nonce = await Nonce()
        self.queued = self.uncertain = self.traces = False
        self.request = self._ask(wait=False)
        return NotGranted() if self.ends_at is not None and (await Now()) >= self.ends_at else None

    async def client_closed(self) -> None:
        """The client was closed under us: leave the queue at once, for the keeper is leaving too."""
        with contextlib.suppress(Troubled, EngineUnavailable):
            await Apply(self.spec.name, Withdraw(self.nonce, self.book.linger))
            self.traces = False
        raise closed()

    async def not_yet(self, reply: Reply) -> NotGranted | None:
        """Wait for the turn; returns when it is time to ask again, or with the end of the attempt."""
        if isinstance(reply, Queued):
            self.trouble_since, self.failures = None, 0
            self.queued = True
            now = await Now()
            if self.ends_at is not None and now >= self.ends_at:
                return await self._too_late()
            until = now + min(reply.look_in, LOOK_AGAIN_SECONDS)
            if self.ends_at is not None:
                until = min(until, self.ends_at)
            await Wait(self.nonce, until, reply.blockers)
            return None
        self.traces = self.uncertain
        if isinstance(reply, Busy):
            now = await Now()
            if self.ends_at is not None and now >= self.ends_at:
                return await self._too_late() if self.traces else NotGranted(reply.holders, reply.now)
            # Listen first, then ask again, this time for a place in the queue: no wake-up can be missed.
            self.listening = True
            try:
                await Listen(self.nonce)
            except Troubled as trouble:
                await self.outlast(trouble)
                return None
            self.trouble_since, self.failures = None, 0
            self.book.wait(self.nonce, self.spec.name, now)
            self.request = self._ask(wait=True)
            return None
        raise _unexpected(self.spec, reply)

    async def _too_late(self) -> NotGranted:
        linger = self.book.linger if self.uncertain else 0.0
        try:
            reply = await Apply(self.spec.name, Withdraw(self.nonce, linger))
        except Troubled:
            await self.interrupted()
            return NotGranted()
        self.traces = False
        return NotGranted(reply.holders, reply.now) if isinstance(reply, Withdrawn) else NotGranted()

    async def outlast(self, trouble: Troubled) -> None:
        """The engine is in trouble: pause and go on, or give up when there is no more time for it."""
        now = await Now()
        if isinstance(trouble, Unknown):
            self.uncertain = True
        elif not self.uncertain:
            self.sent = None
            self.traces = self.queued
        if self.trouble_since is None:
            self.trouble_since = now
        gives_up_at = self._gives_up_at(now, self.trouble_since)
        if now >= gives_up_at:
            raise unavailable(repr(self.spec.name), trouble) from trouble
        await Pause(min(pause_seconds(self.failures), gives_up_at - now))
        self.failures += 1

    def _gives_up_at(self, now: float, since: float) -> float:
        """Once queued, the timeout decides; before that, io_timeout does, or an earlier timeout."""
        if self.queued:
            return self.ends_at if self.ends_at is not None else now + self.book.io_timeout
        limit = since + self.book.io_timeout
        return limit if self.ends_at is None else min(limit, max(self.ends_at, since))

    async def interrupted(self) -> None:
        """Nothing of the attempt stays behind, whatever ended it: the keeper sees to it."""
        self.book.leases.pop(self.nonce, None)
        self.book.waiting.pop(self.nonce, None)
        if self.traces:
            self.traces = False
            await clean_up(self.book, self.spec, Withdraw(self.nonce, self.book.linger), wait=True)

    async def stop_listening(self) -> None:
        self.listening = False
        self.book.waiting.pop(self.nonce, None)
        await Unlisten(self.nonce)
        if self.book.closed:
            await Post(CLOSING)


def _lease(spec: Spec, nonce: str, owner: str, reply: Granted, sent: float) -> LeaseState:
    return LeaseState(
        spec.name,
        spec.kind,
        cast(Mode, reply.mode),
        nonce,
        owner,
        reply.token,
        reply.peers,
        reply.metadata,
        sent,
        reply.ttl,
        relied_until(sent, reply.ttl),
        None if reply.lasts is None else relied_until(sent, reply.lasts),
        spec.renew,
        spec.grace,
    )


async def acquire_in_order(
    book: Book, specs: tuple[Spec, ...], owner: str, timeout: float | None
) -> tuple[LeaseState, ...] | NotGranted:
    """Several locks, all or none, in the given order: as many as are free in one step, then waiting for
    the next while holding those before it. Callers who agree on an order cannot deadlock."""
    ends_at = None if timeout is None else (await Now()) + timeout
    held: list[LeaseState] = []
    try:
        while True:
            taken = await _take_rest(book, specs, owner, ends_at, held)
            now = await Now()
            if taken is None and all(state.loss(now) is None for state in held):
                return tuple(held)
            # Not granted in time; or one was lost while we waited for another, and all are taken anew.
            await _give_all_back(book, held)
            held.clear()
            if taken is not None or (ends_at is not None and now >= ends_at):
                return taken or NotGranted()
    except BaseException:
        await _give_all_back(book, held)
        raise


async def _take_rest(
    book: Book, specs: tuple[Spec, ...], owner: str, ends_at: float | None, held: list[LeaseState]
) -> NotGranted | None:
    """Add to ``held`` until all are there; what is returned says why that cannot be."""
    while len(held) < len(specs):
        rest = specs[len(held) :]
        if len(rest) > 1:
            held += await _take_free(book, rest, owner)
        if len(held) < len(specs):
            left = None if ends_at is None else max(ends_at - await Now(), 0.0)
            taken = await acquire(book, specs[len(held)], owner, left)
            if isinstance(taken, NotGranted):
                return taken
            held.append(taken)
    return None


async def _take_free(book: Book, specs: tuple[Spec, ...], owner: str) -> list[LeaseState]:
    """Those that can be had now, up to the first that cannot."""
    attempts = [_Attempt(book, spec, owner, await Nonce()) for spec in specs]
    sent = await Now()
    taken: list[LeaseState] = []
    try:
        replies = await ApplyInOrder(
            tuple((a.spec.name, a.request) for a in attempts), stop_when_refused=True
        )
        for attempt, reply in zip(attempts, replies, strict=False):
            if isinstance(reply, Busy):
                break
            if not isinstance(reply, Granted):
                raise _unexpected(attempt.spec, reply)
            attempt.sent = sent
            taken.append(attempt.granted(reply))
    except BaseException as error:
        for attempt in attempts:
            book.leases.pop(attempt.nonce, None)
            await clean_up(book, attempt.spec, Withdraw(attempt.nonce, book.linger), wait=False)
        if isinstance(error, Troubled):
            return []
        raise
    return taken


async def _give_all_back(book: Book, held: list[LeaseState]) -> None:
    for state in reversed(held):
        await abandon(book, state)


# --- giving back --------------------------------------------------------------------------------


async def release(book: Book, state: LeaseState, patience: float) -> None:
    """Give it back. Where it was gone already the state says so; after a failure it can be called again."""
    request = Release(state.nonce, book.linger if state.uncertain else 0.0)
    state.leaving = True
    try:
        try:
            reply = await Apply(state.name, request)
        except Troubled as trouble:
            state.parted = state.parted or isinstance(trouble, Unknown)
            if not patience:
                raise unavailable(repr(state.name), trouble) from trouble
            reply, uncertain = await _insist(book, state.name, request, patience)
            state.parted = state.parted or uncertain
    except HoldfastError as error:
        state.parted = state.parted or isinstance(error.__cause__, Unknown)
        state.renews = state.leaving = False
        book.ring("timer")
        raise
    except BaseException:
        await abandon(book, state, wait=True)
        raise
    book.drop(state)
    # Had a release of ours come first, there would have been nothing to break.
    if isinstance(reply, Gone) and (reply.reason == "broken" or not state.parted):
        state.lose(_loss_reason(reply), reply.note)
        await tell_of_loss(state)
    else:
        state.end("released")


async def abandon(book: Book, state: LeaseState, wait: bool = False) -> None:
    """Give it back behind our back: the keeper does it, and again if it fails."""
    book.drop(state)
    if state.reason is not None:
        await tell_of_loss(state)  # from here on the timer does not know it
    state.end("released")
    request = Release(state.nonce, book.linger if state.uncertain else 0.0)
    await _clean_up(book, state.name, state.ttl, request, wait)


async def clean_up(book: Book, spec: Spec, request: Release | Withdraw, wait: bool) -> None:
    await _clean_up(book, spec.name, spec.ttl, request, wait)


async def _clean_up(
    book: Book, name: str, ttl: float, request: Release | Withdraw | Adopt, wait: bool
) -> None:
    """Let the keeper do it; wait at most a second. What a dead network keeps expires with the ttl."""
    job = Job(name, request, f"{request.nonce}/job", give_up_at=inf)
    try:
        try:
            now = await Now()
            job.give_up_at = now + ttl + JOB_SECONDS
            if wait:
                await Listen(job.nonce)
        except Troubled:
            return  # nobody could tell us when it is done
        finally:
            book.hand_over(job)  # also if a second interrupt came just now
        if wait:
            await Wait(job.nonce, now + HAND_OVER_SECONDS)
    finally:
        if wait:
            await Unlisten(job.nonce)


async def tell_of_loss(state: LeaseState) -> None:
    """Once, by whoever finds out first: the timer, the keeper, or a release."""
    if not state.signalled:
        state.signalled = True
        await Signal(state)


def dropped(book: Book, state: LeaseState) -> None:
    """Nobody can reach the lease any more: let it run out. Called by the garbage collector: no waiting."""
    book.drop(state)
    state.end("dropped")
    book.hand_over(Job(state.name, Stop(state.nonce), f"{state.nonce}/job", give_up_at=state.deadline))


# --- while holding ------------------------------------------------------------------------------


async def extend(book: Book, state: LeaseState, ttl: float) -> None:
    """From now on renew with this ttl, and renew once at once. Never shortens what is granted."""
    sent = await Now()
    reply, _ = await _insist(book, state.name, Renew(state.nonce, ttl))
    now = await Now()
    _must_be_held(book, state, reply, now)
    state.ttl = ttl
    state.extended(relied_until(sent, ttl), now)
    state.renew_at = min(state.renew_at, sent + ttl * RENEW_AFTER) if state.renews else state.renew_at
    book.retime(state)


async def set_value(book: Book, state: LeaseState, data: bytes, retention: float) -> None:
    reply, _ = await _insist(book, state.name, SetValue(state.nonce, data, retention))
    _must_be_held(book, state, reply, await Now())


async def downgrade(book: Book, state: LeaseState) -> LeaseState:
    """A read lease in place of the write lease, without a moment in between."""
    nonce = await Nonce()
    sent = await Now()
    state.leaving = True
    try:
        reply, _ = await _insist(book, state.name, Downgrade(state.nonce, nonce))
    except BaseException:
        # It may have happened all the same, and nobody will have the read lease.
        await _clean_up(book, state.name, state.ttl, Release(nonce, book.linger), wait=True)
        raise
    finally:
        state.leaving = False
        book.ring("timer")
    if not isinstance(reply, Granted):
        _must_be_held(book, state, reply, await Now())
        raise _unexpected_reply(state.name, reply)
    reader = LeaseState(
        state.name,
        state.kind,
        "read",
        nonce,
        state.owner,
        reply.token,
        reply.peers,
        state.metadata,
        sent,
        reply.ttl,
        relied_until(sent, reply.ttl),
        state.held_until,
        state.renews,
        state.grace,
    )
    state.successor = reader
    state.end("downgraded")
    book.drop(state)
    if state.uncertain:
        refuse = Withdraw(state.nonce, book.linger)
        book.hand_over(Job(state.name, refuse, f"{state.nonce}/job", give_up_at=sent + book.linger))
    book.add(reader)
    return reader


async def export(book: Book, state: LeaseState) -> None:
    """Let it live one ttl without us, for another process to adopt."""
    reply, _ = await _insist(book, state.name, Export(state.nonce))
    _must_be_held(book, state, reply, await Now())
    state.end("exported")
    book.drop(state)


async def adopt(book: Book, spec: Spec, nonce: str, owner: str) -> LeaseState:
    """Take over what another process exported, with its token."""
    if nonce in book.leases:
        # The engine would say yes to a repeated request; but two leases of one grant would not know of
        # each other's release.
        twice = NotHeld(f"the exported lease of {spec.name!r} was adopted by this client already")
        twice.name = spec.name
        raise twice
    sent = await Now()
    try:
        reply, _ = await _insist(book, spec.name, Adopt(nonce, book.client, owner, spec.renew))
    except BaseException:
        # It may have happened all the same, and nobody will have the lease: let it run out.
        await _clean_up(book, spec.name, spec.ttl, Adopt(nonce, book.client, owner, renews=False), wait=True)
        raise
    if isinstance(reply, Gone):
        told = f": {reply.note}" if reply.note else " or was not adopted in time"
        error = NotHeld(f"the exported lease of {spec.name!r} cannot be adopted: it is {reply.reason}{told}")
        error.name = spec.name
        raise error
    if not isinstance(reply, Granted):
        raise _unexpected(spec, reply)
    for job in list(book.jobs):
        if isinstance(job.request, Adopt) and job.request.nonce == nonce:
            with contextlib.suppress(ValueError):
                book.jobs.remove(job)  # left by an earlier try that failed
    state = _lease(spec, nonce, owner, reply, sent)
    state.uncertain = True  # of the one who asked for it first: who knows what it left under way
    book.add(state)
    return state


def _must_be_held(book: Book, state: LeaseState, reply: Reply, now: float) -> None:
    if isinstance(reply, Done) and state.loss(now) is None:
        return
    if isinstance(reply, Gone):
        state.lose(_loss_reason(reply), reply.note)
        book.ring("timer")
    if state.reason is None:
        raise _unexpected_reply(state.name, reply)
    raise state.lost_error()


# --- from outside -------------------------------------------------------------------------------


async def inspect(book: Book, name: str) -> Snapshot:
    reply, _ = await _insist(book, name, Inspect())
    if not isinstance(reply, Snapshot):
        raise _unexpected_reply(name, reply)
    return reply


async def list_names(book: Book, prefix: str) -> list[tuple[str, Snapshot]]:
    ends_at = (await Now()) + book.io_timeout
    failures = 0
    while True:
        try:
            return await ListNames(prefix)
        except Troubled as trouble:
            failures = await _pause_or_give_up(f"the names {prefix!r}…", trouble, ends_at, failures)


async def break_lock(book: Book, name: str, token: int | None, reason: str) -> int | None:
    try:
        reply, _ = await _insist(book, name, Break(token, reason), may_repeat=False)
    except EngineUnavailable as error:
        if isinstance(error.__cause__, Unknown):
            raise EngineUnavailable(
                f"the engine did not answer: {name!r} may have been broken; look before breaking it again"
            ) from error.__cause__
        raise
    if not isinstance(reply, Broken):
        raise _unexpected_reply(name, reply)
    return reply.token


async def resize(book: Book, spec: Spec, limit: int) -> None:
    reply, _ = await _insist(book, spec.name, Resize(spec.limit, limit))
    if not isinstance(reply, Done):
        raise _unexpected(spec, reply)


async def subscribe(book: Book, name: str) -> tuple[str, Snapshot]:
    """From now on every change of the name wakes ``next_change``."""
    nonce = await Nonce()
    try:
        await _listen(book, name, nonce)
        return nonce, await _look(book, name, nonce)
    except BaseException:
        await Unlisten(nonce)
        raise


async def next_change(
    book: Book, name: str, nonce: str, timeout: float | None, seen: Snapshot | None = None
) -> Snapshot | None:
    """What stands there after the next change since ``seen``; None: nothing changed in time.

    Nobody writes down that a lease expired or its holder died: we look by ourselves when it is due, or when
    one of the holders is seen to die.
    """
    now = await Now()
    ends_at = None if timeout is None else now + timeout
    while True:
        until = now + (LOOK_AGAIN_SECONDS if seen is None else _due_in(seen))
        if ends_at is not None:
            until = min(until, ends_at)
        woken = await Wait(nonce, until, () if seen is None else _clients_of(seen))
        if book.closed:
            book.waiting.pop(nonce, None)
            await Post(CLOSING)
            raise closed()
        if woken or seen is not None:
            stands = await _look(book, name, nonce)
            if seen is None or _told(stands) != _told(seen):
                return stands
            seen = stands
        now = await Now()
        if ends_at is not None and now >= ends_at:
            return None


def _due_in(seen: Snapshot) -> float:
    """Seconds until time alone changes what was seen."""
    at = next_event_at(seen.record)
    return LOOK_AGAIN_SECONDS if at is None else min(max(at - seen.now, 0.01), LOOK_AGAIN_SECONDS)


def _clients_of(seen: Snapshot) -> tuple[str, ...]:
    return tuple({holder.client: None for holder in seen.record.holders if holder.client})


def _told(seen: Snapshot) -> tuple[object, ...]:
    """What makes a difference to one who watches."""
    record = seen.record
    holders = [(holder.token, holder.owner) for holder in record.holders]
    return record.token, holders, [waiter.nonce for waiter in record.queue], record.value, record.limit


async def unsubscribe(book: Book, name: str, nonce: str) -> None:
    book.waiting.pop(nonce, None)
    await Unlisten(nonce)
    await _insist(book, name, Unwatch(nonce))


async def _listen(book: Book, name: str, nonce: str) -> None:
    ends_at = (await Now()) + book.io_timeout
    failures = 0
    while True:
        try:
            return await Listen(nonce)
        except Troubled as trouble:
            failures = await _pause_or_give_up(repr(name), trouble, ends_at, failures)


async def _look(book: Book, name: str, nonce: str) -> Snapshot:
    reply, _ = await _insist(book, name, Watch(nonce, book.client))
    if not isinstance(reply, Snapshot):
        raise _unexpected_reply(name, reply)
    book.wait(nonce, name, await Now())
    return reply


# --- the end of the client ---------------------------------------------------------------------

CLOSING = "closing"


async def close(book: Book) -> None:
    """Send away those who wait, and give back everything that is held."""
    book.closed = True
    if book.waiting:
        await _send_away(book)
    for state in list(book.leases.values()):
        with contextlib.suppress(EngineUnavailable):
            await release(book, state, 0.0)


async def _send_away(book: Book) -> None:
    ends_at = (await Now()) + CLOSE_SECONDS
    await Listen(CLOSING)
    try:
        for nonce in list(book.waiting):
            await Post(nonce)
        while book.waiting and (await Now()) < ends_at:
            await Wait(CLOSING, ends_at)
    finally:
        await Unlisten(CLOSING)


def closed() -> InvalidArgument:
    return InvalidArgument("this client is closed: connect again")


# --- trouble ------------------------------------------------------------------------------------


async def _insist(
    book: Book, name: str, request: Request, patience: float | None = None, may_repeat: bool = True
) -> tuple[Reply, bool]:
    """Ask until there is an answer, for at most ``patience`` (io_timeout) seconds.

    What must not happen twice (``may_repeat`` is False) is not asked again once it may have happened.

    Tells whether an earlier try may have happened; so does the cause of the error, if there was no answer.
    """
    worst: Troubled | None = None
    failures = 0
    since: float | None = None
    while True:
        try:
            return await Apply(name, request), isinstance(worst, Unknown)
        except Troubled as trouble:
            if not isinstance(worst, Unknown):
                worst = trouble
            if isinstance(worst, Unknown) and not may_repeat:
                raise unavailable(repr(name), worst) from worst
            if since is None:
                since = await Now()
            ends_at = since + (book.io_timeout if patience is None else patience)
            failures = await _pause_or_give_up(repr(name), worst, ends_at, failures)


async def _pause_or_give_up(name: str, trouble: Troubled, ends_at: float, failures: int) -> int:
    left = ends_at - await Now()
    if left <= 0:
        raise unavailable(name, trouble) from trouble
    await Pause(min(pause_seconds(failures), left))
    return failures + 1


def unavailable(name: str, trouble: Troubled) -> EngineUnavailable:
    return EngineUnavailable(f"the engine cannot be reached for {name}: {trouble}")


def _loss_reason(reply: Gone) -> LossReason:
    return cast(LossReason, reply.reason) if reply.reason in ("stolen", "broken") else "expired"


def _unexpected(spec: Spec, reply: Reply) -> HoldfastError:
    """Why a lock that was asked for cannot be granted, ever."""
    if isinstance(reply, Mismatch):
        if reply.kind == spec.kind:
            return InvalidArgument(
                f"the semaphore {spec.name!r} was declared with limit {reply.limit}, here with {spec.limit}: "
                "declare the same, and change it with resize()"
            )
        return InvalidArgument(
            f"{spec.name!r} is a {reply.kind}, here it is used as a {spec.kind}: "
            "a name has one kind, use another name"
        )
    return _unexpected_reply(spec.name, reply)


def _unexpected_reply(name: str, reply: Reply) -> HoldfastError:
    if isinstance(reply, Exhausted):
        return EngineUnavailable(f"no more tokens can be minted for {name!r}: the engine's clock is far off")
    if isinstance(reply, Gone):
        return EngineUnavailable(f"the attempt at {name!r} was ended from outside: it is {reply.reason}")
    return EngineUnavailable(
        f"the engine answered {type(reply).__name__} for {name!r}: is it another version?"
    )
