"""kazoo's connection and session, without its handler threads, its retries and its log.

kazoo has a thread for each connection and two more that deliver callbacks. The two are not needed here: a
reply wakes its caller in the thread that reads it. kazoo's log would repeat every request, credentials among
them.

All queued requests are sent with one write, and all received data is read with one read; kazoo does both one
by one. That is faster. Besides, kazoo needs one wake-up byte for each request: an interrupt between queueing
a request and sending its byte would delay all later requests.

The private names of kazoo used here are listed in ``tests/engines/zookeeper/test_kazoo.py``.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, ConnectionDropped, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry

from ...runtime.clock import boottime
from .config import Config

__all__ = ["Client"]

RECONNECT_SECONDS: Final = 0.05
RECONNECT_SECONDS_MAX: Final = 0.5

CHUNK_BYTES: Final = 1 << 16
WAKEUPS_READ_MAX: Final = 1 << 12
"""At most this many wake-up bytes are read at once."""

HEADER: Final = struct.Struct("!iii")
"""The length of the rest, the request's xid and its type."""

LAST_XID: Final = (1 << 31) - 1

LENGTH_MAX: Final = 1 << 28
"""No reply is this long (servers allow a megabyte): another protocol's first bytes read as a length are."""

CLOSED_BY_SERVER: Final = "the server closed the connection"

SILENT: Final = logging.Logger("holdfast.zookeeper", logging.CRITICAL + 1)  # noqa: LOG001 - without a parent
SILENT.disabled = True


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no type hints
    """kazoo's interface to threads and sockets. It keeps the sockets, so that they can be closed."""

    running = False
    """Tells kazoo to run callbacks in the thread where they arise. The callbacks here never block."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout
        """How long to wait for a server that does not answer."""
        self._connection: Any = None
        self._wake_sockets: tuple[Any, ...] = ()

    def start(self) -> None:
        """There are no threads to start."""

    def stop(self) -> None: ...

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> threading.Thread:
        thread = threading.Thread(
            target=func, args=args, kwargs=kwargs, name="holdfast-zookeeper", daemon=True
        )
        thread.start()
        return thread

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        kwargs["timeout"] = min(kwargs["timeout"], self._timeout)
        self._connection = super().create_connection(*args, **kwargs)
        return self._connection

    def create_socket_pair(self) -> Any:
        self._wake_sockets = super().create_socket_pair()
        return self._wake_sockets

    def select(self, readers: Any, writers: Any, _: Any, timeout: float | None = None) -> Any:
        """For one or two sockets this is faster than creating a selector each time."""
        if len(readers) + len(writers) == 1:
            timeout = self._timeout if timeout is None else min(timeout, self._timeout)
        poll = select.poll()
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        ready = [descriptor for descriptor, _ in poll.poll(None if timeout is None else timeout * 1000)]
        return (
            [each for each in readers if each.fileno() in ready],
            [each for each in writers if each.fileno() in ready],
            [],
        )

    def shutdown_socket(self) -> None:
        """End the connection at once; kazoo opens another."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def detach_after_fork(self) -> None:
        """In the child of a fork: close its copies of the sockets, which the parent still uses."""
        for each in (self._connection, *self._wake_sockets):
            if each is not None:
                each.close()


class ConnectionOwner(Protocol):
    """The owner of the session. Called in kazoo's thread; must not block."""

    def session_established(self, session: int, seconds: float, sent: float) -> None:
        """A server has established the session with this length; the request was sent at this moment."""
        ...

    def is_ping_allowed(self) -> bool:
        """Whether the session shall live on without requests."""
        ...

    def connection_failed(self, server: str, why: str) -> None:
        """Connecting to a server failed."""
        ...

    def has_expired(self, now: float) -> bool:
        """Whether the session can be given up: there was no keep-alive for its whole length. A server that
        receives the connect request and does not answer may keep the session alive forever."""
        ...


class Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no type hints
    """kazoo's connection, which also reports established sessions and asks its owner before it pings."""

    def __init__(self, owner: ConnectionOwner, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._owner = owner
        self._received = bytearray()
        self._xid = 0

    def _connect(self, host: str, address: str, port: int) -> Any:
        self._received.clear()
        try:
            return super()._connect(host, address, port)
        except Exception as error:
            self._owner.connection_failed(f"{host}:{port}", self._why(error))
            raise

    def _why(self, error: Exception) -> str:
        reason = str(error).removeprefix("socket connection error: ") or type(error).__name__
        if isinstance(error, self.handler.timeout_exception):
            reason = "no answer in time: is it ZooKeeper, and not stopped?"
        elif isinstance(error.__context__, ssl.SSLCertVerificationError):
            reason = f"its certificate is not trusted: {error.__context__.verify_message}"
        elif isinstance(error.__context__, ssl.SSLError):
            reason = f"no TLS ({error.__context__.reason}): is it a server without TLS?"
        elif reason == CLOSED_BY_SERVER:
            reason += ", is it the right port?" if self.client.use_ssl else ": does it want TLS (tls=true)?"
        return reason

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        sent = boottime()
        try:
            answer = super()._invoke(timeout, request, xid)
        except self.handler.timeout_exception:
            if self._owner.has_expired(boottime()):
                raise SessionExpiredError from None
            raise
        if answer[0].time_out > 0:
            self._owner.session_established(answer[0].session_id, answer[0].time_out / 1000, sent)
        return answer

    def _send_ping(self, timeout: float) -> None:
        if self._owner.is_ping_allowed():
            super()._send_ping(timeout)

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        """One wake-up byte may stand for many requests, and many bytes for none."""
        self._read_sock.recv(WAKEUPS_READ_MAX)
        queue, pending = self.client._queue, self.client._pending
        batch = bytearray()
        while queue:
            request, answer = queue.popleft()
            self._xid = self._xid % LAST_XID + 1
            body = request.serialize()
            batch += HEADER.pack(len(body) + 8, self._xid, request.type)
            batch += body
            pending.append((request, answer, self._xid))
        if batch:
            self._write(batch, connect_timeout)

    def _write(self, batch: Any, timeout: float) -> None:
        sent = 0
        with self._socket_error_handling(), contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
            sent = self._socket.send(batch)
        if sent < len(batch):
            super()._write(batch[sent:], timeout)

    def _read_socket(self, read_timeout: float) -> Any:
        result = super()._read_socket(read_timeout)
        while self._received and result is None:
            result = super()._read_socket(read_timeout)
        return result

    def _read(self, length: int, timeout: float) -> bytes:
        if not 0 <= length <= LENGTH_MAX:
            raise ConnectionDropped(
                "the server does not speak ZooKeeper's protocol, is it the right port: "
                "does it want TLS (tls=true)?"
            )
        while len(self._received) < length:
            self._receive(timeout)
        read = bytes(self._received[:length])
        del self._received[:length]
        return read

    def _receive(self, timeout: float) -> None:
        with self._socket_error_handling():
            try:
                came = self._socket.recv(CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                if not self.handler.select([self._socket], [], [], timeout)[0]:
                    raise self.handler.timeout_exception("nothing came in time") from None
                return
            if not came:
                raise ConnectionDropped(CLOSED_BY_SERVER)
        self._received += came


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no type hints
    """kazoo's client, as far as Holdfast uses it."""

    def __init__(self, config: Config, seconds: float, timeout: float, owner: ConnectionOwner) -> None:
        self.sockets = Handler(timeout)
        again = KazooRetry(
            max_tries=-1,
            delay=RECONNECT_SECONDS,
            max_delay=RECONNECT_SECONDS_MAX,
            sleep_func=self.sockets.sleep_func,
        )
        super().__init__(
            hosts=",".join(config.hosts),
            timeout=seconds,
            handler=self.sockets,
            auth_data=list(config.auth),
            connection_retry=again,
            logger=SILENT,
            **config.more,
        )
        sasl = config.more.get("sasl_options")
        self._connection = Connection(owner, self, self._conn_retry.copy(), self.logger, sasl)

    def submit(self, requests: Sequence[Any], answers: Sequence[Any]) -> None:
        """Queue requests, all at once. ``set`` or ``set_exception`` of each answer is called, here or in
        kazoo's thread, perhaps both."""
        self._queue.extend(zip(requests, answers, strict=True))
        try:
            self._connection._write_sock.send(b"\0")
        except (AttributeError, OSError):  # it was closed meanwhile
            for answer in answers:
                answer.set_exception(ConnectionClosedError())

    def abandon(self) -> None:
        """End without closing the session, which lives on until it expires."""
        self._stopped.set()
        self.sockets.shutdown_socket()

    def end(self) -> None:
        """Close the session and end. May take as long as an attempt to connect."""
        try:
            self.stop()
            self._connection.stop()
        finally:
            self.close()
