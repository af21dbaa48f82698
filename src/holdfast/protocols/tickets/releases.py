"""Giving a ticket back, or taking it away from somebody."""

from __future__ import annotations

from ...rules.requests import Break, Broken, Done, Gone, Release, Reply, Withdraw, Withdrawn
from ...rules.tickets import holders_of, record_of
from .acquisition import filled
from .client import LockAttempt, TicketClient
from .store import Evict, Look, ReadNote, Remove, Removed, SessionEndedError, Wall

__all__ = ["break_", "gone", "release", "withdraw"]


async def release(client: TicketClient, name: str, request: Release) -> Reply:
    attempt = client.attempts.get(request.nonce)
    if attempt is None:
        return Gone("expired")
    if request.linger:
        removed = await _remove(attempt, request.linger)
    else:
        removed = await Remove(name, request.nonce, attempt.mode)
    client.forget(request.nonce)
    if removed.found:
        return Done()
    if removed.note is not None:
        return Gone(removed.note.reason, removed.note.note)
    return await _who_has_it(name, attempt.kind)


async def withdraw(client: TicketClient, name: str, request: Withdraw) -> Reply:
    attempt = client.attempts.get(request.nonce)
    if attempt is not None:
        await _remove(attempt, request.linger)
        client.forget(request.nonce)
    view = await Look(name, "", "" if attempt is None else attempt.kind)
    now = await Wall()
    told = view._replace(tickets=await filled(name, holders_of(view)))
    return Withdrawn(record_of(told, now).holders, now)


async def _remove(attempt: LockAttempt, linger: float) -> Removed:
    """``linger``: a copy of the attempt may still be under way. It can only arrive under the same session: so
    it is refused for as long as that lives, and afterwards by the session's end."""
    session = attempt.asked_under or attempt.session
    if linger > 0 and session is not None and not session.dead:
        try:
            return await Remove(attempt.name, attempt.nonce, attempt.mode, bury=session.id)
        except SessionEndedError:
            pass  # then neither does the copy get in
    return await Remove(attempt.name, attempt.nonce, attempt.mode)


async def gone(client: TicketClient, name: str, nonce: str) -> Gone:
    """Why a ticket of ours is not there any more."""
    attempt = client.attempts.get(nonce)
    client.forget(nonce)
    note = await ReadNote(nonce)
    if note is not None:
        return Gone(note.reason, note.note)
    return await _who_has_it(name, "" if attempt is None else attempt.kind)


async def _who_has_it(name: str, kind: str) -> Gone:
    view = await Look(name, "", kind)
    return Gone("stolen" if view.tickets else "expired")


async def break_(client: TicketClient, name: str, request: Break) -> Reply:
    """Only those who hold it at this one look: who comes after them is not meant."""
    view = await Look(name)
    held = await filled(name, holders_of(view))
    victims = tuple([t for t in held if request.token is None or t.token == request.token])
    evicted = await Evict(name, victims, request.reason) if victims else ()
    if not evicted:
        return Broken(None, ())
    told = record_of(view._replace(tickets=held), await Wall()).holders
    taken = tuple([holder for holder in told if holder.nonce in evicted])
    return Broken(max(holder.token for holder in taken) + 1, taken)
