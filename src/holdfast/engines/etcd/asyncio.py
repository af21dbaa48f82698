"""etcd for asyncio; a separate file, so that threads never import asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from ...core.effects import NotApplied, OutcomeUnknown
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ...protocols.tickets import TicketClient
from ...runtime import trampoline
from ...runtime.concurrency_limit import ConcurrencyLimit
from .config import Config
from .connection_asyncio import Subchannel
from .errors import NEVER_SENT
from .handshake import member_of
from .keys import Keys
from .notifications import OpenWatchStream, Receive, SessionEvents, Watcher
from .routing import ClusterChannel
from .rpc import RpcError, UnaryCall, WatchCall
from .store import CLOSE_SECONDS, EtcdStore

__all__ = ["EtcdAsyncio"]

log = logging.getLogger("holdfast")


class EtcdAsyncio:
    """The I/O of one client in one loop."""

    def __init__(
        self, config: Config, keys: Keys, context: AdapterContext, client: TicketClient, scope: str
    ) -> None:
        self._config = config
        self._io_timeout = context.io_timeout
        self._scope = scope
        self._channel = ClusterChannel(config, context.io_timeout, self._connect)
        self._channel.on_switch = self._on_switch
        self.store = EtcdStore(keys, context.client, self._channel)
        self._events = SessionEvents(client, self.store, context)
        self._watcher = Watcher(keys, context, self._channel, self._events)
        self._task: asyncio.Task[None] | None = None
        """Runs the watcher."""
        self._stopped = asyncio.Event()
        self._limit = ConcurrencyLimit()
        self._closing: set[asyncio.Task[None]] = set()
        """Connections that are being closed."""
        self._closed = False

    @property
    def source(self) -> str:
        """By the cluster's own id: revisions of different clusters do not compare."""
        return f"etcd/{self._channel.cluster_id}/{self._scope}"

    def _connect(self, endpoint: str) -> Subchannel:
        return Subchannel(member_of(endpoint, self._config))

    def _on_switch(self) -> None:
        """Watch over the new connection; close the old ones that can carry no call any more."""
        self._watcher.interrupt()
        for old in self._channel.take_retired(2 * self._io_timeout):
            closing = asyncio.ensure_future(old.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    # --- performing what the store and the watcher await

    async def perform(self, op: Any) -> Any:
        return await (self._send(op) if op.__class__ is UnaryCall else self._perform_watch(op))

    async def _send(self, op: UnaryCall) -> Any:
        """A cancellation ends the wait, not the call: what has been sent has been sent."""
        async with self._limit.permit(op.urgent):
            if self._channel.is_retired(op.connection) and not self._closed:
                raise RpcError(NEVER_SENT, "the connection was given up meanwhile")  # while this call queued
            return await self._call(op)

    @staticmethod
    async def _call(op: UnaryCall) -> Any:
        connection, method, requests, timeout, metadata, urgent = op
        if method:
            return await connection.call(method, requests[0], timeout, metadata, urgent)
        return await connection.keep_alive(requests, timeout, metadata)

    async def _perform_watch(self, op: Any) -> Any:
        if op.__class__ is Receive:
            return await op.stream.receive()
        if op.__class__ is WatchCall:
            return await self._watch(op)
        if op.__class__ is OpenWatchStream:
            return await op.connection.watch(op.timeout, op.metadata)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(op.seconds):
                await self._stopped.wait()
        return self._stopped.is_set()

    async def _watch(self, op: WatchCall) -> None:
        await self.listen()
        confirmed = asyncio.Event()
        self._watcher.add(op, confirmed.set)
        try:
            async with asyncio.timeout(self._channel.timeout):
                await confirmed.wait()
        except TimeoutError:
            raise self._watcher.not_confirmed() from None

    # --- the watcher's task

    async def listen(self) -> None:
        if self._task is None and not self._stopped.is_set():
            serving = trampoline.run_in_loop(self._watcher.serve(), self.perform)
            self._task = asyncio.get_running_loop().create_task(serving, name="holdfast-etcd-watch")

    def disarm(self, nonce: str) -> None:
        self._watcher.disarm(nonce)

    # --- the end

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = self._events.closed = True
        self._channel.timeout = min(self._channel.timeout, CLOSE_SECONDS)
        await self._end_watcher()
        sessions = tuple(self.store.leases)
        if sessions:
            try:
                await trampoline.run_in_loop(self.store.revoke(sessions), self.perform)
            except (NotApplied, OutcomeUnknown, EngineUnavailable) as error:
                log.debug("holdfast: the sessions of a client were left to expire: %s", error)
        connections = self._channel.close()
        await asyncio.gather(*self._closing, *(connection.close() for connection in connections))

    async def _end_watcher(self) -> None:
        self._stopped.set()
        self._watcher.close()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def forked(self) -> None:
        """The connections belong to the parent process: detach from them without sending anything."""
        self._closed = True
        for connection in self._channel.forked():
            connection.detach_after_fork()
