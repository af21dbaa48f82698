"""The connections of one client for threads: a pool for each server, and those that are subscribed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeVar

from ...engine_api import AdapterContext
from ...runtime.connect_timeout import connect_seconds
from ..resp.config import Address
from ..resp.connection import RespSocket, SubscriberSocket, open_socket, run_sync
from ..resp.errors import mark_nothing_sent
from ..resp.handshake import perform_handshake, query_once
from .config import RedisConfig
from .errors import PERMISSION_HINT
from .pool import Pool

__all__ = ["Connections"]

S = TypeVar("S", bound=RespSocket)


class Connections:
    """All connections of one client: a few for commands to each server, and those that are subscribed."""

    def __init__(self, config: RedisConfig, context: AdapterContext, closed: Callable[[], None]) -> None:
        self._config = config
        self._was_closed = closed
        self._client = context.client
        self._seconds = context.io_timeout
        self._mutex = threading.RLock()
        self._pools: dict[Address, Pool] = {}
        self._subscribers: set[SubscriberSocket] = set()
        self._closed = False

    def pool(self, address: Address) -> Pool:
        pool = self._pools.get(address)
        if pool is None:
            with self._mutex:
                pool = self._pools.get(address)
                if pool is None:
                    most = self._config.connections
                    pool = Pool(address, most, self._seconds, self._open, self._was_closed)
                    self._pools[address] = pool
        return pool

    async def exchange(self, address: Address, payload: bytes, count: int) -> list[Any]:
        return await self.pool(address).exchange(payload, count)

    async def exchange_blocking(self, address: Address, payload: bytes, count: int) -> list[Any]:
        """The same: a connection in use is not shared."""
        return await self.pool(address).exchange(payload, count)

    async def ask_sentinel(self, address: Address, payload: bytes) -> Any:
        """A Sentinel has its share of the time: a silent one must not use up the time of the others."""
        seconds = max(connect_seconds(self._seconds) / len(self._config.addresses), 0.1)
        connection = RespSocket(open_socket(address, self._config.sentinel_tls, seconds), address, seconds)
        try:
            credentials = self._config.sentinel_login.credentials()
            has_tls = self._config.sentinel_tls is not None
            return await query_once(connection, credentials, self._client, payload, PERMISSION_HINT, has_tls)
        finally:
            connection.close()

    def drop(self, address: Address) -> None:
        self.pool(address).drop()
        for connection in self._subscribers:
            if connection.address == address:
                connection.shutdown()

    def open_subscriber(self, address: Address) -> SubscriberSocket:
        connection = self._connect(SubscriberSocket, address)
        with self._mutex:
            if not self._closed:
                self._subscribers = {*(each for each in self._subscribers if each.is_open()), connection}
                return connection
        connection.close()
        return connection

    def _open(self, address: Address) -> RespSocket:
        return self._connect(RespSocket, address)

    def _connect(self, kind: type[S], address: Address) -> S:
        seconds = connect_seconds(self._seconds)
        ends_at = monotonic() + seconds
        with mark_nothing_sent():
            connected = open_socket(address, self._config.tls, seconds)
        connection = kind(connected, address, max(ends_at - monotonic(), 0.001))
        try:
            with mark_nothing_sent():
                run_sync(
                    perform_handshake(
                        connection,
                        self._config,
                        self._config.login.credentials(),
                        self._client,
                        PERMISSION_HINT,
                    )
                )
            connection.set_timeout(self._seconds)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        with self._mutex:
            self._closed = True
        for pool in list(self._pools.values()):
            pool.close()
        for connection in self._subscribers:
            connection.shutdown()

    def detach_after_fork(self) -> None:
        """In the child of a fork no other thread exists, and a mutex may be locked for ever."""
        for pool in list(self._pools.values()):
            pool.detach_after_fork()
        for connection in list(self._subscribers):
            connection.detach_after_fork()
