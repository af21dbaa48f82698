"""One sign of life for everything that is held: ten thousand tickets cost what one does."""

from __future__ import annotations

from typing import Final

from ...rules.requests import Absent, Done, Gone, Refresh, Renew, Reply, Request
from .client import LockAttempt, SessionState, TicketClient
from .releases import gone

__all__ = ["refresh", "renew_batch"]

CHECKED_TICKETS_MAX: Final = 100
"""So many tickets are looked at along with a sign of life: those that somebody says are gone, and of the
others a few each time, in turn. That is how a ticket is missed that was deleted behind everybody's back."""


async def renew_batch(client: TicketClient, steps: tuple[tuple[str, Request], ...]) -> list[Reply]:
    now = client.now()
    due: dict[int, SessionState] = {}
    renewed: list[LockAttempt] = []
    known = dict(client.attempts)
    for _, request in steps:
        if not isinstance(request, Renew | Refresh):
            continue
        attempt = known.get(request.nonce)
        if attempt is None or attempt.session is None or attempt.session.id is None or attempt.session.dead:
            continue
        if isinstance(request, Renew) or attempt.session.is_due(now):
            due[id(attempt.session)] = attempt.session
        if isinstance(request, Renew) and attempt.ticket is not None:
            renewed.append(attempt)
    missing = await _keep(client, list(due.values()), _chosen(client, renewed), now) if due else set()
    return [await _answer(client, name, request, known, missing, now) for name, request in steps]


async def _keep(
    client: TicketClient, sessions: list[SessionState], chosen: list[LockAttempt], sent: float
) -> set[str]:
    """The nonces of those chosen whose tickets are gone."""
    tickets = tuple([(attempt.name, attempt.ticket) for attempt in chosen if attempt.ticket is not None])
    kept = await client.store.keep_alive(tuple([session.id for session in sessions]), tickets)
    for session, alive in zip(sessions, kept.alive, strict=True):
        if alive:
            session.kept(sent, kept.age)
        else:
            client.lost(session)
    missing = set()
    for (_, ticket), there in zip(tickets, kept.there, strict=True):
        client.suspects.discard(ticket.nonce)
        if not there:
            missing.add(ticket.nonce)
    return missing


def _chosen(client: TicketClient, renewed: list[LockAttempt]) -> list[LockAttempt]:
    if len(renewed) <= CHECKED_TICKETS_MAX:
        return renewed
    suspects = [attempt for attempt in renewed if attempt.nonce in client.suspects][:CHECKED_TICKETS_MAX]
    start = client.looked_at % len(renewed)
    in_turn = (renewed + renewed)[start : start + CHECKED_TICKETS_MAX - len(suspects)]
    client.looked_at = start + len(in_turn)
    return [*suspects, *(attempt for attempt in in_turn if attempt.nonce not in client.suspects)]


async def _answer(
    client: TicketClient,
    name: str,
    request: Request,
    known: dict[str, LockAttempt],
    missing: set[str],
    sent: float,
) -> Reply:
    """``known``: our attempts before the sign of life. One that is gone since then we have given back
    ourselves; to ask what became of it would keep the next sign of life waiting."""
    if isinstance(request, Refresh):
        return await refresh(client, name, request)
    if not isinstance(request, Renew):
        return Done()
    attempt = client.attempts.get(request.nonce)
    if attempt is None and request.nonce in known:
        return Absent()
    if attempt is not None and attempt.session is not None and request.nonce not in missing:
        if not attempt.session.dead:
            return Done(attempt.session.age(sent, request.ttl))
        if request.nonce not in client.suspects:
            client.forget(request.nonce)
            return Gone("expired")  # with its session, as all the others of it
    return await gone(client, name, request.nonce)


async def refresh(client: TicketClient, name: str, request: Refresh) -> Reply:
    """Where do I stand? Who waits is woken by the store; only a session that is gone must be told here."""
    if request.nonce in client.watching:
        return Done()
    attempt = client.attempts.get(request.nonce)
    if attempt is None or attempt.session is None:
        return Done()  # it has not got so far yet
    return Absent() if attempt.session.dead else Done()
