"""Giving a ticket back, or taking it away from somebody."""

from __future__ import annotations

from ...rules.requests import Break, Broken, Done, Gone, Release, Reply, Withdraw, Withdrawn
from ...rules.tickets import holding, record_of
from .acquisition import filled
from .client import LockAttempt, TicketClient
from .store import Evict, Look, NoSession, ReadNote, Remove, Removed, Wall

__all__ = ["break_", "gone", "release", "withdraw"]


async def release(desk: TicketClient, name: str, ask: Release) -> Reply:
    mine = desk.mine.get(ask.nonce)
    if mine is None:
        return Gone("expired")
    if ask.linger:
        removed = await _remove(mine, ask.linger)
    else:
        removed = await Remove(name, ask.nonce, mine.mode)
    desk.forget(ask.nonce)
    if removed.found:
        return Done()
    if removed.note is not None:
        return Gone(removed.note.reason, removed.note.note)
    return await _who_has_it(name, mine.kind)


async def withdraw(desk: TicketClient, name: str, ask: Withdraw) -> Reply:
    mine = desk.mine.get(ask.nonce)
    if mine is not None:
        await _remove(mine, ask.linger)
        desk.forget(ask.nonce)
    stand = await Look(name, "", "" if mine is None else mine.kind)
    now = await Wall()
    told = stand._replace(tickets=await filled(name, holding(stand)))
    return Withdrawn(record_of(told, now).holders, now)


async def _remove(mine: LockAttempt, linger: float) -> Removed:
    """``linger``: a copy of the attempt may still be under way. It can only arrive under the same session: so
    it is refused for as long as that lives, and afterwards by the session's end."""
    session = mine.asked_under or mine.session
    if linger > 0 and session is not None and not session.dead:
        try:
            return await Remove(mine.name, mine.nonce, mine.mode, bury=session.id)
        except NoSession:
            pass  # then neither does the copy get in
    return await Remove(mine.name, mine.nonce, mine.mode)


async def gone(desk: TicketClient, name: str, nonce: str) -> Gone:
    """Why a ticket of ours is not there any more."""
    mine = desk.mine.get(nonce)
    desk.forget(nonce)
    note = await ReadNote(nonce)
    if note is not None:
        return Gone(note.reason, note.note)
    return await _who_has_it(name, "" if mine is None else mine.kind)


async def _who_has_it(name: str, kind: str) -> Gone:
    stand = await Look(name, "", kind)
    return Gone("stolen" if stand.tickets else "expired")


async def break_(desk: TicketClient, name: str, ask: Break) -> Reply:
    """Only those who hold it at this one look: who comes after them is not meant."""
    stand = await Look(name)
    held = await filled(name, holding(stand))
    victims = tuple([t for t in held if ask.token is None or t.token == ask.token])
    evicted = await Evict(name, victims, ask.reason) if victims else ()
    if not evicted:
        return Broken(None, ())
    told = record_of(stand._replace(tickets=held), await Wall()).holders
    taken = tuple([holder for holder in told if holder.nonce in evicted])
    return Broken(max(holder.token for holder in taken) + 1, taken)
