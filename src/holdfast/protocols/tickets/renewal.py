"""One keep-alive for everything that is held: ten thousand tickets cost as much as one."""

from __future__ import annotations

from typing import Final

from ...rules.requests import Absent, Done, Gone, Refresh, Renew, Reply, Request
from .client import LockAttempt, SessionState, TicketClient
from .releases import gone

__all__ = ["refresh", "renew_batch"]

CHECKED_TICKETS_MAX: Final = 100
"""At most this many tickets are checked with a keep-alive: those reported as gone, and of the others a few
each time, in turn. So a ticket that was deleted without any notification is noticed as well."""


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
    """The nonces of the chosen attempts whose tickets no longer exist."""
    tickets = tuple([(attempt.name, attempt.ticket) for attempt in chosen if attempt.ticket is not None])
    kept = await client.store.keep_alive(tuple([session.id for session in sessions]), tickets)
    for session, alive in zip(sessions, kept.alive, strict=True):
        if alive:
            session.kept(sent, kept.age)
        else:
            client.session_lost(session)
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
    start = client.next_checked % len(renewed)
    in_turn = (renewed + renewed)[start : start + CHECKED_TICKETS_MAX - len(suspects)]
    client.next_checked = start + len(in_turn)
    return [*suspects, *(attempt for attempt in in_turn if attempt.nonce not in client.suspects)]


async def _answer(
    client: TicketClient,
    name: str,
    request: Request,
    known: dict[str, LockAttempt],
    missing: set[str],
    sent: float,
) -> Reply:
    """``known``: this client's attempts before the keep-alive. An attempt that is gone since then was
    released by this client itself; asking what became of it would delay the next keep-alive."""
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
            return Gone("expired")  # with its session
    return await gone(client, name, request.nonce)


async def refresh(client: TicketClient, name: str, request: Refresh) -> Reply:
    """The waiter's position. The store wakes waiters; only the end of a session must be reported here."""
    if request.nonce in client.watching:
        return Done()
    attempt = client.attempts.get(request.nonce)
    if attempt is None or attempt.session is None:
        return Done()  # its ticket is not created yet
    return Absent() if attempt.session.dead else Done()
