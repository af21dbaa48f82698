"""Where a node listens, looked up while nobody waits: a slow answer for one node does not hold up the others.

Numbers are found at once. A name is looked up on a thread of its own, which lives as long as that takes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from ..redis.config import Address

__all__ = ["Lookup", "Place"]

Place = tuple[int, Any]
"""The family of an address and the address, as sockets want them."""


class Lookup:
    """The addresses of one node, or why there are none."""

    __slots__ = ("_address", "_theirs", "is_over", "places", "trouble")

    def __init__(self, address: Address) -> None:
        self.places: list[Place] = []
        self.trouble: Exception | None = None
        self.is_over = False
        self._address = address
        self._theirs: socket.socket | None = None
        try:
            self.places = self._found(socket.AI_NUMERICHOST)
            self.is_over = True
        except (OSError, UnicodeError):
            return  # it is a name

    def begin(self) -> socket.socket:
        """What is to be polled: it can be read once there is something to know."""
        ours, self._theirs = socket.socketpair()
        thread = threading.Thread(target=self._work, name="holdfast-lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._work()  # no threads are to be had any more: the process is ending, and has time
        return ours

    def _work(self) -> None:
        try:
            self.places = self._found(0)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits for it is to know
            self.trouble = error
        self.is_over = True
        assert self._theirs is not None  # noqa: S101 - it was begun
        with contextlib.suppress(OSError):  # nobody waits for it any more
            self._theirs.send(b".")  # its end alone would not be heard while a forked child has a copy
        self._theirs.close()

    def _found(self, flags: int) -> list[Place]:
        host, port = self._address
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        return [(family, place) for family, _, _, _, place in found]
