"""Redlock on five nodes, and its raw limit: a bare scatter and gather of two small scripts.

The nodes write every change before they answer, as Redlock asks for: once to the one disk of this machine,
which decides most of it then, once to files in memory, where none waits for another. Packages are imported
when a handle is opened: what is not installed is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import select
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from holdfast import redlock
from holdfast.lab.servers import Redis

from ..contestant import Ability, Contestant, Handle, Place
from ..service import Service
from .group import Group
from .redis import NotGranted, RedisService, Wire, packed
from .subject import open_asyncio, open_threads

__all__ = ["GROUP", "IN_MEMORY"]

NODES: Final = 5
MAJORITY: Final = NODES // 2 + 1
URL: Final = "redlock://{addresses}"
TTL_SECONDS: Final = 30
IN_MEMORY_FOLDER: Final = "/dev/shm"  # noqa: S108 - the servers make folders of their own in there
NODE_SECONDS: Final = 0.05
"""How long a node may take, by Holdfast's default; the peers are told the same."""


class RedlockService(Service):
    """Independent nodes."""

    def __init__(self, nodes: list[Redis], services: list[RedisService]) -> None:
        addresses = tuple(node.address for node in nodes)
        super().__init__(addresses, {f"{NODES} × Redis": services[0].versions["Redis"]})
        self._nodes = nodes
        self._services = services

    def requests(self) -> int:
        return sum(each.requests() for each in self._services)

    def scripts(self) -> int:
        return sum(each.scripts() for each in self._services)

    @contextlib.contextmanager
    def one_stopped(self) -> Iterator[None]:
        self._nodes[-1].pause()
        try:
            yield
        finally:
            self._nodes[-1].resume()


@contextlib.contextmanager
def serve(in_memory: bool = False) -> Iterator[Service]:
    """Nodes that write every change to disk before they answer; ``in_memory``: to files that are on none."""
    with contextlib.ExitStack() as stack:
        if in_memory:
            stack.enter_context(files_in_memory())
        nodes = [stack.enter_context(Redis(persistence="aof-always")) for _ in range(NODES)]
        services = [RedisService(node, stack.enter_context(node.connection())) for node in nodes]
        # Before anybody comes: one who finds a set in the making, and has no time, is refused.
        redlock.initialise("redlock://" + ",".join([node.address for node in nodes]) + "?node_timeout=5s")
        yield RedlockService(nodes, services)


@contextlib.contextmanager
def files_in_memory() -> Iterator[None]:
    """Temporary files are kept in memory meanwhile, where the system has a place for that."""
    before = tempfile.tempdir
    tempfile.tempdir = IN_MEMORY_FOLDER if os.path.isdir(IN_MEMORY_FOLDER) else before
    try:
        yield
    finally:
        tempfile.tempdir = before


# --- the raw limit


class Node(Wire):
    """One of the sockets, and how many answers are still to come on it."""

    def __init__(self, place: Place, number: int) -> None:
        super().__init__(place, number)
        self.owed = 0

    def send(self, payload: bytes) -> None:
        self._send(payload)
        self.owed += 1

    def take(self) -> Any:
        """What came; None while answers to earlier questions are among it and the last is not."""
        self._feed(self._receive(READ_BYTES))
        last = None
        while (reply := self._gets()) is not False:
            self.owed -= 1
            last = reply
        return last if self.owed == 0 else None


READ_BYTES: Final = 16_384


class BareScatter(Handle):
    """Sends to all nodes, and goes on when a majority has answered. The scripts do what a node has to do at
    the very least: see that it may issue numbers, mint one, keep the claim. Nobody waits, nothing is renewed.
    """

    TAKE = b"""
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {} end
    local holder = redis.call('GET', KEYS[2])
    if holder and holder ~= ARGV[2] then return {holder} end
    local number = math.max(tonumber(redis.call('GET', KEYS[3]) or '0') + 1, tonumber(ARGV[3]))
    redis.call('SET', KEYS[3], string.format('%.0f', number))
    redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
    return number
    """
    GIVE = b"""
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {} end
    return redis.call('DEL', KEYS[1])
    """

    def __init__(self, place: Place, name: str) -> None:
        key = f"{place.space}:{name}".encode()
        self._mark, self._lock, self._fence = key + b":ready", key + b":lock", key + b":fence"
        self._owner = secrets.token_hex(8).encode()
        self._ready = f"set/{NODES}/run".encode()
        self._nodes = {node.socket.fileno(): node for node in (Node(place, each) for each in range(NODES))}
        self._poll = select.epoll()
        for descriptor, node in self._nodes.items():
            for script in (self.TAKE, self.GIVE):
                node.call(packed(b"SCRIPT", b"LOAD", script))
            node.call(packed(b"SET", self._mark, self._ready))
            self._poll.register(descriptor, select.EPOLLIN)
        give, keys = _digest(self.GIVE), (b"1", self._lock)
        self._giving = packed(b"EVALSHA", give, *keys, self._owner)
        self.acquire = self._acquire
        self.release = partial(self._scatter, self._giving)

    def _acquire(self) -> None:
        hint = b"%d" % (time.time_ns() // 1000)
        keys = (b"3", self._mark, self._lock, self._fence)
        ttl = b"%d" % (TTL_SECONDS * 1000)
        self._scatter(packed(b"EVALSHA", _TAKE, *keys, self._ready, self._owner, hint, ttl))

    def _scatter(self, payload: bytes) -> None:
        for node in self._nodes.values():
            node.send(payload)
        granted = refused = 0
        while granted < MAJORITY:
            for descriptor, _ in self._poll.poll():
                reply = self._nodes[descriptor].take()
                if reply.__class__ is int:
                    granted += 1
                elif reply is not None:
                    refused += 1
            if refused > NODES - MAJORITY:
                raise NotGranted(refused)

    def try_acquire(self) -> bool:
        try:
            self.acquire()
        except NotGranted:
            with contextlib.suppress(NotGranted):
                self.release()  # from the minority that granted it
            return False
        return True

    def close(self) -> None:
        self._poll.close()
        for node in self._nodes.values():
            node.close()


def _digest(script: bytes) -> bytes:
    return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()


_TAKE: Final = _digest(BareScatter.TAKE)


# --- peers


def url_of(address: str) -> str:
    return f"redis://{address}/0?socket_timeout={NODE_SECONDS}"


class RedlockPy(Handle):
    """``redlock.Redlock`` (redlock-py): one node after the other; looks every 200 ms."""

    def __init__(self, place: Place, name: str) -> None:
        import redlock

        self._manager: Any = redlock.Redlock([url_of(address) for address in place.addresses])
        self._key = f"{place.space}:{name}"
        self._once = redlock.Redlock([url_of(address) for address in place.addresses], retry_count=1)
        self._held: Any = None
        self.acquire = self._acquire
        self.release = self._release

    def _acquire(self) -> None:
        # It gives up after three attempts: that is its limit of time.
        while not (held := self._manager.lock(self._key, TTL_SECONDS * 1000)):
            pass
        self._held = held

    def _release(self) -> None:
        self._manager.unlock(self._held)

    def try_acquire(self) -> bool:
        self._held = self._once.lock(self._key, TTL_SECONDS * 1000)
        return bool(self._held)


class Pottery(Handle):
    """``pottery.Redlock``: a thread for each node; looks at random intervals of up to 200 ms."""

    def __init__(self, place: Place, name: str) -> None:
        import pottery
        import redis

        self._masters: Any = [redis.Redis.from_url(url_of(address)) for address in place.addresses]
        self._lock: Any = pottery.Redlock(key=f"{place.space}:{name}", masters=set(self._masters))
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(blocking=False))

    def close(self) -> None:
        for master in self._masters:
            master.close()


SHARED: frozenset[Ability] = frozenset({"processes"})

GROUP = Group(
    "Redlock",
    (
        Contestant(
            "holdfast-redlock",
            "Holdfast, Redlock",
            "subject",
            partial(open_threads, URL),
            SHARED | {"quorum"},
            "holdfast",
            phase_seconds=0.4,
        ),
        Contestant(
            "holdfast-redlock-asyncio",
            "Holdfast, Redlock, asyncio",
            "subject",
            partial(open_asyncio, URL),
            frozenset({"transactions"}),
            "holdfast",
        ),
        Contestant("redlock-py", "redlock-py", "peer", RedlockPy, SHARED, "redlock-py", phase_seconds=0.2),
        Contestant("pottery", "pottery", "peer", Pottery, SHARED | {"quorum"}, "pottery", phase_seconds=0.2),
        Contestant(
            "redlock-scatter",
            "a bare scatter and gather",
            "raw",
            BareScatter,
            frozenset({"transactions", "quorum"}),
            "hiredis",
        ),
    ),
    ("pairs", "stopped", "handoff", "contention"),
    {"pairs": "redlock-scatter", "handoff": "pottery", "contention": "pottery"},
    {
        "pairs": "Five independent Redis on loopback, each of which writes every change to disk before it "
        "answers (`appendfsync always`). The raw limit sends two small scripts to all nodes and goes on when "
        "a majority has answered. A pair of Holdfast's runs ten scripts, two on each node; one more is at "
        "most one grant that needed a second round.",
        "stopped": "The peers' time limit for a node is Holdfast's, 50 ms. redlock-py has no row: when one "
        "node does not answer, it raises an error although the majority has granted the lock.",
    },
    serve,
    least_scripts=2 * NODES,
)

IN_MEMORY = replace(
    GROUP,
    title="Redlock, nodes that do not share a disk",
    notes={
        **GROUP.notes,
        "pairs": "Five independent Redis on loopback (`appendfsync always`) whose files are in memory. Nodes "
        "that are meant to fail independently have a disk each; five on one disk seem to wait for each other "
        "there: with one of them stopped a pair is quicker.",
    },
    serve=partial(serve, in_memory=True),
)
