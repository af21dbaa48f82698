"""A few connections to one server, shared by all threads of a client.

A thread that finds one idle takes it without any lock. Otherwise one more is opened, up to the limit; beyond
that, a thread waits for one to be handed to it. Handed over, not merely announced: one who has just given its
connection back would otherwise take it again before anybody woken gets to run, for ever.

An interrupt can strike a thread between any two steps. So nothing is counted: what takes up room is known by
weak references, and what nobody has any more takes up none.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from ...core.ops import Refused
from .settings import Address
from .sockets import SocketLine

__all__ = ["Pool"]

IDLE_SECONDS: Final = 1.0
"""A connection unused for longer is looked at before it is used: the server may have closed it."""

SURPLUS_SECONDS: Final = 10.0
"""One that was not needed for longer, while another was, is closed."""


class _Room:
    """Room for a connection that is yet to be opened."""

    __slots__ = ("__weakref__",)


class _Place:
    """One thread that waits for a connection, or for room to open one."""

    __slots__ = ("_lock", "given")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.given: SocketLine | _Room | None = None

    def give(self, what: SocketLine | _Room) -> None:
        self.given = what
        self._lock.release()

    def wait(self, seconds: float) -> None:
        self._lock.acquire(timeout=seconds)


class Pool:
    """Connections to one address."""

    def __init__(
        self,
        address: Address,
        most: int,
        seconds: float,
        open_line: Callable[[Address], SocketLine],
        was_closed: Callable[[], None],
    ) -> None:
        self.address = address
        self._most = most
        self._seconds = seconds
        self._open_line = open_line
        self._was_closed = was_closed
        """Told that the server closed an idle connection: it may have been restarted."""
        self._idle: list[SocketLine] = []
        self._places: deque[_Place] = deque()
        self._taken: weakref.WeakSet[SocketLine | _Room] = weakref.WeakSet()
        """What takes up room: connections, idle or in use, and those being opened."""
        self._mutex = threading.RLock()  # a signal handler may come here while its own thread is here
        self._age = 0
        """A connection of another age is not used again."""
        self._closed = False

    def call(self, payload: bytes) -> Any:
        """One request, one reply. On the path of every grant: ``_take`` and ``_put`` are written out here."""
        now = monotonic()
        try:
            line = self._idle.pop()
        except IndexError:
            line = self._wait_for_one()
            now = monotonic()
        if now - line.used_at > IDLE_SECONDS:
            line = self._checked(line)
            now = monotonic()
        try:
            reply = line.call(payload, now)
        except BaseException:
            self._lose(line)
            raise
        if line.age != self._age:
            self._lose(line)
            return reply
        self._idle.append(line)
        if self._places:
            self._serve()
        return reply

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        line = self._take()
        try:
            replies = await line.exchange(payload, count)
        except BaseException:
            self._lose(line)
            raise
        self._put(line)
        self._close_surplus()
        return replies

    # --- taking one, and giving it back ---------------------------------------------------------

    def _take(self) -> SocketLine:
        try:
            line = self._idle.pop()
        except IndexError:
            return self._wait_for_one()
        return line if monotonic() - line.used_at < IDLE_SECONDS else self._checked(line)

    def _checked(self, line: SocketLine) -> SocketLine:
        """It was idle for a while: this one if it is still in place, else another."""
        while line.is_stale():
            self._was_closed()
            self._lose(line)
            try:
                line = self._idle.pop()
            except IndexError:
                return self._wait_for_one()
        return line

    def _put(self, line: SocketLine) -> None:
        if line.age != self._age:
            self._lose(line)
            return
        self._idle.append(line)
        if self._places:
            self._serve()

    def _lose(self, line: SocketLine) -> None:
        """It is of no use any more."""
        line.close()
        with self._mutex:
            self._taken.discard(line)
        if self._places:
            self._serve()

    def _close_surplus(self) -> None:
        """What was opened for a crowd that is gone is closed: the one used last is always on top."""
        while len(self._idle) > 1 and monotonic() - self._idle[0].used_at > SURPLUS_SECONDS:
            try:
                line = self._idle.pop(0)
            except IndexError:
                return
            self._lose(line)

    # --- when there is none ---------------------------------------------------------------------

    def _wait_for_one(self) -> SocketLine:
        room = self._room()
        if room is not None:
            return self._open(room)
        place = _Place()
        self._places.append(place)
        self._serve()  # one may have become idle just before we queued up
        try:
            place.wait(self._seconds)
            given = self._leave(place)
        except BaseException:
            line = self._leave(place)
            if isinstance(line, SocketLine):
                self._put(line)
            raise
        if given is None:
            raise Refused(f"all {self._most} connections to {self.address} are busy")
        return self._open(given) if isinstance(given, _Room) else given

    def _leave(self, place: _Place) -> SocketLine | _Room | None:
        """Stop waiting; what was given, if anything was."""
        with self._mutex:
            if place in self._places:
                self._places.remove(place)
            return place.given

    def _room(self) -> _Room | None:
        with self._mutex:
            if len(self._taken) >= self._most:
                return None
            room = _Room()
            self._taken.add(room)
            return room

    def _open(self, room: _Room) -> SocketLine:
        """``room`` is given up with it; should opening fail, the next in line may try."""
        try:
            if self._closed:
                raise Refused("this client is closed")
            age = self._age
            line = self._open_line(self.address)
            line.age = age
            with self._mutex:
                self._taken.add(line)
        finally:
            with self._mutex:
                self._taken.discard(room)
            if self._places:
                self._serve()
        return line

    def _serve(self) -> None:
        """Hand what is idle, or room, to those who wait, in their order."""
        with self._mutex:
            while self._places:
                what: SocketLine | _Room | None
                try:
                    what = self._idle.pop()
                except IndexError:
                    what = self._room()
                if what is None:
                    return
                self._places.popleft().give(what)

    # --- all of them ----------------------------------------------------------------------------

    def drop(self) -> None:
        """Close what is idle now, and what is in use when it comes back: the server is not what it was."""
        self._age += 1
        while self._idle:
            try:
                self._lose(self._idle.pop())
            except IndexError:
                return

    def close(self) -> None:
        """Close what is idle, and have those who wait for an answer close theirs."""
        self._closed = True
        with self._mutex:
            taken = list(self._taken)
        for each in taken:
            if isinstance(each, SocketLine):
                each.hang_up()
        self.drop()

    def forget(self) -> None:
        """This is the child of a fork: nobody else is here, but the mutex may be locked for ever."""
        for each in list(self._taken):
            if isinstance(each, SocketLine):
                each.forget()
