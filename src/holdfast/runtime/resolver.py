"""Resolving the host name of a node in the background: a slow resolution of one node does not delay the
others.

A numeric address is resolved at once. A name is resolved on a thread of its own, which ends with the
resolution.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

__all__ = ["Endpoint", "Resolver"]

Endpoint = tuple[int, Any]
"""The address family and the socket address."""


class Resolver:
    """The addresses of one node, or the error of their resolution."""

    __slots__ = ("_address", "_writer", "endpoints", "error", "is_done")

    def __init__(self, address: tuple[str, int]) -> None:
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
        """Start the thread. Returns a socket that becomes readable at the end of the resolution."""
        reader, self._writer = socket.socketpair()
        thread = threading.Thread(target=self._work, name="holdfast-lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._work()  # the process is ending and cannot start threads
        return reader

    def _work(self) -> None:
        try:
            self.endpoints = self._resolve(0)
        except Exception as error:  # noqa: BLE001 - the connection reports any error
            self.error = error
        self.is_done = True
        assert self._writer is not None  # noqa: S101 - start() has set it
        with contextlib.suppress(OSError):  # the connection was closed
            self._writer.send(b".")  # closing alone is not seen while a forked child has a copy
        self._writer.close()

    def _resolve(self, flags: int) -> list[Endpoint]:
        host, port = self._address
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        return [(family, endpoint) for family, _, _, _, endpoint in found]
