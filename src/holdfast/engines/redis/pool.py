"""Connections to one Redis server for the threads of a client: see ``engines/pool.py``."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from ...core.ops import Refused
from .. import pool
from .settings import Address
from .sockets import SocketLine

__all__ = ["Pool"]

IDLE_SECONDS: Final = 1.0
"""A connection unused for longer is looked at before it is used: the server may have closed it."""

SURPLUS_SECONDS: Final = 10.0
"""One that was not needed for longer, while another was, is closed."""


class Pool(pool.Pool[SocketLine]):
    """Connections to one address."""

    def __init__(
        self,
        address: Address,
        most: int,
        seconds: float,
        open_line: Callable[[Address], SocketLine],
        was_closed: Callable[[], None],
    ) -> None:
        super().__init__(most)
        self.address = address
        self._seconds = seconds
        self._open_line = open_line
        self._was_closed = was_closed
        """Told that the server closed an idle connection: it may have been restarted."""
        self._age = 0
        """A connection of another age is not used again."""

    def call(self, payload: bytes) -> Any:
        """One request, one reply. On the path of every grant: ``_take`` and ``_put`` are written out here."""
        now = monotonic()
        try:
            line = self._idle.pop()
        except IndexError:
            line = self._wait_for_one(self._seconds)
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
            return self._wait_for_one(self._seconds)
        return line if monotonic() - line.used_at < IDLE_SECONDS else self._checked(line)

    def _checked(self, line: SocketLine) -> SocketLine:
        """It was idle for a while: this one if it is still in place, else another."""
        while line.is_stale():
            self._was_closed()
            self._lose(line)
            try:
                line = self._idle.pop()
            except IndexError:
                return self._wait_for_one(self._seconds)
        return line

    def _put(self, line: SocketLine) -> None:
        if line.age != self._age:
            self._lose(line)
        else:
            super()._put(line)

    def _close_surplus(self) -> None:
        """What was opened for a crowd that is gone is closed: the one used last is always on top."""
        try:
            while len(self._idle) > 1 and monotonic() - self._idle[0].used_at > SURPLUS_SECONDS:
                self._lose(self._idle.pop(0))
        except IndexError:
            return  # others took them meanwhile

    def _open(self, seconds: float) -> SocketLine:
        age = self._age
        line = self._open_line(self.address)
        line.age = age
        return line

    def _all_busy(self) -> Refused:
        return Refused(f"all {self._most} connections to {self.address} are busy")

    # --- all of them ----------------------------------------------------------------------------

    def drop(self) -> None:
        """Close what is idle now, and what is in use when it comes back: the server is not what it was."""
        self._age += 1
        self._lose_idle()

    def close(self) -> None:
        """Close what is idle, and have those who wait for an answer close theirs."""
        self._closed = True
        for line in self._lines():
            line.hang_up()
        self.drop()

    def forget(self) -> None:
        """This is the child of a fork."""
        for line in self._lines():
            line.forget()
