"""The session engine for the threads driver.

Each caller drives its session itself, also while it waits in the server's queue. One thread reads the
sessions of all other holders and waiters, above all to notice the end of a session.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ....engine_api import AdapterContext, Steps
from ....rules.requests import Reply, Request, Snapshot, Watch
from ....runtime import trampoline
from ....runtime.adaptive_spin import AdaptiveSpin
from ....runtime.clock import boottime
from ..connection import ConnectionLostError, PgConnection, ServerError, wait_ready
from ..handshake import DatabaseContext, perform_in_thread
from ..pool import ConnectionPool
from . import store
from .effects import (
    AwaitResult,
    CloseSession,
    OpenSession,
    PollResult,
    Query,
    SendQuery,
    SessionCoroutine,
    SessionEndedError,
    Sleep,
)
from .handshake import open_session
from .notifications import SessionListener, SessionReader, record_broken
from .pool import QUERY_CONNECTIONS_MAX, SessionPool
from .session import PendingQuery, Session
from .statements import SessionStatements

__all__ = ["AdvisoryThreads"]

T = TypeVar("T")


class SessionConnection:
    """A session's connection, and the mutex of its use: ``with`` takes it, so that no interrupt can come
    between taking it and the protected block."""

    __slots__ = ("is_read_by_waiter", "mutex", "pg", "spin")

    def __init__(self, pg: PgConnection) -> None:
        self.pg = pg
        self.mutex = threading.RLock()
        self.is_read_by_waiter = False
        """The thread that waits on the session reads it, so the listener need not."""
        self.spin = AdaptiveSpin()
        """How polling for grants went: sessions that often have to wait do not poll for long."""


class AdvisoryThreads:
    """One client's access to the server's locks."""

    def __init__(self, context: DatabaseContext, hooks: AdapterContext) -> None:
        self._context = context
        self._client = hooks.client
        self._io_timeout = hooks.io_timeout
        statements = SessionStatements(context.config.schema, context.namespace)
        self._pool = SessionPool(statements, hooks.post, _close_connection, boottime, hooks.io_timeout)
        self._queries = ConnectionPool(context, hooks.io_timeout, QUERY_CONNECTIONS_MAX)
        self._listener = SessionListener(self._pool, self.read_session)
        self.notification_reader = SessionReader(self._listener.wake)
        self._handlers: dict[type, Callable[[Any], Any]] = {
            SendQuery: self._send_query,
            AwaitResult: self._await_result,
            PollResult: self._poll_result,
            Query: lambda effect: self._queries.execute(effect.call),
            OpenSession: lambda effect: self._open(),
            Sleep: lambda effect: time.sleep(effect.seconds),
            CloseSession: lambda effect: _close_connection(effect.session),
        }

    @property
    def source(self) -> str:
        return self._context.source

    # --- the adapter's interface

    def apply(self, name: str, request: Request) -> Reply:
        if request.__class__ is Watch:
            self._listener.wake()
        return trampoline.run(store.apply(self._pool, name, request), self._perform)

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return self._run(store.apply_in_order(self._pool, steps, stop_when_refused))

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self._run(store.renew_batch(self._pool, steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self._run(store.list_names(self._pool, prefix))

    def listen(self, name: str | None) -> None:
        """The listener reads all sessions, whatever names they hold."""
        self._listener.start()

    def unlisten(self, nonce: str, name: str | None) -> None:
        """A session is read as long as it has a waiter or a holder."""
        self._pool.watching.discard(nonce)

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """The sessions of a client that dies end, and with them its locks."""

    def close(self) -> None:
        self._listener.close()
        for session in list(self._pool.sessions):
            self._pool.close_session(session, "the client was closed")
        self._queries.close()
        self.notification_reader.close()

    def forked(self) -> None:
        self._listener.detach_after_fork()
        self.notification_reader.close()
        for session in self._pool.sessions:
            session.connection.pg.detach_after_fork()
        self._queries.detach_after_fork()

    # --- performing effects

    def _run(self, coroutine: SessionCoroutine[T]) -> T:
        return trampoline.run(coroutine, self._perform)

    def _perform(self, effect: Any) -> Any:
        return self._handlers[effect.__class__](effect)

    def _open(self) -> Session:
        pg, backend_pid = trampoline.run(
            open_session(self._context, self._io_timeout, self._client), perform_in_thread
        )
        self._listener.wake()  # it finds the session, or that one is being opened
        return Session(SessionConnection(pg), backend_pid)

    def _send_query(self, effect: SendQuery) -> None:
        session, query, seconds = effect
        connection: SessionConnection = session.connection
        ends_at = boottime() + seconds
        with connection.mutex:
            before = session.current_query
            if before is not None and not before.is_done:
                self._drive(session, before, ends_at, None)
                if not before.is_done:
                    raise TimeoutError
            if session.is_closed or not connection.pg.is_quiet():
                raise SessionEndedError(session.close_reason or connection.pg.fatal_message())
            query.generator = connection.pg.execute(query.call)
            session.current_query = query
            self._resume(session, query)

    def _await_result(self, effect: AwaitResult) -> bool:
        session, query, seconds = effect
        connection: SessionConnection = session.connection
        ends_at = boottime() + seconds
        session.fail_unsent(query)
        while not query.is_done:
            with connection.mutex:
                if not query.is_done:
                    self._drive(session, query, ends_at, None if query.nonce else connection.pg.spin)
            if not query.is_done and boottime() >= ends_at:
                break
        if not query.is_done and query.nonce:
            self._listener.wake()
        return query.is_done

    def _poll_result(self, effect: PollResult) -> bool:
        """The waiter does not sleep here, since other wake-ups than its grant have to reach it."""
        session, query, first = effect
        connection: SessionConnection = session.connection
        session.fail_unsent(query)
        if not query.is_done:
            with connection.mutex:
                if not query.is_done:
                    if first:
                        self._drive(session, query, 0.0, connection.spin)
                    else:
                        self._resume(session, query)  # finds out by itself whether there is input
        if not query.is_done:
            self.notification_reader.expect(session, query)
        return query.is_done

    # --- driving a query

    def _drive(
        self, session: Session, query: PendingQuery, ends_at: float, spin: AdaptiveSpin | None
    ) -> None:
        """Until the query is done or the time is over. The caller has the mutex."""
        pg: PgConnection = session.connection.pg
        try:
            while not query.is_done:
                if query.events and not wait_ready(pg, query.events, ends_at, spin):
                    return
                self._resume(session, query)
        except ConnectionLostError as lost:
            query.finish(None, lost)

    def _resume(self, session: Session, query: PendingQuery) -> None:
        pg: PgConnection = session.connection.pg
        try:
            try:
                query.events = query.generator.send(None)
            except StopIteration as end:
                query.finish(end.value, None)
            except (ServerError, ConnectionLostError) as error:
                query.finish(None, error)
        except BaseException:
            if not query.is_done:
                query.generator, query.events = pg.finish_interrupted(), 0
            raise
        if query.is_done and (nonces := pg.take_notifications()):
            record_broken(self._pool, nonces)

    def read_session(self, session: Session) -> bool:
        """Read a session that has input. False: another thread is using it."""
        connection: SessionConnection = session.connection
        if not connection.mutex.acquire(blocking=False):
            return False
        try:
            query = session.current_query
            if query is not None and not query.is_done:
                self._drive(session, query, 0.0, None)
                if query.is_done and query.nonce:
                    self._pool.post(query.nonce)
            else:
                record_broken(self._pool, connection.pg.receive_notifications())
        except ConnectionLostError as lost:
            self._pool.close_session(session, str(lost))
        finally:
            connection.mutex.release()
        return True


def _close_connection(session: Session) -> None:
    session.connection.pg.close()
