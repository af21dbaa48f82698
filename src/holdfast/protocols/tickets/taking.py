"""Taking a lock: put a ticket, see who is before it, wait for exactly that one."""

from __future__ import annotations

import contextlib

from ...core.deadlines import RENEW_AFTER
from ...core.ops import Now, Refused, Unknown
from ...rules.record import REFRESH_SECONDS
from ...rules.requests import Acquire, Busy, Gone, Granted, Mismatch, Queued, Reply
from ...rules.tickets import (
    SHARED_MODES,
    Settings,
    Stand,
    Ticket,
    blockers,
    find,
    holding,
    record_of,
    watched,
)
from .desk import Desk, Mine, Session
from .ops import Arm, Enter, Fill, Look, NoSession, Remove, Take, Wall
from .sessions import refreshed, session_for

__all__ = ["acquire", "filled", "granted", "mismatch"]

LOOK_IN_SECONDS = 60.0
"""A waiter is woken by the store. That it looks by itself now and then is the protocol's own caution."""


async def acquire(desk: Desk, name: str, ask: Acquire) -> Reply:
    """One attempt, asked as often as need be."""
    mine = desk.attempt(name, ask)
    try:
        return await _acquire(desk, mine, name, ask)
    except Refused as refusal:
        if mine.entered or mine.uncertain:
            # That of the last step nothing happened does not say so of those before it.
            raise Unknown(str(refusal)) from refusal
        raise


async def _acquire(desk: Desk, mine: Mine, name: str, ask: Acquire) -> Reply:
    """Whatever woke us: our own ticket is read in the same step as those before it; if it is gone, we begin
    anew at the end."""
    began = await Now()
    declared = Settings(ask.kind, ask.limit, ask.limit)
    settings: Settings | None = desk.settings.get(name, declared)
    alone = not ask.wait
    while True:
        session = await _session(desk, mine, ask)
        looks = mine.entered
        if looks:
            stand = await Look(name, ask.nonce, ask.kind, mine.place)
        else:
            try:
                stand = await _enter(mine, name, ask, session, settings, alone)
            except NoSession:
                desk.lost(session)
                continue
        desk.learn(name, stand.settings, declared)
        wrong = mismatch(stand, ask.kind, ask.limit)
        me = find(stand.tickets, ask.nonce)
        if me is not None and me.session not in (None, session.id):
            # A copy of our request came late, under a session that we had given up.
            with contextlib.suppress(NoSession):
                await Take(name, me, session.id)
            mine.entered, mine.armed = True, None
        elif me is not None:
            mine.entered, mine.place = True, me.place
            present = stand.settings or declared
            waits_for = watched(stand.tickets, me, present)
            if wrong is not None or (waits_for.nonces and not ask.wait):
                await Remove(name, ask.nonce, ask.mode, me.place)
                mine.entered = False
                return _not_taken(desk, mine, wrong or await _busy(name, stand))
            if not waits_for.nonces:
                grant = await granted(mine, stand, me, session, ask.max_hold, began)
                if grant is not None and await _told(mine, stand, session):
                    return grant
                mine.armed = None
            elif mine.armed == waits_for:
                return _queued(stand, me, present, session)
            else:
                chosen = tuple([t for t in stand.tickets if t.nonce in waits_for.nonces])
                await Arm(ask.nonce, name, waits_for, chosen)
                mine.armed = waits_for  # and look again: it may have gone before anybody watched
        elif stand.note is not None:
            desk.forget(ask.nonce)
            return Gone(stand.note.reason, stand.note.note)
        elif looks:
            mine.entered, mine.armed = False, None
        elif wrong is not None:
            return _not_taken(desk, mine, wrong)
        elif not _are_the_same(stand.settings, settings):
            settings = stand.settings
        elif alone and not _in_the_way(stand, ask, declared):
            alone = False
        else:
            return _not_taken(desk, mine, await _busy(name, stand))


def _are_the_same(one: Settings | None, other: Settings | None) -> bool:
    """What a name is, as far as a ticket depends on it when it is put."""
    if one is None or other is None:
        return one is other
    return (one.kind, one.declared) == (other.kind, other.declared)


async def _session(desk: Desk, mine: Mine, ask: Acquire) -> Session:
    """The session of our ticket, young enough; if it is gone, so is the ticket."""
    session = mine.session
    if session is not None and mine.entered:
        if await refreshed(desk, session, None if ask.renews else ask.ttl):
            return session
        mine.entered, mine.armed = False, None
    mine.session = session = await session_for(desk, ask.ttl, in_full=not ask.renews)
    return session


async def _enter(
    mine: Mine, name: str, ask: Acquire, session: Session, settings: Settings | None, alone: bool
) -> Stand:
    ticket = _ticket(ask, await Wall())
    mine.asked_under = session
    try:
        return await Enter(name, ticket, session.id, settings, ask.limit, alone)
    except Unknown:
        mine.uncertain = True
        raise


def _ticket(ask: Acquire, since: float) -> Ticket:
    return Ticket(
        place=0,
        token=0,
        nonce=ask.nonce,
        client=ask.client,
        owner=ask.owner,
        kind=ask.kind,
        mode=ask.mode,
        ttl=ask.ttl,
        since=since,
        lasts=ask.max_hold,
        metadata=ask.metadata,
    )


def mismatch(stand: Stand, kind: str, limit: int) -> Mismatch | None:
    settings = stand.settings
    if settings is None:
        others = [ticket.kind for ticket in stand.tickets if ticket.kind != kind]
        return Mismatch(others[0], 0) if others else None
    if settings.kind == kind and (kind != "semaphore" or limit in (settings.declared, settings.limit)):
        return None
    return Mismatch(settings.kind, settings.declared)


def _in_the_way(stand: Stand, ask: Acquire, declared: Settings) -> bool:
    """Whether one who comes now would have to wait."""
    end = stand.tickets[-1].place + 1 if stand.tickets else 1
    last = _ticket(ask, 0.0)._replace(place=end)
    return bool(blockers(stand.tickets, last, stand.settings or declared))


def _not_taken(desk: Desk, mine: Mine, reply: Reply) -> Reply:
    """Nothing of it is there; unless a copy of it is still under way, which only a withdrawal ends."""
    if not mine.uncertain:
        desk.forget(mine.nonce)
    return reply


async def _busy(name: str, stand: Stand) -> Busy:
    now = await Wall()
    told = stand._replace(tickets=await filled(name, holding(stand)))
    return Busy(record_of(told, now).holders, now)


async def filled(name: str, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
    """Tickets in full, where an engine listed them by name alone."""
    return tickets if all(ticket.token for ticket in tickets) else await Fill(name, tickets)


async def granted(
    mine: Mine, stand: Stand, me: Ticket, session: Session, lasts: float | None, began: float
) -> Granted | None:
    """We hold it: none of those before us is in our way. None: it is gone by now.

    ``began``: before the request was sent. A session may be older than that: then so much less is left.
    """
    shared = me.mode in SHARED_MODES
    known = await filled(mine.name, holding(stand) if shared else (me,))
    ticket = find(known, me.nonce)
    if ticket is None:
        return None
    mine.ticket, mine.session = ticket, session
    peers = tuple([t.token for t in known if shared and t.nonce != me.nonce])
    ttl = min(ticket.ttl, session.lasts)
    age = session.age(began, ttl)
    return Granted(ticket.token, peers, ticket.kind, ticket.mode, ttl, lasts, ticket.metadata, age)


async def _told(mine: Mine, stand: Stand, session: Session) -> bool:
    """Who had to wait for a permit tells the next one, which waits for any of the holders from now on. False:
    look again."""
    ticket = mine.ticket
    if ticket is None or ticket.kind != "semaphore" or mine.armed is None:
        return True
    if stand.tickets[-1].place == ticket.place:
        return True  # nobody is behind us; who comes now sees that we hold
    try:
        mine.ticket = await Take(mine.name, ticket._replace(since=await Wall()), session.id)
    except NoSession:
        return False
    return mine.ticket is not None


def _queued(stand: Stand, me: Ticket, settings: Settings, session: Session) -> Queued:
    blocking = blockers(stand.tickets, me, settings)
    before = len([t for t in stand.tickets if t.place < me.place]) - len(holding(stand))
    clients = tuple({ticket.client: None for ticket in blocking[-1:] if ticket.client})
    refresh_in = min(REFRESH_SECONDS, session.lasts * RENEW_AFTER)
    return Queued(max(before, 0), LOOK_IN_SECONDS, clients, refresh_in)
