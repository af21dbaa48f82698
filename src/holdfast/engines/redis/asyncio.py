"""Redis for the asyncio driver; a file apart, so that threads never import asyncio."""

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
from .keys import Keyspace
from .pubsub import PubSub
from .routing import Router

__all__ = ["RedisAsyncio"]

T = TypeVar("T")
S = TypeVar("S", RespStream, SubscriberStream)
log = logging.getLogger("holdfast")

RESTART_SECONDS: Final = 0.5
"""How long a task that was made to end pauses before it listens again."""


class RedisAsyncio:
    """One client's way to its servers."""

    def __init__(
        self,
        settings: RedisConfig,
        space: Keyspace,
        hooks: AdapterContext,
        evicts: Callable[[str | None], None],
    ) -> None:
        self._space = space
        self._connections = _Connections(settings, hooks)
        self._router = Router(settings, space, self._connections, hooks, evicts)
        self._pubsub = PubSub(self._router, space, hooks, self, takes=not settings.wait_replicas)
        self._direct = settings.deployment != "cluster" and not settings.wait_replicas
        self._stream: RespStream | None = None
        """Where every request goes; None: the router has to be asked."""
        self._discovery: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def source(self) -> str:
        return self._router.source

    async def apply(self, name: str, request: Request) -> Reply:
        home = self._stream
        if home is None or not home.is_open:
            if home is not None:
                self._invalidate()
            return await self._apply(name, request)
        payload = encode_packed(self._space, name, request)
        try:
            raw = await home.call(payload)
        except TransientError:
            self._invalidate(home)
            raise
        if raw.__class__ is ReplyError:
            return await self._recover(home, name, request, payload, raw)
        return decode(request, raw)

    async def _recover(
        self, home: RespStream, name: str, request: Request, payload: bytes, error: Any
    ) -> Reply:
        try:
            return await self._router.recover(home.address, name, request, payload, error)
        except TransientError:
            self._invalidate(home)
            raise

    async def _apply(self, name: str, request: Request) -> Reply:
        await self.discover()
        answer = await self._router.apply(name, request)
        if self._direct and self._router.home is not None:
            self._stream = self._connections.open_stream_to(self._router.home)
        return answer

    def _invalidate(self, asked: RespStream | None = None) -> None:
        """Find out anew who serves what before anything else is asked; unless that was done meanwhile."""
        if asked is not None and asked is not self._stream:
            return
        self._stream = None
        self._router.invalidate(self._router.home)

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return await self._run(lambda: self._router.apply_in_order(steps, stop_when_refused))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return await self._run(lambda: self._router.renew_batch(steps))

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return await self._run(lambda: self._router.list_names(prefix))

    async def _run(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            await self.discover()
            return await question()
        except TransientError:
            self._invalidate()
            raise

    # --- wake-ups -------------------------------------------------------------------------------

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
        """So many messages came to the channels of this client that could not be read."""
        return self._pubsub.dropped

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody tells us that a client died: its claims run out."""

    # --- what the ears need ---------------------------------------------------------------------

    async def discover(self) -> None:
        """Once for all who want to know: one that is cancelled leaves the others their answer."""
        if self._router.is_current:
            return
        if self._discovery is None or self._discovery.done():
            self._discovery = asyncio.get_running_loop().create_task(self._discover())
            self._discovery.add_done_callback(_retrieve_exception)
        await _wait_for_shared(self._discovery)

    async def _discover(self) -> None:
        await self._router.discover()
        self._pubsub.check_address()

    async def open_subscriber(self, address: Address) -> SubscriberStream:
        return await self._connections.open_subscriber(address)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None]) -> None:
        """A task that somebody cancels ends; whoever listens next starts another."""
        task = asyncio.get_running_loop().create_task(self._work(work), name="holdfast-listener")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda task: ended())

    async def _work(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                return await work()
            except Exception:
                log.exception("holdfast: a task that listens was ended; it begins again")
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
    """Whoever waited was told; if nobody did, nobody has to be."""
    if not task.cancelled():
        task.exception()


async def _wait_for_shared(task: asyncio.Task[T]) -> T:
    """What a task finds for all who wait for it. It is cancelled only when the client is closed."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        myself = asyncio.current_task()
        if task.cancelled() and myself is not None and not myself.cancelling():
            raise NotApplied("this client is closed") from None
        raise


class _TaskEvent:
    """For tasks to wait at."""

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
    """All connections of one client: one for commands to each server, and those that listen.

    What may wait long for its answer (``wait_replicas``) has a second one: renewals must not wait behind it.
    """

    def __init__(self, settings: RedisConfig, hooks: AdapterContext) -> None:
        self._settings = settings
        self._client = hooks.client
        self._seconds = hooks.io_timeout
        self._streams: dict[tuple[Address, bool], RespStream] = {}
        self._opening: dict[tuple[Address, bool], asyncio.Task[RespStream]] = {}
        self._subscribers: set[SubscriberStream] = set()
        self._closed = False

    def open_stream_to(self, address: Address) -> RespStream | None:
        line = self._streams.get((address, False))
        return line if line is not None and line.is_open else None

    async def exchange(self, address: Address, payload: bytes, count: int) -> list[Any]:
        return await (await self._stream(address, False)).exchange(payload, count)

    async def exchange_blocking(self, address: Address, payload: bytes, count: int) -> list[Any]:
        return await (await self._stream(address, True)).exchange(payload, count)

    async def _stream(self, address: Address, apart: bool) -> RespStream:
        line = self._streams.get((address, apart))
        if line is not None and line.is_open:
            return line
        opening = self._opening.get((address, apart))
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(address, apart))
            self._opening[address, apart] = opening
            opening.add_done_callback(_retrieve_exception)
        try:
            async with asyncio.timeout(connect_seconds(self._seconds)):
                return await _wait_for_shared(opening)
        except TimeoutError:
            raise NotApplied(f"no connection to {address}: no answer in time") from None

    async def _open(self, address: Address, apart: bool) -> RespStream:
        try:
            line = await self._connect(RespStream, address)
            self._streams[address, apart] = line
            return line
        finally:
            del self._opening[address, apart]

    async def ask_sentinel(self, address: Address, payload: bytes) -> Any:
        """Each may take its share of the time: one that is silent must not use up that of the others."""
        seconds = max(connect_seconds(self._seconds) / len(self._settings.addresses), 0.1)
        line = await open_stream(RespStream, address, self._settings.sentinel_tls, seconds)
        try:
            credentials = await _credentials(self._settings.sentinel_login)
            return await query_once(line, credentials, self._client, payload, PERMISSION_HINT)
        finally:
            line.close()

    def drop(self, address: Address) -> None:
        for apart in (False, True):
            line = self._streams.pop((address, apart), None)
            if line is not None:
                line.close()
        for stream in self._subscribers:
            if stream.address == address:
                stream.hang_up()

    async def open_subscriber(self, address: Address) -> SubscriberStream:
        stream = await self._connect(SubscriberStream, address)
        self._subscribers = {*(each for each in self._subscribers if each.is_open), stream}
        return stream

    async def _connect(self, kind: type[S], address: Address) -> S:
        credentials = await _credentials(self._settings.login)
        seconds = connect_seconds(self._seconds)
        ends_at = monotonic() + seconds
        with mark_nothing_sent():
            stream = await open_stream(kind, address, self._settings.tls, seconds)
        try:
            if self._closed:
                raise NotApplied("this client is closed")
            stream.set_timeout(max(ends_at - monotonic(), 0.001))
            with mark_nothing_sent():
                await perform_handshake(stream, self._settings, credentials, self._client, PERMISSION_HINT)
            stream.set_timeout(self._seconds)
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self) -> list[asyncio.Task[Any]]:
        """What is being opened has yet to come to its end: the tasks to wait for."""
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
    """A provider is somebody else's code: what may block is kept out of the loop."""
    provider = login.provider
    if provider is None:
        return login.username, login.password
    base = next((each for each in type(provider).__mro__ if each.__name__ == "CredentialProvider"), object)
    answers = getattr(type(provider), "get_credentials_async", None)
    try:
        if answers is not None and answers is not getattr(base, "get_credentials_async", None):
            return provided_credentials(await provider.get_credentials_async())
        return provided_credentials(await asyncio.to_thread(provider.get_credentials))
    except Exception as error:
        raise provider_error(error) from error
