"""Redis' wire format, just enough to ask a server something without a client library."""

from __future__ import annotations

import socket
from typing import IO, Any

__all__ = ["Redirected", "ReplyError", "ask"]


class ReplyError(RuntimeError):
    """The server answered with an error."""


class Redirected(ReplyError):
    """The server answered that another one has what was asked for (MOVED, ASK)."""


def ask(connection: socket.socket, *commands: tuple[str | bytes | float, ...]) -> list[Any]:
    """Send commands in one write and read their replies. The first error among them is raised at the end."""
    connection.sendall(b"".join(_packed(command) for command in commands))
    with connection.makefile("rb") as stream:
        replies = [_read(stream) for _ in commands]
    for reply in replies:
        if isinstance(reply, ReplyError):
            raise reply
    return replies


def _packed(command: tuple[str | bytes | float, ...]) -> bytes:
    words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def _read(stream: IO[bytes]) -> Any:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection")
    mark, rest = line[:1], line[1:-2]
    if mark == b"+":
        return rest.decode()
    if mark == b"-":
        kind = Redirected if rest.startswith((b"MOVED ", b"ASK ")) else ReplyError
        return kind(rest.decode())
    if mark == b":":
        return int(rest)
    size = int(rest)
    if size < 0:
        return None
    if mark == b"$":
        return stream.read(size + 2)[:-2]
    if mark == b"*":
        return [_read(stream) for _ in range(size)]
    raise ConnectionError(f"not a reply of Redis: {line[:80]!r}")
