"""etcd for asyncio; a file apart, so that threads never import asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from ...core.effects import NotApplied, OutcomeUnknown
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ...protocols.tickets import TicketClient
from ...protocols.tickets.store import Arm, Retire, StoreOp
from ...runtime import trampoline
from ...runtime.concurrency_limit import ConcurrencyLimit
from . import wire_pb2 as wire
from .config import Config
from .connection_asyncio import Subchannel, WatchStream
from .errors import NEVER_SENT, AuthTokenError, server_message
from .handshake import member_of
from .keys import Keys
from .notifications import WatchRegistry
from .routing import ClusterChannel
from .rpc import RpcError, UnaryCall
from .session_events import SessionEvents
from .store import EtcdStore
from .threads import CLOSE_SECONDS, PAUSE_SECONDS

__all__ = ["EtcdAsyncio"]

log = logging.getLogger("holdfast")


class EtcdAsyncio:
    """The store of one client in one loop."""

    def __init__(
        self, options: Config, keys: Keys, hooks: AdapterContext, client: TicketClient, scope: str
    ) -> None:
        self._options = options
        self._hooks = hooks
        self._scope = scope
        self._channel = ClusterChannel(options, hooks.io_timeout, self._connect)
        self._store = EtcdStore(keys, hooks.client, self._channel)
        self._session_events = SessionEvents(client, self._store, hooks)
        self._watcher = Watcher(self, keys, hooks, self._channel, self._session_events)
        self._channel.on_switch = self._on_switch
        self._turns = ConcurrencyLimit()
        self._ending: set[asyncio.Task[None]] = set()
        """Connections that have yet to be closed."""
        self._closed = False

    @property
    def source(self) -> str:
        """By the cluster's own number: revisions of another one do not compare."""
        return f"etcd/{self._channel.cluster}/{self._scope}"

    def _connect(self, endpoint: str) -> Subchannel:
        return Subchannel(member_of(endpoint, self._options))

    def _on_switch(self) -> None:
        """Watch over the new connection; and close old ones, on which nothing can be under way any more."""
        self._watcher.interrupt()
        for old in self._channel.take_retired(2 * self._hooks.io_timeout):
            ending = asyncio.ensure_future(old.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def perform(self, op: StoreOp) -> Any:
        if isinstance(op, Arm):
            return await self._watcher.arm(op)
        return await self.run(self._store.script(op))

    async def run(self, script: Any) -> Any:
        """A script of the store: what it awaits is sent."""
        return await trampoline.run_in_loop(script, self._send)

    async def _send(self, op: UnaryCall) -> Any:
        """A cancellation ends the waiting, not the call: what has been sent has been sent."""
        async with self._turns.permit(op.urgent):
            if self._channel.is_retired(op.connection) and not self._closed:
                raise RpcError(NEVER_SENT, "it was given up meanwhile")  # while we waited for our turn
            return await self._call(op)

    @staticmethod
    async def _call(op: UnaryCall) -> Any:
        connection, method, requests, timeout, metadata, urgent = op
        if method:
            return await connection.call(method, requests[0], timeout, metadata, urgent)
        return await connection.keep_alive(requests, timeout, metadata)

    async def listen(self) -> None:
        self._watcher.listen()

    def disarm(self, nonce: str) -> None:
        self._watcher.disarm(nonce)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = self._session_events.closed = True
        self._channel.timeout = min(self._channel.timeout, CLOSE_SECONDS)
        await self._watcher.close()
        leases = tuple(self._store.leases)
        if leases:
            try:
                await self.run(self._store.script(Retire(leases)))
            except (NotApplied, OutcomeUnknown, EngineUnavailable) as trouble:
                log.debug("holdfast: the sessions of a client were left to expire: %s", trouble)
        connections = self._channel.close()
        await asyncio.gather(*self._ending, *(connection.close() for connection in connections))

    def forked(self) -> None:
        """The parent's connections are not ours: let go of them without a word."""
        self._closed = True
        for connection in self._channel.forked():
            connection.forget()


class Watcher:
    """The stream of watches of one client, and the task that reads it."""

    def __init__(
        self,
        store: EtcdAsyncio,
        keys: Keys,
        hooks: AdapterContext,
        channel: ClusterChannel,
        session_events: SessionEvents,
    ) -> None:
        self._store = store
        self._hooks = hooks
        self._channel = channel
        self._session_events = session_events
        self._registry = WatchRegistry(
            keys, hooks.client, hooks.post, session_events.ended, session_events.session_over
        )
        self._task: asyncio.Task[None] | None = None
        self._stream: WatchStream | None = None
        self._followed: Any = None
        """The connection that the stream uses."""
        self._closed = asyncio.Event()
        self._failures = 0

    async def arm(self, op: Arm) -> None:
        self.listen()
        confirmed = asyncio.Event()
        self._send(self._registry.arm(op, confirmed.set))
        try:
            async with asyncio.timeout(self._channel.timeout):
                await confirmed.wait()
        except TimeoutError:
            if self._registry.refusal:
                told = server_message(self._registry.refusal)
                raise EngineUnavailable(f"etcd does not let us watch: {told}") from None
            self._channel.mark_unhealthy(self._followed)
            raise NotApplied("etcd did not confirm in time that it watches") from None

    def disarm(self, nonce: str) -> None:
        self._send(self._registry.disarm(nonce))

    def _send(self, requests: list[wire.WatchRequest]) -> None:
        """Without a stream nothing is lost: the next one begins with all that is wanted."""
        if self._stream is not None:
            self._stream.send(requests)

    def listen(self) -> None:
        if self._task is None and not self._closed.is_set():
            self._registry.watch_client(self._session_events.watched)
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="holdfast-etcd-watch")

    async def _serve(self) -> None:
        while not await self._pause(PAUSE_SECONDS[min(self._failures, len(PAUSE_SECONDS) - 1)]):
            self._failures += 1
            try:
                await self._follow()
            except (NotApplied, OutcomeUnknown, EngineUnavailable, AuthTokenError) as trouble:
                log.debug("holdfast: the watch of etcd ended: %s", trouble)
            except Exception:
                log.exception("holdfast: the watch of etcd ended; who waits looks by itself from now on")
                raise

    async def _pause(self, seconds: float) -> bool:
        """Whether it was the last one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        return self._closed.is_set()

    async def _follow(self) -> None:
        """One stream, from its beginning to its end."""
        await self._store.run(self._channel.ready())
        connection = self._channel.connection()
        metadata = (*self._channel.metadata(), ("hasleader", "true"))
        if self._closed.is_set():
            return
        try:
            stream = await connection.watch(self._channel.timeout, metadata)
        except RpcError as error:
            raise self._channel.failure(connection, error) from None
        self._stream, self._followed = stream, connection
        try:
            if self._closed.is_set() or self._channel.is_retired(connection):
                stream.cancel()
            stream.send(self._registry.restart())
            while True:
                for response in await stream.receive():
                    self._failures = 0
                    stream.send(self._registry.handle_response(response))
                    if self._registry.refusal and self._channel.token_refused(self._registry.refusal):
                        self._registry.refusal = ""
                        return
                if self._session_events.unread:
                    await self._store.run(self._session_events.read())
        except RpcError as error:
            if not self._closed.is_set():
                raise self._channel.failure(connection, error) from None
        finally:
            self._stream = None
            stream.cancel()

    def interrupt(self) -> None:
        """Another connection is used from now on: watch there."""
        if self._stream is not None:
            self._stream.cancel()

    async def close(self) -> None:
        self._closed.set()
        if self._task is not None:
            self.interrupt()
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
