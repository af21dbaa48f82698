"""Releasing and withdrawing an own ticket, and removing those of other clients."""

from __future__ import annotations

from ...rules.requests import Break, Broken, Done, Gone, Release, Reply, Withdraw, Withdrawn
from ...rules.tickets import holders_of, record_of
from .acquisition import filled
from .client import LockAttempt, TicketClient
from .store import Removed, SessionEndedError

__all__ = ["break_", "gone", "release", "withdraw"]


async def release(client: TicketClient, name: str, request: Release) -> Reply:
    attempt = client.attempts.get(request.nonce)
    if attempt is None:
        return Gone("expired")
    if request.linger:
        removed = await _remove(client, attempt, request.linger)
    else:
        removed = await client.store.remove(name, request.nonce, attempt.mode)
    client.forget(request.nonce)
    if removed.found:
        return Done()
    if removed.note is not None:
        return Gone(removed.note.reason, removed.note.note)
    return await _reason_gone(client, name, attempt.kind)


async def withdraw(client: TicketClient, name: str, request: Withdraw) -> Reply:
    attempt = client.attempts.get(request.nonce)
    if attempt is not None:
        await _remove(client, attempt, request.linger)
        client.forget(request.nonce)
    view = await client.store.read_queue(name, "", "" if attempt is None else attempt.kind)
    now = client.wall()
    view = view._replace(tickets=await filled(client, name, holders_of(view)))
    return Withdrawn(record_of(view, now).holders, now)


async def _remove(client: TicketClient, attempt: LockAttempt, linger: float) -> Removed:
    """``linger``: a copy of the attempt's request may still be under way. It can only arrive under the same
    session: so it is refused for as long as that session lives, and afterwards because the session ended."""
    store = client.store
    session = attempt.create_session or attempt.session
    if linger > 0 and session is not None and not session.dead:
        try:
            return await store.remove(attempt.name, attempt.nonce, attempt.mode, tombstone_session=session.id)
        except SessionEndedError:
            pass  # then the copy is refused, too
    return await store.remove(attempt.name, attempt.nonce, attempt.mode)


async def gone(client: TicketClient, name: str, nonce: str) -> Gone:
    """Why a ticket of this client no longer exists."""
    attempt = client.attempts.get(nonce)
    client.forget(nonce)
    note = await client.store.read_note(nonce)
    if note is not None:
        return Gone(note.reason, note.note)
    return await _reason_gone(client, name, "" if attempt is None else attempt.kind)


async def _reason_gone(client: TicketClient, name: str, kind: str) -> Gone:
    view = await client.store.read_queue(name, "", kind)
    return Gone("stolen" if view.tickets else "expired")


async def break_(client: TicketClient, name: str, request: Break) -> Reply:
    """Removes only those who hold the lock at this one read; later holders are not meant."""
    view = await client.store.read_queue(name)
    held = await filled(client, name, holders_of(view))
    victims = tuple([t for t in held if request.token is None or t.token == request.token])
    evicted = await client.store.evict(name, victims, request.reason) if victims else ()
    if not evicted:
        return Broken(None, ())
    holders = record_of(view._replace(tickets=held), client.wall()).holders
    taken = tuple([holder for holder in holders if holder.nonce in evicted])
    return Broken(max(holder.token for holder in taken) + 1, taken)
