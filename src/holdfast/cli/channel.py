"""Messages between the wrapper and its supervisor: one JSON list per line over a socket pair.

The end of the stream is a message too: the other side is gone, however it ended.
"""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

__all__ = ["Channel"]

CHUNK_BYTES = 65536


class Channel:
    """One end. ``receive`` is for when the descriptor is readable; it never waits for a whole line."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._partial = b""
        self.closed = False
        """The other side is gone."""

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair()
        return cls(ours), cls(theirs)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *message: Any) -> None:
        """Send one message. That nobody is there to get it is learnt by receiving."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[list[Any]]:
        """The messages that have come in whole."""
        try:
            chunk = self._socket.recv(CHUNK_BYTES)
        except ConnectionResetError:
            chunk = b""
        self.closed = not chunk
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._socket.close()
