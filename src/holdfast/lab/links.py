"""One connection through the proxy: two streams of bytes. Only the proxy's thread uses it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

__all__ = ["Direction", "Ending", "Link", "Stream", "Trap", "close_socket"]

Direction = Literal["to_server", "to_client"]
Ending = Literal["reset", "close", "silence"]
"""How a connection ends: by RST, by FIN, or by silence, in which it stays open and no byte arrives any
more."""

BUFFER_BYTES: Final = 1 << 20
"""The most bytes buffered for a stream that does not move. Beyond that, its source is not read."""

RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Trap:
    """A loss to come: of the first request that contains these bytes, or of the reply to it."""

    what: Literal["request", "reply"]
    matching: bytes
    ending: Ending
    sprung: threading.Event = field(default_factory=threading.Event)


class Stream:
    """Bytes for one end of a connection. Each chunk has a time before which it must not be sent."""

    def __init__(self) -> None:
        self.target: socket.socket | None = None
        self.blocked = False
        """The target accepts no more bytes at the moment."""
        self.has_hole = False
        """Bytes were dropped."""
        self.exhausted = False
        """The source has ended, so there is nothing more to read."""
        self.ended = False
        """No more bytes will come, and the target has to notice this."""
        self._end_is_passed_on = False
        self._chunks: deque[tuple[float, bytes]] = deque()
        self._size = 0

    @property
    def full(self) -> bool:
        return self._size >= BUFFER_BYTES

    @property
    def done(self) -> bool:
        """Whether everything has been delivered, including the end."""
        return self._end_is_passed_on

    @property
    def next_time(self) -> float | None:
        """When the next chunk is due."""
        return self._chunks[0][0] if self._chunks and not self.blocked else None

    def add(self, data: bytes, not_before: float) -> None:
        self._chunks.append((not_before, data))
        self._size += len(data)

    def flush(self, now: float) -> int:
        """Send the bytes that are due and return their number. Raises OSError if the target is gone."""
        if self.target is None:
            return 0
        sent_all, self.blocked = 0, False
        while self._chunks and self._chunks[0][0] <= now:
            not_before, data = self._chunks[0]
            try:
                sent = self.target.send(data)
            except BlockingIOError:
                self.blocked = True
                return sent_all
            sent_all += sent
            self._size -= sent
            if sent < len(data):
                self._chunks[0] = (not_before, data[sent:])
            else:
                self._chunks.popleft()
        if self.ended and not self._chunks and not self._end_is_passed_on:
            self._end_is_passed_on = True
            self.target.shutdown(socket.SHUT_WR)
        return sent_all


class Link:
    """The connection of a client, and the connection to the server for it."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.server: socket.socket | None = None
        self.shadow: socket.socket | None = None
        """A second connection to the server, which gets the same bytes. Its replies are discarded."""
        self.streams: dict[Direction, Stream] = {"to_server": Stream(), "to_client": Stream()}
        self.streams["to_client"].target = client
        self.to_shadow = Stream()
        self.muted = False
        """It stays silent for ever, whatever the other connections do."""
        self.reply_trap: Trap | None = None
        self.ending: Ending | None = None
        """How it ends after all bytes are delivered."""
        self.draining = False
        """The client is gone. The server may still process its requests."""

    def connected(self, server: socket.socket, shadow: socket.socket | None) -> None:
        self.server = self.streams["to_server"].target = server
        self.shadow = self.to_shadow.target = shadow

    @property
    def sockets(self) -> list[socket.socket]:
        ends = [None if self.draining else self.client, self.server, self.shadow]
        return [end for end in ends if end is not None]

    @property
    def has_hole(self) -> bool:
        """Whether bytes of it were dropped."""
        return any(stream.has_hole for stream in self.streams.values())

    @property
    def done(self) -> bool:
        return all(stream.done for stream in self.streams.values())


def close_socket(end: socket.socket, reset: bool) -> None:
    """Close one end, by RST or by FIN."""
    if reset:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
    end.close()
