"""Connections in an event loop; a file apart, so that threads never import asyncio.

The loop drives a statement to its end. Cancelling the task that began it neither interrupts the statement nor
harms the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq.abc import PGresult

from ...core.effects import NotApplied
from ...runtime import trampoline
from ...runtime.clock import boottime
from .codec import Call
from .config import Conninfo
from .connection import READABLE, WRITABLE, ConnectionLostError, PgConnection, PQGen
from .errors import TRIES, ConflictError, classify_failure, is_reusable_after
from .handshake import DatabaseContext, Effect, Resolve, close_on_failure, open_connection

__all__ = [
    "AsyncConnectionPool",
    "WatchedConnection",
    "open_in_loop",
    "perform_in_loop",
    "run_generator",
    "set_result",
    "wait_ready",
]

T = TypeVar("T")

Done = Callable[[PGresult | None, Exception | None], None]


async def open_in_loop(context: DatabaseContext, io_timeout: float, ends_at: float) -> PgConnection:
    return await trampoline.run_in_loop(open_connection(context, io_timeout, ends_at), perform_in_loop)


async def perform_in_loop(effect: Effect) -> Any:
    if isinstance(effect, Resolve):
        try:
            async with asyncio.timeout(effect.seconds):
                return await _resolve(effect.conninfo)
        except TimeoutError:
            raise NotApplied("the name of the server was not resolved in time") from None
    return await run_generator(*effect)


async def _resolve(conninfo: Conninfo) -> list[Conninfo]:
    """One connection string for each address of the host: libpq would block the loop to resolve it."""
    settings = conninfo_to_dict(conninfo)
    host = str(settings.get("host") or "")
    if settings.get("hostaddr") or not host or host.startswith(("/", "@")) or _is_address(host):
        return [conninfo]
    port = int(settings.get("port") or 5432)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotApplied(f"PostgreSQL cannot be reached: {error}") from error
    addresses = dict.fromkeys(str(address[0]) for _, _, _, _, address in found)
    return [Conninfo(make_conninfo(conninfo, hostaddr=address)) for address in addresses]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def run_generator(connection: PgConnection, generator: PQGen[T], ends_at: float) -> T:
    """Run a generator to its end. Raises TimeoutError at the moment ``ends_at``."""
    try:
        events = next(generator)
        while True:
            left = ends_at - boottime()
            if left <= 0:
                raise TimeoutError
            if await wait_ready(connection.fileno, events, left):
                events = generator.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value that the generator returns is its T
    finally:
        generator.close()


async def wait_ready(fileno: int, events: int, seconds: float) -> bool:
    """Wait for a socket once; False: it was not ready in time."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()
    timer = loop.call_later(max(seconds, 0.0), set_result, future, False)
    if events & READABLE:
        loop.add_reader(fileno, set_result, future, True)
    if events & WRITABLE:
        loop.add_writer(fileno, set_result, future, True)
    try:
        return await future
    finally:
        timer.cancel()
        loop.remove_reader(fileno)
        loop.remove_writer(fileno)


def set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


class WatchedConnection:
    """A connection that the loop reads from all the time, so that a statement costs no registration."""

    __slots__ = ("_fileno", "_is_reading", "_is_writing", "_loop", "_on_ready", "pg")

    def __init__(self, pg: PgConnection, loop: asyncio.AbstractEventLoop) -> None:
        self.pg = pg
        self._loop = loop
        self._fileno = pg.fileno
        """Kept, since libpq closes the socket and forgets its number when the connection is lost."""
        self._on_ready: Callable[[], None] | None = None
        self._is_reading = self._is_writing = False

    def watch(self, on_ready: Callable[[], None]) -> None:
        """Call ``on_ready`` whenever there is input, or room for output that was asked for."""
        self._on_ready = on_ready
        self._is_reading = True
        self._loop.add_reader(self._fileno, on_ready)

    def wait_for_output(self, wanted: bool) -> None:
        if wanted != self._is_writing and self._on_ready is not None:
            self._is_writing = wanted
            if wanted:
                self._loop.add_writer(self._fileno, self._on_ready)
            else:
                self._loop.remove_writer(self._fileno)

    def stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fileno)

    def close(self) -> None:
        self.wait_for_output(False)
        self.stop_reading()
        self._on_ready = None
        self.pg.close()


class PooledConnection(WatchedConnection):
    """A connection with at most one statement under way."""

    __slots__ = ("_done", "_generator", "_is_stale", "_timer")

    def __init__(self, pg: PgConnection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(pg, loop)
        self._generator: PQGen[PGresult] | None = None
        self._done: Done | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stale = False
        self.watch(self._ready)

    def is_quiet(self) -> bool:
        return not self._is_stale and self.pg.is_quiet()

    def begin(self, generator: PQGen[PGresult], seconds: float, done: Done) -> None:
        """``done`` is called in the loop with the result or the error, even if it is known at once."""
        self._generator, self._done = generator, done
        self._timer = self._loop.call_later(max(seconds, 0.0), self._finish, None, TimeoutError())
        self._resume()

    def _ready(self) -> None:
        if self._generator is None:
            # Unsolicited input: the connection was closed, most likely, and would stay readable.
            self._is_stale = True
            self.stop_reading()
        else:
            self._resume()

    def _resume(self) -> None:
        if self._generator is None:
            return
        try:
            events = self._generator.send(None)
        except StopIteration as end:
            self._finish(end.value, None)
        except Exception as error:  # noqa: BLE001 - the caller of the statement receives it
            self._finish(None, error)
        else:
            if bool(events & WRITABLE) != self._is_writing:
                self.wait_for_output(not self._is_writing)

    def _finish(self, result: PGresult | None, error: Exception | None) -> None:
        generator, done = self._generator, self._done
        self._generator = self._done = None
        if self._timer is not None:
            self._timer.cancel()
        if self._is_writing:
            self.wait_for_output(False)
        if generator is not None:
            generator.close()
        if done is not None:
            done(result, error)

    def close(self) -> None:
        """The caller of a statement that is under way learns that its outcome is unknown."""
        super().close()
        if self._done is not None:
            self._finish(None, ConnectionLostError("it was closed by this client"))


class AsyncConnectionPool:
    """The connections of a client's tasks, each taken for one statement.

    At most ``size_max`` connections, opened when needed. Tasks that wait for one are served in order.
    """

    def __init__(self, context: DatabaseContext, io_timeout: float, size_max: int) -> None:
        self._context = context
        self._io_timeout = io_timeout
        self._size_max = size_max
        self._idle: list[PooledConnection] = []
        self._connections: set[PooledConnection] = set()
        """All connections, in use or idle."""
        self._opening = 0
        self._waiters: deque[asyncio.Future[PooledConnection | None]] = deque()
        self._is_closed = False

    async def execute(self, call: Call) -> PGresult:
        """Execute one statement, in ``io_timeout`` seconds from taking a connection to the result."""
        ends_at = boottime() + self._io_timeout
        for _ in range(TRIES - 1):
            with contextlib.suppress(ConflictError):
                return await self._try(call, ends_at)
        return await self._try(call, ends_at)

    async def _try(self, call: Call, ends_at: float) -> PGresult:
        connection = await self._take(ends_at)
        future: asyncio.Future[PGresult] = asyncio.get_running_loop().create_future()

        def done(result: PGresult | None, error: Exception | None) -> None:
            failure = None if error is None else classify_failure(error, self._io_timeout)
            if failure is None or is_reusable_after(failure):
                self._give(connection)
            else:
                self._discard(connection)
            if future.done():
                return  # the caller was cancelled
            if failure is not None:
                failure.__cause__ = error
                future.set_exception(failure)
            elif result is not None:
                future.set_result(result)

        connection.begin(connection.pg.execute(call), ends_at - boottime(), done)
        return await future

    async def _take(self, ends_at: float) -> PooledConnection:
        while True:
            connection = self._idle.pop() if self._idle else None
            if connection is None:
                if len(self._connections) + self._opening < self._size_max:
                    return await self._open(ends_at)
                connection = await self._wait(ends_at)
            if connection is not None:
                if connection.is_quiet():
                    return connection
                self._discard(connection)

    async def _open(self, ends_at: float) -> PooledConnection:
        self._opening += 1
        try:
            pg = await open_in_loop(self._context, self._io_timeout, ends_at)
            with close_on_failure(pg, self._io_timeout):
                connection = PooledConnection(pg, asyncio.get_running_loop())
        except BaseException:
            self._opening -= 1
            self._serve_next(None)
            raise
        self._opening -= 1
        self._connections.add(connection)
        if self._is_closed:
            self._discard(connection)
            raise NotApplied("this client is closed")
        return connection

    async def _wait(self, ends_at: float) -> PooledConnection | None:
        """Wait for a connection, or (None) for room to open one."""
        if self._is_closed:
            raise NotApplied("this client is closed")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[PooledConnection | None] = loop.create_future()
        timer = loop.call_later(max(ends_at - boottime(), 0.0), _time_out, waiter)
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._pass_on(waiter.result())  # it arrived together with the cancellation
            raise
        finally:
            timer.cancel()

    def _pass_on(self, connection: PooledConnection | None) -> None:
        if connection is None:
            self._serve_next(None)
        else:
            self._give(connection)

    def _give(self, connection: PooledConnection) -> None:
        if self._is_closed:
            self._discard(connection)
        elif not self._serve_next(connection):
            self._idle.append(connection)

    def _serve_next(self, connection: PooledConnection | None) -> bool:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _discard(self, connection: PooledConnection) -> None:
        connection.close()
        self._connections.discard(connection)
        self._serve_next(None)

    def close(self) -> None:
        """Close at once, also what is under way: who waits for it learns that its outcome is unknown."""
        self._is_closed = True
        for connection in list(self._connections):
            self._discard(connection)
        self._idle.clear()
        while self._serve_next(None):
            pass

    def detach_after_fork(self) -> None:
        """In the child of a fork: drop the sockets; neither the server nor the parent's loop notices."""
        for connection in self._connections:
            connection.pg.detach_after_fork()


def _time_out(waiter: asyncio.Future[PooledConnection | None]) -> None:
    if not waiter.done():
        waiter.set_exception(
            NotApplied("all connections to PostgreSQL are in use, and none became free in time")
        )
