"""Connections to one Redis server for the threads of a client: see ``runtime/pool.py``."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from ...core.effects import NotApplied
from ...runtime.sockets import SocketPool
from ..resp.config import Address
from ..resp.connection import RespSocket

__all__ = ["Pool"]

IDLE_SECONDS: Final = 1.0
"""A connection unused for longer is looked at before it is used: the server may have closed it."""


class Pool(SocketPool[RespSocket]):
    """Connections to one address."""

    def __init__(
        self,
        address: Address,
        most: int,
        seconds: float,
        open_line: Callable[[Address], RespSocket],
        was_closed: Callable[[], None],
    ) -> None:
        super().__init__(most)
        self.address = address
        self._seconds = seconds
        self._open_connection = open_line
        self._on_server_close = was_closed
        """Told that the server closed an idle connection: it may have been restarted."""
        self._generation = 0
        """A connection of another age is not used again."""

    def call(self, payload: bytes, is_urgent: bool = True, before: int = 0) -> Any:
        """One request, one reply. On the path of every grant: ``_take`` and ``_put`` are written out here.

        See ``SocketLine.call``.
        """
        now = monotonic()
        try:
            line = self._idle.pop()
        except IndexError:
            line = self._wait_for_connection(self._seconds)
            now = monotonic()
        if now - line.used_at > IDLE_SECONDS:
            line = self._replace_if_stale(line)
            now = monotonic()
        try:
            reply = line.call(payload, now, is_urgent, before)
        except BaseException:
            self._discard(line)
            raise
        if line.generation != self._generation:
            self._discard(line)
            return reply
        self._idle.append(line)
        if self._waiters:
            self._serve()
        return reply

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        line = self._take()
        try:
            replies = await line.exchange(payload, count)
        except BaseException:
            self._discard(line)
            raise
        self._put(line)
        self._close_surplus()
        return replies

    # --- taking one, and giving it back ---------------------------------------------------------

    def _take(self) -> RespSocket:
        try:
            line = self._idle.pop()
        except IndexError:
            return self._wait_for_connection(self._seconds)
        return line if monotonic() - line.used_at < IDLE_SECONDS else self._replace_if_stale(line)

    def _replace_if_stale(self, line: RespSocket) -> RespSocket:
        """It was idle for a while: this one if it is still in place, else another."""
        while line.is_stale():
            self._on_server_close()
            self._discard(line)
            try:
                line = self._idle.pop()
            except IndexError:
                return self._wait_for_connection(self._seconds)
        return line

    def _put(self, line: RespSocket) -> None:
        if line.generation != self._generation:
            self._discard(line)
        else:
            super()._give_back(line)

    def _open(self, seconds: float) -> RespSocket:
        age = self._generation
        line = self._open_connection(self.address)
        line.generation = age
        return line

    def _all_busy(self) -> NotApplied:
        return NotApplied(f"all {self._size_max} connections to {self.address} are busy")

    # --- all of them ----------------------------------------------------------------------------

    def drop(self) -> None:
        """Close what is idle now, and what is in use when it comes back: the server is not what it was."""
        self._generation += 1
        self._discard_idle()

    def close(self) -> None:
        self._generation += 1
        super().close()
