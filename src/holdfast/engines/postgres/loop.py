"""Connections in an event loop: a few for all tasks of one client, each taken for one statement.

A conversation with the server goes on by itself, driven by the loop: cancelling the task that began it leaves
it to its end, and the connection whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from psycopg.pq.abc import PGresult

from ...core.effects import NotApplied
from ...runtime.clock import boottime
from .failures import TRIES, Again, can_go_on, verdict
from .link import READABLE, WRITABLE, Link, Waits
from .statements import Call

__all__ = ["LoopPool", "Readiness", "run"]

T = TypeVar("T")


class Readiness:
    """Waits for a socket, once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fileno: int, want: int) -> None:
        self._loop, self._fileno, self._want = loop, fileno, want
        self._future: asyncio.Future[bool] = loop.create_future()

    async def wait(self, seconds: float) -> bool:
        """False: it was not ready in time."""
        timer = self._loop.call_later(max(seconds, 0.0), self._tell, False)
        if self._want & READABLE:
            self._loop.add_reader(self._fileno, self._tell, True)
        if self._want & WRITABLE:
            self._loop.add_writer(self._fileno, self._tell, True)
        try:
            return await self._future
        finally:
            timer.cancel()
            self._loop.remove_reader(self._fileno)
            self._loop.remove_writer(self._fileno)

    def _tell(self, ready: bool) -> None:
        if not self._future.done():
            self._future.set_result(ready)


async def run(link: Link, waits: Waits[T], ends_at: float) -> T:
    """Await whatever it waits for. TimeoutError at the moment ``ends_at``."""
    loop = asyncio.get_running_loop()
    try:
        want = next(waits)
        while True:
            left = ends_at - boottime()
            if left <= 0:
                raise TimeoutError
            if await Readiness(loop, link.fileno, want).wait(left):
                want = waits.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value that the generator returns is its T
    finally:
        waits.close()


class Line:
    """A connection that the loop reads from all the time, so that a statement costs no registration."""

    __slots__ = ("_done", "_fileno", "_loop", "_stale", "_timer", "_waits", "_writing", "link")

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self.link = link
        self._loop = loop
        self._fileno = link.fileno
        """Kept: when the connection is lost libpq closes the socket and forgets its number."""
        self._waits: Waits[PGresult] | None = None
        self._done: Done | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing = False
        self._stale = False
        loop.add_reader(self._fileno, self._ready)

    def is_quiet(self) -> bool:
        return not self._stale and self.link.is_quiet()

    def begin(self, waits: Waits[PGresult], seconds: float, done: Done) -> None:
        """``done`` is called with the result or the error, in the loop, even if it is known at once."""
        self._waits, self._done = waits, done
        self._timer = self._loop.call_later(max(seconds, 0.0), self._finish, None, TimeoutError())
        self._go_on()

    def _ready(self) -> None:
        if self._waits is None:
            # Unasked: it was closed, most likely, and would be ready for ever.
            self._stale = True
            self._loop.remove_reader(self._fileno)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._waits is None:
            return
        try:
            want = self._waits.send(None)
        except StopIteration as end:
            self._finish(end.value, None)
        except Exception as error:  # noqa: BLE001 - told to who asked
            self._finish(None, error)
        else:
            if bool(want & WRITABLE) != self._writing:
                self._write(not self._writing)

    def _write(self, on: bool) -> None:
        self._writing = on
        if on:
            self._loop.add_writer(self._fileno, self._go_on)
        else:
            self._loop.remove_writer(self._fileno)

    def _finish(self, result: PGresult | None, error: Exception | None) -> None:
        waits, done = self._waits, self._done
        self._waits = self._done = None
        if self._timer is not None:
            self._timer.cancel()
        if self._writing:
            self._write(False)
        if waits is not None:
            waits.close()
        if done is not None:
            done(result, error)

    def close(self) -> None:
        if not self._stale:
            self._loop.remove_reader(self._fileno)
        if self._writing:
            self._write(False)
        if self._timer is not None:
            self._timer.cancel()
        self._waits = self._done = None
        self.link.close()


Done = Callable[[PGresult | None, Exception | None], None]


class LoopPool:
    """At most ``limit`` connections, made when they are needed; who waits for one is served in order."""

    def __init__(self, open_link: Callable[[float], Awaitable[Link]], limit: int, io_timeout: float) -> None:
        self._open_link = open_link
        self._limit = limit
        self._io_timeout = io_timeout
        self._idle: list[Line] = []
        self._lines: set[Line] = set()
        """All there are, in use or not."""
        self._opening = 0
        self._queue: deque[asyncio.Future[Line | None]] = deque()
        self._closed = False

    async def perform(self, call: Call) -> PGresult:
        """One statement, in ``io_timeout`` seconds from taking a connection to the answer."""
        ends_at = boottime() + self._io_timeout
        for _ in range(TRIES - 1):
            with contextlib.suppress(Again):
                return await self._try(call, ends_at)
        return await self._try(call, ends_at)

    async def _try(self, call: Call, ends_at: float) -> PGresult:
        line = await self._take(ends_at)
        future: asyncio.Future[PGresult] = asyncio.get_running_loop().create_future()

        def done(result: PGresult | None, error: Exception | None) -> None:
            found = None if error is None else verdict(error, self._io_timeout)
            if found is None or can_go_on(found):
                self._give(line)
            else:
                self._drop(line)
            if future.done():
                return  # who asked was cancelled
            if found is not None:
                found.__cause__ = error
                future.set_exception(found)
            elif result is not None:
                future.set_result(result)

        line.begin(line.link.call(call), ends_at - boottime(), done)
        return await future

    async def _take(self, ends_at: float) -> Line:
        while True:
            line = self._idle.pop() if self._idle else None
            if line is None:
                if len(self._lines) + self._opening < self._limit:
                    return await self._open(ends_at)
                line = await self._wait(ends_at)
            if line is not None:
                if line.is_quiet():
                    return line
                self._drop(line)

    async def _open(self, ends_at: float) -> Line:
        self._opening += 1
        try:
            line = Line(await self._open_link(ends_at), asyncio.get_running_loop())
        except BaseException:
            self._opening -= 1
            self._call_next(None)
            raise
        self._opening -= 1
        self._lines.add(line)
        if self._closed:
            self._drop(line)
            raise NotApplied("this client is closed")
        return line

    async def _wait(self, ends_at: float) -> Line | None:
        """For a connection, or (None) for room to open one."""
        if self._closed:
            raise NotApplied("this client is closed")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Line | None] = loop.create_future()
        timer = loop.call_later(max(ends_at - boottime(), 0.0), _give_up, turn)
        self._queue.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on(turn.result())  # it came together with the cancellation
            raise
        finally:
            timer.cancel()

    def _pass_on(self, line: Line | None) -> None:
        if line is None:
            self._call_next(None)
        else:
            self._give(line)

    def _give(self, line: Line) -> None:
        if self._closed:
            self._drop(line)
        elif not self._call_next(line):
            self._idle.append(line)

    def _call_next(self, line: Line | None) -> bool:
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(line)
                return True
        return False

    def _drop(self, line: Line) -> None:
        line.close()
        self._lines.discard(line)
        self._call_next(None)

    def close(self) -> None:
        """At once, whatever is under way: it was sent, and nobody waits for it any more."""
        self._closed = True
        for line in list(self._lines):
            self._drop(line)
        self._idle.clear()
        while self._call_next(None):
            pass

    def forked(self) -> None:
        """In the child: let go of the sockets, without a word to the server or to the parent's loop."""
        for line in self._lines:
            line.link.forked()


def _give_up(turn: asyncio.Future[Line | None]) -> None:
    if not turn.done():
        turn.set_exception(NotApplied("all connections to PostgreSQL are in use, and none answers"))
