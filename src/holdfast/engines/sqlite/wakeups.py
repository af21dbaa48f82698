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
from .place import Side

__all__ = ["Inbox", "Sent", "socket_name"]

log = logging.getLogger("holdfast")

LONGEST_PATH: Final = 103
"""What every system takes for the path of a socket."""

LONGEST_NONCE: Final = 200
LONGEST_MESSAGE: Final = 300
"""Of what is longer, only the beginning is read."""

MOST_PEERS: Final = 32
_new = tuple.__new__
GONE: Final = (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE)


class Sent(enum.Enum):
    DELIVERED = "delivered"
    FULL = "full"
    """Its buffer is full: it will look by itself."""
    REFUSED = "refused"
    """Nobody listens there: is it dead?"""


def socket_name(client: str) -> str:
    return f"{client}.sock"


class _Way(socket.socket):
    """To another's inbox. Looking up a path takes as long as sending, so one is kept for each."""

    __slots__ = ()

    def __del__(self) -> None:
        """An interrupt can strike between any two steps, and nobody has it any more."""
        self.close()


class Inbox:
    """One client's socket: others' wake-ups come in, its own go out."""

    __slots__ = ("_client", "_recv", "_side", "_ways", "bound", "dropped", "name", "socket")

    def __init__(self, side: Side, client: str) -> None:
        self._side = side
        self._ways: dict[str, _Way] = {}
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
        return path if len(os.fsencode(path)) <= LONGEST_PATH else None

    def fileno(self) -> int:
        return self.socket.fileno()

    # --- what goes out --------------------------------------------------------------------------

    def send(self, wake: Wake) -> Sent:
        client, nonce, handed = wake
        told = nonce if handed is None else f"{nonce}\n{handed[0]}\n{handed[1]!r}"
        message = told.encode("ascii", "replace")
        way = self._ways.get(client)
        if way is not None:
            try:
                way.send(message)
                return Sent.DELIVERED
            except OSError:
                del way  # it may be there anew, or full
                self._ways.pop(client, None)
        try:
            self._way_to(client).send(message)
        except OSError as error:
            return Sent.REFUSED if error.errno in GONE else Sent.FULL
        return Sent.DELIVERED

    def _way_to(self, client: str) -> _Way:
        address = self._address(socket_name(client))
        if address is None:
            raise FileNotFoundError(errno.ENOENT, "its path is too long")
        way = _Way(socket.AF_UNIX, socket.SOCK_DGRAM)
        way.setblocking(False)
        way.connect(address)
        while len(self._ways) >= MOST_PEERS:
            with contextlib.suppress(StopIteration, RuntimeError):  # others do the same
                self._ways.pop(next(iter(self._ways)), None)
        self._ways[client] = way
        return way

    # --- what comes in --------------------------------------------------------------------------

    def receive(self) -> tuple[str, Handoff | None] | None:
        """The next message; None: it is not for us. Raises OSError where there is none.

        A grant is believed because of the nonce: 128 random bits that stand in the record alone. Whoever
        wrote the grant read them there.
        """
        nonce, *handed = self._recv(LONGEST_MESSAGE).decode("ascii", "replace").split("\n")
        if not nonce.startswith(self._client) or len(nonce) > LONGEST_NONCE or not nonce.isascii():
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
        self._ways.clear()
