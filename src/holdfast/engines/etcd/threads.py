"""etcd for threads: performs the calls that the store awaits, and runs the watcher in a thread of its own."""

from __future__ import annotations

import logging
import threading
from _thread import start_new_thread
from typing import Any

from ...core.effects import NotApplied, OutcomeUnknown
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ...protocols.tickets import TicketClient
from ...runtime import trampoline
from ...runtime.wakeups import ThreadWakeup
from .config import Config
from .connection import Subchannel
from .handshake import member_of
from .keys import Keys
from .notifications import OpenWatchStream, Receive, SessionEvents, Watcher
from .routing import ClusterChannel
from .rpc import UnaryCall, WatchCall
from .store import CLOSE_SECONDS, EtcdStore

__all__ = ["EtcdThreads"]

log = logging.getLogger("holdfast")


class EtcdThreads:
    """The I/O of one client."""

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
        self._serving = threading.Lock()
        """Held by the thread that runs the watcher. Should two threads start at a time, one of them runs
        it."""
        self._stopped = threading.Event()
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
            old.close()

    # --- performing what the store and the watcher await

    def perform(self, op: Any) -> Any:
        return self._send(op) if op.__class__ is UnaryCall else self._perform_watch(op)

    @staticmethod
    def _send(op: UnaryCall) -> Any:
        connection, method, requests, timeout, metadata, urgent = op
        if method:
            return connection.call(method, requests[0], timeout, metadata, urgent)
        return connection.keep_alive(requests, timeout, metadata)

    def _perform_watch(self, op: Any) -> Any:
        if op.__class__ is Receive:
            return op.stream.receive()
        if op.__class__ is WatchCall:
            return self._watch(op)
        if op.__class__ is OpenWatchStream:
            return op.connection.watch(op.timeout, op.metadata)
        return self._stopped.wait(op.seconds)

    def _watch(self, op: WatchCall) -> None:
        self.listen()
        confirmed = ThreadWakeup()
        self._watcher.add(op, confirmed.post)
        if not confirmed.wait(self._channel.timeout):
            raise self._watcher.not_confirmed()

    # --- the watcher's thread

    def listen(self) -> None:
        """Without the handshake of ``threading``: an interrupt would leave a thread that never starts."""
        if not self._serving.locked() and not self._stopped.is_set():
            start_new_thread(self._serve, ())

    def _serve(self) -> None:
        if not self._serving.acquire(blocking=False):
            return
        try:
            trampoline.run(self._watcher.serve(), self.perform)
        finally:
            self._serving.release()

    def disarm(self, nonce: str) -> None:
        self._watcher.disarm(nonce)

    # --- the end

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._events.closed = True
        sessions = tuple(self.store.leases)
        if sessions:
            self._channel.timeout = min(self._channel.timeout, CLOSE_SECONDS)
            try:
                trampoline.run(self.store.revoke(sessions), self.perform)
            except (NotApplied, OutcomeUnknown, EngineUnavailable) as error:
                log.debug("holdfast: the sessions of a client were left to expire: %s", error)
        self._stopped.set()
        self._watcher.close()
        if self._serving.acquire(timeout=CLOSE_SECONDS):
            self._serving.release()
        for connection in self._channel.close():
            connection.close()

    def forked(self) -> None:
        """The connections belong to the parent process: detach from them without sending anything."""
        self._closed = True
        for connection in self._channel.forked():
            connection.detach_after_fork()
