"""What a holder can do with its ticket, and others with a name."""

from __future__ import annotations

from ...core.effects import Now
from ...rules.record import StoredValue
from ...rules.requests import (
    Adopt,
    Done,
    Downgrade,
    Export,
    Gone,
    Renew,
    Reply,
    Resize,
    SetValue,
    Stop,
)
from ...rules.tickets import LockConfig, LockView, Ticket, find, holding
from ...rules.transitions import NOT_EXPORTED
from .acquisition import filled, granted, mismatch
from .client import LockAttempt, Session, TicketClient
from .releases import gone
from .sessions import refreshed, session_for
from .store import Exchange, Keep, Lend, Look, NoSession, SetLimit, Take, Wall
from .store import SetValue as StoreValue

__all__ = ["adopt", "downgrade", "export", "renew", "resize", "set_value", "stop"]


async def renew(desk: TicketClient, name: str, ask: Renew) -> Reply:
    """A longer ttl moves the ticket to a session of that length, and others see it. A shorter one leaves it
    as it is: what was granted is never shortened, and one session more would be gained."""
    mine = desk.mine.get(ask.nonce)
    if mine is None or mine.ticket is None or mine.session is None:
        return Gone("expired")
    if ask.ttl > mine.ticket.ttl:
        return await _move(desk, mine, mine.ticket, ask.ttl)
    sent = await Now()
    session = mine.session
    kept = await Keep((session.id,), ((name, mine.ticket),))
    if not kept.alive[0]:
        desk.lost(session)
        return await gone(desk, name, ask.nonce)
    session.kept(sent, kept.age)
    return Done(session.age(sent, ask.ttl)) if kept.there[0] else await gone(desk, name, ask.nonce)


async def _move(desk: TicketClient, mine: LockAttempt, ticket: Ticket, ttl: float) -> Reply:
    began = await Now()
    while True:
        session = await _carrier(desk, mine, ttl)
        try:
            moved = await Take(mine.name, ticket._replace(ttl=ttl), session.id)
        except NoSession:
            desk.lost(session)
            continue
        if moved is None:
            # Perhaps an earlier copy of this very request changed it.
            seen = await _seen(mine.name, mine.nonce)
            if seen is None or seen.client != desk.client:
                return await gone(desk, mine.name, mine.nonce)
            ticket = seen
            continue
        mine.session, mine.ticket, mine.ttl = session, moved, ttl
        return Done(session.age(began, ttl))


async def _carrier(desk: TicketClient, mine: LockAttempt, ttl: float) -> Session:
    """The session that carries the ticket, if it is long enough; else one that is."""
    session = mine.session
    if session is not None and ttl <= session.lasts and await refreshed(desk, session, ttl):
        return session
    return await session_for(desk, ttl, in_full=True)


async def _seen(name: str, nonce: str) -> Ticket | None:
    """A ticket as it is now, in full."""
    return find(await filled(name, (await Look(name, nonce)).tickets), nonce)


async def stop(desk: TicketClient, name: str, ask: Stop) -> Reply:
    """Nothing here extends a ticket by itself: it is released when its time is over. Is it still there?"""
    mine = desk.mine.get(ask.nonce)
    return Gone("expired") if mine is None else await renew(desk, name, Renew(ask.nonce, mine.ttl))


async def export(desk: TicketClient, name: str, ask: Export) -> Reply:
    """It lives on for one ttl, carried by nobody."""
    mine = desk.mine.get(ask.nonce)
    if mine is None or mine.ticket is None:
        return Gone("expired")
    ticket: Ticket | None = mine.ticket
    while ticket is not None and ticket.client in ("", desk.client) and ticket.owner != ask.seal:
        now, lent = await Wall(), ticket._replace(client="", owner=ask.seal)
        if ticket.lasts is not None:
            lent = lent._replace(since=now, lasts=max(ticket.since + ticket.lasts - now, 0.0))
        if await Lend(name, lent, ticket.ttl):
            break
        ticket = await _seen(name, ask.nonce)  # perhaps an earlier copy of this very request changed it
    if ticket is None or ticket.client not in ("", desk.client):
        return await gone(desk, name, ask.nonce)
    desk.forget(ask.nonce)
    return Done()


async def adopt(desk: TicketClient, name: str, ask: Adopt) -> Reply:
    """Take over what was exported. Without renewal: let it run out, for nobody will have it."""
    began = await Now()
    while True:
        stand = await Look(name, ask.nonce)
        seen = find(await filled(name, stand.tickets), ask.nonce)
        if seen is None:
            return Gone("expired") if stand.note is None else Gone(stand.note.reason, stand.note.note)
        if seen.client != desk.client and (seen.client, seen.owner) != ("", ask.seal):
            return Gone("stolen", NOT_EXPORTED)
        if not ask.renews:
            lent = seen._replace(client="", owner=ask.seal)
            if seen.client and not await Lend(name, lent, seen.ttl):
                return Gone("expired")
            desk.forget(ask.nonce)
            return Done()
        session = await session_for(desk, seen.ttl, in_full=True)
        now = await Wall()
        lasts = None if seen.lasts is None else min(seen.lasts, max(seen.since + seen.lasts - now, 0.0))
        try:
            taken = await Take(name, seen._replace(client=desk.client, owner=ask.owner), session.id)
        except NoSession:
            desk.lost(session)
            continue
        if taken is not None:
            mine = desk.mine[ask.nonce] = LockAttempt(name, ask.nonce, seen.kind, seen.mode, seen.ttl)
            mine.entered = mine.uncertain = True
            reply = await granted(mine, stand, taken, session, lasts, began)
            if reply is not None:
                return reply


async def downgrade(desk: TicketClient, name: str, ask: Downgrade) -> Reply:
    """The writer's ticket goes and the reader's stands in its place, in one step."""
    began = await Now()
    mine = desk.mine.get(ask.nonce)
    reader = desk.mine.get(ask.reader_nonce)
    if reader is None:
        if mine is None or mine.ticket is None:
            return await gone(desk, name, ask.nonce)
        reader = desk.mine[ask.reader_nonce] = LockAttempt(
            name, ask.reader_nonce, mine.kind, "read", mine.ttl
        )
    while True:
        session = reader.asked_under = await session_for(desk, reader.ttl, in_full=True)
        stand = await Look(name, ask.reader_nonce)
        me = find(stand.tickets, ask.reader_nonce)
        if me is not None:
            if mine is not None and not mine.uncertain:
                desk.forget(ask.nonce)
            reader.entered = True
            reply = await granted(reader, stand, me, session, None, began)
            if reply is not None:
                return reply
            continue
        writer = find(await filled(name, stand.tickets), ask.nonce)
        if writer is None or stand.note is not None:
            desk.forget(ask.reader_nonce)
            return await gone(desk, name, ask.nonce)
        try:
            await Exchange(
                name,
                writer,
                writer._replace(nonce=ask.reader_nonce, mode="read", token=writer.token + 1),
                session.id,
            )
        except NoSession:
            desk.lost(session)


async def set_value(desk: TicketClient, name: str, ask: SetValue) -> Reply:
    mine = desk.mine.get(ask.nonce)
    if mine is None or mine.ticket is None:
        return await gone(desk, name, ask.nonce)
    until_us = int((await Wall() + ask.retention) * 1_000_000)
    value = StoredValue(ask.data, mine.ticket.token, until_us)
    if await StoreValue(name, mine.ticket, value, ask.retention):
        return Done()
    return await gone(desk, name, ask.nonce)


async def resize(desk: TicketClient, name: str, ask: Resize) -> Reply:
    """Whoever holds a permit keeps it, also when there are more of them than the new limit allows."""
    while True:
        stand = await Look(name)
        wrong = mismatch(stand, "semaphore", ask.declared)
        if wrong is not None:
            return wrong
        seen = stand.settings
        declared = ask.declared if seen is None else seen.declared
        new = LockConfig("semaphore", declared, ask.limit, _seated(stand))
        after = await SetLimit(name, seen, new)
        if after is None:
            continue
        # Somebody may have got a permit between the look and the change: by the old limit it holds, too.
        seated = _seated(after._replace(settings=seen))
        if seated <= new.seated or await SetLimit(name, new, new._replace(seated=seated)) is not None:
            return Done()


def _seated(stand: LockView) -> int:
    """The place of the last one who holds."""
    held = holding(stand)
    return held[-1].place if held else 0
