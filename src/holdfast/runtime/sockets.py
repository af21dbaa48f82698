"""Connected sockets to servers, whatever the protocol."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from time import monotonic
from typing import Final, TypeVar

from .pool import Pool

__all__ = ["HARD_CLOSE", "SocketConnection", "SocketPool", "describe_error", "open_socket", "tune"]

HARD_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with zero seconds: close discards unsent data and resets the connection."""

KEEPALIVE_SECONDS: Final = 15

SURPLUS_SECONDS: Final = 10.0
"""An idle connection that was not used for this long is closed, unless it is the last one."""


class SocketConnection:
    """One connection, used by one thread at a time."""

    __slots__ = ("__weakref__", "_socket", "used_at")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.used_at = monotonic()

    def shutdown(self) -> None:
        """Called from any thread: the thread that waits for a reply gets none, and closes the connection."""
        with contextlib.suppress(OSError):
            # Below TLS: SSLSocket.shutdown would drop the encryption first while another thread sends.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close with a reset: what the kernel has not sent yet is discarded."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HARD_CLOSE)
        self._socket.close()

    def __del__(self) -> None:
        """An interrupt can strike between any two steps, so that no caller is left to close it."""
        if hasattr(self, "_socket"):
            self._socket.close()

    def detach_after_fork(self) -> None:
        """In the child of a fork: close this copy, and send nothing on the parent's connection."""
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())


S = TypeVar("S", bound=SocketConnection)


class SocketPool(Pool[S]):
    """A pool of connections to one server."""

    def _close_surplus(self) -> None:
        """Close connections that a past peak left. The one used last is always on top."""
        try:
            while len(self._idle) > 1 and monotonic() - self._idle[0].used_at > SURPLUS_SECONDS:
                self._discard(self._idle.pop(0))
        except IndexError:
            return  # Other threads took them meanwhile.

    def close(self) -> None:
        """Close idle connections. Threads that wait for a reply get none, and close theirs."""
        self._closed = True
        for line in self._connections():
            line.shutdown()
        self._discard_idle()

    def detach_after_fork(self) -> None:
        """In the child of a fork."""
        for line in self._connections():
            line.detach_after_fork()


def open_socket(host: str, port: int, ends_at: float) -> socket.socket:
    """Connected to the first of the addresses that answers, until ``ends_at`` by ``monotonic``. Where there
    are several, none gets all the time. Raises OSError, TimeoutError among others; UnicodeError for a bad
    name."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = TimeoutError()
    for number, (family, kind, protocol, _, address) in enumerate(addresses):
        left = ends_at - monotonic()
        if left <= 0:
            break
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.settimeout(left / (2 if number + 1 < len(addresses) else 1))
            connecting.connect(address)
        except OSError as error:
            connecting.close()
            failure = error
        except BaseException:
            connecting.close()
            raise
        else:
            return connecting
    raise failure


def tune(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), KEEPALIVE_SECONDS)


def describe_error(error: Exception) -> str:
    """The system's description of an error."""
    if isinstance(error, TimeoutError | BlockingIOError):
        return "no reply in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
