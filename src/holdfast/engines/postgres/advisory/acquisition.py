"""Taking a session lock: one try, or a wait in the server's own queue."""

from __future__ import annotations

from typing import Final

from ....core.deadlines import RENEW_AFTER
from ....core.effects import NotApplied, OutcomeUnknown, TransientError, mark_never_sent, never_sent
from ....errors import EngineUnavailable, Unsupported
from ....rules.requests import Acquire, Busy, Granted, Mismatch, Queued, Reply, Withdraw, Withdrawn
from ..codec import Call, decode_reply, function_result
from ..connection import ServerError
from .effects import (
    AwaitResult,
    CloseSession,
    OpenSession,
    PollResult,
    Query,
    SendQuery,
    SessionEndedError,
    classify,
    execute,
    no_answer,
    result_of,
)
from .pool import SessionPermit, SessionPool
from .session import LockAttempt, PendingQuery, Session
from .statements import decode_flag, decode_look, idle_timeout_ms_of

__all__ = ["NO_SEMAPHORES", "abandon", "acquire", "close_spare_sessions", "undo_attempt", "withdraw"]

POLL_AFTER_SECONDS: Final = 60.0
"""The server answers when it grants the lock: polling is only the protocol's precaution."""

QUEUED_POLL_SECONDS: Final = 1.0
"""How often an attempt tries that waits in the client's queue."""

CANCEL_SECONDS: Final = 0.05

NO_SEMAPHORES: Final = (
    "advisory locks are exclusive or shared and have no count: use postgresql:// (leases in a table) for "
    "semaphores, in the same database"
)


async def acquire(pool: SessionPool, name: str, request: Acquire) -> Reply:
    """One attempt; the same request may come many times."""
    if request.kind == "semaphore":
        raise Unsupported(NO_SEMAPHORES)
    attempt = pool.attempts.get(request.nonce)
    if attempt is None:
        attempt = LockAttempt(name, request.nonce, pool.statements.key(name), request.mode, request.ttl)
        pool.attempts[request.nonce] = attempt
    try:
        return await _continue(pool, attempt, request)
    except NotApplied:
        if attempt.session is None:
            pool.forget(attempt)  # nothing of it is on any session, and its caller may not come back
        raise
    except (EngineUnavailable, KeyboardInterrupt) as error:
        unsent = never_sent(error) and attempt.session is None
        mark_never_sent(error, unsent)
        if unsent:
            pool.forget(attempt)
        raise


async def _continue(pool: SessionPool, attempt: LockAttempt, request: Acquire) -> Reply:
    if attempt.session is not None and attempt.session.is_closed:
        pool.detach(attempt)  # the server releases the locks of a session that ended
    now = pool.now()
    if attempt.grant is not None:
        return await _with_age(pool, attempt, attempt.grant, now)
    if attempt.query is None:
        waits = request.wait and pool.queue.admit(request.nonce)
        if not waits and pool.is_taken_by_this_client(attempt):
            reply = await _taken_by_this_client(pool, attempt, request)
            if reply is not None:
                return reply
        await _send(pool, attempt, request, now, waits)
    reply = await _read_reply(pool, attempt, request, now)
    if isinstance(reply, Busy) and request.wait:
        pool.detach(attempt)
        return _queued_here(pool)
    if isinstance(reply, Granted):
        pool.queue.remove(request.nonce)
    elif not isinstance(reply, Queued):
        pool.forget(attempt)
        await close_spare_sessions(pool)
    return reply


def _queued_here(pool: SessionPool) -> Queued:
    """The attempt tries now and then: a free lock can be taken without a place in the server's queue."""
    return Queued(len(pool.queue.nonces), QUEUED_POLL_SECONDS, ())


async def _taken_by_this_client(pool: SessionPool, attempt: LockAttempt, request: Acquire) -> Reply | None:
    """A try would take another connection, and be refused. None: it would not, because nobody holds the lock.

    That is so while another thread reads that its release is done.
    """
    if request.wait:
        return _queued_here(pool)
    pool.forget(attempt)  # its caller may be interrupted now, and has nothing to withdraw
    look = decode_look(await Query(pool.statements.look(attempt.name)))
    kind = look.record.kind
    if kind is not None and kind != request.kind:
        return Mismatch(kind, 0)
    if look.record.holders:
        return Busy(look.record.holders, look.now)
    pool.attempts[request.nonce] = attempt
    return None


async def _send(pool: SessionPool, attempt: LockAttempt, request: Acquire, now: float, waits: bool) -> None:
    idle_timeout_ms = idle_timeout_ms_of(request.ttl)
    while True:
        session = await _find_session(pool, attempt, idle_timeout_ms, waits)
        call = _call(pool, session, attempt.name, request, waits)
        query = attempt.query = PendingQuery(
            call, request.nonce if waits else "", session.unconfirmed_idle_timeout_ms
        )
        attempt.began = now
        attempt.is_unwanted = False  # an earlier release of the same attempt no longer counts
        session.mark_idle_timeout_sent(query.idle_timeout_ms)
        try:
            await SendQuery(session, query, pool.io_timeout)
        except SessionEndedError as end:
            pool.close_session(session, str(end))
            attempt.session = attempt.query = None  # nothing was sent: try another session
        except TimeoutError:
            pool.detach(attempt)
            raise NotApplied("PostgreSQL does not answer") from None
        else:
            return


def _call(pool: SessionPool, session: Session, name: str, request: Acquire, waits: bool) -> Call:
    if waits and session.last_wait != (name, request.owner, request.mode):
        session.last_wait = None
        return pool.statements.wait(session.backend_pid, session.unconfirmed_idle_timeout_ms, name, request)
    return pool.statements.take(
        session.backend_pid, session.unconfirmed_idle_timeout_ms, name, request, waits
    )


async def _find_session(
    pool: SessionPool, attempt: LockAttempt, idle_timeout_ms: int, alone: bool
) -> Session:
    found: Session | SessionPermit | None = None
    try:
        found = pool.reserve(attempt, idle_timeout_ms, alone)
        if isinstance(found, Session):
            return found
        opened = await OpenSession()
        pool.add_session(found, opened, attempt, idle_timeout_ms, alone)
    except BaseException:
        pool.release_permit(found)
        pool.detach(attempt)
        raise
    return opened


async def _read_reply(pool: SessionPool, attempt: LockAttempt, request: Acquire, now: float) -> Reply:
    query, session = attempt.query, attempt.session
    if query is None or session is None:
        raise OutcomeUnknown("the session ended")
    if query.nonce:
        if not await PollResult(session, query, now == attempt.began):
            return Queued(0, POLL_AFTER_SECONDS, ())
        session.last_wait = attempt.name, request.owner, request.mode
    elif not await AwaitResult(session, query, pool.io_timeout):
        raise no_answer(pool)
    try:
        result = result_of(pool, session, query)
    except ServerError as error:
        await undo_attempt(pool, attempt)
        raise classify(error, pool) from error
    session.mark_idle_timeout_confirmed(query.idle_timeout_ms)
    reply = decode_reply(function_result(result), request)
    if not isinstance(reply, Granted):
        return reply
    pool.record_grant(attempt, reply)
    return await _with_age(pool, attempt, reply, now)


async def _with_age(pool: SessionPool, attempt: LockAttempt, grant: Granted, now: float) -> Granted:
    """The grant with its age. The result of a query that waited may have arrived any time ago: so the ttl
    counts from before the query was sent, or from a new heartbeat."""
    if now - attempt.began > attempt.ttl * RENEW_AFTER and attempt.session is not None:
        sent = pool.now()
        await execute(pool, attempt.session, pool.statements.heartbeat(attempt.session.backend_pid, None))
        attempt.began = sent
    if now <= attempt.began:
        return grant
    return tuple.__new__(Granted, (*grant[:-1], now - attempt.began))  # quicker than _replace


async def withdraw(pool: SessionPool, name: str, request: Withdraw) -> Reply:
    attempt = pool.attempts.get(request.nonce)
    if attempt is None:
        return Withdrawn((), 0.0)
    await undo_attempt(pool, attempt)
    pool.forget(attempt)
    await close_spare_sessions(pool)
    look = decode_look(await Query(pool.statements.look(name)))
    return Withdrawn(look.record.holders, look.now)


async def undo_attempt(pool: SessionPool, attempt: LockAttempt) -> None:
    """Make sure that the server has nothing of the attempt, whether it was granted or not.

    Afterwards the attempt may be made again. Where the server does not confirm it, and the connection has no
    other lock, the connection is closed instead.
    """
    session, query = attempt.session, attempt.query
    if session is None:
        return
    if session.is_closed:
        pool.detach(attempt)
        return
    try:
        if query is not None and not query.is_done:
            await _cancel(pool, session, attempt, query)
        undo = pool.statements.undo(session.backend_pid, attempt.name, attempt.mode)
        undone = await execute(pool, session, undo)
    except TransientError:
        abandon(pool, session, attempt)
        raise
    if attempt.writer is not None and attempt.writer.nonce in pool.attempts and not decode_flag(undone):
        pool.broken.add(attempt.writer.nonce)  # the writer had become this reader
    pool.detach(attempt)


def abandon(pool: SessionPool, session: Session, attempt: LockAttempt) -> None:
    """The server did not confirm a release. If the session has no other lock it is closed, which releases;
    otherwise the lock is released when the others are renewed."""
    attempt.is_unwanted = True
    if all(other.is_unwanted for other in list(session.held.values())):
        pool.close_session(session, "it did not answer")


async def _cancel(pool: SessionPool, session: Session, attempt: LockAttempt, query: PendingQuery) -> None:
    """Have the server stop waiting, and wait for the end of the query."""
    ends_at = pool.now() + pool.io_timeout
    while not query.is_done:
        if query.nonce:
            # The statement may not wait yet: cancel until it has ended.
            await Query(pool.statements.cancel(attempt.name, session.backend_pid))
        left = ends_at - pool.now()
        if left <= 0:
            raise no_answer(pool)
        await AwaitResult(session, query, min(CANCEL_SECONDS, left) if query.nonce else left)


async def close_spare_sessions(pool: SessionPool) -> None:
    for session in pool.take_spare_sessions():
        await CloseSession(session)
