"""What the engine's coroutines await, and statements on a session made of it."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Final, NamedTuple, TypeVar

from psycopg.pq.abc import PGresult

from ....core.effects import NotApplied, OutcomeUnknown
from ....errors import EngineUnavailable
from ..codec import Call
from ..connection import ServerError
from ..errors import SESSION_POOLER_NEEDED, classify_failure
from ..store import Query
from .pool import SessionPool
from .session import PendingQuery, Session

__all__ = [
    "AwaitResult",
    "CloseSession",
    "Effect",
    "OpenSession",
    "PollResult",
    "Query",
    "SendQuery",
    "SessionCoroutine",
    "SessionEndedError",
    "Sleep",
    "classify",
    "execute",
    "execute_with_retry",
    "no_answer",
    "result_of",
]

T = TypeVar("T")

CANCELLED: Final = "57014"
"""A cancellation that was meant for the statement before may strike the next one."""

WRONG_BACKEND: Final = {"HF001", "26000", "42P05"}
"""Another server process answers than the one that was asked."""

SESSION_ENDS: Final = ("08", "57P")
"""Classes of SQLSTATE after which the session is over."""


class SessionEndedError(Exception):
    """The session ended before anything was sent."""


class OpenSession(NamedTuple):
    """Open a session. Raises NotApplied or EngineUnavailable."""

    def __await__(self) -> Generator[OpenSession, Session, Session]:
        return (yield self)


class SendQuery(NamedTuple):
    """Send a query once the one before has ended. Raises SessionEndedError, or TimeoutError (not sent)."""

    session: Session
    query: PendingQuery
    seconds: float
    """How long that may take, counted from when this query or the one before began."""

    def __await__(self) -> Generator[SendQuery, None, None]:
        return (yield self)


class AwaitResult(NamedTuple):
    """Wait for the end of a query; False: it did not end in time. The result is in the query."""

    session: Session
    query: PendingQuery
    seconds: float

    def __await__(self) -> Generator[AwaitResult, bool, bool]:
        return (yield self)


class PollResult(NamedTuple):
    """Whether a query that waits for a lock has ended; ``first``: it may end at once, so wait a moment."""

    session: Session
    query: PendingQuery
    first: bool

    def __await__(self) -> Generator[PollResult, bool, bool]:
        return (yield self)


class Sleep(NamedTuple):
    seconds: float

    def __await__(self) -> Generator[Sleep, None, None]:
        return (yield self)


class CloseSession(NamedTuple):
    """Close the connection of a session that is no longer in the pool."""

    session: Session

    def __await__(self) -> Generator[CloseSession, None, None]:
        return (yield self)


Effect = OpenSession | SendQuery | AwaitResult | PollResult | Query | Sleep | CloseSession
SessionCoroutine = Coroutine[Any, Any, T]


# --- statements on a session --------------------------------------------------------------------


async def execute(pool: SessionPool, session: Session, call: Call) -> PGresult:
    """Execute one statement. Raises NotApplied, OutcomeUnknown or EngineUnavailable."""
    result, _ = await execute_with_retry(pool, session, call)
    return result


async def execute_with_retry(pool: SessionPool, session: Session, call: Call) -> tuple[PGresult, bool]:
    """The same; also whether it was cancelled once and sent again: what it unlocked before stays unlocked."""
    for is_retry in (False, True):
        query = PendingQuery(call)
        try:
            await SendQuery(session, query, pool.io_timeout)
        except SessionEndedError as end:
            pool.close_session(session, str(end))
            raise NotApplied(f"the session had ended: {end}") from end
        except TimeoutError:
            raise NotApplied("PostgreSQL does not answer on the connection that has the lock") from None
        if not await AwaitResult(session, query, pool.io_timeout):
            raise no_answer(pool)
        try:
            return result_of(pool, session, query), is_retry
        except ServerError as error:
            if error.sqlstate != CANCELLED:
                raise classify(error, pool) from error
            if is_retry:  # the cancelled statement may have locked or unlocked, which is not rolled back
                raise OutcomeUnknown("PostgreSQL cancelled the statement twice") from error
    raise AssertionError("unreachable")


def no_answer(pool: SessionPool) -> OutcomeUnknown:
    return OutcomeUnknown(f"PostgreSQL did not answer in {pool.io_timeout:g} s")


def result_of(pool: SessionPool, session: Session, query: PendingQuery) -> PGresult:
    """The result of a query that is done. ServerError: the statement failed, and the session lives on."""
    error = query.error
    if error is None and query.result is not None:
        return query.result
    if isinstance(error, ServerError) and not error.sqlstate.startswith(SESSION_ENDS):
        raise error
    reason = str(error)
    pool.close_session(session, reason)
    raise OutcomeUnknown(f"the session ended: {reason}") from error


def classify(error: ServerError, pool: SessionPool) -> Exception:
    if error.sqlstate in WRONG_BACKEND:
        return EngineUnavailable(f"{SESSION_POOLER_NEEDED} ({error.sqlstate}: {error.message})")
    return classify_failure(error, pool.io_timeout)
