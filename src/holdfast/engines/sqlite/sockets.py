"""Wake-ups between processes: a datagram with a nonce, to a socket in the side folder. Nothing hangs on it.

Who was handed the lock is told its token, and has nothing to ask. Whoever has to look finds what the record
became on the board, and need not read the database first.

Socket paths end at 108 bytes, so where there is a /proc they are reached through the folder's descriptor.
Where a socket cannot be bound a waiter is not woken, and looks again by itself within a second.
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
from .database_file import SideDirectory

__all__ = ["SendResult", "WakeupSocket", "socket_name"]

log = logging.getLogger("holdfast")

PATH_BYTES_MAX: Final = 103
"""What every system takes for the path of a socket."""

NONCE_CHARS_MAX: Final = 200
MESSAGE_BYTES_MAX: Final = 300
"""Of what is longer, only the beginning is read."""

PEERS_MAX: Final = 32
_new = tuple.__new__
PEER_GONE: Final = (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE)


class SendResult(enum.Enum):
    DELIVERED = "delivered"
    FULL = "full"
    """Its buffer is full: it will look by itself."""
    REFUSED = "refused"
    """Nobody listens there: is it dead?"""


def socket_name(client: str) -> str:
    return f"{client}.sock"


class _PeerSocket(socket.socket):
    """To another's inbox. Looking up a path takes as long as sending, so one is kept for each."""

    __slots__ = ()

    def __del__(self) -> None:
        """An interrupt can strike between any two steps, and nobody has it any more."""
        self.close()


class WakeupSocket:
    """One client's socket: others' wake-ups come in, its own go out."""

    __slots__ = ("_client", "_peers", "_recv", "_side", "bound", "dropped", "name", "socket")

    def __init__(self, side: SideDirectory, client: str) -> None:
        self._side = side
        self._peers: dict[str, _PeerSocket] = {}
        self._client = f"{client}-"
        """What the nonces of a client begin with."""
        self.dropped = 0
        """How many messages, or the grants they brought, were not believed."""
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

    # --- what goes out --------------------------------------------------------------------------

    def send(self, wake: Wake) -> SendResult:
        client, nonce, handed = wake
        told = nonce if handed is None else f"{nonce}\n{handed[0]}\n{handed[1]!r}"
        message = told.encode("ascii", "replace")
        peer = self._peers.get(client)
        if peer is not None:
            try:
                peer.send(message)
                return SendResult.DELIVERED
            except OSError:
                del peer  # it may be there anew, or full
                self._peers.pop(client, None)
        try:
            self._connect_peer(client).send(message)
        except OSError as error:
            return SendResult.REFUSED if error.errno in PEER_GONE else SendResult.FULL
        return SendResult.DELIVERED

    def _connect_peer(self, client: str) -> _PeerSocket:
        address = self._address(socket_name(client))
        if address is None:
            raise FileNotFoundError(errno.ENOENT, "its path is too long")
        peer = _PeerSocket(socket.AF_UNIX, socket.SOCK_DGRAM)
        peer.setblocking(False)
        peer.connect(address)
        while len(self._peers) >= PEERS_MAX:
            with contextlib.suppress(StopIteration, RuntimeError):  # others do the same
                self._peers.pop(next(iter(self._peers)), None)
        self._peers[client] = peer
        return peer

    # --- what comes in --------------------------------------------------------------------------

    def receive(self) -> tuple[str, Handoff | None] | None:
        """The next message; None: it is not for us. Raises OSError where there is none.

        A grant is believed because of the nonce: 128 random bits that stand in the record alone. Whoever
        wrote the grant read them there.
        """
        nonce, *handed = self._recv(MESSAGE_BYTES_MAX).decode("ascii", "replace").split("\n")
        if not nonce.startswith(self._client) or len(nonce) > NONCE_CHARS_MAX or not nonce.isascii():
            self._drop("that this client cannot have been sent")
            return None
        try:
            token, age = handed
            brought = _new(Handoff, (int(token), float(age)))
        except ValueError:
            return nonce, None  # it only wakes, or another version says it otherwise
        if not is_plausible(brought[0], wall_us()) or not 0.0 <= brought[1] < inf:
            self._drop("with a grant that cannot be genuine")
            return nonce, None  # whoever waits looks for itself
        return nonce, brought

    def _drop(self, what: str) -> None:
        """A warning for the first one, for it should not happen; any number may follow."""
        self.dropped += 1
        level = logging.WARNING if self.dropped == 1 else logging.DEBUG
        log.log(
            level, "holdfast: dropped a wake-up in %s %s (%d so far)", self._side.path, what, self.dropped
        )

    def close(self) -> None:
        self.socket.close()
        self._peers.clear()
