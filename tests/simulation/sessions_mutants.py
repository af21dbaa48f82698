"""Bugs of session locks, each as a small patch of the engine or of the simulated server.

A checker must catch every one of them: that is the test of the checkers.
"""

from __future__ import annotations

from typing import Any, Final
from unittest import mock

from holdfast.core.effects import TransientError
from holdfast.engines.postgres.advisory import acquisition, lease_operations
from holdfast.engines.postgres.advisory.pool import SessionPool
from holdfast.engines.postgres.advisory.session import LockAttempt, Session
from holdfast.protocols import keeper
from holdfast.rules.requests import Granted, Reply
from simulation.mutants import Mutant, Patch, _both
from simulation.sessions_schedules import KINDS
from simulator.advisory import SessionsClient
from simulator.session_functions import Functions, Row, TakeParameters
from simulator.session_locks import Backend
from simulator.sessions import Connection

__all__ = ["SESSIONS_MUTANTS"]


def minted_before_the_grant() -> Patch:
    """The token is incremented when the lock is asked for: the longest waiter has the smallest token."""
    early: dict[Backend, int] = {}
    wanted, grant, mint = Functions._record_waiter, Functions._grant, Functions.mint

    def early_wanted(self: Functions, backend: Backend, parameters: TakeParameters, waits: bool) -> None:
        early[backend] = mint(self, self._rows.get(parameters.name) or Row(parameters.kind, 0))
        wanted(self, backend, parameters, waits)

    def late_grant(self: Functions, backend: Backend, parameters: TakeParameters) -> str:
        token = early.pop(backend, 0)
        with mock.patch.object(Functions, "mint", lambda self, row: token or mint(self, row)):
            return grant(self, backend, parameters)

    return mock.patch.multiple(Functions, _record_waiter=early_wanted, _grant=late_grant)


def left_on_the_session() -> Patch:
    """A waiter that gives up does not look whether it was granted in that moment."""

    async def undo_attempt(pool: SessionPool, attempt: LockAttempt) -> None:
        session, query = attempt.session, attempt.query
        if session is not None and not session.is_closed and query is not None and not query.is_done:
            try:
                await acquisition._cancel(pool, session, attempt, query)
            except TransientError:
                acquisition.abandon(pool, session, attempt)
                raise
        pool.detach(attempt)

    return mock.patch.object(acquisition, "undo_attempt", undo_attempt)


def grant_counted_from_the_reply() -> Patch:
    """The age of a grant after a wait counts from when the reply is read."""

    async def counted(pool: SessionPool, attempt: LockAttempt, grant: Granted, now: float) -> Granted:
        return grant

    return mock.patch.object(acquisition, "_with_age", counted)


def heartbeat_counted_from_the_reply() -> Patch:
    """A renewal counts from the reply to its heartbeat."""
    shipped = keeper._handle_renewal

    async def renewed(
        client_state: Any, state: Any, ttl: float, reply: Reply, sent: float, now: float
    ) -> None:
        await shipped(client_state, state, ttl, reply, now, now)

    return mock.patch.object(keeper, "_handle_renewal", renewed)


def released_on_any_session() -> Patch:
    """A release is sent on any session of the client."""
    shipped = lease_operations._release

    async def give_back(pool: SessionPool, session: Session, attempt: LockAttempt) -> Reply:
        return await shipped(pool, (pool.sessions or [session])[0], attempt)

    return mock.patch.object(lease_operations, "_release", give_back)


def reader_registered_after_the_reply() -> Patch:
    """A caller that is interrupted during a downgrade leaves a shared lock that no attempt knows."""
    prepare_downgrade, complete_downgrade = SessionPool.prepare_downgrade, SessionPool.complete_downgrade

    def unknown(self: SessionPool, writer: LockAttempt, session: Session, nonce: str) -> LockAttempt:
        reader = prepare_downgrade(self, writer, session, nonce)
        del self.attempts[nonce]
        session.keys[writer.key] = writer
        return reader

    def known(self: SessionPool, reader: LockAttempt, writer: LockAttempt, grant: Granted) -> None:
        self.attempts[reader.nonce] = reader
        if reader.session is not None:
            reader.session.keys[reader.key] = reader
        complete_downgrade(self, reader, writer, grant)

    return mock.patch.multiple(SessionPool, prepare_downgrade=unknown, complete_downgrade=known)


def stacked_on_one_session() -> Patch:
    """Two attempts of one client share a session: the server grants both the same lock."""

    def can_accept(self: Session, key: int, alone: bool) -> bool:
        return not (self.is_closed or self.waiter is not None)

    def is_taken_by_this_client(self: SessionPool, attempt: LockAttempt) -> bool:
        return False

    return _both(
        mock.patch.object(Session, "can_accept", can_accept),
        mock.patch.object(SessionPool, "is_taken_by_this_client", is_taken_by_this_client),
    )


def timeout_not_sent_again() -> Patch:
    """An idle timeout that was sent, and not confirmed, is not sent again."""
    return mock.patch.object(Session, "mark_idle_timeout_sent", return_value=None)


def idle_timeout_never_sent() -> Patch:
    """The server never ends the session of a client that is stopped."""
    return mock.patch.object(acquisition, "idle_timeout_ms_of", return_value=0)


def end_of_session_not_noticed() -> Patch:
    """The end of a session is noticed only when a query is sent on it."""
    shipped = SessionsClient._session_over

    def over(self: SessionsClient, connection: Connection, session: Session, why: str) -> None:
        if session.is_busy:
            shipped(self, connection, session, why)
        connection.is_open = False

    return mock.patch.object(SessionsClient, "_session_over", over)


SESSIONS_MUTANTS: Final = (
    Mutant(
        "token minted before the grant",
        minted_before_the_grant,
        ("tokens",),
        ("sessions tools",),
        kinds=KINDS,
    ),
    Mutant(
        "lock left on a session by a timeout",
        left_on_the_session,
        ("no stray lock",),
        ("sessions lock", "sessions crowd"),
        kinds=KINDS,
    ),
    Mutant(
        "grant counted from its reply",
        grant_counted_from_the_reply,
        ("deadlines",),
        ("sessions lock", "sessions rlock"),
        3.0,
        ("pause", "slow"),
    ),
    Mutant(
        "heartbeat counted from its reply",
        heartbeat_counted_from_the_reply,
        ("deadlines",),
        ("sessions lock", "sessions guard"),
        3.0,
        ("slow", "loss"),
    ),
    Mutant(
        "released on any session",
        released_on_any_session,
        ("no stray lock",),
        ("sessions lock", "sessions several"),
        kinds=KINDS,
    ),
    Mutant(
        "reader registered after the reply",
        reader_registered_after_the_reply,
        ("no stray lock",),
        ("sessions rwlock",),
        3.0,
        ("node hang", "interrupt"),
    ),
    Mutant(
        "two owners on one session",
        stacked_on_one_session,
        ("one session each", "exclusion"),
        ("sessions lock", "sessions crowd"),
        kinds=KINDS,
    ),
    Mutant(
        "idle timeout sent and not confirmed",
        timeout_not_sent_again,
        ("deadlines",),
        ("sessions tools", "sessions crowd"),
        kinds=KINDS,
    ),
    Mutant(
        "idle timeout never sent", idle_timeout_never_sent, ("silence ends",), ("sessions lock",), kinds=KINDS
    ),
    Mutant(
        "end of a session not noticed",
        end_of_session_not_noticed,
        ("loss at once",),
        ("sessions rwlock",),
        6.0,
        ("terminate",),
    ),
)
