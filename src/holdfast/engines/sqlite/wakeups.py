"""Wake-ups between processes: a datagram with a nonce, to a socket in the side folder. Nothing hangs on it.

With the nonce comes what the record became, so that whoever is woken can decide without reading it first;
what it decides is stored only if the record is still the same. Who was handed the lock finds itself in there,
and has nothing to decide.

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
from typing import Final, NamedTuple

from .place import Side

__all__ = ["Inbox", "News", "Sent", "socket_name"]

LONGEST_PATH: Final = 103
"""What every system takes for the path of a socket."""

NONCE: Final = re.compile(rb"[0-9a-zA-Z_./-]{1,200}")
"""What a message looks like; anything else is not from us."""

LONGEST_MESSAGE: Final = 8192
"""What a record makes longer is sent without it."""

MOST_PEERS: Final = 32
GONE: Final = (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE)


class News(NamedTuple):
    """What was stored of a record with the change that somebody is told of."""

    key: bytes
    version: int
    boot: str
    text: str


class Message(NamedTuple):
    """Who is woken, and by what."""

    nonce: str
    news: News | None = None


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

    __slots__ = ("_side", "_ways", "bound", "name", "socket")

    def __init__(self, side: Side, client: str) -> None:
        self._side = side
        self._ways: dict[str, _Way] = {}
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

    # --- what goes out --------------------------------------------------------------------------

    def send(self, client: str, nonce: str, news: News | None = None) -> Sent:
        message = _written(nonce, news)
        way = self._ways.get(client)
        if way is not None:
            with contextlib.suppress(OSError):
                way.send(message)
                return Sent.DELIVERED
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

    def receive(self) -> Message | None:
        """The next message, if there is one: whoever listens is called again for those behind it."""
        try:
            return _read(self.socket.recv(LONGEST_MESSAGE + 1))
        except OSError:
            return None

    def close(self) -> None:
        self.socket.close()
        self._ways.clear()


def _written(nonce: str, news: News | None) -> bytes:
    begins = nonce.encode("ascii", "replace")
    if news is None:
        return begins
    key, version, boot, text = news
    head = f"\n{version}\n{boot}\n{len(key)}\n".encode("ascii")
    whole = b"".join((begins, head, key, text.encode("utf-8", "surrogatepass")))
    return whole if len(whole) <= LONGEST_MESSAGE else begins


def _read(message: bytes) -> Message | None:
    """None: it is not from us."""
    parts = message.split(b"\n", 4)
    if len(parts) not in (1, 5) or not NONCE.fullmatch(parts[0]) or len(message) > LONGEST_MESSAGE:
        return None
    nonce = parts[0].decode("ascii")
    if len(parts) == 1:
        return Message(nonce)
    _, version, boot, size, rest = parts
    try:
        key, text = rest[: int(size)], rest[int(size) :]
        news = News(key, int(version), boot.decode("ascii"), text.decode("utf-8", "surrogatepass"))
    except ValueError:
        return Message(nonce)  # another version says it otherwise
    return Message(nonce, news)
