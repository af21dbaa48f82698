"""Redis, and its raw limit: the same scripts over a bare socket, and over a bare asyncio protocol.

Packages are imported when a handle is opened: what is not installed is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections import deque
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Final

from holdfast.lab.servers import Redis
from holdfast.lab.servers.resp import ask

from ..contestant import Contestant, Handle, Place
from ..service import Service
from . import redis_peers
from .group import Group
from .looping import AsyncioHandle
from .subject import open_asyncio, open_threads

__all__ = ["GROUP", "NotGranted", "RedisService", "Wire", "packed"]

URL: Final = "redis://{addresses}"
READ_BYTES: Final = 16_384
TTL_SECONDS: Final = 30.0


class RedisService(Service):
    """One server. It counts commands of its clients, and not what scripts call inside.

    The server's own count of a command includes calls by scripts, except of those that scripts cannot call:
    all that Holdfast sends is of these, scripts above all, or a ``PING``, which nobody's scripts call. What
    others send one at a time is one read each. So both are counted from one look to the next, and the larger
    number is what was sent.
    """

    def __init__(self, server: Redis, watching: socket.socket) -> None:
        super().__init__((server.address,), {"Redis": server.info("server")["redis_version"]})
        self._watching = watching
        self._own = 0
        self._never_in_scripts = self._commands_that_scripts_cannot_call()
        self._sent = self._reads_seen = self._commands_seen = 0

    def requests(self) -> int:
        told = self._info("commandstats")
        commands = sum(_calls(told, name) for name in self._never_in_scripts)
        reads = int(self._info("stats")["total_reads_processed"]) - self._own
        self._sent += max(reads - self._reads_seen, commands - self._commands_seen)
        self._reads_seen, self._commands_seen = reads, commands
        return self._sent

    def _commands_that_scripts_cannot_call(self) -> list[str]:
        """As ``INFO`` names them; without what we ask ourselves."""
        self._own += 1
        (told,) = ask(self._watching, ("COMMAND",))
        every = [each for command in told for each in (command, *command[9])]
        names = [_text(name) for name, _, flags, *_ in every if "noscript" in map(_text, flags)]
        # Scripts could, but nobody's do; and Holdfast sends one along with a release that hands over.
        return ["ping", *[name for name in names if name != "client|list"]]

    def scripts(self) -> int:
        told = self._info("commandstats")
        return _calls(told, "eval") + _calls(told, "evalsha")

    def listening(self, ports: Collection[int]) -> int:
        self._own += 1
        (told,) = ask(self._watching, ("CLIENT", "LIST"))
        rows = [dict(each.split("=", 1) for each in row.split()) for row in told.decode().splitlines()]
        ours = [row for row in rows if int(row["addr"].rpartition(":")[2]) in ports]
        return sum(any(row.get(kind, "0") != "0" for kind in ("sub", "psub", "ssub")) for row in ours)

    def _info(self, section: str) -> dict[str, str]:
        self._own += 1
        (text,) = ask(self._watching, ("INFO", section))
        return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)


def _calls(told: dict[str, str], name: str) -> int:
    return int(told.get(f"cmdstat_{name}", "calls=0").removeprefix("calls=").partition(",")[0])


def _text(word: str | bytes) -> str:
    return word.decode() if isinstance(word, bytes) else word


@contextlib.contextmanager
def serve() -> Iterator[Service]:
    with Redis() as server, server.connection() as watching:
        yield RedisService(server, watching)


# --- the raw limit


def packed(*words: bytes) -> bytes:
    """One command in the server's protocol."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def host_and_port(place: Place, number: int = 0) -> tuple[str, int]:
    host, _, port = place.addresses[number].rpartition(":")
    return host, int(port)


def own_scripts(place: Place, name: str) -> tuple[bytes, bytes]:
    """What Holdfast sends for an acquire and for a release, in full and ready to send."""
    from holdfast.engines.redis.codec import encode, pack
    from holdfast.engines.redis.keys import Keyspace
    from holdfast.rules.requests import Acquire, Release

    client = secrets.token_hex(8)
    nonce = f"{client}-1"
    space = Keyspace(place.space)
    owner = f"{socket.gethostname()}/0/MainThread"
    take = Acquire(nonce, client, owner, "lock", "exclusive", TTL_SECONDS, wait=False)
    return pack(encode(space, name, take)), pack(encode(space, name, Release(nonce)))


def script_loads(place: Place) -> list[bytes]:
    from holdfast.engines.redis.keys import Keyspace

    scripts = Keyspace(place.space).scripts
    return [packed(b"SCRIPT", b"LOAD", scripts[name].source) for name in ("acquire", "release")]


class Wire:
    """A blocking socket, and hiredis for what comes in."""

    def __init__(self, place: Place, number: int = 0) -> None:
        import hiredis

        self.socket = socket.create_connection(host_and_port(place, number))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = hiredis.Reader()
        self._send, self._receive = self.socket.send, self.socket.recv
        self._feed, self._gets = reader.feed, reader.gets

    def call(self, payload: bytes) -> Any:
        self._send(payload)
        self._feed(self._receive(READ_BYTES))
        while (reply := self._gets()) is False:
            self._feed(self._receive(READ_BYTES))
        return reply

    def close(self) -> None:
        self.socket.close()


class NotGranted(Exception):
    """The answer to a script was not the one to be measured."""


class BareScripts(Handle):
    """The same two scripts as Holdfast's, packed beforehand, over one socket, always with the same nonce.

    It is no lock: who finds it taken does not wait, and nothing is renewed.
    """

    def __init__(self, place: Place, name: str) -> None:
        self._wire = Wire(place)
        for load in script_loads(place):
            self._wire.call(load)
        take, give = own_scripts(place, name)
        self.acquire = partial(self._granted, take)
        self.release = partial(self._granted, give)

    def _granted(self, payload: bytes) -> None:
        reply = self._wire.call(payload)
        if reply.__class__ is not int:
            raise NotGranted(reply)

    def try_acquire(self) -> bool:
        try:
            self.acquire()
        except NotGranted:
            return False
        return True

    def close(self) -> None:
        self._wire.close()


class BareList(Handle):
    """A list with one element: ``BLPOP`` takes it, ``LPUSH`` puts it back. The server has waiters wait in
    order, and does all there is to do; no lease, no token, and whoever dies with it takes it along."""

    MAKE = b"if redis.call('SETNX', KEYS[1], 1) == 1 then redis.call('LPUSH', KEYS[2], 1) end return 1"

    def __init__(self, place: Place, name: str) -> None:
        self._wire = Wire(place)
        key = f"{place.space}:{name}".encode()
        self._wire.call(packed(b"EVAL", self.MAKE, b"2", key + b":made", key))
        self.acquire = partial(self._wire.call, packed(b"BLPOP", key, b"0"))
        self.release = partial(self._wire.call, packed(b"LPUSH", key, b"1"))
        self._take = packed(b"LPOP", key)

    def try_acquire(self) -> bool:
        return self._wire.call(self._take) is not None

    def close(self) -> None:
        self._wire.close()


class Stream(asyncio.Protocol):
    """All that is asked in one turn of the loop goes out in one write."""

    def __init__(self) -> None:
        import hiredis

        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._unsent: list[bytes] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def call(self, payload: bytes) -> asyncio.Future[Any]:
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(payload)
        future = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _flush(self) -> None:
        self.transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        self._feed(data)
        while (reply := self._gets()) is not False:
            future = self._waiting.popleft()
            if reply.__class__ is int or reply.__class__ is bytes:
                future.set_result(reply)
            else:
                future.set_exception(NotGranted(reply))


class BareAsyncScripts:
    """``BareScripts`` of one name, over a stream that all names share."""

    def __init__(self, stream: Stream, place: Place, name: str) -> None:
        take, give = own_scripts(place, name)
        self.acquire = partial(stream.call, take)
        self.release = partial(stream.call, give)


class BareProtocol(AsyncioHandle):
    """The same two scripts over an ``asyncio.Protocol`` with hiredis' reader and automatic pipelining."""

    async def connect(self, place: Place) -> None:
        loop = asyncio.get_running_loop()
        self._place = place
        _, self._stream = await loop.create_connection(Stream, *host_and_port(place))
        for load in script_loads(place):
            await self._stream.call(load)

    def lock_of(self, name: str) -> BareAsyncScripts:
        return BareAsyncScripts(self._stream, self._place, name)

    async def attempt(self, lock: Any) -> bool:
        try:
            await lock.acquire()
        except NotGranted:
            return False
        return True

    async def disconnect(self) -> None:
        self._stream.transport.close()


GROUP = Group(
    "Redis",
    (
        Contestant(
            "holdfast-redis",
            "Holdfast, Redis",
            "subject",
            partial(open_threads, URL),
            frozenset({"processes", "many", "renews", "crowd"}),
            "holdfast",
        ),
        Contestant(
            "holdfast-redis-asyncio",
            "Holdfast, Redis, asyncio",
            "subject",
            partial(open_asyncio, URL),
            frozenset({"transactions", "tasks", "crowd"}),
            "holdfast",
        ),
        *redis_peers.CONTESTANTS,
        Contestant(
            "redis-socket",
            "the same scripts over a bare socket",
            "raw",
            BareScripts,
            frozenset({"transactions"}),
            "hiredis",
        ),
        Contestant(
            "redis-protocol",
            "the same scripts over a bare asyncio protocol",
            "raw",
            BareProtocol,
            frozenset({"transactions", "tasks"}),
            "hiredis",
        ),
        Contestant(
            "redis-list", "bare BLPOP and LPUSH", "raw", BareList, frozenset({"processes"}), "hiredis"
        ),
    ),
    ("pairs", "tasks", "handoff", "waiting", "contention", "held", "waiters", "crowd", "renewal"),
    {
        "pairs": "redis-socket",
        "tasks": "redis-py-asyncio",
        "handoff": "redis-py",
        "waiting": "redis-py",
        "contention": "redis-py",
    },
    {
        "pairs": "One Redis on loopback, without persistence. The raw limit sends the very bytes that "
        "Holdfast sends (two scripts, known to the server) and does nothing else; it sleeps until the answer "
        "comes, where Holdfast looks for it first.",
        "crowd": "Peers are left out: redis-py's pool is limited to 100 connections, and with more each of a "
        "thousand waiters polls.",
        "contention": "Requests are commands; what scripts call inside does not count.",
    },
    serve,
)
