"""Redis for the threads driver."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from hiredis import ReplyError

from ...core.effects import TransientError
from ...engine_api import AdapterContext, NotificationReader, Steps
from ...errors import EngineUnavailable
from ...rules.requests import Acquire, Release, Reply, Request, Snapshot
from ...runtime.exclusive_reader import EpollExclusiveReader
from ...runtime.thread_join import join_thread
from ...runtime.wakeups import ThreadWakeup
from ..resp.config import Address
from ..resp.connection import RespSocket, SubscriberSocket, run_sync
from ..resp.errors import mark_nothing_sent
from .admin import list_names
from .codec import decode, encode_packed
from .config import RedisConfig
from .connection import Connections
from .keys import Keyspace
from .pool import Pool
from .pubsub import PING, PubSub
from .renewal import renew_batch
from .routing import Router

__all__ = ["PubSubReader", "RedisThreads"]

T = TypeVar("T")

S = TypeVar("S", bound=RespSocket)

log = logging.getLogger("holdfast")

STOP_SECONDS: Final = 1.0
"""How long closing waits for a listener. One that connects to a server that hangs ends by itself."""

RESTART_SECONDS: Final = 0.5
"""The pause before a thread that failed is restarted."""

SUCCESSOR_FIRST: Final = PING
"""Sent before a release that can hand over. The server writes its output buffers in the reverse order in
which they got their first bytes. With the reply to PING before the message of the script, the successor is
served first."""


class PubSubReader(EpollExclusiveReader):
    """Lets one waiting thread read the subscribed connection itself; it delivers the messages for others.

    Used by one waiter at a time.
    """

    __slots__ = ("_connection", "_pubsub")

    def __init__(self, pubsub: PubSub) -> None:
        super().__init__()
        self._pubsub = pubsub
        self._connection: SubscriberSocket | None = None
        """None: it broke, and the waiter listens to the self-pipe only."""

    def try_acquire(self) -> bool:
        if not super().try_acquire():
            return False
        connection = self._pubsub.subscribed_connection()
        if connection is self._connection and connection is not None:
            return True
        if isinstance(connection, SubscriberSocket) and self._register_first(connection):
            return True
        self._reading_thread.pop(None, None)
        return False

    def _register_first(self, connection: SubscriberSocket) -> bool:
        """Have the kernel wake this waiter before the thread of the connection. False: impossible, or
        closed."""
        if not connection.is_shared:
            return False
        try:
            self._wait_for(connection.fileno())
            connection.requeue_poller()
        except (OSError, ValueError):
            return False
        self._connection = connection
        return True

    def _receive(self, fd: int) -> bool:
        connection = self._connection
        if connection is not None and not self._pubsub.deliver(connection):
            # The thread of the connection replaces it and then notifies all waiters.
            self._connection = None
            self._leave(fd)
            with contextlib.suppress(OSError, ValueError):
                connection.requeue_poller()  # this wakes that thread
        return False  # everything that had arrived was read


class RedisThreads:
    """The adapter of one client."""

    def __init__(
        self,
        config: RedisConfig,
        space: Keyspace,
        context: AdapterContext,
        report_policy: Callable[[str | None], None],
    ) -> None:
        self._space = space
        self._connections = Connections(config, context, self._invalidate)
        self._router = Router(config, space, self._connections, context, report_policy)
        self._topology = self._router.topology
        self._pubsub = PubSub(self._topology, space, context, self, accepts_grants=not config.wait_replicas)
        self._reader: PubSubReader | None = None
        self._direct = config.deployment != "cluster" and not config.wait_replicas
        self._pool: Pool | None = None
        """The server of every request; None: ask the router."""
        self._contended: str | None = None
        """The name that was last waited for."""
        self._discovery_mutex = threading.RLock()
        self._discoveries = 0
        """How many discoveries have ended."""
        self._discovery_error: Exception | None = None
        """Why the last discovery failed."""
        self._threads: list[threading.Thread] = []
        self._closed = False

    @property
    def source(self) -> str:
        return self._topology.source

    def masters(self) -> list[Address]:
        """The servers of this client now."""
        run_sync(self.discover())
        served = [self._topology.home, *self._topology.masters]
        return list(dict.fromkeys(address for address in served if address is not None))

    def apply(self, name: str, request: Request) -> Reply:
        pool = self._pool
        if pool is None:
            return run_sync(self._apply(name, request))
        payload = encode_packed(self._space, name, request)
        # An acquire that waits in the queue is about to sleep anyway. A release of a contended lock leaves
        # the processor to the waiters.
        is_urgent = name != self._contended
        if request.__class__ is Acquire:
            is_urgent = not request.wait
            self._contended = name if request.wait else None
        try:
            if is_urgent or request.__class__ is not Release:
                raw = pool.call(payload, is_urgent)
            else:
                raw = pool.call(SUCCESSOR_FIRST + payload, is_urgent, 1)
        except TransientError:
            self._invalidate(pool)
            raise
        if raw.__class__ is ReplyError:
            return self._recover(pool, name, request, payload, raw)
        return decode(request, raw)

    def _recover(self, pool: Pool, name: str, request: Request, payload: bytes, error: Any) -> Reply:
        try:
            return run_sync(self._router.recover(pool.address, name, request, payload, error))
        except TransientError:
            self._invalidate(pool)
            raise

    async def _apply(self, name: str, request: Request) -> Reply:
        with mark_nothing_sent():
            await self.discover()
        return await self._router.apply(name, request)

    def _invalidate(self, failed: Pool | None = None) -> None:
        """Discover the servers again, on new connections, before the next request.

        A failure at a server that was replaced since then only drops the connections to that server.
        """
        if failed is not None and failed is not self._pool:
            failed.drop()
            return
        pool, self._pool = self._pool, None
        self._topology.invalidate(self._topology.home)
        if pool is not None:
            pool.drop()

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return self._run(lambda: self._router.apply_in_order(steps, stop_when_refused))

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self._run(lambda: renew_batch(self._router, steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self._run(lambda: list_names(self._router, prefix))

    def _run(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            with mark_nothing_sent():
                run_sync(self.discover())
            return run_sync(question())
        except TransientError:
            self._invalidate()
            raise

    # --- notifications --------------------------------------------------------------------------

    def listen(self, name: str | None) -> None:
        if name is None:
            self._pubsub.start()
        elif (
            self._pool is None or self._pubsub.subscribed_connection() is None
        ):  # rarely: one exists nearly always
            run_sync(self._listen(name))

    async def _listen(self, name: str) -> None:
        await self.discover()
        await self._pubsub.listen(name)

    def unlisten(self, nonce: str, name: str | None) -> None:
        if name is not None and self._space.sharded:
            self._pubsub.unlisten(name)

    @property
    def dropped_messages(self) -> int:
        """How many messages to the channels of this client could not be parsed."""
        return self._pubsub.dropped

    @property
    def notification_reader(self) -> NotificationReader | None:
        """A waiter reads notifications itself where one connection brings all of them."""
        if self._reader is None and self._pubsub.subscribed_connection() is not None and not self._closed:
            self._reader = PubSubReader(self._pubsub)
        return self._reader

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Redis reports no dead client. Its leases expire."""

    # --- the host of PubSub ---------------------------------------------------------------------

    async def discover(self) -> None:
        """One discovery for all threads that need it: a thread that waited takes over the error of the
        other."""
        if self._topology.is_current:
            return
        discoveries = self._discoveries
        with self._discovery_mutex:
            if self._topology.is_current:
                return
            error = self._discovery_error
            if self._discoveries != discoveries and error is not None:
                raise type(error)(*error.args)
            await self._discover()
        self._pubsub.check_address()

    async def _discover(self) -> None:
        self._discovery_error = None
        try:
            await self._topology.discover()
            if self._direct and self._topology.home is not None:
                self._pool = self._connections.pool(self._topology.home)
        except (TransientError, EngineUnavailable) as error:
            self._discovery_error = error
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
        """Run until ``work`` returns. An exception thrown into this thread restarts it."""
        try:
            while True:
                try:
                    return run_sync(work())
                except BaseException:
                    if self._closed:
                        raise
                    log.exception("holdfast: the thread that reads notifications failed; it is restarted")
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
        self._connections.detach_after_fork()
        if self._reader is not None:
            self._reader.close()


class _ThreadEvent:
    """Set once. An interrupt in the middle of ``threading.Event`` would leave its lock held."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[ThreadWakeup] = []

    async def wait(self, seconds: float) -> bool:
        if not self._is_set:
            wakeup = ThreadWakeup()
            self._waiters.append(wakeup)
            if not self._is_set:
                wakeup.wait(seconds)
            with contextlib.suppress(ValueError):
                self._waiters.remove(wakeup)
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for wakeup in list(self._waiters):
            wakeup.post()
