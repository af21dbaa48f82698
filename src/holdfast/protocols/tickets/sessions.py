"""Sessions: one for each length, opened when first needed, kept alive as a whole."""

from __future__ import annotations

from .client import SessionState, TicketClient

__all__ = ["refreshed", "session_for", "usable_session"]


def usable_session(client: TicketClient, ttl: float, in_full: bool, now: float) -> SessionState | None:
    """The session that ``session_for`` would return, if that needs no request: open and young enough."""
    session = client.session(client.seconds_for(ttl))
    if session.id is None or session.is_due(now) or (in_full and session.age(now, ttl) > 0):
        return None
    return session


async def session_for(client: TicketClient, ttl: float, in_full: bool) -> SessionState:
    """A session for leases of this ttl. ``in_full``: it covers the whole ttl from now on, because nothing
    will renew it; otherwise a part of the ttl may have passed."""
    seconds = client.seconds_for(ttl)
    while True:
        session = client.session(seconds)
        if session.id is None:
            await _open(client, session)
        if await refreshed(client, session, ttl if in_full else None):
            return session


async def refreshed(client: TicketClient, session: SessionState, ttl: float | None) -> bool:
    """Keep the session alive if that is due, or if it does not cover the ttl. False: it has ended."""
    now = client.now()
    if session.dead:
        return False
    due = session.is_due(now) or (ttl is not None and session.age(now, ttl) > 0)
    if not due:
        return True
    kept = await client.store.keep_alive((session.id,))
    if not kept.alive[0]:
        client.session_lost(session)
        return False
    session.kept(now, kept.age)
    return True


async def _open(client: TicketClient, session: SessionState) -> None:
    sent = client.now()
    opened = await client.store.open_session(session.seconds, session.generation)
    session.granted_seconds = opened.seconds
    if opened.fresh:
        session.kept(sent, opened.age)
    session.id = opened.id
