"""Runs plans on connections that are awaited: the store of ``store``, for asyncio.

SQLite has no such driver of its own: there the blocking store does the work, on threads.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, TypeVar

from ..errors import InvalidArgument
from ..fencing.connections_asyncio import runner_of
from ..fencing.plans import Plan
from .database import Database, PostgresDatabase, import_psycopg
from .migrations import migrate, needs_migration
from .plans import listen_to, next_event
from .store import (
    IDLE_MAX,
    LISTENING_SECONDS,
    POLL_SECONDS,
    RETENTION_SECONDS,
    SOONEST_SECONDS,
    Call,
    EventClock,
    Store,
    drain,
    session_on,
    within_transaction,
)

__all__ = ["AsyncStore", "open_store"]

T = TypeVar("T")


class AsyncStore(ABC):
    """The queue's database, for asyncio."""

    def __init__(self, database: Database, namespace: str) -> None:
        self.database = database
        self.namespace = namespace
        self.events = EventClock()
        self.removals = EventClock(RETENTION_SECONDS)
        self._siblings: list[AsyncStore] = []

    def sibling(self, namespace: str) -> AsyncStore:
        """One for another namespace of this database, which is closed with this one."""
        made = open_store(self.database, namespace)
        self._siblings.append(made)
        return made

    async def run(self, call: Call[T], connection: Any = None) -> T:
        if connection is None:
            await self.install_if_needed()
            return await self.run_own(call)
        await self.install_beside_transaction()

        def make_plan(table: Any) -> Plan[T]:
            return within_transaction(call, table, self.database, self.namespace)

        return await runner_of(connection).run(make_plan)

    @abstractmethod
    async def run_own(self, call: Call[T]) -> T:
        """On a connection of the queue's own."""

    @abstractmethod
    async def install_if_needed(self) -> None: ...
    async def install_beside_transaction(self) -> None:
        """The tables are made by another connection than the user's."""
        await self.install_if_needed()

    @abstractmethod
    async def install(self) -> bool: ...
    @abstractmethod
    async def wait(self, timeout: float) -> bool: ...
    @abstractmethod
    async def close(self) -> None: ...

    async def _close_siblings(self) -> None:
        for sibling in self._siblings:
            await sibling.close()

    @abstractmethod
    def connection(self) -> contextlib.AbstractAsyncContextManager[Any]:
        """One of the queue's own, which is awaited, for as long as the block lasts."""


class FileStore(AsyncStore):
    def __init__(self, database: Database, namespace: str) -> None:
        super().__init__(database, namespace)
        self._blocking = Store(database, namespace)

    async def run_own(self, call: Call[T]) -> T:
        return await asyncio.to_thread(self._blocking.run, call)

    async def install_if_needed(self) -> None:
        await asyncio.to_thread(self._blocking.install_if_needed)

    async def install_beside_transaction(self) -> None:
        await asyncio.to_thread(self._blocking.install_beside_transaction)

    async def install(self) -> bool:
        return await asyncio.to_thread(self._blocking.install)

    async def wait(self, timeout: float) -> bool:
        return await asyncio.to_thread(self._blocking.wait, timeout)

    async def close(self) -> None:
        await asyncio.to_thread(self._blocking.close)
        await self._close_siblings()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        raise InvalidArgument(
            "the queue has no asynchronous driver of its own for SQLite: give job.transaction() a connection"
            " of aiosqlite to the queue's file"
        )
        yield


class ServerStore(AsyncStore):
    database: PostgresDatabase

    def __init__(self, database: PostgresDatabase, namespace: str) -> None:
        super().__init__(database, namespace)
        self._idle: list[Any] = []
        self._is_installed = False
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: Any = None
        self._listener_polls = False
        self._listening = asyncio.Lock()

    # --- running plans

    async def run_own(self, call: Call[T]) -> T:
        async with self.connection() as connection:

            def make_plan(table: Any) -> Plan[T]:
                return call(session_on(table, self.database, self.namespace, True))

            return await runner_of(connection).run(make_plan)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        connection = await self._take()
        try:
            yield connection
        except BaseException as error:
            await self._give_back(connection)
            if isinstance(error, Exception):
                failure = self.database.failure(error, connection)
                if failure is not None:
                    raise failure from error
            raise
        await self._give_back(connection)

    async def _take(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise InvalidArgument("this queue belongs to another event loop: connect in this one")
        while True:
            if self._is_closed:
                raise InvalidArgument("this queue is closed: connect again")
            if not self._idle:
                return await self._connect()
            connection = self._idle.pop()
            if self.database.is_usable(connection):
                return connection
            await connection.close()

    async def _connect(self) -> Any:
        psycopg = import_psycopg()
        from .watched import WatchedAsyncConnection  # psycopg's, too

        settings = self.database.settings
        try:
            connection = await WatchedAsyncConnection.connect(**settings)
        except psycopg.Error as error:
            raise self.database.unavailable(error) from error
        try:
            connection.watch(self.database.io_timeout / 2, settings)
            cursor = await connection.execute(self.database.first_query)
            is_pooled = self.database.is_pooled(connection, await cursor.fetchone())
            for setting in self.database.settings_of(is_pooled):
                await connection.execute(setting)
        except psycopg.Error as error:
            await connection.close()
            raise self.database.unavailable(error) from error
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _give_back(self, connection: Any) -> None:
        is_clean = self.database.is_usable(connection) and not int(connection.info.transaction_status)
        if is_clean and not self._is_closed and len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            await connection.close()

    # --- the tables

    async def install_if_needed(self) -> None:
        if not self._is_installed:
            await self.install()

    async def install(self) -> bool:
        done = await self.run_own(needs_migration)
        if done:
            done = await self.run_own(migrate)
        self._is_installed = True
        return done

    # --- waiting

    async def wait(self, timeout: float) -> bool:
        event = await self.run(next_event)
        if event is not None:
            timeout = min(timeout, max(event, SOONEST_SECONDS))
        timeout = min(timeout, LISTENING_SECONDS)
        if self._listening.locked():
            await asyncio.sleep(min(timeout, POLL_SECONDS))
            return False
        async with self._listening:
            return await self._listen(timeout)

    async def _listen(self, timeout: float) -> bool:
        if self._listener is None or self._listener.closed or self._listener.pgconn.status != 0:
            if self._listener is not None:
                await self._listener.close()
                self._listener = None
            await self._start_listening()
            if not self._listener_polls:
                return True  # what was put before this is looked for once more
        if self._listener_polls:
            await asyncio.sleep(min(timeout, POLL_SECONDS))
            return False
        return await self._wait_readable(self._listener, timeout)

    async def _start_listening(self) -> None:
        """Only a connection that listens is kept: after a cancellation it might receive no notification."""
        connection = await self._connect()
        must_poll = connection.prepare_threshold is None or not self.database.notifies
        try:
            if not must_poll:
                await connection.execute(listen_to(self.namespace))
        except BaseException as error:
            await connection.close()
            if isinstance(error, Exception):
                failure = self.database.failure(error, connection)
                if failure is not None:
                    raise failure from error
            raise
        if self._is_closed:
            await connection.close()
            return
        self._listener, self._listener_polls = connection, must_poll

    async def _wait_readable(self, connection: Any, timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        number = connection.fileno()
        loop.add_reader(number, readable.set)
        try:
            async with asyncio.timeout(timeout):
                await readable.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(number)
        with contextlib.suppress(Exception):  # a broken connection is found at the next wait
            drain(connection.pgconn)
        return True

    # --- the end

    async def close(self) -> None:
        self._is_closed = True
        idle, self._idle = self._idle, []
        listener, self._listener = self._listener, None
        for connection in [*idle, *([listener] if listener is not None else [])]:
            await connection.close()
        await self._close_siblings()


def open_store(database: Database, namespace: str) -> AsyncStore:
    if isinstance(database, PostgresDatabase):
        return ServerStore(database, namespace)
    return FileStore(database, namespace)
