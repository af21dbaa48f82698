"""etcd for threads: performs what is sent, and watches in a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

import grpc

from ...core.ops import Refused, Unknown
from ...drivers.adapter import Hooks
from ...drivers.ending import wait_for_end
from ...drivers.threads import Mailbox
from ...errors import EngineUnavailable
from ...protocols.tickets import Desk
from ...protocols.tickets.ops import Arm, Retire, StoreOp
from .. import scripts
from . import wire_pb2 as wire
from .aside import aside
from .calls import KEEP_ALIVE, METHODS, WATCH, Failed, Send
from .channels import CHANNEL_OPTIONS, credentials
from .conversation import Conversation
from .failures import TokenExpired
from .inbox import Inbox
from .keys import Keys
from .options import Options
from .store import EtcdStore
from .watches import Watches

__all__ = ["CLOSE_SECONDS", "PAUSE_SECONDS", "EtcdThreads"]

log = logging.getLogger("holdfast")

CLOSE_SECONDS: Final = 1.0
"""How long the end of a client waits for its sessions to be ended; they expire by themselves."""

PAUSE_SECONDS: Final = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Before watching again, the longer the oftener it failed in a row."""


class Connection:
    """A channel and its procedures."""

    __slots__ = ("_channel", "calls", "close", "keep_alive", "watch")

    def __init__(self, endpoint: str, options: Options) -> None:
        secure = credentials(options)
        if secure is None:
            self._channel = grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(endpoint, secure, options=CHANNEL_OPTIONS)
        self.calls = {
            name: self._channel.unary_unary(
                method.path, method.request.SerializeToString, method.response.FromString
            )
            for name, method in METHODS.items()
        }
        self.keep_alive, self.watch = [
            self._channel.stream_stream(
                method.path, method.request.SerializeToString, method.response.FromString
            )
            for method in (KEEP_ALIVE, WATCH)
        ]
        self.close: Callable[[], None] = self._channel.close


def failed(error: grpc.RpcError) -> Failed:
    return Failed(error.code().name, error.details() or "")


class EtcdThreads:
    """The store of one client."""

    def __init__(self, options: Options, keys: Keys, hooks: Hooks, desk: Desk, scope: str) -> None:
        self._options = options
        self._hooks = hooks
        self._scope = scope
        self._talk = Conversation(options, hooks.io_timeout, self._connect)
        self._store = EtcdStore(keys, hooks.client, self._talk)
        self._inbox = Inbox(desk, self._store, hooks)
        self._watcher = Watcher(self, keys, hooks, self._talk, self._inbox)
        self._talk.switched = self._switched
        self._closed = False

    @property
    def source(self) -> str:
        """By the cluster's own number: revisions of another one do not compare."""
        return f"etcd/{self._talk.cluster}/{self._scope}"

    def _connect(self, endpoint: str) -> Connection:
        return aside(Connection, endpoint, self._options)

    def _switched(self) -> None:
        """Watch over the new connection; and close old ones, on which nothing can be under way any more."""
        aside(self._watcher.interrupt)
        for old in self._talk.outdated(2 * self._hooks.io_timeout):
            aside(old.close)

    def perform(self, op: StoreOp) -> Any:
        if isinstance(op, Arm):
            return self._watcher.arm(op)
        return self.run(self._store.script(op))

    def run(self, script: Any) -> Any:
        """A script of the store: what it awaits is sent."""
        return scripts.run(script, self._send_aside)

    def _send_aside(self, op: Send) -> Any:
        return aside(self._send, op)

    @staticmethod
    def _send(op: Send) -> Any:
        connection, method, requests, timeout, metadata, _ = op
        try:
            if method:
                return connection.calls[method](requests[0], timeout=timeout, metadata=metadata)
            stream = connection.keep_alive(iter(requests), timeout=timeout, metadata=metadata)
            try:
                return list(stream)
            finally:
                stream.cancel()
        except grpc.RpcError as error:
            raise failed(error) from None

    def listen(self) -> None:
        self._watcher.listen()

    def disarm(self, nonce: str) -> None:
        self._watcher.disarm(nonce)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._inbox.closed = True
        leases = tuple(self._store.leases)
        if leases:
            self._talk.timeout = min(self._talk.timeout, CLOSE_SECONDS)
            try:
                self.run(self._store.script(Retire(leases)))
            except (Refused, Unknown, EngineUnavailable) as trouble:
                log.debug("holdfast: the sessions of a client were left to expire: %s", trouble)
        aside(self._watcher.close)
        for connection in self._talk.close():
            aside(connection.close)

    def forked(self) -> None:
        """The parent's threads and connections are not ours: let go of them without a word."""
        self._closed = True
        self._talk.forked()


class Watcher:
    """The stream of watches of one client, and the thread that reads it."""

    def __init__(
        self, store: EtcdThreads, keys: Keys, hooks: Hooks, talk: Conversation, inbox: Inbox
    ) -> None:
        self._store = store
        self._hooks = hooks
        self._talk = talk
        self._inbox = inbox
        self._watches = Watches(keys, hooks.client, hooks.post, inbox.ended, inbox.session_over)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._requests: queue.SimpleQueue[wire.WatchRequest | None] = queue.SimpleQueue()
        self._stream: Any = None
        self._followed: Any = None
        """The connection that the stream uses."""
        self._closed = threading.Event()
        self._failures = 0

    def arm(self, op: Arm) -> None:
        self.listen()
        confirmed = Mailbox()
        self._send(self._watches.arm(op, confirmed.post))
        if confirmed.wait(self._talk.timeout):
            return
        if self._watches.refusal:
            raise EngineUnavailable(f"etcd does not let us watch: {self._watches.refusal}")
        self._talk.doubt(self._followed)
        raise Refused("etcd did not confirm in time that it watches")

    def disarm(self, nonce: str) -> None:
        self._send(self._watches.disarm(nonce))

    def _send(self, requests: list[wire.WatchRequest]) -> None:
        outgoing = self._requests
        for request in requests:
            outgoing.put(request)

    def listen(self) -> None:
        if self._thread is None and not self._closed.is_set():
            aside(self._start)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._watches.arm_inbox(self._inbox.watched)
                self._thread = threading.Thread(target=self._serve, name="holdfast-etcd-watch", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while not self._closed.wait(PAUSE_SECONDS[min(self._failures, len(PAUSE_SECONDS) - 1)]):
            self._failures += 1
            try:
                self._follow()
            except (Refused, Unknown, EngineUnavailable, TokenExpired) as trouble:
                log.debug("holdfast: the watch of etcd ended: %s", trouble)
            except Exception:
                log.exception("holdfast: the watch of etcd ended; who waits looks by itself from now on")
                raise

    def _follow(self) -> None:
        """One stream, from its beginning to its end."""
        self._store.run(self._talk.ready())
        connection = self._talk.connection()
        outgoing: queue.SimpleQueue[wire.WatchRequest | None] = queue.SimpleQueue()
        metadata = (*self._talk.metadata(), ("hasleader", "true"))
        stream = connection.watch(iter(outgoing.get, None), metadata=metadata)
        self._stream, self._followed, self._requests = stream, connection, outgoing
        if self._closed.is_set() or self._talk.connection() is not connection:
            stream.cancel()
        self._send(self._watches.restart())
        try:
            for response in stream:
                self._failures = 0
                self._send(self._watches.feed(response))
                if self._watches.refusal and self._talk.token_refused(self._watches.refusal):
                    self._watches.refusal = ""
                    return
                if self._inbox.unread:
                    self._store.run(self._inbox.read())
        except grpc.RpcError as error:
            if not self._closed.is_set():
                raise self._talk.failure(connection, failed(error)) from None
        finally:
            outgoing.put(None)
            stream.cancel()

    def interrupt(self) -> None:
        """Another connection is used from now on: watch there."""
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def close(self) -> None:
        self._closed.set()
        self._requests.put(None)
        self.interrupt()
        wait_for_end(self._thread, CLOSE_SECONDS)
