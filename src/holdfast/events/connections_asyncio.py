"""Connections of a store's own, awaited: psycopg's, and for SQLite those that block, each in a thread.

The plans are those of the blocking ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import EngineUnavailable, HoldfastError
from ..fencing.connections_asyncio import runner_of
from ..fencing.dialects import TableState
from ..fencing.plans import Plan, run_async
from ..runtime.forks import register_after_fork
from .connections import ConnectionPool, PostgresqlOpener, SqliteOpener, raise_unavailable
from .plans import Now, Pause, Woken, one

__all__ = ["AsyncFeedConnection", "AsyncPool", "AwaitingPool", "ThreadPool", "pool_of"]

Done = TypeVar("Done")
T = TypeVar("T")

_IDLE_MAX = 8


class ThreadPool:
    """SQLite: each plan as a whole in a thread."""

    def __init__(self, opener: SqliteOpener) -> None:
        self._pool = ConnectionPool(opener)

    async def run(self, make_plan: Callable[[TableState], Plan[Done]]) -> Done:
        return await in_thread(lambda: self._pool.run(make_plan))

    async def close(self) -> None:
        self._pool.close()

    def check_open(self) -> None:
        self._pool.check_open()


async def in_thread(function: Callable[[], T]) -> T:
    """A cancellation waits until the thread is done, for what it uses is not free before."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()
        raise


class AsyncPool:
    """PostgreSQL: the store's connections that no task uses at the moment."""

    def __init__(self, opener: PostgresqlOpener) -> None:
        self._opener = opener
        self._idle: list[Any] = []
        self._is_closed = False
        register_after_fork(self)

    async def run(self, make_plan: Callable[[TableState], Plan[Done]]) -> Done:
        connection = await self._take()
        try:
            done = await runner_of(connection).run(make_plan)
        except BaseException as error:
            if isinstance(error, HoldfastError) and self._opener.is_usable(connection):
                await self._give_back(connection)
                raise
            await _discard(connection)
            raise_unavailable(error)
            raise
        await self._give_back(connection)
        return done

    async def close(self) -> None:
        idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            await _discard(connection)

    def forked(self) -> None:
        """The parent's connections are left alone: neither used nor closed here."""
        _abandoned.extend(self._idle)
        self._idle = []

    def check_open(self) -> None:
        if self._is_closed:
            raise EngineUnavailable("this store is closed: connect again")

    async def _take(self) -> Any:
        self.check_open()
        while self._idle:
            connection = self._idle.pop()
            if self._opener.is_usable(connection):
                return connection
            await _discard(connection)
        try:
            return await self._opener.open_async()
        except Exception as error:
            raise_unavailable(error)
            raise

    async def _give_back(self, connection: Any) -> None:
        if self._is_closed or len(self._idle) >= _IDLE_MAX:
            await _discard(connection)
        else:
            self._idle.append(connection)


_abandoned: list[Any] = []

AwaitingPool = ThreadPool | AsyncPool


def pool_of(opener: SqliteOpener | PostgresqlOpener) -> AwaitingPool:
    return ThreadPool(opener) if isinstance(opener, SqliteOpener) else AsyncPool(opener)


async def _discard(connection: Any) -> None:
    with contextlib.suppress(Exception):
        await connection.close()


class AsyncFeedConnection:
    """The connection of one subscription: carries its plan out, opens another where one broke."""

    def __init__(self, opener: SqliteOpener | PostgresqlOpener, pool: AwaitingPool) -> None:
        self._opener = opener
        self._pool = pool
        self._connection: Any = None
        self._woken = asyncio.Event()
        self.is_closed = False

    async def run(self, plan: Plan[Done]) -> Done:
        try:
            return await run_async(plan, self._carry_out)
        except BaseException:
            await self._drop()  # it may be in the middle of anything
            raise

    def wake(self) -> None:
        self.is_closed = True
        self._woken.set()

    async def close(self) -> None:
        self.wake()
        await self._drop()

    async def _carry_out(self, request: Any) -> Any:
        if isinstance(request, Now):
            return time.monotonic()
        if isinstance(request, Pause):
            return await self._pause(request.seconds)
        if isinstance(self._opener, SqliteOpener):
            return await self._pool.run(lambda table: one(request))
        try:
            connection = await self._opened(self._opener)
            return await runner_of(connection).run(lambda table: one(request))
        except Exception as error:  # noqa: BLE001 - raised again, as what it is to the user
            await self._drop()
            raise_unavailable(error)

    async def _opened(self, opener: PostgresqlOpener) -> Any:
        if self._connection is None:
            connection = await opener.open_async()
            try:
                await opener.listen_async(connection)
            except BaseException:
                await _discard(connection)
                raise
            self._connection = connection
        return self._connection

    async def _pause(self, seconds: float) -> Woken:
        if self.is_closed:
            return Woken.CLOSED
        self._woken.clear()
        loop = asyncio.get_running_loop()
        fd = self._connection.fileno() if self._connection is not None else None
        if fd is not None:
            loop.add_reader(fd, self._woken.set)
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._woken.wait()
        except TimeoutError:
            return Woken.CLOSED if self.is_closed else Woken.TIMED_OUT
        finally:
            if fd is not None:
                loop.remove_reader(fd)
        return Woken.CLOSED if self.is_closed else Woken.NOTIFIED

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _discard(connection)
