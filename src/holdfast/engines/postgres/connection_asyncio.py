"""Connections in an event loop; a file apart, so that threads never import asyncio."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...core.effects import NotApplied
from ...runtime import trampoline
from ...runtime.clock import boottime
from .config import Conninfo
from .connection import READABLE, WRITABLE, PgConnection, PQGen
from .handshake import DatabaseContext, Effect, Resolve, open_connection

__all__ = [
    "WatchedConnection",
    "open_in_loop",
    "perform_in_loop",
    "run_generator",
    "set_result",
    "wait_ready",
]

T = TypeVar("T")


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
