"""Taking a lock: put a ticket, see who is before it, wait for exactly that one."""

from __future__ import annotations

import contextlib

from ...core.deadlines import RENEW_AFTER
from ...core.effects import NotApplied, OutcomeUnknown
from ...errors import EngineUnavailable
from ...rules.record import REFRESH_SECONDS
from ...rules.requests import Acquire, Busy, Gone, Granted, Mismatch, Queued, Reply
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
from .sessions import at_hand, refreshed, session_for
from .store import SessionEndedError

__all__ = ["acquire", "filled", "granted", "mismatch"]

POLL_SECONDS = 60.0
"""A waiter is woken by the store. That it looks by itself now and then is the protocol's own caution."""


async def acquire(client: TicketClient, name: str, request: Acquire) -> Reply:
    """One attempt, asked as often as need be."""
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
        if attempt.entered or attempt.uncertain:
            # That of the last step nothing happened does not say so of those before it.
            raise OutcomeUnknown(str(refusal)) from refusal
        raise
    except EngineUnavailable as error:
        if attempt.entered or attempt.uncertain:
            error.nothing_was_sent = False  # the last step was not; those before it were
        elif error.nothing_was_sent:
            client.forget(request.nonce)
        raise


class AcquireRequest:
    """One request for a lock, from step to step. Each step puts our ticket or looks at it, and in the same
    moment at those before it; then it is plain what to do, or what to answer."""

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
        """What the name is taken for."""
        self.alone = not request.wait
        self.fresh = True
        """This is the first step: it is still as late as when we began."""

    async def step(self) -> Reply | None:
        """What is to be answered; None: go on."""
        attempt, request, name = self.attempt, self.request, self.name
        if not self._has_session():
            await self._find_session()
        looks = attempt.entered
        if looks:
            behind = None if attempt.armed is None else attempt.behind
            view = await self.client.store.read_queue(
                name, request.nonce, request.kind, attempt.order, behind
            )
        else:
            try:
                view = await self._enter()
            except SessionEndedError:
                self.client.lost(self.session)
                return None
        self.client.learn(name, view.config, self.declared)
        me = find(view.tickets, request.nonce)
        if me is None:
            return await self._not_there(view, looks)
        attempt.entered, attempt.order = True, me.order
        if me.session not in (None, self.session.id):
            # A copy of our request came late, under a session that we had given up.
            with contextlib.suppress(SessionEndedError):
                await self.client.store.attach(name, me, self.session.id)
            attempt.armed = None
            return None
        return await self._there(view, me)

    def _has_session(self) -> bool:
        """Most often there is one, and nothing has to be asked to know."""
        attempt, request, fresh = self.attempt, self.request, self.fresh
        self.fresh = False
        if attempt.entered or not fresh:
            return False
        session = at_hand(self.client, request.ttl, not request.renews, self.began)
        if session is None:
            return False
        self.session = attempt.session = session
        return True

    async def _find_session(self) -> None:
        """The session of our ticket, young enough; if it is gone, so is the ticket."""
        attempt, request = self.attempt, self.request
        if attempt.session is not None and attempt.entered:
            if await refreshed(self.client, attempt.session, None if request.renews else request.ttl):
                self.session = attempt.session
                return
            attempt.entered, attempt.armed = False, None
        self.session = attempt.session = await session_for(
            self.client, request.ttl, in_full=not request.renews
        )

    async def _enter(self) -> LockView:
        request, attempt = self.request, self.attempt
        attempt.asked_under = self.session
        ticket = _ticket(request, self.client.wall())
        try:
            return await self.client.store.create(
                self.name, ticket, self.session.id, self.config, request.limit, self.alone
            )
        except OutcomeUnknown:
            attempt.uncertain = True
            raise

    async def _there(self, view: LockView, me: Ticket) -> Reply | None:
        """Our ticket stands among the others."""
        attempt, request = self.attempt, self.request
        wrong = mismatch(view, request.kind, request.limit)
        if wrong is None and me.token and me.mode == "exclusive" and me is view.tickets[0]:
            return _grant(attempt, me, (), self.session, request.max_hold, self.began)
        present = view.config or self.declared
        waits_for = watched(view.tickets, me, present)
        if wrong is not None or (waits_for.nonces and not request.wait):
            await self.client.store.remove(self.name, request.nonce, request.mode, me.order)
            attempt.entered = False
            return self._not_taken(wrong or await _busy(self.client, self.name, view))
        if not waits_for.nonces:
            grant = await granted(self.client, attempt, view, me, self.session, request.max_hold, self.began)
            if grant is None or not await _notify_next(self.client, attempt, view, self.session):
                attempt.armed = None
                return None
            return grant
        if attempt.armed == waits_for:
            return _queued(attempt, view, me, present, self.session)
        chosen = tuple([t for t in view.tickets if t.nonce in waits_for.nonces])
        attempt.position = _position(view, me)
        await self._arm(waits_for, chosen)
        return None  # look again: it may have gone before anybody watched

    async def _arm(self, waits_for: Watched, tickets: tuple[Ticket, ...]) -> None:
        attempt = self.attempt
        attempt.waited = True
        attempt.behind = tickets[0] if attempt.kind == "lock" else None
        attempt.armed = waits_for  # before: what is armed may come at once, and then is armed no more
        try:
            await self.client.store.watch(attempt.nonce, self.name, waits_for, tickets)
        except BaseException:
            attempt.armed = None
            raise

    async def _not_there(self, view: LockView, looked: bool) -> Reply | None:
        """It was not put, or is gone."""
        attempt, request = self.attempt, self.request
        if view.note is not None:
            self.client.forget(request.nonce)
            return Gone(view.note.reason, view.note.note)
        if looked:
            attempt.entered, attempt.armed = False, None  # begin anew, at the end
            return None
        wrong = mismatch(view, request.kind, request.limit)
        if wrong is not None:
            return self._not_taken(wrong)
        if not _are_the_same(view.config, self.config):
            self.config = view.config
            return None
        if self.alone and not self._in_the_way(view):
            self.alone = False
            return None
        return self._not_taken(await _busy(self.client, self.name, view))

    def _in_the_way(self, view: LockView) -> bool:
        """Whether one who comes now would have to wait."""
        end = view.tickets[-1].order + 1 if view.tickets else 1
        last = _ticket(self.request, 0.0)._replace(order=end)
        return bool(blockers(view.tickets, last, view.config or self.declared))

    def _not_taken(self, reply: Reply) -> Reply:
        """Nothing of it is there; unless a copy of it is still under way, which only a withdrawal ends."""
        if not self.attempt.uncertain:
            self.client.forget(self.request.nonce)
        return reply


def _are_the_same(one: LockConfig | None, other: LockConfig | None) -> bool:
    """What a name is, as far as a ticket depends on it when it is put."""
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
    told = view._replace(tickets=await filled(client, name, holders_of(view)))
    return Busy(record_of(told, now).holders, now)


async def filled(client: TicketClient, name: str, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
    """Tickets in full, where an engine listed them by name alone."""
    return (
        tickets if all(ticket.token for ticket in tickets) else await client.store.read_tickets(name, tickets)
    )


async def granted(
    client: TicketClient,
    attempt: LockAttempt,
    view: LockView,
    me: Ticket,
    session: SessionState,
    lasts: float | None,
    began: float,
) -> Granted | None:
    """We hold it: none of those before us is in our way. None: it is gone by now.

    ``began``: before the request was sent. A session may be older than that: then so much less is left.
    """
    if me.token and me.mode not in SHARED_MODES:
        return _grant(attempt, me, (), session, lasts, began)
    shared = me.mode in SHARED_MODES
    known = await filled(client, attempt.name, holders_of(view) if shared else (me,))
    ticket = find(known, me.nonce)
    if ticket is None:
        return None
    peers = tuple([t.token for t in known if t.nonce != me.nonce])
    return _grant(attempt, ticket, peers, session, lasts, began)


def _grant(
    attempt: LockAttempt,
    ticket: Ticket,
    peers: tuple[int, ...],
    session: SessionState,
    lasts: float | None,
    began: float,
) -> Granted:
    attempt.ticket, attempt.session = ticket, session
    ttl = min(ticket.ttl, session.lasts)
    age = session.age(began, ttl)
    return Granted(ticket.token, peers, ticket.kind, ticket.mode, ttl, lasts, ticket.metadata, age)


async def _notify_next(
    client: TicketClient, attempt: LockAttempt, view: LockView, session: SessionState
) -> bool:
    """Who had to wait for a permit tells the next one, which waits for any of the holders from now on. False:
    look again."""
    ticket = attempt.ticket
    if ticket is None or ticket.kind != "semaphore" or not attempt.waited:
        return True
    if view.tickets[-1].order == ticket.order:
        return True  # nobody is behind us; who comes now sees that we hold
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
    """Of a mutex that is looked at again less may be told: its place is the one that it had when it armed."""
    blocking = blockers(view.tickets, me, config)
    before = attempt.position if attempt.kind == "lock" else _position(view, me)
    clients = tuple({ticket.client: None for ticket in blocking[-1:] if ticket.client})
    refresh_in = min(REFRESH_SECONDS, session.lasts * RENEW_AFTER)
    return Queued(before, POLL_SECONDS, clients, refresh_in)
