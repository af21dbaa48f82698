"""The session engine for the asyncio driver; a file apart, so that threads never import asyncio.

The loop drives every query and reads every session. Cancelling a task neither interrupts its statement nor
harms the connection.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, TypeVar

from ....engine_api import AdapterContext, Steps
from ....rules.requests import Reply, Request, Snapshot, Watch
from ....runtime import trampoline
from ....runtime.clock import boottime
from ..connection import WRITABLE, ConnectionLostError, PgConnection, ServerError
from ..connection_asyncio import AsyncConnectionPool, WatchedConnection, perform_in_loop, set_result
from ..handshake import DatabaseContext, close_on_failure
from . import store
from .effects import (
    AwaitResult,
    CloseSession,
    Effect,
    OpenSession,
    PollResult,
    Query,
    SendQuery,
    SessionCoroutine,
    SessionEndedError,
    Sleep,
)
from .handshake import open_session
from .notifications import TICK_SECONDS, record_broken
from .pool import QUERY_CONNECTIONS_MAX, SessionPool
from .session import PendingQuery, Session
from .statements import SessionStatements

__all__ = ["AdvisoryAsyncio"]

T = TypeVar("T")

FIRST_POLL_SECONDS: Final = 0.001
"""A wait that ends so soon is waited for where it began: no waiter has to be woken for it."""


class SessionConnection(WatchedConnection):
    """A session's connection, which the loop reads all the time."""

    __slots__ = ("sending", "sent_at")

    def __init__(self, pg: PgConnection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(pg, loop)
        self.sending = asyncio.Lock()
        """Held by the next task that sends a query; tasks are served in order."""
        self.sent_at = 0.0
        """When the last query was sent, by the local clock."""


class AdvisoryAsyncio:
    """One client's access to the server's locks."""

    def __init__(self, context: DatabaseContext, hooks: AdapterContext) -> None:
        self._context = context
        self._client = hooks.client
        self._io_timeout = hooks.io_timeout
        statements = SessionStatements(context.config.schema, context.namespace)
        self._pool = SessionPool(statements, hooks.post, _close_connection, boottime, hooks.io_timeout)
        self._queries = AsyncConnectionPool(context, hooks.io_timeout, QUERY_CONNECTIONS_MAX)
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def source(self) -> str:
        return self._context.source

    # --- the adapter's interface

    async def apply(self, name: str, request: Request) -> Reply:
        if isinstance(request, Watch) and self._ticker is None:
            self._tick()
        return await self._run(store.apply(self._pool, name, request))

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return await self._run(store.apply_in_order(self._pool, steps, stop_when_refused))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return await self._run(store.renew_batch(self._pool, steps))

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return await self._run(store.list_names(self._pool, prefix))

    async def listen(self, name: str | None) -> None:
        """The loop reads all sessions anyway."""

    def unlisten(self, nonce: str, name: str | None) -> None:
        """The loop reads all sessions anyway."""
        self._pool.watching.discard(nonce)

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """The sessions of a client that dies end, and with them its locks."""

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for session in list(self._pool.sessions):
            self._pool.close_session(session, "the client was closed")
        self._queries.close()

    def forked(self) -> None:
        for session in self._pool.sessions:
            session.connection.pg.detach_after_fork()
        self._queries.detach_after_fork()

    # --- performing effects

    async def _run(self, coroutine: SessionCoroutine[T]) -> T:
        return await trampoline.run_in_loop(coroutine, self._perform)

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case SendQuery(session, query, seconds):
                return await self._send_query(session, query, seconds)
            case AwaitResult(session, query, seconds):
                session.fail_unsent(query)
                return query.is_done or await self._await_result(query, seconds)
            case PollResult(session, query, first):
                session.fail_unsent(query)
                return query.is_done or (first and await self._await_result(query, FIRST_POLL_SECONDS))
            case Query(call):
                return await self._queries.execute(call)
            case OpenSession():
                return await self._open()
            case Sleep(seconds):
                return await asyncio.sleep(seconds)
            case CloseSession(session):
                return _close_connection(session)
        raise AssertionError(effect)

    async def _open(self) -> Session:
        pg, backend_pid = await trampoline.run_in_loop(
            open_session(self._context, self._io_timeout, self._client), perform_in_loop
        )
        with close_on_failure(pg, self._io_timeout):
            session = Session(SessionConnection(pg, asyncio.get_running_loop()), backend_pid)
        session.connection.watch(lambda: self._ready(session))
        return session

    async def _send_query(self, session: Session, query: PendingQuery, seconds: float) -> None:
        """A task that just finished queues behind those that wait: otherwise it would always be first."""
        connection: SessionConnection = session.connection
        if not session.is_busy and not connection.sending.locked():
            self._begin(session, query)
            return
        came = boottime()
        async with connection.sending:
            while (before := session.current_query) is not None and not before.is_done:
                # A server that answers one query after the other is not silent, however many tasks wait.
                left = max(came, connection.sent_at) + seconds - boottime()
                if not await self._await_result(before, left):
                    raise TimeoutError
            self._begin(session, query)

    def _begin(self, session: Session, query: PendingQuery) -> None:
        connection: SessionConnection = session.connection
        if session.is_closed or not connection.pg.is_quiet():
            raise SessionEndedError(session.close_reason or connection.pg.fatal_message())
        session.current_query = query
        connection.sent_at = boottime()
        query.generator = connection.pg.execute(query.call)
        self._resume(session, query)

    async def _await_result(self, query: PendingQuery, seconds: float) -> bool:
        """Wait for the end of a query; False: it did not end in time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(max(seconds, 0.0), set_result, future, None)
        query.observers.append(future)
        try:
            await future
        finally:
            timer.cancel()
            query.observers.remove(future)
        return query.is_done

    # --- driving a query

    def _ready(self, session: Session) -> None:
        """The connection has input, or room for output."""
        query = session.current_query
        if query is not None and not query.is_done:
            self._resume(session, query)
            return
        try:
            record_broken(self._pool, session.connection.pg.receive_notifications())
        except ConnectionLostError as lost:
            self._pool.close_session(session, str(lost))

    def _resume(self, session: Session, query: PendingQuery) -> None:
        connection: SessionConnection = session.connection
        try:
            events = query.generator.send(None)
        except StopIteration as end:
            query.finish(end.value, None)
        except (ServerError, ConnectionLostError) as error:
            query.finish(None, error)
        else:
            connection.wait_for_output(bool(events & WRITABLE))
            return
        connection.wait_for_output(False)
        record_broken(self._pool, connection.pg.take_notifications())
        if isinstance(query.error, ConnectionLostError):
            self._pool.close_session(session, str(query.error))
        if query.nonce and not query.observers:
            self._pool.post(query.nonce)
        for future in query.observers:
            set_result(future, None)

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        for nonce in list(self._pool.watching):
            self._pool.post(nonce)


def _close_connection(session: Session) -> None:
    session.connection.close()
