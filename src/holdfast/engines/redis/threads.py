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
from ..resp.config import Address, Credentials, Login, provided_credentials, provider_error
from ..resp.connection import RespSocket, SubscriberSocket, open_socket, run_sync
from ..resp.errors import mark_nothing_sent
from ..resp.handshake import perform_handshake, query_once
from .codec import decode, encode_packed
from .config import RedisConfig
from .errors import PERMISSION_HINT
from .keys import Keyspace
from .pool import Pool
from .pubsub import PING, PubSub
from .pubsub_reader import PubSubReader
from .routing import Router

__all__ = ["RedisThreads"]

T = TypeVar("T")
S = TypeVar("S", bound=RespSocket)
log = logging.getLogger("holdfast")

STOP_SECONDS: Final = 2.0

RESTART_SECONDS: Final = 0.5
"""How long a thread that was made to end pauses before it listens again."""

SUCCESSOR_FIRST: Final = PING
"""Goes before a release that hands over, and costs the server next to nothing. A server writes first to those
who last got something to be written: with this answer before the script's message, to the heir before us."""


class RedisThreads:
    """One client's way to its servers."""

    def __init__(
        self,
        settings: RedisConfig,
        space: Keyspace,
        hooks: AdapterContext,
        evicts: Callable[[str | None], None],
    ) -> None:
        self._space = space
        self._connections = _Connections(settings, hooks, self._invalidate)
        self._router = Router(settings, space, self._connections, hooks, evicts)
        self._pubsub = PubSub(self._router, space, hooks, self, takes=not settings.wait_replicas)
        self._reader: PubSubReader | None = None
        self._direct = settings.deployment != "cluster" and not settings.wait_replicas
        self._pool: Pool | None = None
        """Where every request goes; None: the router has to be asked."""
        self._contended: str | None = None
        """What was last waited for."""
        self._discovery_mutex = threading.RLock()
        self._discoveries = 0
        """How often it was tried to find out who serves what."""
        self._discovery_error: Exception | None = None
        """Why the last try failed."""
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def source(self) -> str:
        return self._router.source

    def masters(self) -> list[Address]:
        """Whoever serves us now."""
        run_sync(self.discover())
        served = [self._router.home, *self._router.masters]
        return list(dict.fromkeys(address for address in served if address is not None))

    def apply(self, name: str, request: Request) -> Reply:
        home = self._pool
        if home is None:
            return run_sync(self._apply(name, request))
        payload = encode_packed(self._space, name, request)
        # One who asks for a place in the queue is about to sleep anyway, and one who gives back what others
        # wait for gets out of their way.
        is_urgent = name != self._contended
        if request.__class__ is Acquire:
            is_urgent = not request.wait
            self._contended = name if request.wait else None
        try:
            if is_urgent or request.__class__ is not Release:
                raw = home.call(payload, is_urgent)
            else:
                raw = home.call(SUCCESSOR_FIRST + payload, is_urgent, 1)
        except TransientError:
            self._invalidate(home)
            raise
        if raw.__class__ is ReplyError:
            return self._recover(home, name, request, payload, raw)
        return decode(request, raw)

    def _recover(self, home: Pool, name: str, request: Request, payload: bytes, error: Any) -> Reply:
        try:
            return run_sync(self._router.recover(home.address, name, request, payload, error))
        except TransientError:
            self._invalidate(home)
            raise

    async def _apply(self, name: str, request: Request) -> Reply:
        await self.discover()
        return await self._router.apply(name, request)

    def _invalidate(self, asked: Pool | None = None) -> None:
        """Find out anew who serves what, on new connections, before anything else is asked.

        Unless it was asked of a server that was replaced meanwhile.
        """
        if asked is not None and asked is not self._pool:
            asked.drop()
            return
        home, self._pool = self._pool, None
        self._router.invalidate(self._router.home)
        if home is not None:
            home.drop()

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return self._run(lambda: self._router.apply_in_order(steps, stop_when_refused))

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self._run(lambda: self._router.renew_batch(steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self._run(lambda: self._router.list_names(prefix))

    def _run(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            run_sync(self.discover())
            return run_sync(question())
        except TransientError:
            self._invalidate()
            raise

    # --- wake-ups -------------------------------------------------------------------------------

    def listen(self, name: str | None) -> None:
        if name is None:
            self._pubsub.start()
        elif self._pool is None or self._pubsub.subscribed_connection() is None:  # mostly all is in place
            run_sync(self._listen(name))

    async def _listen(self, name: str) -> None:
        await self.discover()
        await self._pubsub.listen(name)

    def unlisten(self, nonce: str, name: str | None) -> None:
        if name is not None and self._space.sharded:
            self._pubsub.unlisten(name)

    @property
    def dropped_messages(self) -> int:
        """So many messages came to the channels of this client that could not be read."""
        return self._pubsub.dropped

    @property
    def notification_reader(self) -> NotificationReader | None:
        """One who waits may listen itself, where there is one connection for everything."""
        if self._reader is None and self._pubsub.subscribed_connection() is not None and not self._closed:
            self._reader = PubSubReader(self._pubsub)
        return self._reader

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody tells us that a client died: its claims run out."""

    # --- what the ears need ---------------------------------------------------------------------

    async def discover(self) -> None:
        """Once for all who want to know: a try that ended while one waited for it counts as one's own."""
        if self._router.is_current:
            return
        tries = self._discoveries
        with self._discovery_mutex:
            if self._router.is_current:
                return
            trouble = self._discovery_error
            if self._discoveries != tries and trouble is not None:
                raise type(trouble)(*trouble.args)
            await self._discover()
        self._pubsub.check_address()

    async def _discover(self) -> None:
        self._discovery_error = None
        try:
            await self._router.discover()
            if self._direct and self._router.home is not None:
                self._pool = self._connections.pool(self._router.home)
        except (TransientError, EngineUnavailable) as trouble:
            self._discovery_error = trouble
            raise
        finally:
            self._discoveries += 1

    async def open_subscriber(self, address: Address) -> SubscriberSocket:
        return self._connections.open_subscriber(address)

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
                    return run_sync(work())
                except BaseException:
                    if self._closed:
                        raise
                    log.exception("holdfast: a thread that listens was ended; it begins again")
                    time.sleep(RESTART_SECONDS)
        finally:
            ended()

    def make_event(self) -> _ThreadEvent:
        return _ThreadEvent()

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        self._pubsub.close()
        self._connections.close()
        for thread in self._threads:
            join_thread(thread, STOP_SECONDS)
        if self._reader is not None:
            self._reader.close()

    def forked(self) -> None:
        self._connections.forget()
        if self._reader is not None:
            self._reader.close()


class _ThreadEvent:
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

    def set(self) -> None:
        self._opened = True
        for lock in list(self._waiting):
            with contextlib.suppress(RuntimeError):  # told already
                lock.release()


class _Connections:
    """All connections of one client: a few for commands to each server, and those that listen."""

    def __init__(self, settings: RedisConfig, hooks: AdapterContext, closed: Callable[[], None]) -> None:
        self._settings = settings
        self._was_closed = closed
        self._client = hooks.client
        self._seconds = hooks.io_timeout
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
                    most = self._settings.connections
                    pool = Pool(address, most, self._seconds, self._open, self._was_closed)
                    self._pools[address] = pool
        return pool

    async def exchange(self, address: Address, payload: bytes, count: int) -> list[Any]:
        return await self.pool(address).exchange(payload, count)

    async def exchange_blocking(self, address: Address, payload: bytes, count: int) -> list[Any]:
        """Nobody shares a connection while it is in use."""
        return await self.pool(address).exchange(payload, count)

    async def ask_sentinel(self, address: Address, payload: bytes) -> Any:
        """Each may take its share of the time: one that is silent must not use up that of the others."""
        seconds = max(connect_seconds(self._seconds) / len(self._settings.addresses), 0.1)
        line = RespSocket(open_socket(address, self._settings.sentinel_tls, seconds), address, seconds)
        try:
            credentials = _credentials(self._settings.sentinel_login)
            return await query_once(line, credentials, self._client, payload, PERMISSION_HINT)
        finally:
            line.close()

    def drop(self, address: Address) -> None:
        self.pool(address).drop()
        for line in self._subscribers:
            if line.address == address:
                line.hang_up()

    def open_subscriber(self, address: Address) -> SubscriberSocket:
        line = self._connect(SubscriberSocket, address)
        with self._mutex:
            if not self._closed:
                self._subscribers = {*(each for each in self._subscribers if each.is_open()), line}
                return line
        line.close()
        return line

    def _open(self, address: Address) -> RespSocket:
        return self._connect(RespSocket, address)

    def _connect(self, kind: type[S], address: Address) -> S:
        seconds = connect_seconds(self._seconds)
        ends_at = monotonic() + seconds
        with mark_nothing_sent():
            connected = open_socket(address, self._settings.tls, seconds)
        line = kind(connected, address, max(ends_at - monotonic(), 0.001))
        try:
            with mark_nothing_sent():
                run_sync(
                    perform_handshake(
                        line,
                        self._settings,
                        _credentials(self._settings.login),
                        self._client,
                        PERMISSION_HINT,
                    )
                )
            line.set_timeout(self._seconds)
        except BaseException:
            line.close()
            raise
        return line

    def close(self) -> None:
        with self._mutex:
            self._closed = True
        for pool in list(self._pools.values()):
            pool.close()
        for line in self._subscribers:
            line.hang_up()

    def forget(self) -> None:
        """This is the child of a fork: nobody else is here, and mutexes may be locked for ever."""
        for pool in list(self._pools.values()):
            pool.forget()
        for line in list(self._subscribers):
            line.forget()


def _credentials(login: Login) -> Credentials:
    if login.provider is None:
        return login.username, login.password
    try:
        return provided_credentials(login.provider.get_credentials())
    except Exception as error:
        raise provider_error(error) from error
