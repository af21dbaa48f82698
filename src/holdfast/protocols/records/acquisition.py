"""Acquiring a lock: an attempt from its first request to its grant or its withdrawal.

Each attempt carries a fresh nonce, by which the engine recognises it: after an unknown outcome the same
request is sent again, and an earlier grant is returned. An attempt that is given up is withdrawn, by the
keeper if need be, and the engine refuses a copy of it that arrives late.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from enum import Enum, IntEnum
from math import inf
from typing import Any, Final, Protocol

from ...core.arguments import Spec
from ...core.deadlines import DRIFT, connect_seconds_for, lease_deadline, pause_seconds
from ...core.effects import (
    Apply,
    Listen,
    Nonce,
    Notify,
    Now,
    OutcomeUnknown,
    Pause,
    TransientError,
    Unlisten,
    Wait,
    never_sent,
)
from ...errors import EngineUnavailable
from ...rules.record import Holder
from ...rules.requests import (
    Acquire,
    Busy,
    Done,
    Granted,
    Handoff,
    Queued,
    Renew,
    Reply,
    Withdraw,
    Withdrawn,
)
from ..client_state import ClientState, LeaseState
from .releases import abandon, clean_up
from .retry import queue_full_error, refusal_error, unavailable_error
from .shutdown import CLOSING, closed_error

__all__ = [
    "LONG_WAIT_SECONDS",
    "POLL_SECONDS_MAX",
    "Attempt",
    "LongWait",
    "NotGranted",
    "Outcome",
    "WatchLongWait",
    "acquire",
    "acquire_request",
    "is_in_time",
    "keep_grant",
    "lease_of",
]

POLL_SECONDS_MAX = 5.0
"""A waiter asks the engine at least this often, whatever the last reply said."""


LONG_WAIT_SECONDS: Final = 1.0
"""A waiter looks for a deadlock when it has waited so long."""


class LongWait(Protocol):
    """What an attempt does beside its wait, once it has waited for ``LONG_WAIT_SECONDS``."""

    async def look(self) -> float:
        """Called now and then; returns the seconds until the next call. What it raises ends the attempt."""
        ...

    async def end(self, is_granted: bool) -> None:
        """The attempt has ended."""
        ...


class NotGranted:
    """The lock was not granted in time. ``holders`` held it at ``now`` by the engine's clock."""

    __slots__ = ("holders", "name", "now")

    def __init__(self, holders: tuple[Holder, ...] = (), now: float = 0.0) -> None:
        self.holders = holders
        self.now = now
        self.name = ""
        """Which of several locks it was."""


Outcome = Reply | TransientError | LeaseState
"""The result of a request: a reply, a failure, or a lease that was granted too late."""


async def acquire(
    client_state: ClientState,
    spec: Spec,
    owner: str,
    timeout: float | None,
    watch_long_wait: WatchLongWait | None = None,
    caller: weakref.ref[Any] | None = None,
) -> LeaseState | NotGranted:
    """Acquire one lock within ``timeout`` seconds (None: no limit; 0: one try).

    ``watch_long_wait``: what to do beside a long wait of ``caller``, a thread or task.
    """
    nonce = client_state.new_nonce()
    attempt: Attempt | None = None
    outcome: Outcome | None = None
    sent = client_state.now()
    try:
        if timeout == 0 or spec.name not in client_state.contended:
            # Most often the lock is free, so nothing is prepared for waiting.
            try:
                request = acquire_request(client_state, spec, owner, nonce)
                outcome = await Apply(spec.name, request, connect_seconds_for(timeout))
            except TransientError as trouble:
                outcome = trouble
            if outcome.__class__ is Granted:
                outcome = state = keep_grant(client_state, spec, nonce, owner, outcome, sent)
                if is_in_time(client_state, state):
                    return state
        attempt = Attempt(client_state, spec, owner, nonce, watch_long_wait, caller)
        return await attempt.run(sent, timeout, outcome)
    except BaseException as error:
        if (attempt is None or not attempt.has_begun) and not never_sent(error):
            await Attempt(client_state, spec, owner, nonce).withdraw_in_background()
        raise


def keep_grant(
    client_state: ClientState, spec: Spec, nonce: str, owner: str, reply: Granted, sent: float
) -> LeaseState:
    """The first request was granted: from here on the keeper renews the lease."""
    state = lease_of(spec, nonce, owner, reply, sent)
    client_state.add(state)
    return state


def is_in_time(client_state: ClientState, state: LeaseState) -> bool:
    """Whether the grant arrived before its own deadline, and before the client was closed."""
    return client_state.now() < state.deadline and not client_state.closed


def acquire_request(
    client_state: ClientState, spec: Spec, owner: str, nonce: str, wait: bool = False
) -> Acquire:
    fields = (
        nonce,
        client_state.client,
        owner,
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
    return tuple.__new__(Acquire, fields)  # as its constructor does, without a Python call


class Phase(Enum):
    """How far an attempt has come. A lease that is granted too late leads back to ``RUNNING``."""

    NEW = "new"
    """``run`` has not begun; once it has, it cleans up after the attempt."""
    RUNNING = "running"
    """Nothing is prepared for waiting."""
    SUBSCRIBED = "subscribed"
    """The attempt listens for wake-ups, and asks for a place in the queue."""
    QUEUED = "queued"
    """The attempt has a place in the queue, and waits for its turn."""


class Traces(IntEnum):
    """What the engine may hold of an attempt. All but ``NONE`` have to be withdrawn."""

    NONE = 0
    REQUEST = 1
    """What the last request left there."""
    COPY = 2
    """What a copy of a request leaves there, which may still be in flight."""
    UNDATED_COPY = 3
    """The same; and the copy may have been granted before the request from which the lease is counted."""


NONE, REQUEST, COPY, UNDATED_COPY = Traces

AFTER_SENDING: Final = {NONE: REQUEST}
AFTER_REFUSAL: Final = {REQUEST: NONE}
AFTER_UNKNOWN_OUTCOME: Final = {REQUEST: COPY}
AFTER_REPLY: Final = {COPY: UNDATED_COPY}
"""Which traces change by an event: before it → after it. After a reply without a grant, the lease is counted
from the next request."""


class Attempt:
    """An attempt beyond its first request: what was requested, and what the engine may hold of it."""

    __slots__ = (
        "asked",
        "caller",
        "client_state",
        "ends_at",
        "long_wait",
        "looks_at",
        "nonce",
        "owner",
        "phase",
        "placed",
        "prepared",
        "request",
        "sent",
        "spec",
        "traces",
        "troubles",
        "watch_long_wait",
    )

    def __init__(
        self,
        client_state: ClientState,
        spec: Spec,
        owner: str,
        nonce: str,
        watch_long_wait: WatchLongWait | None = None,
        caller: weakref.ref[Any] | None = None,
    ) -> None:
        self.client_state, self.spec, self.owner, self.nonce = client_state, spec, owner, nonce
        self.watch_long_wait, self.caller = watch_long_wait, caller
        self.long_wait: LongWait | None = None
        self.looks_at = inf
        """When ``long_wait`` is asked next."""
        self.phase = Phase.NEW
        self.traces = REQUEST
        """The caller may have sent the first request."""
        self.ends_at: float | None = None
        self.sent: float | None = None
        """When the first request that may have been granted was sent."""
        self.asked = 0.0
        """When the last request was sent: the age of a grant in a reply counts from here."""
        self.placed: float | None = None
        """When a place in the queue was first requested: no handoff can be earlier."""
        self.troubles: tuple[float, int] | None = None
        """Since when requests have failed, and how many of them."""
        self.request: Acquire | None = None
        """Built when it is needed, since most often it also asks for a place in the queue."""
        self.prepared: tuple[LeaseState, float] | None = None
        """The lease without its token, and the time of grant that it assumes: built before the wait, so that
        a handoff costs less time."""

    @property
    def has_begun(self) -> bool:
        """``run`` has begun, and cleans up after the attempt."""
        return self.phase is not Phase.NEW

    async def run(
        self, sent: float, timeout: float | None, outcome: Outcome | None
    ) -> LeaseState | NotGranted:
        """Run the attempt from the outcome of the first request, sent at ``sent``, to its end.

        ``outcome`` None: no request was sent yet. Whatever ends the attempt, nothing of it stays behind.
        """
        try:
            self.phase = Phase.RUNNING
            self.ends_at = None if timeout is None else sent + timeout
            try:
                if outcome is None:
                    self.traces = NONE
                    await self.enter_queue(sent)
                    outcome = await self.send()
                else:
                    self.sent = self.asked = sent
                while True:
                    if outcome.__class__ is Queued:
                        until = self.wait_until(outcome)
                        if until is None:
                            return await self._withdraw()
                        woken = await self.wait(until, outcome.blockers)
                        outcome = self.accept_handoff(woken) if woken.__class__ is Handoff else None
                        if outcome is not None and is_in_time(self.client_state, outcome):
                            return outcome
                    if isinstance(outcome, TransientError):
                        await self.pause_or_give_up(outcome)
                    else:
                        done = await self.handle_outcome(outcome)
                        if done is not None:
                            return done
                    outcome = await self.send()
            finally:
                if self.is_listening:
                    await self.stop_listening()
                elif self.client_state.closed:
                    await Notify(CLOSING)
                if self.long_wait is not None:
                    await self.long_wait.end(self.nonce in self.client_state.leases)
        except BaseException:
            # Also where the error came after the grant, or during ``stop_listening``.
            await self.withdraw_in_background()
            raise

    async def wait(self, until: float, blockers: tuple[str, ...]) -> Handoff | bool:
        """Wait for a wake-up, and ask ``long_wait`` meanwhile."""
        while self.looks_at < until:
            woken = await Wait(self.nonce, self.looks_at, blockers)
            if woken is not False:
                return woken
            if self.long_wait is None and self.watch_long_wait is not None:
                self.long_wait = self.watch_long_wait(self)
            seconds = inf if self.long_wait is None else await self.long_wait.look()
            self.looks_at = self.client_state.now() + seconds
        return await Wait(self.nonce, until, blockers)

    @property
    def is_listening(self) -> bool:
        return self.phase is Phase.SUBSCRIBED or self.phase is Phase.QUEUED

    async def send(self) -> Reply | TransientError:
        self.asked = self.client_state.now()
        if self.sent is None:
            self.sent = self.asked
        request = self.request
        if request is None:
            request = self.request = acquire_request(self.client_state, self.spec, self.owner, self.nonce)
        if self.placed is None and request.wait:
            self.placed = self.asked
        before = self.traces
        self.traces = AFTER_SENDING.get(before, before)
        left = None if self.ends_at is None else self.ends_at - self.asked
        try:
            return await Apply(self.spec.name, request, connect_seconds_for(left))
        except TransientError as trouble:
            return trouble
        except BaseException as error:
            if never_sent(error):
                self.traces = before
            raise

    async def handle_outcome(self, outcome: Reply | LeaseState | None) -> LeaseState | NotGranted | None:
        """The result of the attempt, or None: ask again. ``outcome`` None: a wait has ended."""
        client_state = self.client_state
        if isinstance(outcome, Granted):
            reply = await self.date_grant(outcome) if self.traces is UNDATED_COPY else outcome
            if reply is None:
                return None
            outcome = self.keep_grant(reply)
            if client_state.now() < outcome.deadline and not client_state.closed:
                if self.phase is Phase.SUBSCRIBED:
                    client_state.contended.pop(self.spec.name, None)
                return outcome
        done: NotGranted | None = None
        if isinstance(outcome, LeaseState):
            done = await self.granted_too_late(outcome)
        elif outcome is not None:
            done = await self.not_granted(outcome)
        if done is None:
            if client_state.closed:
                await self.leave_queue()
            self.sent = None
            self.traces = AFTER_REPLY.get(self.traces, self.traces)
        return done

    async def date_grant(self, reply: Granted) -> Granted | None:
        """The time of the grant is unknown: renew it, and count from the renewal. None: ask again."""
        sent = await Now()
        try:
            renewed = await Apply(self.spec.name, Renew(self.nonce, reply.ttl))
        except TransientError as trouble:
            await self.pause_or_give_up(trouble)
            return None
        if not isinstance(renewed, Done):
            self.sent = None
            return None
        passed = 0.0 if self.sent is None else sent - self.sent
        self.sent = self.asked = sent
        return reply._replace(age=renewed.age, lasts=None if reply.lasts is None else reply.lasts - passed)

    def keep_grant(self, reply: Granted) -> LeaseState:
        sent = self.sent or 0.0
        if reply.age:
            # How much older the grant is than the first request that may have won it: most often not at all.
            reply = reply._replace(age=max(reply.age - (self.asked - sent), 0.0))
        return self._add(lease_of(self.spec, self.nonce, self.owner, reply, sent))

    def accept_handoff(self, handed: Handoff) -> LeaseState:
        """The wake-up carried the grant, and with it the subscription has ended."""
        self.phase = Phase.RUNNING
        self.client_state.waiting.pop(self.nonce, None)
        # The place was requested before it existed, so by our clock it is at least this old, drift aside.
        placed = self.placed or 0.0
        since = placed + handed.age * (1.0 - DRIFT)
        if not since <= self.client_state.now():
            since = placed  # a clock was set
        assert self.prepared is not None  # noqa: S101 - made when it had its place
        state, assumed = self.prepared
        state.complete(handed.token, since - assumed)
        return self._add(state)

    def _add(self, state: LeaseState) -> LeaseState:
        """From here on the keeper renews the lease."""
        state.uncertain = self.traces >= COPY
        self.client_state.add(state)
        return state

    async def granted_too_late(self, state: LeaseState) -> NotGranted | None:
        """The reply took longer than the lease lasts: release it, and begin again with a new nonce."""
        if self.client_state.closed:
            return None
        await abandon(self.client_state, state)
        if self.is_listening:
            await self.stop_listening()
        self.nonce = await Nonce()
        self.traces = NONE
        self.placed = self.request = self.prepared = None
        return NotGranted() if self.ends_at is not None and (await Now()) >= self.ends_at else None

    async def leave_queue(self) -> None:
        """The client was closed during the attempt: leave the queue now, because the keeper is ending too."""
        with contextlib.suppress(TransientError, EngineUnavailable):
            await Apply(self.spec.name, Withdraw(self.nonce, self.client_state.linger))
            self.traces = NONE
        raise closed_error()

    def wait_until(self, reply: Queued) -> float | None:
        """The attempt has a place in the queue: until when to wait for its turn. None: no time is left."""
        if self.phase is not Phase.QUEUED and reply.position >= self.client_state.max_waiters:
            raise queue_full_error(self.spec.name, reply.position, self.client_state.max_waiters)
        self.troubles = None
        self.phase = Phase.QUEUED
        self.client_state.refresh_every(self.nonce, reply.refresh_in)
        now = self.client_state.now()
        if self.prepared is None:
            spec = self.spec
            grant = (0, (), spec.kind, spec.mode, spec.ttl, None, spec.metadata, 0.0)
            self.prepared = lease_of(spec, self.nonce, self.owner, tuple.__new__(Granted, grant), now), now
            if self.watch_long_wait is not None:
                self.looks_at = now + LONG_WAIT_SECONDS
        until = now + min(reply.poll_after, POLL_SECONDS_MAX)
        ends_at = self.ends_at
        if ends_at is None:
            return until
        return min(until, ends_at) if now < ends_at else None

    async def not_granted(self, reply: Reply) -> NotGranted | None:
        """Get ready for waiting, or end the attempt."""
        self.traces = AFTER_REFUSAL.get(self.traces, self.traces)
        if isinstance(reply, Busy):
            now = self.client_state.now()
            if self.ends_at is not None and now >= self.ends_at:
                return await self._withdraw() if self.traces else NotGranted(reply.holders, reply.now)
            self.client_state.mark_contended(self.spec.name)
            await self.enter_queue(now)
            return None
        raise refusal_error(self.spec, reply)

    async def enter_queue(self, now: float) -> None:
        """Subscribe to wake-ups, then ask for a place in the queue: in this order no wake-up is missed."""
        if self.phase is not Phase.QUEUED:
            self.phase = Phase.SUBSCRIBED
        try:
            await Listen(self.nonce, self.spec.name)
        except TransientError as trouble:
            await self.pause_or_give_up(trouble)
            return
        self.troubles = None
        self.client_state.wait(self.nonce, self.spec.name, now)
        self.request = acquire_request(self.client_state, self.spec, self.owner, self.nonce, wait=True)

    async def _withdraw(self) -> NotGranted:
        linger = self.client_state.linger if self.traces >= COPY else 0.0
        try:
            reply = await Apply(self.spec.name, Withdraw(self.nonce, linger))
        except TransientError:
            await self.withdraw_in_background()
            return NotGranted()
        self.traces = NONE
        return NotGranted(reply.holders, reply.now) if isinstance(reply, Withdrawn) else NotGranted()

    async def pause_or_give_up(self, trouble: TransientError) -> None:
        """A request failed: pause before the next one, or give up when no time is left."""
        now = await Now()
        if isinstance(trouble, OutcomeUnknown):
            self.traces = AFTER_UNKNOWN_OUTCOME.get(self.traces, self.traces)
        elif self.traces < COPY:
            self.sent = None
            self.traces = REQUEST if self.phase is Phase.QUEUED else NONE
        since, failures = self.troubles or (now, 0)
        self.troubles = since, failures + 1
        gives_up_at = self._gives_up_at(now, since)
        if now >= gives_up_at:
            raise unavailable_error(repr(self.spec.name), trouble) from trouble
        await Pause(min(pause_seconds(failures), gives_up_at - now))

    def _gives_up_at(self, now: float, since: float) -> float:
        """Once queued, the timeout decides; before that, io_timeout or an earlier timeout."""
        if self.phase is Phase.QUEUED:
            return self.ends_at if self.ends_at is not None else now + self.client_state.io_timeout
        limit = since + self.client_state.io_timeout
        return limit if self.ends_at is None else min(limit, max(self.ends_at, since))

    async def withdraw_in_background(self) -> None:
        """Have the keeper withdraw what the engine may hold of this attempt."""
        self.client_state.leases.pop(self.nonce, None)
        self.client_state.waiting.pop(self.nonce, None)
        if self.traces:
            self.traces = NONE
            await clean_up(
                self.client_state,
                self.spec.name,
                self.spec.ttl,
                Withdraw(self.nonce, self.client_state.linger),
                wait=True,
            )

    async def stop_listening(self) -> None:
        self.phase = Phase.RUNNING
        self.client_state.waiting.pop(self.nonce, None)
        await Unlisten(self.nonce)
        if self.client_state.closed:
            await Notify(CLOSING)


WatchLongWait = Callable[[Attempt], LongWait | None]
"""Called when an attempt has waited for ``LONG_WAIT_SECONDS``."""


def lease_of(spec: Spec, nonce: str, owner: str, reply: Granted, sent: float) -> LeaseState:
    counts_from = sent - reply.age
    return LeaseState(
        spec.name,
        spec.kind,
        reply.mode,  # type: ignore[arg-type]  # an engine replies with a mode that was requested
        nonce,
        owner,
        reply.token,
        reply.peers,
        reply.metadata,
        counts_from,
        reply.ttl,
        lease_deadline(counts_from, reply.ttl),
        None if reply.lasts is None else lease_deadline(sent, reply.lasts),
        spec.renew,
        spec.grace,
    )
