"""Requests of the client that holds a session lock: releasing, renewing, downgrading, setting a value."""

from __future__ import annotations

import contextlib
from typing import Final

from ....core.effects import NotApplied, OutcomeUnknown, TransientError
from ....errors import EngineUnavailable, Unsupported
from ....rules.requests import (
    Absent,
    Adopt,
    Done,
    Downgrade,
    Export,
    Gone,
    Granted,
    Inspect,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    SetValue,
    Stop,
)
from ..codec import decode_reply, function_result
from ..connection import ServerError
from .acquisition import abandon, close_spare_sessions, undo_attempt
from .effects import (
    AwaitResult,
    Query,
    SendQuery,
    SessionEndedError,
    execute,
    execute_with_retry,
    result_of,
)
from .pool import SessionPool
from .session import LockAttempt, PendingQuery, Session
from .statements import idle_timeout_ms_of

__all__ = [
    "adopt",
    "downgrade",
    "export",
    "refresh",
    "release",
    "renew",
    "renew_batch",
    "set_value",
    "stop",
]

NO_HANDOVER: Final = (
    "a session lock belongs to the connection that took it, and no other process can take it over: use "
    "postgresql:// (leases in a table) to hand a lease over"
)

UNRESPONSIVE_SECONDS: Final = 1.0


async def release(pool: SessionPool, name: str, request: Release) -> Reply:
    attempt = pool.attempts.get(request.nonce)
    if attempt is None:
        return Gone("expired")
    session = attempt.session
    if attempt.grant is None or session is None:
        await undo_attempt(pool, attempt)
        pool.forget(attempt)
        _wake_writer(pool, attempt)
        return Gone("expired")
    if session.is_closed:
        gone = await _gone(pool, attempt)
        # An earlier release that was not confirmed closed the session, and that released the lock.
        return _released(gone) if attempt.is_unwanted else gone
    reply = await _release(pool, session, attempt)
    _wake_writer(pool, attempt)
    await close_spare_sessions(pool)
    return reply


def _wake_writer(pool: SessionPool, attempt: LockAttempt) -> None:
    """The reader of an interrupted downgrade is gone. A writer that had become it holds nothing any more."""
    if attempt.writer is not None:
        pool.post(attempt.writer.nonce)


async def _release(pool: SessionPool, session: Session, attempt: LockAttempt) -> Reply:
    call = pool.statements.release(session.backend_pid, attempt.name, attempt.nonce, attempt.mode)
    try:
        result, was_retried = await execute_with_retry(pool, session, call)
    except TransientError as error:
        if not session.is_closed:
            abandon(pool, session, attempt)
        elif isinstance(error, OutcomeUnknown):
            return _released(await _gone(pool, attempt))  # released with its session, if not before
        raise
    reply = decode_reply(function_result(result), Release(attempt.nonce))
    pool.forget(attempt)
    return _released(reply) if was_retried and isinstance(reply, Gone) else reply


def _released(gone: Gone) -> Reply:
    """The lock is gone because this client released it: only that it was broken is worth reporting."""
    return Done() if gone.reason == "expired" else gone


async def _gone(pool: SessionPool, attempt: LockAttempt) -> Gone:
    """The session ended. The server is asked why, if it answers: the lock may have been broken."""
    reason = "" if attempt.session is None else attempt.session.close_reason
    pool.forget(attempt)
    now = pool.now()
    if now >= pool.unresponsive_until:
        try:
            result = await Query(pool.statements.gone(attempt.name, attempt.nonce))
            reply = decode_reply(function_result(result), Inspect())
        except (TransientError, EngineUnavailable):
            pool.unresponsive_until = pool.now() + UNRESPONSIVE_SECONDS
        else:
            if isinstance(reply, Gone) and reply.reason != "expired":
                return reply
    return Gone("expired", f"its connection ended: {reason}" if reason else "")


async def renew(pool: SessionPool, name: str, request: Renew) -> Reply:
    """A longer ttl lengthens the session's idle timeout; a shorter one leaves it, for its other locks."""
    attempt = pool.attempts.get(request.nonce)
    if attempt is None or attempt.session is None or attempt.grant is None:
        return Gone("expired")
    if attempt.session.is_closed or request.nonce in pool.broken:
        return await _lost(pool, attempt)
    if attempt.is_downgrading:
        raise NotApplied("it is not known yet whether the writer became a reader")
    session = attempt.session
    if request.ttl == attempt.ttl:
        await execute(pool, session, pool.statements.heartbeat(session.backend_pid, None))
        return Done()
    pool.extend_idle_timeout(session, idle_timeout_ms_of(request.ttl))
    timeout_ms = session.unconfirmed_idle_timeout_ms
    session.mark_idle_timeout_sent(timeout_ms)
    call = pool.statements.extend(session.backend_pid, timeout_ms, name, request.nonce, request.ttl)
    reply = decode_reply(function_result(await execute(pool, session, call)), request)
    session.mark_idle_timeout_confirmed(timeout_ms)
    attempt.ttl = request.ttl
    return await _lost(pool, attempt) if isinstance(reply, Gone) else reply


async def _lost(pool: SessionPool, attempt: LockAttempt) -> Gone:
    """The lock was broken, or its session ended: release what is left of it."""
    session = attempt.session
    if session is None or session.is_closed:
        return await _gone(pool, attempt)
    reply = await _release(pool, session, attempt)
    return reply if isinstance(reply, Gone) else Gone("expired")


async def renew_batch(pool: SessionPool, steps: tuple[tuple[str, Request], ...]) -> list[Reply]:
    """One heartbeat for each session, all at once, however many locks it has."""
    due: dict[int, tuple[Session, PendingQuery]] = {}
    for _, request in steps:
        attempt = pool.attempts.get(request.nonce) if isinstance(request, Renew) else None
        if attempt is not None and attempt.session is not None and not attempt.session.is_closed:
            session = attempt.session
            heartbeat = PendingQuery(pool.statements.heartbeat(session.backend_pid, None))
            due.setdefault(id(session), (session, heartbeat))
    silent = await _send_heartbeats(pool, list(due.values()))
    for session, _ in due.values():
        if not session.is_closed and id(session) not in silent:
            await _release_unwanted(pool, session)
    replies = [await _renewal_reply(pool, name, request, silent) for name, request in steps]
    renewals = [
        reply for (_, request), reply in zip(steps, replies, strict=True) if isinstance(request, Renew)
    ]
    if renewals and all(isinstance(reply, Absent) for reply in renewals):
        raise OutcomeUnknown("PostgreSQL does not answer")
    return replies


async def _send_heartbeats(pool: SessionPool, due: list[tuple[Session, PendingQuery]]) -> set[int]:
    """Returns the ids of the sessions that did not answer in time. All have the same time: however many
    sessions are silent, they delay the others once, and only after the heartbeats of those were sent."""
    ends_at = pool.now() + pool.io_timeout
    due.sort(key=lambda each: each[0].is_busy)
    silent: set[int] = set()
    for session, query in due:
        try:
            await SendQuery(session, query, ends_at - pool.now())
        except SessionEndedError as end:
            pool.close_session(session, str(end))
        except TimeoutError:
            silent.add(id(session))
    for session, query in due:
        if session.is_closed or id(session) in silent:
            continue
        if not await AwaitResult(session, query, ends_at - pool.now()):
            silent.add(id(session))
            continue
        try:
            result_of(pool, session, query)
        except (OutcomeUnknown, ServerError):
            if not session.is_closed:
                silent.add(id(session))
    return silent


async def _release_unwanted(pool: SessionPool, session: Session) -> None:
    """The session answers again."""
    for attempt in [attempt for attempt in list(session.held.values()) if attempt.is_unwanted]:
        with contextlib.suppress(TransientError):
            await _release(pool, session, attempt)


async def _renewal_reply(pool: SessionPool, name: str, request: Request, silent: set[int]) -> Reply:
    if isinstance(request, Refresh):
        return await refresh(pool, name, request)
    if not isinstance(request, Renew):
        return Done()
    attempt = pool.attempts.get(request.nonce)
    if attempt is None or attempt.session is None:
        return Gone("expired")
    if attempt.session.is_closed or request.nonce in pool.broken:
        return await _lost(pool, attempt)
    if id(attempt.session) in silent or attempt.is_downgrading:
        return Absent()  # neither renewed nor lost: the deadline stays
    if request.ttl != attempt.ttl:
        return await renew(pool, name, request)
    return Done()


async def refresh(pool: SessionPool, name: str, request: Refresh) -> Reply:
    """The server keeps the waiter's place; only the end of its session is reported here."""
    attempt = pool.attempts.get(request.nonce)
    is_lost = attempt is not None and attempt.session is not None and attempt.session.is_closed
    return Absent() if is_lost else Done()


async def stop(pool: SessionPool, name: str, request: Stop) -> Reply:
    """No lock here extends itself: its client releases it at the end of its time. Is it still held?"""
    attempt = pool.attempts.get(request.nonce)
    return Gone("expired") if attempt is None else await renew(pool, name, Renew(request.nonce, attempt.ttl))


async def downgrade(pool: SessionPool, name: str, request: Downgrade) -> Reply:
    """May be repeated; a release of the reader undoes it, also before the reader was granted."""
    reader = pool.attempts.get(request.reader_nonce)
    if reader is not None and reader.grant is not None:
        return reader.grant
    writer = pool.attempts.get(request.nonce)
    if writer is None or writer.session is None or writer.grant is None:
        await _undo_reader(pool, reader)  # the writer was lost between two tries
        return Gone("expired")
    session = writer.session
    if session.is_closed or request.nonce in pool.broken:
        return await _not_downgraded(pool, writer, reader, Gone("expired"))
    if reader is None:
        reader = pool.prepare_downgrade(writer, session, request.reader_nonce)
    call = pool.statements.downgrade(session.backend_pid, name, request.nonce, request.reader_nonce)
    reply = decode_reply(function_result(await execute(pool, session, call)), request)
    if not isinstance(reply, Granted):
        return await _not_downgraded(pool, writer, reader, reply)
    pool.complete_downgrade(reader, writer, reply)
    return reply


async def _not_downgraded(
    pool: SessionPool, writer: LockAttempt, reader: LockAttempt | None, reply: Reply
) -> Reply:
    """An earlier try may have succeeded, and its reader may have been broken since."""
    await _undo_reader(pool, reader)
    return await _lost(pool, writer) if isinstance(reply, Gone) else reply


async def _undo_reader(pool: SessionPool, reader: LockAttempt | None) -> None:
    if reader is not None:
        await undo_attempt(pool, reader)
        pool.forget(reader)


async def set_value(pool: SessionPool, name: str, request: SetValue) -> Reply:
    attempt = pool.attempts.get(request.nonce)
    if attempt is None or attempt.session is None or attempt.grant is None:
        return Gone("expired")
    if attempt.session.is_closed or request.nonce in pool.broken:
        return await _lost(pool, attempt)
    call = pool.statements.set_value(attempt.session.backend_pid, name, request)
    reply = decode_reply(function_result(await execute(pool, attempt.session, call)), request)
    return await _lost(pool, attempt) if isinstance(reply, Gone) else reply


async def export(pool: SessionPool, name: str, request: Export) -> Reply:
    raise Unsupported(NO_HANDOVER)


async def adopt(pool: SessionPool, name: str, request: Adopt) -> Reply:
    """No lease can have been exported. A caller that only wants to release it needs no error."""
    if request.renews:
        raise Unsupported(NO_HANDOVER)
    return Gone("expired", NO_HANDOVER)
