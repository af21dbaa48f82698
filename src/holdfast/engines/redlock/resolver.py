"""Where a node listens, looked up while nobody waits: a slow answer for one node does not hold up the others.

Numbers are found at once. A name is looked up on a thread of its own, which lives as long as that takes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from ..resp.config import Address

__all__ = ["Endpoint", "Resolver"]

Endpoint = tuple[int, Any]
"""The family of an address and the address, as sockets want them."""


class Resolver:
    """The addresses of one node, or why there are none."""

    __slots__ = ("_address", "_writer", "endpoints", "error", "is_done")

    def __init__(self, address: Address) -> None:
        self.endpoints: list[Endpoint] = []
        self.error: Exception | None = None
        self.is_done = False
        self._address = address
        self._writer: socket.socket | None = None
        try:
            self.endpoints = self._resolve(socket.AI_NUMERICHOST)
            self.is_done = True
        except (OSError, UnicodeError):
            return  # it is a name

    def start(self) -> socket.socket:
        """What is to be polled: it can be read once there is something to know."""
        ours, self._writer = socket.socketpair()
        thread = threading.Thread(target=self._work, name="holdfast-lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._work()  # no threads are to be had any more: the process is ending, and has time
        return ours

    def _work(self) -> None:
        try:
            self.endpoints = self._resolve(0)
        except Exception as error:  # noqa: BLE001 - whatever it is, whoever waits for it is to know
            self.error = error
        self.is_done = True
        assert self._writer is not None  # noqa: S101 - it was begun
        with contextlib.suppress(OSError):  # nobody waits for it any more
            self._writer.send(b".")  # its end alone would not be heard while a forked child has a copy
        self._writer.close()

    def _resolve(self, flags: int) -> list[Endpoint]:
        host, port = self._address
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        return [(family, place) for family, _, _, _, place in found]
