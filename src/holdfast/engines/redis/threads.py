"""Redis for the threads driver."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeVar

from hiredis import ReplyError

from ...core.effects import TransientError
from ...engine_api import AdapterContext, NotificationReader, Steps
from ...errors import EngineUnavailable
from ...rules.requests import Acquire, Release, Reply, Request, Snapshot
from ...runtime.connect_timeout import connect_seconds
from ...runtime.thread_join import join_thread
from ..resp.connection import HearingSocket, SocketLine, open_socket
from ..resp.errors import marked_unsent
from ..resp.handshake import ask_once, greet
from ..resp.interfaces import at_once
from .codec import Space, packed, reply
from .config import Address, Credentials, Login, Settings, credentials_of, provider_failed
from .pool import Pool
from .pubsub import PING, Ears
from .pubsub_reader import Overhearing
from .routing import Router

__all__ = ["RedisThreads"]

T = TypeVar("T")
S = TypeVar("S", bound=SocketLine)
log = logging.getLogger("holdfast")

STOP_SECONDS: Final = 2.0

AGAIN_SECONDS: Final = 0.5
"""How long a thread that was made to end pauses before it listens again."""

HEIR_FIRST: Final = PING
"""Goes before a release that hands over, and costs the server next to nothing. A server writes first to those
who last got something to be written: with this answer before the script's message, to the heir before us."""


class RedisThreads:
    """One client's way to its servers."""

    def __init__(
        self, settings: Settings, space: Space, hooks: AdapterContext, evicts: Callable[[str | None], None]
    ) -> None:
        self._space = space
        self._sockets = _Sockets(settings, hooks, self._troubled)
        self._router = Router(settings, space, self._sockets, hooks, evicts)
        self._ears = Ears(self._router, space, hooks, self, takes=not settings.wait_replicas)
        self._overhearing: Overhearing | None = None
        self._direct = settings.shape != "cluster" and not settings.wait_replicas
        self._home: Pool | None = None
        """Where every request goes; None: the router has to be asked."""
        self._crowded: str | None = None
        """What was last waited for."""
        self._finding = threading.RLock()
        self._found = 0
        """How often it was tried to find out who serves what."""
        self._not_found: Exception | None = None
        """Why the last try failed."""
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def source(self) -> str:
        return self._router.source

    def masters(self) -> list[Address]:
        """Whoever serves us now."""
        at_once(self.find_out())
        served = [self._router.home, *self._router.masters]
        return list(dict.fromkeys(address for address in served if address is not None))

    def apply(self, name: str, request: Request) -> Reply:
        home = self._home
        if home is None:
            return at_once(self._apply(name, request))
        payload = packed(self._space, name, request)
        # One who asks for a place in the queue is about to sleep anyway, and one who gives back what others
        # wait for gets out of their way.
        is_urgent = name != self._crowded
        if request.__class__ is Acquire:
            is_urgent = not request.wait
            self._crowded = name if request.wait else None
        try:
            if is_urgent or request.__class__ is not Release:
                raw = home.call(payload, is_urgent)
            else:
                raw = home.call(HEIR_FIRST + payload, is_urgent, 1)
        except TransientError:
            self._troubled(home)
            raise
        if raw.__class__ is ReplyError:
            return self._mended(home, name, request, payload, raw)
        return reply(request, raw)

    def _mended(self, home: Pool, name: str, request: Request, payload: bytes, error: Any) -> Reply:
        try:
            return at_once(self._router.mended(home.address, name, request, payload, error))
        except TransientError:
            self._troubled(home)
            raise

    async def _apply(self, name: str, request: Request) -> Reply:
        await self.find_out()
        return await self._router.apply(name, request)

    def _troubled(self, asked: Pool | None = None) -> None:
        """Find out anew who serves what, on new connections, before anything else is asked.

        Unless it was asked of a server that was replaced meanwhile.
        """
        if asked is not None and asked is not self._home:
            asked.drop()
            return
        home, self._home = self._home, None
        self._router.suspect(self._router.home)
        if home is not None:
            home.drop()

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return self._ask(lambda: self._router.apply_in_order(steps, stop_when_refused))

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self._ask(lambda: self._router.renew_batch(steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self._ask(lambda: self._router.list_names(prefix))

    def _ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            at_once(self.find_out())
            return at_once(question())
        except TransientError:
            self._troubled()
            raise

    # --- wake-ups -------------------------------------------------------------------------------

    def listen(self, name: str | None) -> None:
        if name is None:
            self._ears.start()
        elif self._home is None or self._ears.line_in_place() is None:  # mostly all is in place
            at_once(self._listen(name))

    async def _listen(self, name: str) -> None:
        await self.find_out()
        await self._ears.listen(name)

    def unlisten(self, nonce: str, name: str | None) -> None:
        if name is not None and self._space.sharded:
            self._ears.unlisten(name)

    @property
    def dropped_messages(self) -> int:
        """So many messages came to the channels of this client that could not be read."""
        return self._ears.dropped

    @property
    def notification_reader(self) -> NotificationReader | None:
        """One who waits may listen itself, where there is one connection for everything."""
        if self._overhearing is None and self._ears.line_in_place() is not None and not self._closed:
            self._overhearing = Overhearing(self._ears)
        return self._overhearing

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody tells us that a client died: its claims run out."""

    # --- what the ears need ---------------------------------------------------------------------

    async def find_out(self) -> None:
        """Once for all who want to know: a try that ended while one waited for it counts as one's own."""
        if self._router.ready:
            return
        tries = self._found
        with self._finding:
            if self._router.ready:
                return
            trouble = self._not_found
            if self._found != tries and trouble is not None:
                raise type(trouble)(*trouble.args)
            await self._find_out()
        self._ears.check()

    async def _find_out(self) -> None:
        self._not_found = None
        try:
            await self._router.prepare()
            if self._direct and self._router.home is not None:
                self._home = self._sockets.pool(self._router.home)
        except (TransientError, EngineUnavailable) as trouble:
            self._not_found = trouble
            raise
        finally:
            self._found += 1

    async def open_hearing(self, address: Address) -> HearingSocket:
        return self._sockets.open_hearing(address)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None]) -> None:
        thread = threading.Thread(
            target=self._work, args=(work, ended), name="holdfast-listener", daemon=True
        )
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    def _work(self, work: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None]) -> None:
        """Until it ends by itself. Something that is thrown into this thread does not end it, either."""
        try:
            while True:
                try:
                    return at_once(work())
                except BaseException:
                    if self._closed:
                        raise
                    log.exception("holdfast: a thread that listens was ended; it begins again")
                    time.sleep(AGAIN_SECONDS)
        finally:
            ended()

    def gate(self) -> _Gate:
        return _Gate()

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        self._ears.close()
        self._sockets.close()
        for thread in self._threads:
            join_thread(thread, STOP_SECONDS)
        if self._overhearing is not None:
            self._overhearing.close()

    def forked(self) -> None:
        self._sockets.forget()
        if self._overhearing is not None:
            self._overhearing.close()


class _Gate:
    """For threads to wait at. An interrupt in the middle of ``threading.Event`` would leave it locked."""

    __slots__ = ("_opened", "_waiting")

    def __init__(self) -> None:
        self._opened = False
        self._waiting: list[threading.Lock] = []

    async def wait(self, seconds: float) -> bool:
        if not self._opened:
            lock = threading.Lock()
            lock.acquire()
            self._waiting.append(lock)
            if not self._opened:
                lock.acquire(timeout=seconds)
            with contextlib.suppress(ValueError):
                self._waiting.remove(lock)
        return self._opened

    def open(self) -> None:
        self._opened = True
        for lock in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # told already
                lock.release()


class _Sockets:
    """All connections of one client: a few for commands to each server, and those that listen."""

    def __init__(self, settings: Settings, hooks: AdapterContext, closed: Callable[[], None]) -> None:
        self._settings = settings
        self._was_closed = closed
        self._client = hooks.client
        self._seconds = hooks.io_timeout
        self._mutex = threading.RLock()
        self._pools: dict[Address, Pool] = {}
        self._hearing: set[HearingSocket] = set()
        self._closed = False

    def pool(self, address: Address) -> Pool:
        pool = self._pools.get(address)
        if pool is None:
            with self._mutex:
                pool = self._pools.get(address)
                if pool is None:
                    most = self._settings.connections
                    pool = Pool(address, most, self._seconds, self._open, self._was_closed)
                    self._pools[address] = pool
        return pool

    async def exchange(self, address: Address, payload: bytes, count: int) -> list[Any]:
        return await self.pool(address).exchange(payload, count)

    async def exchange_apart(self, address: Address, payload: bytes, count: int) -> list[Any]:
        """Nobody shares a connection while it is in use."""
        return await self.pool(address).exchange(payload, count)

    async def ask_sentinel(self, address: Address, payload: bytes) -> Any:
        """Each may take its share of the time: one that is silent must not use up that of the others."""
        seconds = max(connect_seconds(self._seconds) / len(self._settings.addresses), 0.1)
        line = SocketLine(open_socket(address, self._settings.sentinel_tls, seconds), address, seconds)
        try:
            credentials = _credentials(self._settings.sentinel_login)
            return await ask_once(line, credentials, self._client, payload)
        finally:
            line.close()

    def drop(self, address: Address) -> None:
        self.pool(address).drop()
        for line in self._hearing:
            if line.address == address:
                line.hang_up()

    def open_hearing(self, address: Address) -> HearingSocket:
        line = self._greeted(HearingSocket, address)
        with self._mutex:
            if not self._closed:
                self._hearing = {*(each for each in self._hearing if each.is_open()), line}
                return line
        line.close()
        return line

    def _open(self, address: Address) -> SocketLine:
        return self._greeted(SocketLine, address)

    def _greeted(self, kind: type[S], address: Address) -> S:
        seconds = connect_seconds(self._seconds)
        ends_at = monotonic() + seconds
        with marked_unsent():
            connected = open_socket(address, self._settings.tls, seconds)
        line = kind(connected, address, max(ends_at - monotonic(), 0.001))
        try:
            with marked_unsent():
                at_once(greet(line, self._settings, _credentials(self._settings.login), self._client))
            line.allow(self._seconds)
        except BaseException:
            line.close()
            raise
        return line

    def close(self) -> None:
        with self._mutex:
            self._closed = True
        for pool in list(self._pools.values()):
            pool.close()
        for line in self._hearing:
            line.hang_up()

    def forget(self) -> None:
        """This is the child of a fork: nobody else is here, and mutexes may be locked for ever."""
        for pool in list(self._pools.values()):
            pool.forget()
        for line in list(self._hearing):
            line.forget()


def _credentials(login: Login) -> Credentials:
    if login.provider is None:
        return login.username, login.password
    try:
        return credentials_of(login.provider.get_credentials())
    except Exception as error:
        raise provider_failed(error) from error
