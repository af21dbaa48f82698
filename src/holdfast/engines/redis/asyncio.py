"""The Redis engine for the asyncio driver. Threads never import this module."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeVar

from hiredis import ReplyError

from ...core.effects import NotApplied, TransientError
from ...engine_api import AdapterContext, Steps
from ...rules.requests import Reply, Request, Snapshot
from ...runtime.connect_timeout import connect_seconds
from ..resp.config import Address, Credentials, Login, provided_credentials, provider_error
from ..resp.connection_asyncio import RespStream, SubscriberStream, open_stream
from ..resp.errors import mark_nothing_sent
from ..resp.handshake import perform_handshake, query_once
from .codec import decode, encode_packed
from .config import RedisConfig
from .errors import PERMISSION_HINT
from .inspection import list_names
from .keys import Keyspace
from .pubsub import PubSub
from .renewal import renew_batch
from .routing import Router

__all__ = ["RedisAsyncio"]

T = TypeVar("T")
S = TypeVar("S", RespStream, SubscriberStream)
log = logging.getLogger("holdfast")

RESTART_SECONDS: Final = 0.5
"""The pause before a task that failed is restarted."""


class RedisAsyncio:
    """The adapter of one client."""

    def __init__(
        self,
        config: RedisConfig,
        space: Keyspace,
        context: AdapterContext,
        report_policy: Callable[[str | None], None],
    ) -> None:
        self._space = space
        self._connections = _Connections(config, context)
        self._router = Router(config, space, self._connections, context, report_policy)
        self._topology = self._router.topology
        self._pubsub = PubSub(self._topology, space, context, self, accepts_grants=not config.wait_replicas)
        self._direct = config.deployment != "cluster" and not config.wait_replicas
        self._stream: RespStream | None = None
        """The connection of every request; None: ask the router."""
        self._discovery: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def source(self) -> str:
        return self._topology.source

    async def apply(self, name: str, request: Request) -> Reply:
        stream = self._stream
        if stream is None or not stream.is_open:
            if stream is not None:
                self._invalidate()
            return await self._apply(name, request)
        payload = encode_packed(self._space, name, request)
        try:
            raw = await stream.call(payload)
        except TransientError:
            self._invalidate(stream)
            raise
        if raw.__class__ is ReplyError:
            return await self._recover(stream, name, request, payload, raw)
        return decode(request, raw)

    async def _recover(
        self, stream: RespStream, name: str, request: Request, payload: bytes, error: Any
    ) -> Reply:
        try:
            return await self._router.recover(stream.address, name, request, payload, error)
        except TransientError:
            self._invalidate(stream)
            raise

    async def _apply(self, name: str, request: Request) -> Reply:
        await self.discover()
        answer = await self._router.apply(name, request)
        if self._direct and self._topology.home is not None:
            self._stream = self._connections.open_stream_to(self._topology.home)
        return answer

    def _invalidate(self, failed: RespStream | None = None) -> None:
        """Discover the servers again before the next request, unless the connection was replaced since
        then."""
        if failed is not None and failed is not self._stream:
            return
        self._stream = None
        self._topology.invalidate(self._topology.home)

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return await self._run(lambda: self._router.apply_in_order(steps, stop_when_refused))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return await self._run(lambda: renew_batch(self._router, steps))

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return await self._run(lambda: list_names(self._router, prefix))

    async def _run(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            await self.discover()
            return await question()
        except TransientError:
            self._invalidate()
            raise

    # --- notifications --------------------------------------------------------------------------

    async def listen(self, name: str | None) -> None:
        if name is None:
            self._pubsub.start()
            return
        await self.discover()
        await self._pubsub.listen(name)

    def unlisten(self, nonce: str, name: str | None) -> None:
        if name is not None and self._space.sharded:
            self._pubsub.unlisten(name)

    @property
    def dropped_messages(self) -> int:
        """How many messages to the channels of this client could not be parsed."""
        return self._pubsub.dropped

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Redis reports no dead client. Its leases expire."""

    # --- the host of PubSub ---------------------------------------------------------------------

    async def discover(self) -> None:
        """One discovery for all tasks that need it. A cancelled task leaves the others their result."""
        if self._topology.is_current:
            return
        if self._discovery is None or self._discovery.done():
            self._discovery = asyncio.get_running_loop().create_task(self._discover())
            self._discovery.add_done_callback(_retrieve_exception)
        await _wait_for_shared(self._discovery)

    async def _discover(self) -> None:
        await self._topology.discover()
        self._pubsub.check_address()

    async def open_subscriber(self, address: Address) -> SubscriberStream:
        return await self._connections.open_subscriber(address)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None]) -> None:
        """Start a task. If it is cancelled, the next task that listens starts another one."""
        task = asyncio.get_running_loop().create_task(self._work(work), name="holdfast-listener")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: ended())

    async def _work(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                return await work()
            except Exception:
                log.exception("holdfast: the task that reads notifications failed; it is restarted")
                await asyncio.sleep(RESTART_SECONDS)

    def make_event(self) -> _TaskEvent:
        return _TaskEvent()

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        self._pubsub.close()
        tasks = [*self._tasks, *([] if self._discovery is None else [self._discovery])]
        for task in tasks:
            task.cancel()
        tasks += self._connections.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forked(self) -> None:
        self._connections.forget()


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Mark the exception as retrieved: every task that waits gets it, and there may be none."""
    if not task.cancelled():
        task.exception()


async def _wait_for_shared(task: asyncio.Task[T]) -> T:
    """The result of a task that several tasks wait for. Only closing the client cancels it."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if task.cancelled() and current is not None and not current.cancelling():
            raise NotApplied("this client is closed") from None
        raise


class _TaskEvent:
    """``asyncio.Event`` with a time limit."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        if self._event.is_set():
            return True
        try:
            async with asyncio.timeout(seconds):
                return await self._event.wait()
        except TimeoutError:
            return False

    def set(self) -> None:
        self._event.set()


class _Connections:
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
            opening.add_done_callback(_retrieve_exception)
        try:
            async with asyncio.timeout(connect_seconds(self._seconds)):
                return await _wait_for_shared(opening)
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
            return await query_once(connection, credentials, self._client, payload, PERMISSION_HINT)
        finally:
            connection.close()

    def drop(self, address: Address) -> None:
        for may_block in (False, True):
            connection = self._streams.pop((address, may_block), None)
            if connection is not None:
                connection.close()
        for stream in self._subscribers:
            if stream.address == address:
                stream.hang_up()

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

    def forget(self) -> None:
        for stream in [*self._streams.values(), *self._subscribers]:
            stream.forget()


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
