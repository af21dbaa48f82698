"""etcd for threads: performs what is sent, and watches in a thread of its own."""

from __future__ import annotations

import logging
import threading
from _thread import start_new_thread
from typing import Any, Final

from ...core.effects import NotApplied, OutcomeUnknown
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ...protocols.tickets import TicketClient
from ...protocols.tickets.store import Arm, Retire, StoreOp
from ...runtime import trampoline
from ...runtime.wakeups import ThreadWakeup
from . import wire_pb2 as wire
from .config import Config
from .connection import Subchannel, WatchStream
from .errors import AuthTokenError, server_message
from .handshake import member_of
from .keys import Keys
from .notifications import WatchRegistry
from .routing import ClusterChannel
from .rpc import RpcError, UnaryCall
from .session_events import SessionEvents
from .store import EtcdStore

__all__ = ["CLOSE_SECONDS", "PAUSE_SECONDS", "EtcdThreads"]

log = logging.getLogger("holdfast")

CLOSE_SECONDS: Final = 1.0
"""How long the end of a client waits for its sessions to be ended; they expire by themselves."""

PAUSE_SECONDS: Final = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Before watching again, the longer the oftener it failed in a row."""


class EtcdThreads:
    """The store of one client."""

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
            old.close()

    def perform(self, op: StoreOp) -> Any:
        if isinstance(op, Arm):
            return self._watcher.arm(op)
        return self.run(self._store.script(op))

    def run(self, script: Any) -> Any:
        """A script of the store: what it awaits is sent."""
        return trampoline.run(script, self._send)

    @staticmethod
    def _send(op: UnaryCall) -> Any:
        connection, method, requests, timeout, metadata, urgent = op
        if method:
            return connection.call(method, requests[0], timeout, metadata, urgent)
        return connection.keep_alive(requests, timeout, metadata)

    def listen(self) -> None:
        self._watcher.listen()

    def disarm(self, nonce: str) -> None:
        self._watcher.disarm(nonce)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._session_events.closed = True
        leases = tuple(self._store.leases)
        if leases:
            self._channel.timeout = min(self._channel.timeout, CLOSE_SECONDS)
            try:
                self.run(self._store.script(Retire(leases)))
            except (NotApplied, OutcomeUnknown, EngineUnavailable) as trouble:
                log.debug("holdfast: the sessions of a client were left to expire: %s", trouble)
        self._watcher.close()
        for connection in self._channel.close():
            connection.close()

    def forked(self) -> None:
        """The parent's threads and connections are not ours: let go of them without a word."""
        self._closed = True
        for connection in self._channel.forked():
            connection.forget()


class Watcher:
    """The stream of watches of one client, and the thread that reads it."""

    def __init__(
        self,
        store: EtcdThreads,
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
        self._serving = threading.Lock()
        """Taken by the thread that reads. Should two be begun at a time, one of them serves."""
        self._stream: WatchStream | None = None
        self._followed: Any = None
        """The connection that the stream uses."""
        self._closed = threading.Event()
        self._failures = 0

    def arm(self, op: Arm) -> None:
        self.listen()
        confirmed = ThreadWakeup()
        self._send(self._registry.arm(op, confirmed.post))
        if confirmed.wait(self._channel.timeout):
            return
        if self._registry.refusal:
            raise EngineUnavailable(f"etcd does not let us watch: {server_message(self._registry.refusal)}")
        self._channel.mark_unhealthy(self._followed)
        raise NotApplied("etcd did not confirm in time that it watches")

    def disarm(self, nonce: str) -> None:
        self._send(self._registry.disarm(nonce))

    def _send(self, requests: list[wire.WatchRequest]) -> None:
        """Without a stream nothing is lost: the next one begins with all that is wanted."""
        stream = self._stream
        if stream is not None:
            stream.send(requests)

    def listen(self) -> None:
        """Without the handshake of ``threading``: an interrupt would leave a thread that never begins."""
        if not self._serving.locked() and not self._closed.is_set():
            start_new_thread(self._serve, ())

    def _serve(self) -> None:
        if not self._serving.acquire(blocking=False):
            return
        try:
            self._registry.watch_client(self._session_events.watched)
            while not self._closed.wait(PAUSE_SECONDS[min(self._failures, len(PAUSE_SECONDS) - 1)]):
                self._failures += 1
                try:
                    self._follow()
                except (NotApplied, OutcomeUnknown, EngineUnavailable, AuthTokenError) as trouble:
                    log.debug("holdfast: the watch of etcd ended: %s", trouble)
        except Exception:
            log.exception("holdfast: the watch of etcd ended; who waits looks by itself from now on")
            raise
        finally:
            self._serving.release()

    def _follow(self) -> None:
        """One stream, from its beginning to its end."""
        self._store.run(self._channel.ready())
        connection = self._channel.connection()
        metadata = (*self._channel.metadata(), ("hasleader", "true"))
        try:
            stream = connection.watch(self._channel.timeout, metadata)
        except RpcError as error:
            raise self._channel.failure(connection, error) from None
        self._stream, self._followed = stream, connection
        try:
            if self._closed.is_set() or self._channel.is_retired(connection):
                stream.cancel()
            stream.send(self._registry.restart())
            while True:
                for response in stream.receive():
                    self._failures = 0
                    stream.send(self._registry.handle_response(response))
                    if self._registry.refusal and self._channel.token_refused(self._registry.refusal):
                        self._registry.refusal = ""
                        return
                if self._session_events.unread:
                    self._store.run(self._session_events.read())
        except RpcError as error:
            if not self._closed.is_set():
                raise self._channel.failure(connection, error) from None
        finally:
            self._stream = None
            stream.close()

    def interrupt(self) -> None:
        """Another connection is used from now on: watch there."""
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def close(self) -> None:
        self._closed.set()
        self.interrupt()
        if self._serving.acquire(timeout=CLOSE_SECONDS):
            self._serving.release()
