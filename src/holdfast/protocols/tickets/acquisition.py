"""Taking a lock: put a ticket, see who is before it, wait for exactly that one."""

from __future__ import annotations

import contextlib

from ...core.deadlines import RENEW_AFTER
from ...core.effects import NotApplied, Now, OutcomeUnknown
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
    holding,
    record_of,
    watched,
)
from .client import LockAttempt, Session, TicketClient
from .sessions import at_hand, refreshed, session_for
from .store import Arm, Enter, Fill, Look, NoSession, Remove, Take, Wall

__all__ = ["acquire", "filled", "granted", "mismatch"]

LOOK_IN_SECONDS = 60.0
"""A waiter is woken by the store. That it looks by itself now and then is the protocol's own caution."""


async def acquire(desk: TicketClient, name: str, ask: Acquire) -> Reply:
    """One attempt, asked as often as need be."""
    mine = desk.mine.get(ask.nonce)
    if mine is None:
        mine = desk.mine[ask.nonce] = LockAttempt(name, ask.nonce, ask.kind, ask.mode, ask.ttl)
    asking = Asking(desk, mine, name, ask, await Now())
    try:
        while True:
            reply = await asking.step()
            if reply is not None:
                return reply
    except NotApplied as refusal:
        if mine.entered or mine.uncertain:
            # That of the last step nothing happened does not say so of those before it.
            raise OutcomeUnknown(str(refusal)) from refusal
        raise
    except EngineUnavailable as error:
        if mine.entered or mine.uncertain:
            error.nothing_was_sent = False  # the last step was not; those before it were
        elif error.nothing_was_sent:
            desk.forget(ask.nonce)
        raise


class Asking:
    """One request for a lock, from step to step. Each step puts our ticket or looks at it, and in the same
    moment at those before it; then it is plain what to do, or what to answer."""

    __slots__ = ("alone", "ask", "began", "declared", "desk", "fresh", "mine", "name", "session", "settings")

    session: Session

    def __init__(self, desk: TicketClient, mine: LockAttempt, name: str, ask: Acquire, began: float) -> None:
        self.desk, self.mine, self.name, self.ask = desk, mine, name, ask
        self.began = began
        self.declared = LockConfig(ask.kind, ask.limit, ask.limit)
        self.settings: LockConfig | None = desk.settings.get(name, self.declared)
        """What the name is taken for."""
        self.alone = not ask.wait
        self.fresh = True
        """This is the first step: it is still as late as when we began."""

    async def step(self) -> Reply | None:
        """What is to be answered; None: go on."""
        mine, ask, name = self.mine, self.ask, self.name
        if not self._has_session():
            await self._find_session()
        looks = mine.entered
        if looks:
            behind = None if mine.armed is None else mine.behind
            stand = await Look(name, ask.nonce, ask.kind, mine.place, behind)
        else:
            try:
                stand = await self._enter()
            except NoSession:
                self.desk.lost(self.session)
                return None
        self.desk.learn(name, stand.settings, self.declared)
        me = find(stand.tickets, ask.nonce)
        if me is None:
            return await self._not_there(stand, looks)
        mine.entered, mine.place = True, me.place
        if me.session not in (None, self.session.id):
            # A copy of our request came late, under a session that we had given up.
            with contextlib.suppress(NoSession):
                await Take(name, me, self.session.id)
            mine.armed = None
            return None
        return await self._there(stand, me)

    def _has_session(self) -> bool:
        """Most often there is one, and nothing has to be asked to know."""
        mine, ask, fresh = self.mine, self.ask, self.fresh
        self.fresh = False
        if mine.entered or not fresh:
            return False
        session = at_hand(self.desk, ask.ttl, not ask.renews, self.began)
        if session is None:
            return False
        self.session = mine.session = session
        return True

    async def _find_session(self) -> None:
        """The session of our ticket, young enough; if it is gone, so is the ticket."""
        mine, ask = self.mine, self.ask
        if mine.session is not None and mine.entered:
            if await refreshed(self.desk, mine.session, None if ask.renews else ask.ttl):
                self.session = mine.session
                return
            mine.entered, mine.armed = False, None
        self.session = mine.session = await session_for(self.desk, ask.ttl, in_full=not ask.renews)

    async def _enter(self) -> LockView:
        ask, mine = self.ask, self.mine
        mine.asked_under = self.session
        ticket = _ticket(ask, await Wall())
        try:
            return await Enter(self.name, ticket, self.session.id, self.settings, ask.limit, self.alone)
        except OutcomeUnknown:
            mine.uncertain = True
            raise

    async def _there(self, stand: LockView, me: Ticket) -> Reply | None:
        """Our ticket stands among the others."""
        mine, ask = self.mine, self.ask
        wrong = mismatch(stand, ask.kind, ask.limit)
        if wrong is None and me.token and me.mode == "exclusive" and me is stand.tickets[0]:
            return _grant(mine, me, (), self.session, ask.max_hold, self.began)
        present = stand.settings or self.declared
        waits_for = watched(stand.tickets, me, present)
        if wrong is not None or (waits_for.nonces and not ask.wait):
            await Remove(self.name, ask.nonce, ask.mode, me.place)
            mine.entered = False
            return self._not_taken(wrong or await _busy(self.name, stand))
        if not waits_for.nonces:
            grant = await granted(mine, stand, me, self.session, ask.max_hold, self.began)
            if grant is None or not await _told(mine, stand, self.session):
                mine.armed = None
                return None
            return grant
        if mine.armed == waits_for:
            return _queued(mine, stand, me, present, self.session)
        chosen = tuple([t for t in stand.tickets if t.nonce in waits_for.nonces])
        mine.position = _position(stand, me)
        await self._arm(waits_for, chosen)
        return None  # look again: it may have gone before anybody watched

    async def _arm(self, waits_for: Watched, tickets: tuple[Ticket, ...]) -> None:
        mine = self.mine
        mine.waited = True
        mine.behind = tickets[0] if mine.kind == "lock" else None
        mine.armed = waits_for  # before: what is armed may come at once, and then is armed no more
        try:
            await Arm(mine.nonce, self.name, waits_for, tickets)
        except BaseException:
            mine.armed = None
            raise

    async def _not_there(self, stand: LockView, looked: bool) -> Reply | None:
        """It was not put, or is gone."""
        mine, ask = self.mine, self.ask
        if stand.note is not None:
            self.desk.forget(ask.nonce)
            return Gone(stand.note.reason, stand.note.note)
        if looked:
            mine.entered, mine.armed = False, None  # begin anew, at the end
            return None
        wrong = mismatch(stand, ask.kind, ask.limit)
        if wrong is not None:
            return self._not_taken(wrong)
        if not _are_the_same(stand.settings, self.settings):
            self.settings = stand.settings
            return None
        if self.alone and not self._in_the_way(stand):
            self.alone = False
            return None
        return self._not_taken(await _busy(self.name, stand))

    def _in_the_way(self, stand: LockView) -> bool:
        """Whether one who comes now would have to wait."""
        end = stand.tickets[-1].place + 1 if stand.tickets else 1
        last = _ticket(self.ask, 0.0)._replace(place=end)
        return bool(blockers(stand.tickets, last, stand.settings or self.declared))

    def _not_taken(self, reply: Reply) -> Reply:
        """Nothing of it is there; unless a copy of it is still under way, which only a withdrawal ends."""
        if not self.mine.uncertain:
            self.desk.forget(self.ask.nonce)
        return reply


def _are_the_same(one: LockConfig | None, other: LockConfig | None) -> bool:
    """What a name is, as far as a ticket depends on it when it is put."""
    if one is None or other is None:
        return one is other
    return (one.kind, one.declared) == (other.kind, other.declared)


def _ticket(ask: Acquire, since: float) -> Ticket:
    nonce, client, owner, kind, mode, ttl = ask[:6]
    return Ticket(0, 0, nonce, client, owner, kind, mode, ttl, since, ask.max_hold, ask.metadata)


def mismatch(stand: LockView, kind: str, limit: int) -> Mismatch | None:
    settings = stand.settings
    if settings is None:
        others = [ticket.kind for ticket in stand.tickets if ticket.kind != kind]
        return Mismatch(others[0], 0) if others else None
    if settings.kind == kind and (kind != "semaphore" or limit in (settings.declared, settings.limit)):
        return None
    return Mismatch(settings.kind, settings.declared)


async def _busy(name: str, stand: LockView) -> Busy:
    now = await Wall()
    told = stand._replace(tickets=await filled(name, holding(stand)))
    return Busy(record_of(told, now).holders, now)


async def filled(name: str, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
    """Tickets in full, where an engine listed them by name alone."""
    return tickets if all(ticket.token for ticket in tickets) else await Fill(name, tickets)


async def granted(
    mine: LockAttempt, stand: LockView, me: Ticket, session: Session, lasts: float | None, began: float
) -> Granted | None:
    """We hold it: none of those before us is in our way. None: it is gone by now.

    ``began``: before the request was sent. A session may be older than that: then so much less is left.
    """
    if me.token and me.mode not in SHARED_MODES:
        return _grant(mine, me, (), session, lasts, began)
    shared = me.mode in SHARED_MODES
    known = await filled(mine.name, holding(stand) if shared else (me,))
    ticket = find(known, me.nonce)
    if ticket is None:
        return None
    peers = tuple([t.token for t in known if t.nonce != me.nonce])
    return _grant(mine, ticket, peers, session, lasts, began)


def _grant(
    mine: LockAttempt,
    ticket: Ticket,
    peers: tuple[int, ...],
    session: Session,
    lasts: float | None,
    began: float,
) -> Granted:
    mine.ticket, mine.session = ticket, session
    ttl = min(ticket.ttl, session.lasts)
    age = session.age(began, ttl)
    return Granted(ticket.token, peers, ticket.kind, ticket.mode, ttl, lasts, ticket.metadata, age)


async def _told(mine: LockAttempt, stand: LockView, session: Session) -> bool:
    """Who had to wait for a permit tells the next one, which waits for any of the holders from now on. False:
    look again."""
    ticket = mine.ticket
    if ticket is None or ticket.kind != "semaphore" or not mine.waited:
        return True
    if stand.tickets[-1].place == ticket.place:
        return True  # nobody is behind us; who comes now sees that we hold
    try:
        mine.ticket = await Take(mine.name, ticket._replace(since=await Wall()), session.id)
    except NoSession:
        return False
    return mine.ticket is not None


def _position(stand: LockView, me: Ticket) -> int:
    before = len([t for t in stand.tickets if t.place < me.place]) - len(holding(stand)) + stand.unlisted
    return max(before, 0)


def _queued(mine: LockAttempt, stand: LockView, me: Ticket, settings: LockConfig, session: Session) -> Queued:
    """Of a mutex that is looked at again less may be told: its place is the one that it had when it armed."""
    blocking = blockers(stand.tickets, me, settings)
    before = mine.position if mine.kind == "lock" else _position(stand, me)
    clients = tuple({ticket.client: None for ticket in blocking[-1:] if ticket.client})
    refresh_in = min(REFRESH_SECONDS, session.lasts * RENEW_AFTER)
    return Queued(before, LOOK_IN_SECONDS, clients, refresh_in)
