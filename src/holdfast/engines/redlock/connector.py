"""Connecting to one node for threads, step by step, without ever blocking.

The thread that asks several nodes waits for all of them at once. A connection may be half made when that
thread goes on without it; the next request then finds it further on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from time import monotonic
from typing import Any, Final, NamedTuple

import hiredis

from ...core.effects import NotApplied, TransientError
from ...runtime.resolver import Endpoint, Resolver
from ...runtime.sockets import describe_error, tune
from ..resp.config import Address, ServerConfig
from ..resp.connection import connect_error
from .errors import TLS_HINT, tls_timeout_message
from .handshake import handshake_with_node

__all__ = ["Connector"]

RECONNECT_SECONDS: Final = 0.1
RECONNECT_SECONDS_MAX: Final = 1.0
"""The pause after a connection failed. It doubles with every further failure."""


class _Exchange(NamedTuple):
    """Commands of the handshake, and how many replies it waits for."""

    payload: bytes
    replies: int

    def __await__(self) -> Generator[_Exchange, list[Any], list[Any]]:
        return (yield self)


class PolledSocket(ABC):
    """A non-blocking socket with what the kernel has not taken yet, registered with the poll of its owner."""

    __slots__ = ("_interest", "_poll", "_recv", "_send_some", "_socket", "_unsent", "fileno")

    def __init__(self, poll: Any) -> None:
        self.fileno = -1
        self._poll = poll
        self._socket: socket.socket | None = None
        self._interest = 0
        self._unsent = b""

    def _use_socket(self, awaited: socket.socket, interest: int) -> None:
        """Poll this socket: the connection, or before that the one that reports the end of the resolution."""
        awaited.setblocking(False)
        self._socket = awaited
        self._send_some, self._recv = awaited.send, awaited.recv
        self.fileno = awaited.fileno()
        self._watch(interest)

    def _watch(self, interest: int) -> None:
        if interest != self._interest:
            if self._interest:
                self._poll.modify(self.fileno, interest)
            else:
                self._poll.register(self.fileno, interest)
            self._interest = interest

    def _send(self, payload: bytes) -> None:
        """Send as much as the kernel takes. The rest follows when the poll reports the socket writable."""
        if self._unsent:
            self._unsent += payload
            return
        try:
            sent = self._send_some(payload)
        except OSError as error:
            sent = self._send_failed(error)
        if sent != len(payload):
            self._keep_unsent(payload, sent)

    @abstractmethod
    def _send_failed(self, error: OSError) -> int: ...

    def _keep_unsent(self, payload: bytes, sent: int) -> None:
        """Keep what the kernel did not take, unless the connection broke."""
        if self._socket is not None:
            self._unsent = payload[sent:]
            self._watch(select.POLLIN | select.POLLOUT)

    def _flush(self) -> None:
        payload, self._unsent = self._unsent, b""
        self._watch(select.POLLIN)
        self._send(payload)

    def _release_socket(self) -> None:
        if self._interest:
            with contextlib.suppress(OSError, KeyError):
                self._poll.unregister(self.fileno)
            self._interest = 0
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.fileno = -1
        self._unsent = b""

    def __del__(self) -> None:
        """An interrupt can strike between any two steps and leave the connection without an owner."""
        if getattr(self, "_socket", None) is not None:
            self._release_socket()


class Connector(PolledSocket):
    """Resolves the name of a node, connects, encrypts, and performs the handshake."""

    __slots__ = (
        "_client",
        "_config",
        "_connecting_since",
        "_endpoints",
        "_error",
        "_failures",
        "_feed",
        "_gets",
        "_handshake",
        "_is_in_tls_handshake",
        "_replies",
        "_reply_count",
        "_resolver",
        "_retry_at",
        "_seconds",
        "address",
        "run_id",
    )

    def __init__(self, config: ServerConfig, client: str, seconds: float, poll: Any) -> None:
        super().__init__(poll)
        self.address: Address = config.addresses[0]
        self.run_id = ""
        """The run id of the server when this connection was made; empty: there is no connection yet."""
        self._config = config
        self._client = client
        self._seconds = seconds
        """How long a node may take to answer before its connection is given up."""
        self._handshake: Coroutine[Any, Any, str] | None = None
        self._replies: list[Any] = []
        self._reply_count = 0
        self._connecting_since = 0.0
        self._is_in_tls_handshake = False
        self._resolver: Resolver | None = None
        """Set while the name of the node is being resolved."""
        self._endpoints: list[Endpoint] = []
        """What to try next if the current endpoint fails."""
        self._failures = 0
        self._retry_at = 0.0
        self._error = ""
        """Why the last connection failed."""

    @abstractmethod
    def _established(self) -> None:
        """The handshake has succeeded."""

    @abstractmethod
    def close(self, reason: str = "the connection was closed") -> None: ...

    def _start_connecting(self, now: float) -> None:
        """No request has been sent before: every error is NotApplied."""
        if now < self._retry_at:
            raise NotApplied(self._error)
        if self._endpoints:  # the endpoint before these was given up
            self._connect_to_next()
        else:
            self._resolve()
        if self._socket is None:
            raise NotApplied(self._error)

    def _is_connecting_timed_out(self, now: float) -> bool:
        """Where there are further endpoints, none of them has all the time."""
        return now - self._connecting_since > (self._seconds / 2 if self._endpoints else self._seconds)

    def _continue_connecting(self) -> None:
        """The poll has reported an event before the handshake began."""
        if self._is_in_tls_handshake:
            self._continue_tls_handshake()
        else:
            self._connected()

    def _timeout_message(self) -> str:
        if self._is_in_tls_handshake:
            return tls_timeout_message(self.address, self._seconds)
        return f"no answer from {self.address} in {self._seconds:g} s"

    def _tls_hint(self) -> str:
        """A server that speaks TLS only closes a connection whose first bytes are something else."""
        is_new = self._handshake is not None and self._config.tls is None
        return TLS_HINT if is_new else ""

    # --- resolving and connecting -----------------------------------------------------------------

    def _resolve(self) -> None:
        """Start a resolution, or use the result of one that an earlier request started."""
        resolver = self._resolver
        if resolver is None:
            resolver = Resolver(self.address)
            if not resolver.is_done:
                self._start_resolving(resolver)
                return
        if resolver.is_done:
            self._resolved(resolver)
        else:
            self._fail(f"no connection to {self.address}: it is still being looked up")

    def _start_resolving(self, resolver: Resolver) -> None:
        try:
            self._begin(resolver.start(), select.POLLIN)
        except OSError as error:  # the process may have no file descriptors left
            self._fail(f"{self.address} cannot be looked up: {describe_error(error)}")
        else:
            self._resolver = resolver

    def _resolved(self, resolver: Resolver) -> None:
        self._resolver = None
        self._endpoints = resolver.endpoints
        self._connect_to_next("" if resolver.error is None else describe_error(resolver.error))

    def _connect_to_next(self, reason: str = "") -> None:
        """Start to connect to the next endpoint. ``reason``: why the one before failed."""
        while self._endpoints:
            family, endpoint = self._endpoints.pop(0)
            try:
                connecting = socket.socket(family, socket.SOCK_STREAM)
                self._begin(connecting, select.POLLOUT)
                code = connecting.connect_ex(endpoint)
                if code not in (0, errno.EINPROGRESS):
                    raise OSError(code, os.strerror(code))
                tune(connecting)
            except OSError as error:
                self._release_socket()
                reason = describe_error(error)
            else:
                return
        self._fail(f"no connection to {self.address}: {reason}")

    def _begin(self, awaited: socket.socket, interest: int) -> None:
        self._use_socket(awaited, interest)
        self._connecting_since = monotonic()

    def _connected(self) -> None:
        """The resolution has ended, or the kernel has connected."""
        assert self._socket is not None  # noqa: S101 - the caller has checked
        if self._resolver is not None:
            self._release_socket()
            self._resolved(self._resolver)
            return
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._release_socket()
            self._connect_to_next(os.strerror(code))
            return
        if self._config.tls is None:
            self._start_handshake()
        else:
            self._start_tls(self._socket, self._config.tls)

    # --- TLS --------------------------------------------------------------------------------------

    def _start_tls(self, connected: socket.socket, context: ssl.SSLContext) -> None:
        try:
            secure = context.wrap_socket(
                connected, server_hostname=self.address.host, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as error:
            self._tls_failed(error)
            return
        self._socket = secure
        self._send_some, self._recv = _nonblocking_send(secure), _nonblocking_receive(secure)
        self._is_in_tls_handshake = True
        self._continue_tls_handshake()

    def _continue_tls_handshake(self) -> None:
        """This verifies the certificate of the server, too."""
        assert isinstance(self._socket, ssl.SSLSocket)  # noqa: S101 - _start_tls has made it so
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(select.POLLIN)
        except ssl.SSLWantWriteError:
            self._watch(select.POLLOUT)
        except (OSError, ValueError) as error:
            self._tls_failed(error)
        else:
            self._is_in_tls_handshake = False
            self._start_handshake()

    def _tls_failed(self, error: Exception) -> None:
        reason = str(connect_error(self.address, error))
        if self._endpoints:
            self._release_socket()
            self._connect_to_next(reason)
        else:
            self._fail(reason)

    # --- the handshake ----------------------------------------------------------------------------

    def _start_handshake(self) -> None:
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        login = self._config.login
        credentials = login.username, login.password
        self._handshake = handshake_with_node(self, self._config, credentials, self._client)
        self._watch(select.POLLIN)
        self._continue_handshake([])

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        """For the handshake, which is resumed when the replies are here."""
        return await _Exchange(payload, count)

    def _continue_handshake(self, replies: list[Any]) -> None:
        assert self._handshake is not None  # noqa: S101 - it has been started
        try:
            exchange: _Exchange = self._handshake.send(replies or None)
        except StopIteration as end:
            self._handshake = None
            self.run_id = end.value
            self._failures = 0
            self._endpoints = []
            self._established()
        except TransientError as error:
            self._handshake = None
            self._fail(str(error))
        else:
            self._replies, self._reply_count = [], exchange.replies
            self._send(exchange.payload)

    def _read_handshake(self, data: bytes) -> None:
        gets = self._gets
        self._feed(data)
        while self._socket is not None and (reply := gets()) is not False:
            self._replies.append(reply)
            if len(self._replies) == self._reply_count:
                self._continue_handshake(self._replies)

    # --- the end ----------------------------------------------------------------------------------

    def _send_failed(self, error: OSError) -> int:
        if not isinstance(error, BlockingIOError):
            self._fail(f"nothing could be sent to {self.address}: {error.strerror}")
        return 0

    def _fail(self, reason: str) -> None:
        """The connection is of no use any more: what was sent may have happened, what was not has not."""
        self._error = reason
        self._failures += 1
        pause = min(RECONNECT_SECONDS * 2 ** min(self._failures - 1, 10), RECONNECT_SECONDS_MAX)
        # A connection that worked is replaced at once, and so is one to an endpoint that is not the last.
        self._retry_at = monotonic() + (0.0 if self.run_id or self._endpoints else pause)
        self.close(reason)

    def _release_socket(self) -> None:
        if self._handshake is not None:
            self._handshake.close()
            self._handshake = None
        self._is_in_tls_handshake = False
        super()._release_socket()
        self.run_id = ""


def _nonblocking_send(secure: ssl.SSLSocket) -> Callable[..., Any]:
    """Sends all of it or, for now, nothing: the next call must begin with the same bytes."""

    def send(payload: bytes) -> int:
        try:
            return secure.send(payload)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None

    return send


def _nonblocking_receive(secure: ssl.SSLSocket) -> Callable[..., Any]:
    """Returns everything that was decrypted, because the poll does not know of decrypted bytes."""

    def receive(size: int) -> bytes:
        try:
            data = secure.recv(size)
            while data and secure.pending():
                data += secure.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        return data

    return receive
