"""One sign of life for everything that is held: ten thousand tickets cost what one does."""

from __future__ import annotations

from typing import Final

from ...core.effects import Now
from ...rules.requests import Absent, Done, Gone, Refresh, Renew, Reply, Request
from .client import LockAttempt, Session, TicketClient
from .releases import gone
from .store import Keep

__all__ = ["refresh", "renew_batch"]

LOOKED_AT_ONCE: Final = 100
"""So many tickets are looked at along with a sign of life: those that somebody says are gone, and of the
others a few each time, in turn. That is how a ticket is missed that was deleted behind everybody's back."""


async def renew_batch(desk: TicketClient, steps: tuple[tuple[str, Request], ...]) -> list[Reply]:
    now = await Now()
    due: dict[int, Session] = {}
    renewed: list[LockAttempt] = []
    known = dict(desk.mine)
    for _, request in steps:
        if not isinstance(request, Renew | Refresh):
            continue
        mine = known.get(request.nonce)
        if mine is None or mine.session is None or mine.session.id is None or mine.session.dead:
            continue
        if isinstance(request, Renew) or mine.session.is_due(now):
            due[id(mine.session)] = mine.session
        if isinstance(request, Renew) and mine.ticket is not None:
            renewed.append(mine)
    missing = await _keep(desk, list(due.values()), _chosen(desk, renewed), now) if due else set()
    return [await _answer(desk, name, request, known, missing, now) for name, request in steps]


async def _keep(
    desk: TicketClient, sessions: list[Session], chosen: list[LockAttempt], sent: float
) -> set[str]:
    """The nonces of those chosen whose tickets are gone."""
    tickets = tuple([(mine.name, mine.ticket) for mine in chosen if mine.ticket is not None])
    kept = await Keep(tuple([session.id for session in sessions]), tickets)
    for session, alive in zip(sessions, kept.alive, strict=True):
        if alive:
            session.kept(sent, kept.age)
        else:
            desk.lost(session)
    missing = set()
    for (_, ticket), there in zip(tickets, kept.there, strict=True):
        desk.suspects.discard(ticket.nonce)
        if not there:
            missing.add(ticket.nonce)
    return missing


def _chosen(desk: TicketClient, renewed: list[LockAttempt]) -> list[LockAttempt]:
    if len(renewed) <= LOOKED_AT_ONCE:
        return renewed
    suspects = [mine for mine in renewed if mine.nonce in desk.suspects][:LOOKED_AT_ONCE]
    start = desk.looked_at % len(renewed)
    in_turn = (renewed + renewed)[start : start + LOOKED_AT_ONCE - len(suspects)]
    desk.looked_at = start + len(in_turn)
    return [*suspects, *(mine for mine in in_turn if mine.nonce not in desk.suspects)]


async def _answer(
    desk: TicketClient,
    name: str,
    request: Request,
    known: dict[str, LockAttempt],
    missing: set[str],
    sent: float,
) -> Reply:
    """``known``: our attempts before the sign of life. One that is gone since then we have given back
    ourselves; to ask what became of it would keep the next sign of life waiting."""
    if isinstance(request, Refresh):
        return await refresh(desk, name, request)
    if not isinstance(request, Renew):
        return Done()
    mine = desk.mine.get(request.nonce)
    if mine is None and request.nonce in known:
        return Absent()
    if mine is not None and mine.session is not None and request.nonce not in missing:
        if not mine.session.dead:
            return Done(mine.session.age(sent, request.ttl))
        if request.nonce not in desk.suspects:
            desk.forget(request.nonce)
            return Gone("expired")  # with its session, as all the others of it
    return await gone(desk, name, request.nonce)


async def refresh(desk: TicketClient, name: str, ask: Refresh) -> Reply:
    """Where do I stand? Who waits is woken by the store; only a session that is gone must be told here."""
    if ask.nonce in desk.watching:
        return Done()
    mine = desk.mine.get(ask.nonce)
    if mine is None or mine.session is None:
        return Done()  # it has not got so far yet
    return Absent() if mine.session.dead else Done()
