"""ZooKeeper, one server, and its raw limit: the same protocol over a bare socket.

Packages are imported when a handle is opened: what is not installed is left out.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from holdfast.lab.servers import ZooKeeper

from ..contestant import Ability, Contestant, Handle, Place
from ..service import Service
from .group import Group
from .subject import open_asyncio, open_threads
from .tooz import open_tooz

__all__ = ["GROUP"]

URL: Final = "zookeeper://{addresses}"
LONGEST_SESSION_MS: Final = 600_000


@contextlib.contextmanager
def serve() -> Iterator[Service]:
    with ZooKeeper(settings={"maxSessionTimeout": str(LONGEST_SESSION_MS)}) as server:
        first = server.four_letters("srvr").splitlines()[0]
        version = first.partition(":")[2].strip().partition("-")[0]
        yield Service((server.address,), {"ZooKeeper": version})


# --- the raw limit

CREATE, DELETE, CHILDREN = 1, 2, 8
LASTING, IN_ORDER = 0, 3
"""Flags of a new node: stays; or ends with the session, and has a number at the end of its name."""
ANYONE: Final = struct.pack(">ii", 1, 31) + b"".join(
    struct.pack(">i", len(word)) + word for word in (b"world", b"anyone")
)
EXISTS: Final = -110


def text(word: bytes) -> bytes:
    return struct.pack(">i", len(word)) + word


class Session:
    """A session over a blocking socket that sends no sign of life: it lasts long enough without."""

    def __init__(self, place: Place) -> None:
        host, _, port = place.addresses[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._numbers = itertools.count(1)
        hello = struct.pack(">iqiq", 0, 0, LONGEST_SESSION_MS, 0) + text(bytes(16)) + b"\0"
        self._socket.sendall(text(hello))
        self._read()

    def ask(self, *requests: tuple[int, bytes]) -> list[tuple[int, bytes]]:
        """Sent together; for each its error (0: none) and its answer."""
        self._socket.sendall(
            b"".join(text(struct.pack(">ii", next(self._numbers), kind) + what) for kind, what in requests)
        )
        replies = [self._read() for _ in requests]
        return [(struct.unpack_from(">i", reply, 12)[0], reply[16:]) for reply in replies]

    def _read(self) -> bytes:
        (size,) = struct.unpack(">i", self._stream.read(4))
        return self._stream.read(size)

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class BareNodes(Handle):
    """A numbered node that ends with the session, and a look at all of them, sent together; a node deleted.

    It is no lock: who is not the first does not wait.
    """

    def __init__(self, place: Place, name: str) -> None:
        self._session = Session(place)
        folder = b""
        for part in (place.space, name):
            folder += f"/{part}".encode()
            ((error, _),) = self._session.ask((CREATE, self._node(folder, LASTING)))
            if error not in (0, EXISTS):
                raise RuntimeError(f"error {error} of ZooKeeper")
        self._create = (CREATE, self._node(folder + b"/x-", IN_ORDER))
        self._look = (CHILDREN, text(folder) + b"\0")
        self._path = b""
        self.acquire = self._acquire
        self.release = self._release

    @staticmethod
    def _node(path: bytes, flags: int) -> bytes:
        return text(path) + text(b"") + ANYONE + struct.pack(">i", flags)

    def _acquire(self) -> None:
        if not self.try_acquire():
            raise RuntimeError("not granted")

    def try_acquire(self) -> bool:
        (_, created), (_, children) = self._session.ask(self._create, self._look)
        self._path = created[4:]
        mine = self._path.rpartition(b"/")[2]
        if min(names_in(children)) == mine:
            return True
        self._release()
        return False

    def _release(self) -> None:
        ((error, _),) = self._session.ask((DELETE, text(self._path) + struct.pack(">i", -1)))
        if error:
            raise RuntimeError(f"error {error} of ZooKeeper")

    def close(self) -> None:
        self._session.close()


def names_in(answer: bytes) -> Iterator[bytes]:
    (count,) = struct.unpack_from(">i", answer)
    place = 4
    for _ in range(count):
        (size,) = struct.unpack_from(">i", answer, place)
        yield answer[place + 4 : place + 4 + size]
        place += 4 + size


# --- peers


class Kazoo(Handle):
    """``kazoo.recipe.lock.Lock``, one object used again and again."""

    def __init__(self, place: Place, name: str) -> None:
        from kazoo.client import KazooClient

        self._client: Any = KazooClient(hosts=",".join(place.addresses))
        self._client.start()
        self._lock: Any = self._client.Lock(f"/{place.space}/{name}")
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(blocking=False))

    def close(self) -> None:
        self._client.stop()
        self._client.close()


PROCESSES: frozenset[Ability] = frozenset({"processes"})

GROUP = Group(
    "ZooKeeper",
    (
        Contestant(
            "holdfast-zookeeper",
            "Holdfast, ZooKeeper",
            "subject",
            partial(open_threads, URL),
            PROCESSES | {"crowd"},
            "holdfast",
        ),
        Contestant(
            "holdfast-zookeeper-asyncio",
            "Holdfast, ZooKeeper, asyncio",
            "subject",
            partial(open_asyncio, URL),
            frozenset({"transactions", "tasks", "crowd"}),
            "holdfast",
        ),
        Contestant("kazoo", "kazoo", "peer", Kazoo, PROCESSES, "kazoo"),
        Contestant(
            "tooz-zookeeper",
            "tooz over kazoo",
            "peer",
            partial(open_tooz, "zookeeper://{address}"),
            PROCESSES,
            "tooz",
        ),
        Contestant(
            "zookeeper-socket",
            "the same protocol over a bare socket",
            "raw",
            BareNodes,
            frozenset({"transactions"}),
        ),
    ),
    ("pairs", "tasks", "handoff", "waiting", "contention", "crowd"),
    {"pairs": "kazoo", "handoff": "kazoo", "waiting": "kazoo", "contention": "kazoo"},
    {
        "pairs": "One ZooKeeper on loopback, which does not wait for its disk. The raw limit sends the "
        "creation of a numbered node and a look at all of them together, then a deletion.",
    },
    serve,
)
