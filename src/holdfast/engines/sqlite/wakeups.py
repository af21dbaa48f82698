"""Wake-ups between processes: a datagram with a nonce, to a socket in the side folder. Only ever a hint.

Socket paths end at 108 bytes, so where there is a /proc they are reached through the folder's descriptor.
Where a socket cannot be bound a waiter is not woken, and looks again by itself within a second.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import re
import socket
from typing import Final

from .place import Side

__all__ = ["Inbox", "Sent", "socket_name"]

LONGEST_PATH: Final = 103
"""What every system takes for the path of a socket."""

NONCE: Final = re.compile(rb"[0-9a-zA-Z_./-]{1,200}")
"""What a message looks like; anything else is not from us."""

LONGEST_MESSAGE: Final = 201


class Sent(enum.Enum):
    DELIVERED = "delivered"
    FULL = "full"
    """Its buffer is full: it will look by itself."""
    REFUSED = "refused"
    """Nobody listens there: is it dead?"""


def socket_name(client: str) -> str:
    return f"{client}.sock"


class Inbox:
    """One client's socket: others' wake-ups come in, its own go out."""

    __slots__ = ("_side", "bound", "name", "socket")

    def __init__(self, side: Side, client: str) -> None:
        self._side = side
        self.name = socket_name(client)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.bound = self._bind()

    def _bind(self) -> bool:
        address = self._address(self.name)
        if address is None:
            return False
        self._side.unlink(self.name)
        try:
            self.socket.bind(address)
            self._side.protect(self.name)
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

    def send(self, client: str, nonce: str) -> Sent:
        address = self._address(socket_name(client))
        if address is None:
            return Sent.REFUSED
        try:
            self.socket.sendto(nonce.encode("ascii", "replace"), address)
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE):
                return Sent.REFUSED
            return Sent.FULL
        return Sent.DELIVERED

    def receive(self) -> list[str]:
        """All messages that are there."""
        nonces = []
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                message = self.socket.recv(LONGEST_MESSAGE)
                if NONCE.fullmatch(message):
                    nonces.append(message.decode("ascii"))
        return nonces

    def close(self) -> None:
        self.socket.close()
