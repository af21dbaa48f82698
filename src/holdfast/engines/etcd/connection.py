"""Connections to one member, for threads: each call has a connection to itself until it is answered.

A watch stream has a connection of its own, which any thread may write to and one thread reads.
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import ssl
from time import monotonic
from typing import Any, Final

from ...core.effects import NotApplied
from ...runtime.connect_timeout import connect_seconds
from ...runtime.self_pipe import SelfPipe
from ...runtime.sockets import SocketConnection, SocketPool, describe_error, open_socket, tune
from .errors import ALL_BUSY, NEVER_SENT, UNREADABLE
from .handshake import Member, check_protocol, closed_by_server, no_grpc, not_connected
from .http2 import Http2Connection, ProtocolError, Stream, length_prefixed
from .rpc import KEEP_ALIVE, METHODS, WATCH, Metadata, Method, RpcError, decode_response

__all__ = ["Subchannel", "WatchStream"]

READ_BYTES: Final = 65_536

CONNECTIONS_MAX: Final = 16
"""At most this many calls of a client at a time; more wait for a connection."""

KEEPALIVE_SECONDS: Final = 10.0
KEEPALIVE_TIMEOUT_SECONDS: Final = 5.0
"""After this much silence on a watch stream a PING is sent, and its ACK must come within the time-out. etcd
does not allow a PING more often than every five seconds."""

IDLE_SECONDS: Final = 0.1
"""A connection unused for longer is checked before it is used: the server may have closed it."""

IDLE_READS: Final = 16
"""At most this many reads for that check: an idle connection receives hardly anything."""

PING_ACK_DELAY_SECONDS: Final = 0.1
"""PINGs of the server are acknowledged together, this late."""

NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError)


class NothingSentError(OSError):
    """The kernel accepted nothing of the data to send."""


class Http2Transport(SocketConnection):
    """One connection, used by one thread at a time."""

    __slots__ = ("_interest", "_is_plain", "_poll", "http2", "pings_acknowledged_at")

    def __init__(self, connected: socket.socket, http2: Http2Connection) -> None:
        super().__init__(connected)
        connected.setblocking(False)
        self._poll = select.poll()
        self._interest = select.POLLIN
        self._poll.register(connected.fileno(), select.POLLIN)
        self._is_plain = not isinstance(connected, ssl.SSLSocket)
        self.http2 = http2
        self.pings_acknowledged_at = self.used_at
        """When PINGs were last acknowledged."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send_pending(self, ends_at: float) -> None:
        """Send the pending data. Raises NothingSent, or OSError where a part of it may have been sent."""
        left = self.http2.data_to_send()
        try:
            left = left[self._socket.send(left) :]
        except (*NOT_NOW, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            if self._is_plain:
                raise NothingSentError(describe_error(error)) from None
            raise
        while left:
            self._wait_ready(select.POLLOUT, ends_at)
            with contextlib.suppress(*NOT_NOW, ssl.SSLWantWriteError):
                left = left[self._socket.send(left) :]

    def receive(self, ends_at: float, sleeps: bool = True) -> None:
        """Wait for data and process it. Raises OSError and ProtocolError."""
        if sleeps and self._is_plain:  # with TLS, data may be buffered already
            self._wait_ready(select.POLLIN, ends_at)
        try:
            data = self._socket.recv(READ_BYTES)
        except NOT_NOW:
            if sleeps and not self._is_plain:
                self._wait_ready(select.POLLIN, ends_at)
            return
        except ssl.SSLWantWriteError:
            self._wait_ready(select.POLLOUT, ends_at)
            return
        if not data:
            raise ConnectionResetError(closed_by_server(self.http2))
        self.http2.receive_data(data)

    def _wait_ready(self, interest: int, ends_at: float) -> None:
        if interest != self._interest:
            self._poll.modify(self._socket.fileno(), interest)
            self._interest = interest
        left = ends_at - monotonic()
        if left <= 0 or not self._poll.poll(left * 1000):
            raise TimeoutError

    def is_stale(self) -> bool:
        """Whether the server has closed the connection, or is closing it, or sends unexpectedly much."""
        try:
            for _ in range(IDLE_READS):
                data = self._socket.recv(READ_BYTES)
                if not data:
                    break
                self.http2.receive_data(data)
        except NOT_NOW:
            return self.http2.is_closing
        except (OSError, ProtocolError):
            pass
        return True


class Subchannel(SocketPool[Http2Transport]):
    """One member of the cluster, and the connections there are to it."""

    def __init__(self, member: Member) -> None:
        super().__init__(CONNECTIONS_MAX)
        self._member = member

    # --- calls ----------------------------------------------------------------------------------

    def call(self, name: str, request: Any, timeout: float, metadata: Metadata, urgent: bool = False) -> Any:
        """One request, one response. Raises RpcError."""
        method = METHODS[name]
        call = self._exchange(method, length_prefixed(request.SerializeToString()), timeout, metadata, urgent)
        if len(call.messages) != 1:
            raise RpcError(UNREADABLE, "not one response")
        return decode_response(method, call.messages[0])

    def keep_alive(self, requests: tuple[Any, ...], timeout: float, metadata: Metadata) -> list[Any]:
        """One response for each request, or fewer."""
        data = b"".join([length_prefixed(each.SerializeToString()) for each in requests])
        call = self._exchange(KEEP_ALIVE, data, timeout, metadata, urgent=True)
        return [decode_response(KEEP_ALIVE, each) for each in call.messages]

    def _exchange(
        self, method: Method, data: bytes, timeout: float, metadata: Metadata, urgent: bool
    ) -> Stream:
        transport = self._take(timeout, urgent)
        started = monotonic()
        try:
            if started - transport.pings_acknowledged_at > PING_ACK_DELAY_SECONDS:
                transport.http2.acknowledge_pings()
                transport.pings_acknowledged_at = started
            self._await_stream(transport, started + timeout)
            call = transport.http2.open_stream(method.path, metadata, timeout, data, end_stream=True)
            self._finish(transport, call, started + timeout)
            transport.used_at = monotonic()
        except BaseException:
            self._discard(transport)
            raise
        if transport.http2.is_closing or self._closed:
            self._discard(transport)
        else:
            self._give_back(transport)
            self._close_surplus()
        if call.failure is not None:
            raise call.failure
        return call

    def _await_stream(self, transport: Http2Transport, ends_at: float) -> None:
        """Wait until the server accepts a stream: it may allow none for a while."""
        http2 = transport.http2
        try:
            while not http2.can_open_stream():
                if http2.is_closing:
                    raise RpcError(NEVER_SENT, "the server is about to end")
                transport.receive(ends_at)
                if http2.has_data_to_send():
                    transport.send_pending(ends_at)
        except TimeoutError:
            raise RpcError(ALL_BUSY, f"{self._member.endpoint} accepts no more streams") from None
        except (ProtocolError, OSError) as error:
            raise RpcError(NEVER_SENT, f"the connection broke: {error}") from None

    def _finish(self, transport: Http2Transport, call: Stream, ends_at: float) -> None:
        try:
            try:
                transport.send_pending(ends_at)
            except NothingSentError as error:
                raise RpcError(NEVER_SENT, f"nothing could be sent: {error}") from None
            while not call.is_closed:
                transport.receive(ends_at)
                if transport.http2.has_data_to_send() and not call.is_closed:
                    transport.send_pending(ends_at)
        except TimeoutError:
            raise RpcError("DEADLINE_EXCEEDED", f"no answer from {self._member.endpoint}") from None
        except ProtocolError as broken:
            raise no_grpc(self._member, transport.http2, broken) from None
        except OSError as error:
            raise RpcError("UNAVAILABLE", f"the connection broke: {describe_error(error)}") from None

    # --- streams --------------------------------------------------------------------------------

    def watch(self, timeout: float, metadata: Metadata) -> WatchStream:
        """A stream of watch requests and responses. Raises RpcError."""
        transport = self._open_beyond_limit(timeout)
        try:
            return WatchStream(self, transport, metadata, timeout)
        except OSError as error:
            self._discard(transport)
            raise RpcError(NEVER_SENT, f"no stream could be opened: {describe_error(error)}") from None

    # --- connections ----------------------------------------------------------------------------

    def _take(self, seconds: float, urgent: bool) -> Http2Transport:
        """An urgent call never waits for other calls: it opens a connection beyond the limit if need be."""
        while True:
            try:
                transport = self._idle.pop()
            except IndexError:
                if urgent and len(self._taken) >= self._size_max:
                    return self._open_beyond_limit(seconds)
                try:
                    return self._wait_for_connection(seconds)
                except NotApplied as trouble:
                    raise RpcError(ALL_BUSY, str(trouble)) from None
            if monotonic() - transport.used_at < IDLE_SECONDS or not transport.is_stale():
                return transport
            self._discard(transport)

    def _open_beyond_limit(self, seconds: float) -> Http2Transport:
        transport = self._open(seconds)
        with self._mutex:
            self._taken.add(transport)
        return transport

    def _open(self, seconds: float) -> Http2Transport:
        """Where the time for connecting is limited, wait for the server's SETTINGS, too: a server that is
        silent, or does not speak HTTP/2, is noticed before a request is sent. That costs one round trip."""
        within = connect_seconds(seconds)
        member, ends_at = self._member, monotonic() + within
        try:
            connected = open_socket(member.host, member.port, ends_at)
        except (OSError, UnicodeError) as error:
            raise not_connected(member, error) from None
        try:
            tune(connected)
            connected.settimeout(max(ends_at - monotonic(), 0.001))
            if member.tls_context is not None:
                # Apart from the handshake: an interrupt there would leave the socket of ssl open.
                connected = protected = member.tls_context.wrap_socket(
                    connected, server_hostname=member.host, do_handshake_on_connect=False
                )
                protected.do_handshake()
                check_protocol(member, protected.selected_alpn_protocol())
            transport = Http2Transport(connected, Http2Connection(member.scheme, member.endpoint))
            if within < seconds:
                transport.send_pending(ends_at)
                while not transport.http2.settings_received:
                    transport.receive(ends_at)
            return transport
        except OSError as error:
            connected.close()
            raise not_connected(member, error) from None
        except ProtocolError as broken:
            connected.close()
            raise no_grpc(member, transport.http2, broken) from None
        except BaseException:
            connected.close()
            raise

    def _exhausted(self) -> NotApplied:
        return NotApplied(f"all {self._size_max} connections to {self._member.endpoint} are busy")


class WatchStream:
    """A watch stream: any thread may write to it, one thread reads it."""

    def __init__(
        self, connection: Subchannel, transport: Http2Transport, metadata: Metadata, timeout: float
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._timeout = timeout
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._self_pipe = SelfPipe()
        self._poll = select.poll()
        self._poll.register(self._self_pipe.fileno(), select.POLLIN)
        self._poll.register(transport.fileno(), select.POLLIN)
        self._call = transport.http2.open_stream(WATCH.path, metadata, None, b"", end_stream=False)
        self._is_cancelled = False

    def send(self, requests: list[Any]) -> None:
        for request in requests:
            self._requests.put(request)
        if requests:
            self._self_pipe.wake()

    def receive(self) -> list[Any]:
        """The next responses. Raises RpcError."""
        http2, call = self._transport.http2, self._call
        quiet = KEEPALIVE_SECONDS
        try:
            while not call.messages:
                if self._is_cancelled:
                    raise RpcError("CANCELLED", "the stream was cancelled")
                if call.is_closed:
                    raise call.failure or RpcError("UNAVAILABLE", "the stream ended")
                self._send_requests()
                came = [
                    fd
                    for fd, _ in self._poll.poll(
                        (PING_ACK_DELAY_SECONDS if http2.has_unacknowledged_pings() else quiet) * 1000
                    )
                ]
                if self._self_pipe.fileno() in came:
                    self._self_pipe.clear()
                if self._transport.fileno() in came:
                    self._transport.receive(monotonic() + self._timeout, sleeps=False)
                    quiet = KEEPALIVE_SECONDS
                elif came:
                    continue
                elif http2.has_unacknowledged_pings():
                    http2.acknowledge_pings()
                elif quiet == KEEPALIVE_SECONDS:
                    http2.ping()
                    quiet = KEEPALIVE_TIMEOUT_SECONDS
                else:
                    raise RpcError("UNAVAILABLE", "the server was silent for too long")
        except TimeoutError:
            raise RpcError("UNAVAILABLE", "the server reads nothing any more") from None
        except (OSError, ValueError, ProtocolError) as error:
            raise RpcError("UNAVAILABLE", f"the stream broke: {error}") from None
        return [decode_response(WATCH, each) for each in http2.take(call)]

    def _send_requests(self) -> None:
        requests = []
        while not self._requests.empty():
            requests.append(length_prefixed(self._requests.get_nowait().SerializeToString()))
        if requests:
            self._transport.http2.send(self._call, b"".join(requests))
        if self._transport.http2.has_data_to_send():
            self._transport.send_pending(monotonic() + self._timeout)

    def cancel(self) -> None:
        """Called from any thread: ``receive`` raises."""
        self._is_cancelled = True
        self._self_pipe.wake()

    def close(self) -> None:
        """Called by the thread that reads."""
        self._connection._discard(self._transport)
        self._self_pipe.close()
