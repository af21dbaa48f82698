"""Operations of a holder on its ticket, and of any client on a name."""

from __future__ import annotations

from ...rules.record import StoredValue
from ...rules.requests import (
    Adopt,
    Done,
    Downgrade,
    Export,
    Gone,
    ReadCell,
    Renew,
    Reply,
    Resize,
    SetValue,
    Stop,
    SwapCell,
)
from ...rules.tickets import LockConfig, LockView, Ticket, find, holders_of
from ...rules.transitions import NOT_EXPORTED
from .acquisition import filled, granted, mismatch
from .client import LockAttempt, SessionState, TicketClient
from .releases import gone
from .sessions import refreshed, session_for
from .store import SessionEndedError

__all__ = [
    "adopt",
    "downgrade",
    "export",
    "read_cell",
    "renew",
    "resize",
    "set_value",
    "stop",
    "swap_cell",
]


async def renew(client: TicketClient, name: str, request: Renew) -> Reply:
    """A longer ttl moves the ticket to a session of that length, which other clients see. A shorter ttl
    changes nothing: a grant is never shortened, and it would only cost another session."""
    attempt = client.attempts.get(request.nonce)
    if attempt is None or attempt.ticket is None or attempt.session is None:
        return Gone("expired")
    if request.ttl > attempt.ticket.ttl:
        return await _move(client, attempt, attempt.ticket, request.ttl)
    sent = client.now()
    session = attempt.session
    kept = await client.store.keep_alive((session.id,), ((name, attempt.ticket),))
    if not kept.alive[0]:
        client.session_lost(session)
        return await gone(client, name, request.nonce)
    session.kept(sent, kept.age)
    return Done(session.age(sent, request.ttl)) if kept.there[0] else await gone(client, name, request.nonce)


async def _move(client: TicketClient, attempt: LockAttempt, ticket: Ticket, ttl: float) -> Reply:
    began = client.now()
    while True:
        session = await _carrier(client, attempt, ttl)
        try:
            moved = await client.store.attach(attempt.name, ticket._replace(ttl=ttl), session.id)
        except SessionEndedError:
            client.session_lost(session)
            continue
        if moved is None:
            # An earlier copy of this same request may have changed it.
            seen = await _seen(client, attempt.name, attempt.nonce)
            if seen is None or seen.client != client.client_id:
                return await gone(client, attempt.name, attempt.nonce)
            ticket = seen
            continue
        attempt.session, attempt.ticket, attempt.ttl = session, moved, ttl
        return Done(session.age(began, ttl))


async def _carrier(client: TicketClient, attempt: LockAttempt, ttl: float) -> SessionState:
    """The session of the ticket, if it is long enough; otherwise one that is."""
    session = attempt.session
    if session is not None and ttl <= session.granted_seconds and await refreshed(client, session, ttl):
        return session
    return await session_for(client, ttl, in_full=True)


async def _seen(client: TicketClient, name: str, nonce: str) -> Ticket | None:
    """The ticket as it is now, in full."""
    return find(await filled(client, name, (await client.store.read_queue(name, nonce)).tickets), nonce)


async def stop(client: TicketClient, name: str, request: Stop) -> Reply:
    """Nothing extends a ticket by itself; it is released when its time is over. Check that it still
    exists."""
    attempt = client.attempts.get(request.nonce)
    if attempt is None:
        return Gone("expired")
    return await renew(client, name, Renew(request.nonce, attempt.ttl))


async def export(client: TicketClient, name: str, request: Export) -> Reply:
    """The ticket lives on for one ttl, attached to no client's session."""
    attempt = client.attempts.get(request.nonce)
    if attempt is None or attempt.ticket is None:
        return Gone("expired")
    ticket: Ticket | None = attempt.ticket
    while ticket is not None and ticket.client in ("", client.client_id) and ticket.owner != request.seal:
        now, detached = client.wall(), ticket._replace(client="", owner=request.seal)
        if ticket.max_hold is not None:
            detached = detached._replace(since=now, max_hold=max(ticket.since + ticket.max_hold - now, 0.0))
        if await client.store.detach(name, detached, ticket.ttl):
            break
        # An earlier copy of this request may have changed it.
        ticket = await _seen(client, name, request.nonce)
    if ticket is None or ticket.client not in ("", client.client_id):
        return await gone(client, name, request.nonce)
    client.forget(request.nonce)
    return Done()


async def adopt(client: TicketClient, name: str, request: Adopt) -> Reply:
    """Take over an exported ticket. Without renewal, let it expire: no client will use it."""
    began = client.now()
    while True:
        view = await client.store.read_queue(name, request.nonce)
        seen = find(await filled(client, name, view.tickets), request.nonce)
        if seen is None:
            return Gone("expired") if view.note is None else Gone(view.note.reason, view.note.note)
        if seen.client != client.client_id and (seen.client, seen.owner) != ("", request.seal):
            return Gone("stolen", NOT_EXPORTED)
        if not request.renews:
            detached = seen._replace(client="", owner=request.seal)
            if seen.client and not await client.store.detach(name, detached, seen.ttl):
                return Gone("expired")
            client.forget(request.nonce)
            return Done()
        session = await session_for(client, seen.ttl, in_full=True)
        now = client.wall()
        max_hold = (
            None if seen.max_hold is None else min(seen.max_hold, max(seen.since + seen.max_hold - now, 0.0))
        )
        try:
            taken = await client.store.attach(
                name, seen._replace(client=client.client_id, owner=request.owner), session.id
            )
        except SessionEndedError:
            client.session_lost(session)
            continue
        if taken is not None:
            attempt = client.attempts[request.nonce] = LockAttempt(
                name, request.nonce, seen.kind, seen.mode, seen.ttl
            )
            attempt.is_created = attempt.is_uncertain = True
            reply = await granted(client, attempt, view, taken, session, max_hold, began)
            if reply is not None:
                return reply


async def downgrade(client: TicketClient, name: str, request: Downgrade) -> Reply:
    """Replace the writer's ticket by the reader's, with the same order, in one step."""
    began = client.now()
    attempt = client.attempts.get(request.nonce)
    reader = client.attempts.get(request.reader_nonce)
    if reader is None:
        if attempt is None or attempt.ticket is None:
            return await gone(client, name, request.nonce)
        reader = client.attempts[request.reader_nonce] = LockAttempt(
            name, request.reader_nonce, attempt.kind, "read", attempt.ttl
        )
    while True:
        session = reader.create_session = await session_for(client, reader.ttl, in_full=True)
        view = await client.store.read_queue(name, request.reader_nonce)
        me = find(view.tickets, request.reader_nonce)
        if me is not None:
            if attempt is not None and not attempt.is_uncertain:
                client.forget(request.nonce)
            reader.is_created = True
            reply = await granted(client, reader, view, me, session, None, began)
            if reply is not None:
                return reply
            continue
        writer = find(await filled(client, name, view.tickets), request.nonce)
        if writer is None or view.note is not None:
            client.forget(request.reader_nonce)
            return await gone(client, name, request.nonce)
        try:
            await client.store.exchange(
                name,
                writer,
                writer._replace(nonce=request.reader_nonce, mode="read", token=writer.token + 1),
                session.id,
            )
        except SessionEndedError:
            client.session_lost(session)


async def set_value(client: TicketClient, name: str, request: SetValue) -> Reply:
    attempt = client.attempts.get(request.nonce)
    if attempt is None or attempt.ticket is None:
        return await gone(client, name, request.nonce)
    until_us = int((client.wall() + request.retention) * 1_000_000)
    value = StoredValue(request.data, attempt.ticket.token, until_us)
    if await client.store.set_value(name, attempt.ticket, value, request.retention):
        return Done()
    return await gone(client, name, request.nonce)


async def read_cell(client: TicketClient, name: str, request: ReadCell) -> Reply:
    return await client.store.read_cell(name)


async def swap_cell(client: TicketClient, name: str, request: SwapCell) -> Reply:
    return await client.store.swap_cell(name, request.expected, request.data)


async def resize(client: TicketClient, name: str, request: Resize) -> Reply:
    """Every holder keeps its permit, also when there are more holders than the new limit allows."""
    while True:
        view = await client.store.read_queue(name)
        wrong = mismatch(view, "semaphore", request.declared)
        if wrong is not None:
            return wrong
        seen = view.config
        declared = request.declared if seen is None else seen.declared
        new = LockConfig("semaphore", declared, request.limit, _admitted_through(view))
        after = await client.store.set_config(name, seen, new)
        if after is None:
            continue
        # A waiter may have got a permit by the old limit between the read and the change: it keeps it, too.
        admitted_through = _admitted_through(after._replace(config=seen))
        if (
            admitted_through <= new.admitted_through
            or await client.store.set_config(name, new, new._replace(admitted_through=admitted_through))
            is not None
        ):
            return Done()


def _admitted_through(view: LockView) -> int:
    """The order of the last ticket that holds a permit."""
    held = holders_of(view)
    return held[-1].order if held else 0
