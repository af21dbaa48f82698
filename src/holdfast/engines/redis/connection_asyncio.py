"""The connections of one client for asyncio: one for commands to each server, and those that are
subscribed."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any, TypeVar

from ...core.effects import NotApplied
from ...engine_api import AdapterContext
from ...runtime.connect_timeout import connect_seconds
from ..resp.config import Address, Credentials, Login, provided_credentials, provider_error
from ..resp.connection_asyncio import RespStream, SubscriberStream, open_stream
from ..resp.errors import mark_nothing_sent
from ..resp.handshake import perform_handshake, query_once
from .config import RedisConfig
from .errors import PERMISSION_HINT

__all__ = ["Connections", "retrieve_exception", "wait_for_shared"]

T = TypeVar("T")
S = TypeVar("S", RespStream, SubscriberStream)


def retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Mark the exception as retrieved: every task that waits gets it, and there may be none."""
    if not task.cancelled():
        task.exception()


async def wait_for_shared(task: asyncio.Task[T]) -> T:
    """The result of a task that several tasks wait for. Only closing the client cancels it."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if task.cancelled() and current is not None and not current.cancelling():
            raise NotApplied("this client is closed") from None
        raise


class Connections:
    """All connections of one client: one for commands to each server, and those that are subscribed.

    Requests that can block (``wait_replicas``) have a second connection: renewals must not wait behind them.
    """

    def __init__(self, config: RedisConfig, context: AdapterContext) -> None:
        self._config = config
        self._client = context.client
        self._seconds = context.io_timeout
        self._streams: dict[tuple[Address, bool], RespStream] = {}
        self._opening: dict[tuple[Address, bool], asyncio.Task[RespStream]] = {}
        self._subscribers: set[SubscriberStream] = set()
        self._closed = False

    def open_stream_to(self, address: Address) -> RespStream | None:
        connection = self._streams.get((address, False))
        return connection if connection is not None and connection.is_open else None

    async def exchange(self, address: Address, payload: bytes, count: int) -> list[Any]:
        return await (await self._stream(address, False)).exchange(payload, count)

    async def exchange_blocking(self, address: Address, payload: bytes, count: int) -> list[Any]:
        return await (await self._stream(address, True)).exchange(payload, count)

    async def _stream(self, address: Address, may_block: bool) -> RespStream:
        connection = self._streams.get((address, may_block))
        if connection is not None and connection.is_open:
            return connection
        opening = self._opening.get((address, may_block))
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(address, may_block))
            self._opening[address, may_block] = opening
            opening.add_done_callback(retrieve_exception)
        try:
            async with asyncio.timeout(connect_seconds(self._seconds)):
                return await wait_for_shared(opening)
        except TimeoutError:
            raise NotApplied(f"no connection to {address}: no answer in time") from None

    async def _open(self, address: Address, may_block: bool) -> RespStream:
        try:
            connection = await self._connect(RespStream, address)
            self._streams[address, may_block] = connection
            return connection
        finally:
            del self._opening[address, may_block]

    async def ask_sentinel(self, address: Address, payload: bytes) -> Any:
        """A Sentinel has its share of the time: a silent one must not use up the time of the others."""
        seconds = max(connect_seconds(self._seconds) / len(self._config.addresses), 0.1)
        connection = await open_stream(RespStream, address, self._config.sentinel_tls, seconds)
        try:
            credentials = await _credentials(self._config.sentinel_login)
            has_tls = self._config.sentinel_tls is not None
            return await query_once(connection, credentials, self._client, payload, PERMISSION_HINT, has_tls)
        finally:
            connection.close()

    def drop(self, address: Address) -> None:
        for may_block in (False, True):
            connection = self._streams.pop((address, may_block), None)
            if connection is not None:
                connection.close()
        for stream in self._subscribers:
            if stream.address == address:
                stream.shutdown()

    async def open_subscriber(self, address: Address) -> SubscriberStream:
        stream = await self._connect(SubscriberStream, address)
        self._subscribers = {*(each for each in self._subscribers if each.is_open), stream}
        return stream

    async def _connect(self, kind: type[S], address: Address) -> S:
        credentials = await _credentials(self._config.login)
        seconds = connect_seconds(self._seconds)
        ends_at = monotonic() + seconds
        with mark_nothing_sent():
            stream = await open_stream(kind, address, self._config.tls, seconds)
        try:
            if self._closed:
                raise NotApplied("this client is closed")
            stream.set_timeout(max(ends_at - monotonic(), 0.001))
            with mark_nothing_sent():
                await perform_handshake(stream, self._config, credentials, self._client, PERMISSION_HINT)
            stream.set_timeout(self._seconds)
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self) -> list[asyncio.Task[Any]]:
        """Close all connections. Returns the tasks that still open one, cancelled."""
        self._closed = True
        openings: list[asyncio.Task[Any]] = list(self._opening.values())
        for opening in openings:
            opening.cancel()
        for stream in [*self._streams.values(), *self._subscribers]:
            stream.close()
        return openings

    def detach_after_fork(self) -> None:
        for stream in [*self._streams.values(), *self._subscribers]:
            stream.detach_after_fork()


async def _credentials(login: Login) -> Credentials:
    """A provider of the user can block, so a synchronous one runs in a thread."""
    provider = login.provider
    if provider is None:
        return login.username, login.password
    base = next((each for each in type(provider).__mro__ if each.__name__ == "CredentialProvider"), object)
    method = getattr(type(provider), "get_credentials_async", None)
    try:
        if method is not None and method is not getattr(base, "get_credentials_async", None):
            return provided_credentials(await provider.get_credentials_async())
        return provided_credentials(await asyncio.to_thread(provider.get_credentials))
    except Exception as error:
        raise provider_error(error) from error
