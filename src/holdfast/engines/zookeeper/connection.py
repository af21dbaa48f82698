"""kazoo's connection and session, without its threads, its retries and its log.

kazoo brings a thread for each connection, and two more that pass on what came. Nothing here needs those: an
answer wakes its caller where it is read. Its log would repeat every request, credentials among them.

Whatever is queued is sent in one piece, and whatever has come is read in one: kazoo does it one by one. That
is quicker; and where kazoo counts on one ring of its bell for each request, an interrupt between the two
would hold up all that come after.
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
"""So many are heard as one, at most."""

HEADER: Final = struct.Struct("!iii")
"""The length of what follows, the request's number and its type."""

LAST_XID: Final = (1 << 31) - 1

LENGTH_MAX: Final = 1 << 28
"""No answer is so long (servers allow a megabyte): the first letters of another protocol read as a number."""

CLOSED_BY_SERVER: Final = "the server hung up"

SILENT: Final = logging.Logger("holdfast.zookeeper", logging.CRITICAL + 1)  # noqa: LOG001 - below nobody
SILENT.disabled = True


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no type hints
    """What kazoo asks of threads and sockets. Knows the sockets, so that they can be let go of."""

    running = False
    """For kazoo: callbacks are called where they come up. Ours never wait."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout
        """How long to wait for a server that does not say a word."""
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
        """For one socket or two this is quicker than making a selector each time."""
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
        """End the connection, whatever it is doing: kazoo makes another."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def detach_after_fork(self) -> None:
        """In the child of a fork: these sockets are the parent's, which still uses them."""
        for each in (self._connection, *self._wake_sockets):
            if each is not None:
                each.close()


class ConnectionOwner(Protocol):
    """Whose session it is. Called in kazoo's thread; must not wait."""

    def session_established(self, session: int, seconds: float, sent: float) -> None:
        """A server has taken on the session for so long, as it was asked to at this moment."""
        ...

    def is_ping_allowed(self) -> bool:
        """Whether the session is to live on though nothing is asked through it."""
        ...

    def connection_failed(self, server: str, why: str) -> None:
        """A server could not be connected to."""
        ...

    def has_expired(self, now: float) -> bool:
        """Whether the session can be given up: there was no sign of life for as long as it lasts. A server
        that is asked to take it on and does not answer may hear all the same, and keep it alive for ever."""
        ...


class Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no type hints
    """kazoo's connection, which also tells what servers say of sessions, and asks before it pings."""

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
        told = str(error).removeprefix("socket connection error: ") or type(error).__name__
        if isinstance(error, self.handler.timeout_exception):
            told = "no answer in time: is it ZooKeeper, and not stopped?"
        elif isinstance(error.__context__, ssl.SSLCertVerificationError):
            told = f"its certificate is not trusted: {error.__context__.verify_message}"
        elif isinstance(error.__context__, ssl.SSLError):
            told = f"no TLS ({error.__context__.reason}): is it a server without TLS?"
        elif told == CLOSED_BY_SERVER:
            told += ", is it the right port?" if self.client.use_ssl else ": does it want TLS (tls=true)?"
        return told

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
        """One ring may stand for many requests, and many for none."""
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
        told = super()._read_socket(read_timeout)
        while self._received and told is None:
            told = super()._read_socket(read_timeout)
        return told

    def _read(self, length: int, timeout: float) -> bytes:
        if not 0 <= length <= LENGTH_MAX:
            raise ConnectionDropped(
                "it does not speak ZooKeeper's protocol, is it the right port: does it want TLS (tls=true)?"
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
    """kazoo's client, as far as it is used here."""

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
        """Queue requests, all at once. Each answer gets ``set`` or ``set_exception``, here or in kazoo's
        thread, perhaps both."""
        self._queue.extend(zip(requests, answers, strict=True))
        try:
            self._connection._write_sock.send(b"\0")
        except (AttributeError, OSError):  # it was closed meanwhile
            for answer in answers:
                answer.set_exception(ConnectionClosedError())

    def abandon(self) -> None:
        """End without a word to the server: the session lives on for its time."""
        self._stopped.set()
        self.sockets.shutdown_socket()

    def end(self) -> None:
        """End, and the session with it. May take as long as an attempt to connect."""
        try:
            self.stop()
            self._connection.stop()
        finally:
            self.close()
