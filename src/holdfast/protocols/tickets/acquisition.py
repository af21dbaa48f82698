"""Acquiring: create a ticket, read the ticket before it, wait for exactly that one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ...core.deadlines import RENEW_AFTER
from ...core.effects import NotApplied, OutcomeUnknown, mark_never_sent, never_sent
from ...errors import EngineUnavailable
from ...rules.record import REFRESH_SECONDS
from ...rules.requests import Acquire, Busy, Gone, Granted, Mismatch, Queued, Reply, Request
from ...rules.tickets import (
    SHARED_MODES,
    LockConfig,
    LockView,
    Ticket,
    Watched,
    blockers,
    find,
    holders_of,
    record_of,
    watched,
)
from .client import LockAttempt, SessionState, TicketClient
from .sessions import refreshed, session_for, usable_session
from .store import SessionEndedError

__all__ = ["acquire", "acquire_together", "filled", "granted", "mismatch"]

POLL_SECONDS = 60.0
"""The store wakes a waiter. Polling this often is the shared protocol's own caution."""


async def acquire(client: TicketClient, name: str, request: Acquire) -> Reply:
    """One attempt; it may be requested several times."""
    attempt = client.attempts.get(request.nonce)
    if attempt is None:
        attempt = client.attempts[request.nonce] = LockAttempt(
            name, request.nonce, request.kind, request.mode, request.ttl
        )
    asking = AcquireRequest(client, attempt, name, request, client.now())
    try:
        while True:
            reply = await asking.step()
            if reply is not None:
                return reply
    except NotApplied as refusal:
        if attempt.is_created or attempt.is_uncertain:
            # The last step did nothing, but an earlier step may have created the ticket.
            raise OutcomeUnknown(str(refusal)) from refusal
        raise
    except (EngineUnavailable, KeyboardInterrupt) as error:
        if attempt.is_created or attempt.is_uncertain:
            mark_never_sent(error, False)  # the last step sent nothing, but earlier ones did
        elif never_sent(error):
            client.forget(request.nonce)
        raise


async def acquire_together(client: TicketClient, steps: Sequence[tuple[str, Request]]) -> list[Reply] | None:
    """The grants of free mutexes, all of them in one step; or the refusal of the first one. None: nothing was
    done, and each has to be acquired by itself."""
    wanted = [(name, request) for name, request in steps if isinstance(request, Acquire)]
    if len(wanted) < len(steps) or any(request.kind != "lock" or request.wait for _, request in wanted):
        return None
    first = wanted[0][1]
    if any((request.ttl, request.renews) != (first.ttl, first.renews) for _, request in wanted):
        return None  # of several sessions
    began = client.now()
    session = usable_session(client, first.ttl, not first.renews, began)
    if session is None:
        session = await session_for(client, first.ttl, in_full=not first.renews)
    attempts = []
    for name, request in wanted:
        attempt = LockAttempt(name, request.nonce, request.kind, request.mode, request.ttl)
        attempt.session = attempt.create_session = session
        client.attempts[request.nonce] = attempt
        attempts.append(attempt)
    try:
        views = await _create_together(client, wanted, session)
    except OutcomeUnknown:
        for attempt in attempts:
            attempt.is_uncertain = True
        raise
    except EngineUnavailable as error:
        if error.nothing_was_sent:
            for attempt in attempts:
                client.forget(attempt.nonce)
        raise
    if views is None or not find(views[0].tickets, first.nonce):
        for attempt in attempts:
            client.forget(attempt.nonce)
        if views is None or not views[0].tickets:
            return None
        return [mismatch(views[0], "lock", 0) or await _busy(client, steps[0][0], views[0])]
    replies: list[Reply] = []
    for (_, request), attempt, view in zip(wanted, attempts, views, strict=True):
        me = next(ticket for ticket in view.tickets if ticket.nonce == request.nonce)
        attempt.is_created, attempt.order = True, me.order
        replies.append(_grant(attempt, me, (), session, request.max_hold, began))
    return replies


async def _create_together(
    client: TicketClient, wanted: list[tuple[str, Acquire]], session: SessionState
) -> tuple[LockView, ...] | None:
    """The names with their tickets; or, if one of them is in use, as they are. None: the store cannot."""
    declared = LockConfig("lock", 0, 0)
    wall = client.wall()
    configs: list[LockConfig | None] = [client.configs.get(name, declared) for name, _ in wanted]
    while True:
        tickets = tuple(
            [
                (name, _ticket(request, wall), config)
                for (name, request), config in zip(wanted, configs, strict=True)
            ]
        )
        try:
            views = await client.store.create_together(tickets, session.id)
        except SessionEndedError:
            client.session_lost(session)
            return None
        if views is None:
            return None
        for (name, _), view in zip(wanted, views, strict=True):
            client.learn(name, view.config, declared)
        if all(find(view.tickets, request.nonce) for (_, request), view in zip(wanted, views, strict=True)):
            return views
        found = [view.config for view in views]
        is_free = not any(view.tickets or view.note or mismatch(view, "lock", 0) for view in views)
        if not is_free or all(map(_is_same_config, found, configs)):
            return views
        configs = found


class AcquireRequest:
    """One request for a lock. Each step creates the attempt's ticket or reads it, together with the tickets
    before it; then the reply or the next step is decided."""

    __slots__ = (
        "alone",
        "attempt",
        "began",
        "client",
        "config",
        "declared",
        "fresh",
        "name",
        "request",
        "session",
    )

    session: SessionState

    def __init__(
        self, client: TicketClient, attempt: LockAttempt, name: str, request: Acquire, began: float
    ) -> None:
        self.client, self.attempt, self.name, self.request = client, attempt, name, request
        self.began = began
        self.declared = LockConfig(request.kind, request.limit, request.limit)
        self.config: LockConfig | None = client.configs.get(name, self.declared)
        """The configuration that the name is assumed to have."""
        self.alone = not request.wait
        self.fresh = True
        """This is the first step: the time is still ``began``."""

    async def step(self) -> Reply | None:
        """The reply; None: take another step."""
        attempt, request, name = self.attempt, self.request, self.name
        if not self._has_session():
            try:
                await self._find_session()
            except KeyboardInterrupt as interrupt:
                mark_never_sent(interrupt)  # where there was no ticket before, there is none now
                raise
        is_read = attempt.is_created
        if is_read:
            behind = None if attempt.watch_set is None else attempt.behind
            view = await self.client.store.read_queue(
                name, request.nonce, request.kind, attempt.order, behind
            )
        else:
            try:
                view = await self._create()
            except SessionEndedError:
                self.client.session_lost(self.session)
                return None
        self.client.learn(name, view.config, self.declared)
        me = find(view.tickets, request.nonce)
        if me is None:
            return await self._ticket_missing(view, is_read)
        attempt.is_created, attempt.order = True, me.order
        if me.session not in (None, self.session.id):
            # A late copy of the create request arrived under a session that this client has given up.
            with contextlib.suppress(SessionEndedError):
                await self.client.store.attach(name, me, self.session.id)
            attempt.watch_set = None
            return None
        return await self._ticket_found(view, me)

    def _has_session(self) -> bool:
        """Most often a usable session is open, and no request is needed."""
        attempt, request, fresh = self.attempt, self.request, self.fresh
        self.fresh = False
        if attempt.is_created or not fresh:
            return False
        session = usable_session(self.client, request.ttl, not request.renews, self.began)
        if session is None:
            return False
        self.session = attempt.session = session
        return True

    async def _find_session(self) -> None:
        """The session of the ticket, kept alive if due; if it has ended, the ticket is gone."""
        attempt, request = self.attempt, self.request
        if attempt.session is not None and attempt.is_created:
            if await refreshed(self.client, attempt.session, None if request.renews else request.ttl):
                self.session = attempt.session
                return
            attempt.is_created, attempt.watch_set = False, None
        self.session = attempt.session = await session_for(
            self.client, request.ttl, in_full=not request.renews
        )

    async def _create(self) -> LockView:
        request, attempt = self.request, self.attempt
        attempt.create_session = self.session
        ticket = _ticket(request, self.client.wall())
        try:
            return await self.client.store.create(
                self.name, ticket, self.session.id, self.config, request.limit, self.alone
            )
        except OutcomeUnknown:
            attempt.is_uncertain = True
            raise

    async def _ticket_found(self, view: LockView, me: Ticket) -> Reply | None:
        """The ticket is in the queue."""
        attempt, request = self.attempt, self.request
        wrong = mismatch(view, request.kind, request.limit)
        if wrong is None and me.token and me.mode == "exclusive" and me is view.tickets[0]:
            return _grant(attempt, me, (), self.session, request.max_hold, self.began)
        present = view.config or self.declared
        waits_for = watched(view.tickets, me, present)
        if wrong is not None or (waits_for.nonces and not request.wait):
            await self.client.store.remove(self.name, request.nonce, request.mode, me.order)
            attempt.is_created = False
            return self._not_granted(wrong or await _busy(self.client, self.name, view))
        if not waits_for.nonces:
            grant = await granted(self.client, attempt, view, me, self.session, request.max_hold, self.began)
            if grant is None or not await _notify_next(self.client, attempt, view, self.session):
                attempt.watch_set = None
                return None
            return grant
        if attempt.watch_set == waits_for:
            return _queued(attempt, view, me, present, self.session)
        chosen = tuple([t for t in view.tickets if t.nonce in waits_for.nonces])
        attempt.position = _position(view, me)
        await self._watch(waits_for, chosen)
        return None  # read again: the watched ticket may have gone before the watch was set

    async def _watch(self, waits_for: Watched, tickets: tuple[Ticket, ...]) -> None:
        attempt = self.attempt
        attempt.waited = True
        attempt.behind = tickets[0] if attempt.kind == "lock" else None
        attempt.watch_set = waits_for  # before: a watch may fire at once, and then it is gone
        try:
            await self.client.store.watch(attempt.nonce, self.name, waits_for, tickets)
        except BaseException:
            attempt.watch_set = None
            raise

    async def _ticket_missing(self, view: LockView, was_read: bool) -> Reply | None:
        """The ticket was not created, or no longer exists."""
        attempt, request = self.attempt, self.request
        if view.note is not None:
            self.client.forget(request.nonce)
            return Gone(view.note.reason, view.note.note)
        if was_read:
            attempt.is_created, attempt.watch_set = False, None  # start again, at the end of the queue
            return None
        wrong = mismatch(view, request.kind, request.limit)
        if wrong is not None:
            return self._not_granted(wrong)
        if not _is_same_config(view.config, self.config):
            self.config = view.config
            return None
        if self.alone and not self._is_blocked(view):
            self.alone = False
            return None
        return self._not_granted(await _busy(self.client, self.name, view))

    def _is_blocked(self, view: LockView) -> bool:
        """Whether a ticket created now would have to wait."""
        end = view.tickets[-1].order + 1 if view.tickets else 1
        last = _ticket(self.request, 0.0)._replace(order=end)
        return bool(blockers(view.tickets, last, view.config or self.declared))

    def _not_granted(self, reply: Reply) -> Reply:
        """No ticket is left, unless a copy of the request is still under way, which only a withdrawal
        ends."""
        if not self.attempt.is_uncertain:
            self.client.forget(self.request.nonce)
        return reply


def _is_same_config(one: LockConfig | None, other: LockConfig | None) -> bool:
    """Whether creating a ticket depends on no difference between the two."""
    if one is None or other is None:
        return one is other
    return (one.kind, one.declared) == (other.kind, other.declared)


def _ticket(request: Acquire, since: float) -> Ticket:
    nonce, client, owner, kind, mode, ttl = request[:6]
    return Ticket(0, 0, nonce, client, owner, kind, mode, ttl, since, request.max_hold, request.metadata)


def mismatch(view: LockView, kind: str, limit: int) -> Mismatch | None:
    config = view.config
    if config is None:
        others = [ticket.kind for ticket in view.tickets if ticket.kind != kind]
        return Mismatch(others[0], 0) if others else None
    if config.kind == kind and (kind != "semaphore" or limit in (config.declared, config.limit)):
        return None
    return Mismatch(config.kind, config.declared)


async def _busy(client: TicketClient, name: str, view: LockView) -> Busy:
    now = client.wall()
    view = view._replace(tickets=await filled(client, name, holders_of(view)))
    return Busy(record_of(view, now).holders, now)


async def filled(client: TicketClient, name: str, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
    """The tickets in full, where an engine listed them by name alone."""
    return (
        tickets if all(ticket.token for ticket in tickets) else await client.store.read_tickets(name, tickets)
    )


async def granted(
    client: TicketClient,
    attempt: LockAttempt,
    view: LockView,
    me: Ticket,
    session: SessionState,
    max_hold: float | None,
    began: float,
) -> Granted | None:
    """The grant, where no earlier ticket blocks ``me``. None: the ticket no longer exists.

    ``began``: before the request was sent. If the session's life counts from earlier, less of the ttl is
    left.
    """
    if me.token and me.mode not in SHARED_MODES:
        return _grant(attempt, me, (), session, max_hold, began)
    shared = me.mode in SHARED_MODES
    known = await filled(client, attempt.name, holders_of(view) if shared else (me,))
    ticket = find(known, me.nonce)
    if ticket is None:
        return None
    peers = tuple([t.token for t in known if t.nonce != me.nonce])
    return _grant(attempt, ticket, peers, session, max_hold, began)


def _grant(
    attempt: LockAttempt,
    ticket: Ticket,
    peers: tuple[int, ...],
    session: SessionState,
    max_hold: float | None,
    began: float,
) -> Granted:
    attempt.ticket, attempt.session = ticket, session
    ttl = min(ticket.ttl, session.granted_seconds)
    age = session.age(began, ttl)
    return Granted(ticket.token, peers, ticket.kind, ticket.mode, ttl, max_hold, ticket.metadata, age)


async def _notify_next(
    client: TicketClient, attempt: LockAttempt, view: LockView, session: SessionState
) -> bool:
    """A waiter that got its permit rewrites its ticket, which wakes the next waiter: that one watches all
    holders from now on. False: read again."""
    ticket = attempt.ticket
    if ticket is None or ticket.kind != "semaphore" or not attempt.waited:
        return True
    if view.tickets[-1].order == ticket.order:
        return True  # no ticket is behind; a later one sees that this one holds a permit
    try:
        attempt.ticket = await client.store.attach(
            attempt.name, ticket._replace(since=client.wall()), session.id
        )
    except SessionEndedError:
        return False
    return attempt.ticket is not None


def _position(view: LockView, me: Ticket) -> int:
    before = (
        len([t for t in view.tickets if t.order < me.order]) - len(holders_of(view)) + view.unlisted_count
    )
    return max(before, 0)


def _queued(
    attempt: LockAttempt, view: LockView, me: Ticket, config: LockConfig, session: SessionState
) -> Queued:
    """Of a mutex that is read again, the view may be partial: the position is that of when the watch was
    set."""
    blocking = blockers(view.tickets, me, config)
    before = attempt.position if attempt.kind == "lock" else _position(view, me)
    clients = tuple({ticket.client: None for ticket in blocking[-1:] if ticket.client})
    refresh_in = min(REFRESH_SECONDS, session.granted_seconds * RENEW_AFTER)
    return Queued(before, POLL_SECONDS, clients, refresh_in)
