"""Messages between the wrapper and its supervisor: one JSON list per line over a socket pair.

The end of the stream is a message, too: the other process has ended.
"""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

__all__ = ["Channel"]

CHUNK_BYTES = 65536


class Channel:
    """One end. Call ``receive`` when the descriptor is readable; it never waits for a whole line."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._partial = b""
        self.closed = False
        """The other process has ended."""

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair()
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *message: Any) -> None:
        """Send one message. ``receive`` reports if the other process has ended."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[list[Any]]:
        """The messages that have arrived completely."""
        try:
            chunk = self._socket.recv(CHUNK_BYTES)
        except ConnectionResetError:
            chunk = b""
        self.closed = not chunk
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._socket.close()
