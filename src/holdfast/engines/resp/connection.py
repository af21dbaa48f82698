"""RESP connections: what all of them can do, and those for threads, over blocking sockets.

The kernel enforces the time limit: with a time-out set once on the socket a reply needs one system call,
where Python's own time-outs need two. A connection is closed hard: the kernel sends nothing of a request
whose caller gave up.
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any, Final, NoReturn, Protocol, TypeVar

import hiredis

from ...core.effects import NotApplied, OutcomeUnknown
from ...errors import EngineUnavailable
from ...runtime import sockets, trampoline
from ...runtime.adaptive_spin import DO_NOT_WAIT, AdaptiveSpin
from ...runtime.exclusive_reader import HAS_EPOLL, register_exclusive
from ...runtime.sockets import describe_error, tune
from .config import Address

__all__ = [
    "Connection",
    "RespSocket",
    "SubscriberConnection",
    "SubscriberSocket",
    "connect_error",
    "open_socket",
    "run_sync",
]

T = TypeVar("T")

READ_BYTES: Final = 16_384


class Connection(Protocol):
    """A connection on which requests are answered in order."""

    address: Address

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        """Send, and return ``count`` replies. Error replies are ``hiredis.ReplyError`` values.

        Raises NotApplied (nothing was sent) or OutcomeUnknown. After either the connection is closed.
        """
        ...

    def close(self) -> None: ...


class SubscriberConnection(Connection, Protocol):
    """A connection in subscriber mode: it receives messages that are not replies to requests."""

    received_at: float
    """When the last bytes came, by ``time.monotonic``."""

    async def receive(self, seconds: float) -> list[Any]:
        """The messages since the last call, as soon as there are some; empty: none came in time."""
        ...

    def send(self, payload: bytes) -> None:
        """Send without waiting for the answer, which comes through ``receive``. From any thread."""
        ...

    def shutdown(self) -> None:
        """From any thread: end the connection. The reader gets an error."""
        ...


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, because everything that it awaits blocks instead.

    Everything beside the path of every request (handshake, discovery, redirections, subscriptions) is written
    once, as coroutines over the interfaces above. In asyncio they are awaited. For threads the methods block.
    """
    return trampoline.run(coroutine, _refuse_to_suspend)


def _refuse_to_suspend(effect: Any) -> NoReturn:
    raise RuntimeError("a coroutine of the threads adapter suspended")


class RespSocket(sockets.SocketConnection):
    """One connection, used by one thread at a time."""

    __slots__ = (
        "_feed",
        "_gets",
        "_poll",
        "_recv",
        "_seconds",
        "_send",
        "_spin_receive",
        "address",
        "generation",
    )

    def __init__(self, connected: socket.socket, address: Address, seconds: float) -> None:
        super().__init__(connected)
        self.address = address
        self.generation = 0
        """Set and compared by the pool."""
        self._seconds = seconds
        _set_kernel_timeout(connected, seconds)
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._send, self._recv = connected.send, connected.recv
        self._poll = select.poll()
        self._poll.register(connected.fileno(), select.POLLIN)
        spin = AdaptiveSpin()
        self._spin_receive: Callable[[], Any] = partial(spin.spin_receive, connected.recv, READ_BYTES)
        """What arrives within a moment of spinning, if anything does."""
        if isinstance(connected, ssl.SSLSocket):  # it cannot be read without blocking
            poll = self._poll
            self._spin_receive = lambda: spin.spin_poll(poll) and b""

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of a request."""
        self._seconds = seconds
        _set_kernel_timeout(self._socket, seconds)

    def call(self, payload: bytes, started: float, is_urgent: bool = True, before: int = 0) -> Any:
        """One request, one reply. After any exception the connection must be closed.

        ``is_urgent``: spin for the reply before sleeping.
        ``before``: how many replies come before it and are dropped.
        """
        self.used_at = started
        try:
            sent = self._send(payload)
        except OSError as error:
            raise self._send_error(error) from None
        try:
            if sent != len(payload):
                self._send_rest(payload, sent, started)
            data = (is_urgent and self._spin_receive()) or self._recv(READ_BYTES)
            self._feed(data)
            reply = self._gets()
            while reply is False or before:
                if reply is False:
                    data = self._receive_more(data, started)
                    self._feed(data)
                else:
                    before -= 1
                reply = self._gets()
        except (OSError, hiredis.ProtocolError) as error:
            raise self._receive_error(error) from None
        return reply

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        started = monotonic()
        replies = [self.call(payload, started)]
        try:
            while len(replies) < count:
                reply = self._gets()
                while reply is False:
                    self._feed(self._receive_more(b"-", started))
                    reply = self._gets()
                replies.append(reply)
        except (OSError, hiredis.ProtocolError) as error:
            raise self._receive_error(error) from None
        return replies

    def _send_rest(self, payload: bytes, sent: int, started: float) -> None:
        left = memoryview(payload)[sent:]
        while left:
            self._seconds_left(started)
            left = left[self._send(left) :]

    def _receive_more(self, last: bytes, started: float) -> bytes:
        if not last:
            raise ConnectionResetError("the server closed the connection")
        if (
            not self._poll.poll(max(self._seconds_left(started), 0.001) * 1000)
            and not self._has_pending_data()
        ):
            raise TimeoutError
        return self._recv(READ_BYTES)

    def _has_pending_data(self) -> bool:
        """Whether TLS has decrypted bytes that ``poll`` does not report."""
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _seconds_left(self, started: float) -> float:
        left = started + self._seconds - monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _send_error(self, error: Exception) -> NotApplied | OutcomeUnknown:
        """The kernel takes a part or refuses all of it. TLS may have sent a part and does not say so."""
        why = f"nothing could be sent to {self.address}: {describe_error(error)}"
        return OutcomeUnknown(why) if isinstance(self._socket, ssl.SSLSocket) else NotApplied(why)

    def _receive_error(self, error: Exception) -> OutcomeUnknown:
        if isinstance(error, BlockingIOError | TimeoutError):
            return OutcomeUnknown(f"no answer from {self.address} in {self._seconds:.3g} s")
        return OutcomeUnknown(f"the connection to {self.address} broke: {describe_error(error)}")

    def is_stale(self) -> bool:
        """Whether unrequested bytes have arrived: most likely the end of the connection."""
        return bool(self._poll.poll(0))

    # --- the end --------------------------------------------------------------------------------

    def is_open(self) -> bool:
        return self._socket.fileno() >= 0


class SubscriberSocket(RespSocket):
    """A connection in subscriber mode. Its own thread reads it, or a waiting thread."""

    __slots__ = ("_epoll", "_read_mutex", "_send_mutex", "received_at")

    def __init__(self, connected: socket.socket, address: Address, seconds: float) -> None:
        super().__init__(connected, address, seconds)
        self.received_at = monotonic()
        self._send_mutex = threading.Lock()
        self._read_mutex = threading.Lock()
        self._epoll = None
        if HAS_EPOLL and not isinstance(connected, ssl.SSLSocket):
            self._epoll = select.epoll()
            register_exclusive(self._epoll, connected.fileno())

    async def receive(self, seconds: float) -> list[Any]:
        try:
            if self._epoll is not None:
                return self.read() if self._epoll.poll(seconds) else []
            return self.read() if self._has_pending_data() or self._poll.poll(seconds * 1000) else []
        except (OSError, ValueError) as error:
            raise NotApplied(f"the connection to {self.address} broke: {describe_error(error)}") from None

    def read(self) -> list[Any]:
        """The messages that have arrived. Of two threads that were woken one finds none."""
        messages: list[Any] = []
        with self._read_mutex:
            try:
                data = self._recv(READ_BYTES) if self._epoll is None else self._recv(READ_BYTES, DO_NOT_WAIT)
                if not data:
                    raise ConnectionResetError("the server closed the connection")
                self.received_at = monotonic()
                self._feed(data)
                while (message := self._gets()) is not False:
                    messages.append(message)
            except BlockingIOError:
                pass
            except (OSError, hiredis.ProtocolError) as error:
                raise NotApplied(f"the connection to {self.address} broke: {describe_error(error)}") from None
        return messages

    @property
    def is_shared(self) -> bool:
        """Whether a waiting thread may read it, too."""
        return self._epoll is not None

    def requeue_poller(self) -> None:
        """Have the kernel wake waiting threads before the connection's own thread. Raises OSError,
        ValueError."""
        if self._epoll is not None:
            fd = self._socket.fileno()
            self._epoll.unregister(fd)
            register_exclusive(self._epoll, fd)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, payload: bytes) -> None:
        try:
            with self._send_mutex:
                self._socket.sendall(payload)
        except OSError as error:
            raise NotApplied(f"nothing could be sent to {self.address}: {describe_error(error)}") from None

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
        super().close()

    def detach_after_fork(self) -> None:
        """The parent shares the ``epoll``: close only the child's descriptor of it."""
        if self._epoll is not None:
            self._epoll.close()
        super().detach_after_fork()


def open_socket(address: Address, tls: ssl.SSLContext | None, seconds: float) -> socket.socket:
    """Connect. An error means that no request was sent."""
    try:
        if address.port:
            connected = socket.create_connection(address, timeout=seconds)
        else:
            connected = socket.socket(socket.AF_UNIX)
            connected.settimeout(seconds)
            connected.connect(address.host)
    except (OSError, UnicodeError) as error:
        raise connect_error(address, error) from None
    try:
        tune(connected)
        if tls is None:
            return connected
        # Apart from the handshake: an interrupt there would leave the socket of ssl open.
        connected = protected = tls.wrap_socket(
            connected, server_hostname=address.host, do_handshake_on_connect=False
        )
        protected.do_handshake()
        return protected
    except OSError as error:
        connected.close()
        raise connect_error(address, error) from None
    except BaseException:
        connected.close()
        raise


def connect_error(address: Address, error: Exception) -> NotApplied | EngineUnavailable:
    if isinstance(error, ssl.SSLCertVerificationError):
        return EngineUnavailable(f"the certificate of {address} is not trusted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return EngineUnavailable(f"no TLS with {address} ({error.reason}): is it a server without TLS?")
    return NotApplied(f"no connection to {address}: {describe_error(error)}")


def _set_kernel_timeout(connected: socket.socket, seconds: float) -> None:
    """Have the kernel end a call that takes too long. TLS makes several calls and needs Python's time-out."""
    if isinstance(connected, ssl.SSLSocket):
        connected.settimeout(seconds)
        return
    connected.settimeout(None)
    limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000) or (seconds < 1))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
