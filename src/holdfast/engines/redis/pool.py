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
"""A connection that was idle for longer is checked before use: the server may have closed it."""


class Pool(SocketPool[RespSocket]):
    """Connections to one address."""

    def __init__(
        self,
        address: Address,
        most: int,
        seconds: float,
        open_connection: Callable[[Address], RespSocket],
        on_server_close: Callable[[], None],
    ) -> None:
        super().__init__(most)
        self.address = address
        self._seconds = seconds
        self._open_connection = open_connection
        self._on_server_close = on_server_close
        """Called when the server closed an idle connection: the server may have been restarted."""
        self._generation = 0
        """A connection of an older generation is not used again."""

    def call(self, payload: bytes, is_urgent: bool = True, before: int = 0) -> Any:
        """One request, one reply. ``_take`` and ``_put`` are written out here: it is on the hot path.

        See ``RespSocket.call``.
        """
        now = monotonic()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._wait_for_connection(self._seconds)
            now = monotonic()
        if now - connection.used_at > IDLE_SECONDS:
            connection = self._replace_if_stale(connection)
            now = monotonic()
        try:
            reply = connection.call(payload, now, is_urgent, before)
        except BaseException:
            self._discard(connection)
            raise
        if connection.generation != self._generation:
            self._discard(connection)
            return reply
        self._idle.append(connection)
        if self._waiters:
            self._serve()
        return reply

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        connection = self._take()
        try:
            replies = await connection.exchange(payload, count)
        except BaseException:
            self._discard(connection)
            raise
        self._put(connection)
        self._close_surplus()
        return replies

    # --- taking and returning -------------------------------------------------------------------

    def _take(self) -> RespSocket:
        try:
            connection = self._idle.pop()
        except IndexError:
            return self._wait_for_connection(self._seconds)
        return (
            connection
            if monotonic() - connection.used_at < IDLE_SECONDS
            else self._replace_if_stale(connection)
        )

    def _replace_if_stale(self, connection: RespSocket) -> RespSocket:
        """This connection if it is still open after its idle time, else another one."""
        while connection.is_stale():
            self._on_server_close()
            self._discard(connection)
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._wait_for_connection(self._seconds)
        return connection

    def _put(self, connection: RespSocket) -> None:
        if connection.generation != self._generation:
            self._discard(connection)
        else:
            super()._give_back(connection)

    def _open(self, seconds: float) -> RespSocket:
        generation = self._generation
        connection = self._open_connection(self.address)
        connection.generation = generation
        return connection

    def _exhausted(self) -> NotApplied:
        return NotApplied(f"all {self._size_max} connections to {self.address} are busy")

    # --- all of them ----------------------------------------------------------------------------

    def drop(self) -> None:
        """Close idle connections now and used ones on return: the role of the server changed."""
        self._generation += 1
        self._discard_idle()

    def close(self) -> None:
        self._generation += 1
        super().close()
