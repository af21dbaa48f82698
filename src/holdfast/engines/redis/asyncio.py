"""The Redis engine for the asyncio driver. Threads never import this module."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from hiredis import ReplyError

from ...core.effects import TransientError
from ...engine_api import AdapterContext, Steps
from ...rules.requests import Reply, Request, Snapshot
from ..resp.config import Address
from ..resp.connection_asyncio import RespStream, SubscriberStream
from ..resp.errors import mark_nothing_sent
from .admin import list_names
from .codec import decode, encode_packed
from .config import RedisConfig
from .connection_asyncio import Connections, retrieve_exception, wait_for_shared
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
        self._connections = Connections(config, context)
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
        with mark_nothing_sent():
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
            with mark_nothing_sent():
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
            self._discovery.add_done_callback(retrieve_exception)
        await wait_for_shared(self._discovery)

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
        self._connections.detach_after_fork()


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
