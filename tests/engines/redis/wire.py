"""A bare connection: many commands in one write, replies as the engine's own wire reads them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import hiredis

from holdfast.engines.redis.codec import Command, decode, encode, pack
from holdfast.engines.redis.keys import Keyspace
from holdfast.engines.resp.scripts import Script
from holdfast.lab.servers import Redis
from holdfast.rules.requests import Reply, Request

CHUNK = 65_536
ANSWER_SECONDS = 20.0


class Wire:
    """One connection to a server, with the scripts loaded."""

    def __init__(self, server: Redis, scripts: Mapping[str, Script] | None = None, resp: int = 2) -> None:
        self._socket = socket.create_connection((server.host, server.port), ANSWER_SECONDS)
        self._reader = hiredis.Reader()
        try:
            if resp != 2:
                self.ask(b"HELLO", b"%d" % resp)
            for script in (scripts or {}).values():
                assert self.ask(b"SCRIPT", b"LOAD", script.source) == script.sha1, script.name
        except BaseException:
            self.close()
            raise

    def ask(self, *words: bytes) -> Any:
        """One command; an error is raised."""
        (told,) = self.ask_all([plain(*words)])
        return told

    def ask_all(self, packed: Sequence[bytes]) -> list[Any]:
        """Many in one write; the first error is raised once all replies are there."""
        self._socket.sendall(b"".join(packed))
        told = [self.read() for _ in packed]
        for one in told:
            if isinstance(one, hiredis.ReplyError):
                raise one
        return told

    def apply(self, space: Keyspace, name: str, request: Request) -> Reply:
        """One request by its script."""
        return decode(request, self.call(encode(space, name, request)))

    def call(self, command: Command) -> Any:
        (told,) = self.ask_all([pack(command)])
        return told

    def read(self) -> Any:
        """The next reply, or message."""
        while (told := self._reader.gets()) is False:
            received = self._socket.recv(CHUNK)
            assert received, "the server closed the connection"
            self._reader.feed(received)
        return told

    def close(self) -> None:
        self._socket.close()


def plain(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
