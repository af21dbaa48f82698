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
from ..resp.connection_asyncio import HearingStream, StreamLine, open_stream
from ..resp.errors import marked_unsent
from ..resp.handshake import ask_once, greet
from .codec import Space, packed, reply
from .config import Address, Credentials, Login, Settings, credentials_of, provider_failed
from .pubsub import Ears
from .routing import Router

__all__ = ["RedisAsyncio"]

T = TypeVar("T")
S = TypeVar("S", StreamLine, HearingStream)
log = logging.getLogger("holdfast")

AGAIN_SECONDS: Final = 0.5
"""How long a task that was made to end pauses before it listens again."""


class RedisAsyncio:
    """One client's way to its servers."""

    def __init__(
        self, settings: Settings, space: Space, hooks: AdapterContext, evicts: Callable[[str | None], None]
    ) -> None:
        self._space = space
        self._streams = _Streams(settings, hooks)
        self._router = Router(settings, space, self._streams, hooks, evicts)
        self._ears = Ears(self._router, space, hooks, self, takes=not settings.wait_replicas)
        self._direct = settings.shape != "cluster" and not settings.wait_replicas
        self._home: StreamLine | None = None
        """Where every request goes; None: the router has to be asked."""
        self._finding: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def source(self) -> str:
        return self._router.source

    async def apply(self, name: str, request: Request) -> Reply:
        home = self._home
        if home is None or not home.is_open:
            if home is not None:
                self._troubled()
            return await self._apply(name, request)
        payload = packed(self._space, name, request)
        try:
            raw = await home.call(payload)
        except TransientError:
            self._troubled(home)
            raise
        if raw.__class__ is ReplyError:
            return await self._mended(home, name, request, payload, raw)
        return reply(request, raw)

    async def _mended(
        self, home: StreamLine, name: str, request: Request, payload: bytes, error: Any
    ) -> Reply:
        try:
            return await self._router.mended(home.address, name, request, payload, error)
        except TransientError:
            self._troubled(home)
            raise

    async def _apply(self, name: str, request: Request) -> Reply:
        await self.find_out()
        answer = await self._router.apply(name, request)
        if self._direct and self._router.home is not None:
            self._home = self._streams.open_to(self._router.home)
        return answer

    def _troubled(self, asked: StreamLine | None = None) -> None:
        """Find out anew who serves what before anything else is asked; unless that was done meanwhile."""
        if asked is not None and asked is not self._home:
            return
        self._home = None
        self._router.suspect(self._router.home)

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return await self._ask(lambda: self._router.apply_in_order(steps, stop_when_refused))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return await self._ask(lambda: self._router.renew_batch(steps))

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return await self._ask(lambda: self._router.list_names(prefix))

    async def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            await self.find_out()
            return await question()
        except TransientError:
            self._troubled()
            raise

    # --- wake-ups -------------------------------------------------------------------------------

    async def listen(self, name: str | None) -> None:
        if name is None:
            self._ears.start()
            return
        await self.find_out()
        await self._ears.listen(name)

    def unlisten(self, nonce: str, name: str | None) -> None:
        if name is not None and self._space.sharded:
            self._ears.unlisten(name)

    @property
    def dropped_messages(self) -> int:
        """So many messages came to the channels of this client that could not be read."""
        return self._ears.dropped

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody tells us that a client died: its claims run out."""

    # --- what the ears need ---------------------------------------------------------------------

    async def find_out(self) -> None:
        """Once for all who want to know: one that is cancelled leaves the others their answer."""
        if self._router.ready:
            return
        if self._finding is None or self._finding.done():
            self._finding = asyncio.get_running_loop().create_task(self._find_out())
            self._finding.add_done_callback(_seen)
        await _shared(self._finding)

    async def _find_out(self) -> None:
        await self._router.prepare()
        self._ears.check()

    async def open_hearing(self, address: Address) -> HearingStream:
        return await self._streams.open_hearing(address)

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
                await asyncio.sleep(AGAIN_SECONDS)

    def gate(self) -> _Gate:
        return _Gate()

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        self._ears.close()
        tasks = [*self._tasks, *([] if self._finding is None else [self._finding])]
        for task in tasks:
            task.cancel()
        tasks += self._streams.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def forked(self) -> None:
        self._streams.forget()


def _seen(task: asyncio.Task[Any]) -> None:
    """Whoever waited was told; if nobody did, nobody has to be."""
    if not task.cancelled():
        task.exception()


async def _shared(task: asyncio.Task[T]) -> T:
    """What a task finds for all who wait for it. It is cancelled only when the client is closed."""
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        myself = asyncio.current_task()
        if task.cancelled() and myself is not None and not myself.cancelling():
            raise NotApplied("this client is closed") from None
        raise


class _Gate:
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

    def open(self) -> None:
        self._event.set()


class _Streams:
    """All connections of one client: one for commands to each server, and those that listen.

    What may wait long for its answer (``wait_replicas``) has a second one: renewals must not wait behind it.
    """

    def __init__(self, settings: Settings, hooks: AdapterContext) -> None:
        self._settings = settings
        self._client = hooks.client
        self._seconds = hooks.io_timeout
        self._lines: dict[tuple[Address, bool], StreamLine] = {}
        self._opening: dict[tuple[Address, bool], asyncio.Task[StreamLine]] = {}
        self._hearing: set[HearingStream] = set()
        self._closed = False

    def open_to(self, address: Address) -> StreamLine | None:
        line = self._lines.get((address, False))
        return line if line is not None and line.is_open else None

    async def exchange(self, address: Address, payload: bytes, count: int) -> list[Any]:
        return await (await self._line(address, False)).exchange(payload, count)

    async def exchange_apart(self, address: Address, payload: bytes, count: int) -> list[Any]:
        return await (await self._line(address, True)).exchange(payload, count)

    async def _line(self, address: Address, apart: bool) -> StreamLine:
        line = self._lines.get((address, apart))
        if line is not None and line.is_open:
            return line
        opening = self._opening.get((address, apart))
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(address, apart))
            self._opening[address, apart] = opening
            opening.add_done_callback(_seen)
        try:
            async with asyncio.timeout(connect_seconds(self._seconds)):
                return await _shared(opening)
        except TimeoutError:
            raise NotApplied(f"no connection to {address}: no answer in time") from None

    async def _open(self, address: Address, apart: bool) -> StreamLine:
        try:
            line = await self._greeted(StreamLine, address)
            self._lines[address, apart] = line
            return line
        finally:
            del self._opening[address, apart]

    async def ask_sentinel(self, address: Address, payload: bytes) -> Any:
        """Each may take its share of the time: one that is silent must not use up that of the others."""
        seconds = max(connect_seconds(self._seconds) / len(self._settings.addresses), 0.1)
        line = await open_stream(StreamLine, address, self._settings.sentinel_tls, seconds)
        try:
            credentials = await _credentials(self._settings.sentinel_login)
            return await ask_once(line, credentials, self._client, payload)
        finally:
            line.close()

    def drop(self, address: Address) -> None:
        for apart in (False, True):
            line = self._lines.pop((address, apart), None)
            if line is not None:
                line.close()
        for stream in self._hearing:
            if stream.address == address:
                stream.hang_up()

    async def open_hearing(self, address: Address) -> HearingStream:
        stream = await self._greeted(HearingStream, address)
        self._hearing = {*(each for each in self._hearing if each.is_open), stream}
        return stream

    async def _greeted(self, kind: type[S], address: Address) -> S:
        credentials = await _credentials(self._settings.login)
        seconds = connect_seconds(self._seconds)
        ends_at = monotonic() + seconds
        with marked_unsent():
            stream = await open_stream(kind, address, self._settings.tls, seconds)
        try:
            if self._closed:
                raise NotApplied("this client is closed")
            stream.allow(max(ends_at - monotonic(), 0.001))
            with marked_unsent():
                await greet(stream, self._settings, credentials, self._client)
            stream.allow(self._seconds)
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
        for stream in [*self._lines.values(), *self._hearing]:
            stream.close()
        return openings

    def forget(self) -> None:
        for stream in [*self._lines.values(), *self._hearing]:
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
            return credentials_of(await provider.get_credentials_async())
        return credentials_of(await asyncio.to_thread(provider.get_credentials))
    except Exception as error:
        raise provider_failed(error) from error
