"""Wake-ups between processes: datagrams with a nonce, sent to a socket in the side directory.

The datagram of a handoff carries the token, so the new holder need not ask for it. A waiter that has to look
finds the new record in the shared cache, and need not read the database first.

No decision depends on a wake-up: without one, a waiter polls within a second. That is so where a socket
cannot be bound. Socket paths are limited to 108 bytes, so with a /proc they are reached through the
descriptor of the directory.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import socket
from math import inf
from typing import Final

from ...core.tokens import is_plausible
from ...rules.requests import Handoff, Wake
from ...runtime.clock import wall_us
from .side_directory import SideDirectory

__all__ = ["SendResult", "WakeupSocket", "socket_name"]

log = logging.getLogger("holdfast")

PATH_BYTES_MAX: Final = 103
"""The length of a socket path that every system accepts."""

NONCE_CHARS_MAX: Final = 200
MESSAGE_BYTES_MAX: Final = 300
"""A longer message is truncated."""

PEERS_MAX: Final = 32
_new = tuple.__new__
PEER_GONE: Final = (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE)


class SendResult(enum.Enum):
    DELIVERED = "delivered"
    FULL = "full"
    """The receive buffer is full: the waiter will poll."""
    REFUSED = "refused"
    """No process has the socket open: the client may be dead."""


def socket_name(client: str) -> str:
    return f"{client}.sock"


class _PeerSocket(socket.socket):
    """Connected to the socket of one peer, and kept: looking up its path takes as long as sending."""

    __slots__ = ()

    def __del__(self) -> None:
        """An interrupt can strike between any two steps, so that no caller is left to close it."""
        self.close()


class WakeupSocket:
    """One client's socket: receives wake-ups from other clients, and sends wake-ups to them."""

    __slots__ = ("_client", "_peers", "_recv", "_side", "bound", "dropped", "name", "socket")

    def __init__(self, side: SideDirectory, client: str) -> None:
        self._side = side
        self._peers: dict[str, _PeerSocket] = {}
        self._client = f"{client}-"
        """The prefix of this client's nonces."""
        self.dropped = 0
        """How many messages or handoffs were rejected as not genuine."""
        self.name = socket_name(client)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self._recv = self.socket.recv
        self.bound = self._bind()

    def _bind(self) -> bool:
        address = self._address(self.name)
        if address is None:
            return False
        self._side.unlink(self.name)
        try:
            self._side.bind(self.socket, address, self.name)
        except OSError:
            return False
        return True

    def _address(self, name: str) -> str | None:
        if os.path.exists("/proc/self/fd"):
            return f"/proc/self/fd/{self._side.fd}/{name}"
        path = os.path.join(self._side.path, name)
        return path if len(os.fsencode(path)) <= PATH_BYTES_MAX else None

    def fileno(self) -> int:
        return self.socket.fileno()

    # --- sending --------------------------------------------------------------------------------

    def send(self, wake: Wake) -> SendResult:
        client, nonce, handed = wake
        text = nonce if handed is None else f"{nonce}\n{handed[0]}\n{handed[1]!r}"
        message = text.encode("ascii", "replace")
        peer = self._peers.get(client)
        if peer is not None:
            try:
                peer.send(message)
                return SendResult.DELIVERED
            except OSError:
                del peer  # The peer may have a new socket, or its buffer is full.
                self._peers.pop(client, None)
        try:
            self._connect_peer(client).send(message)
        except OSError as error:
            return SendResult.REFUSED if error.errno in PEER_GONE else SendResult.FULL
        return SendResult.DELIVERED

    def _connect_peer(self, client: str) -> _PeerSocket:
        address = self._address(socket_name(client))
        if address is None:
            raise FileNotFoundError(errno.ENOENT, "the path of the socket is too long")
        peer = _PeerSocket(socket.AF_UNIX, socket.SOCK_DGRAM)
        peer.setblocking(False)
        peer.connect(address)
        while len(self._peers) >= PEERS_MAX:
            with contextlib.suppress(StopIteration, RuntimeError):  # Other threads do the same.
                self._peers.pop(next(iter(self._peers)), None)
        self._peers[client] = peer
        return peer

    # --- receiving ------------------------------------------------------------------------------

    def receive(self) -> tuple[str, Handoff | None] | None:
        """The next message; None: it is not for this client. Raises OSError if there is none.

        A handoff is trusted because of its nonce: 128 random bits that are only in the record. The sender
        must have read them there.
        """
        nonce, *handed = self._recv(MESSAGE_BYTES_MAX).decode("ascii", "replace").split("\n")
        if not nonce.startswith(self._client) or len(nonce) > NONCE_CHARS_MAX or not nonce.isascii():
            self._drop("that is not addressed to this client")
            return None
        try:
            token, age = handed
            brought = _new(Handoff, (int(token), float(age)))
        except ValueError:
            return nonce, None  # A plain wake-up, or the format of another version.
        if not is_plausible(brought[0], wall_us()) or not 0.0 <= brought[1] < inf:
            self._drop("with a handoff that cannot be genuine")
            return nonce, None  # The waiter polls.
        return nonce, brought

    def _drop(self, what: str) -> None:
        """Log a warning for the first message only: any number may follow."""
        self.dropped += 1
        level = logging.WARNING if self.dropped == 1 else logging.DEBUG
        log.log(
            level, "holdfast: dropped a wake-up in %s %s (%d so far)", self._side.path, what, self.dropped
        )

    def close(self) -> None:
        self.socket.close()
        self._peers.clear()
