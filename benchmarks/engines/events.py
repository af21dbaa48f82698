"""Streams of events in PostgreSQL, and the raw limit: a bare INSERT of the same row."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast import events
from holdfast.events import aio
from holdfast.lab.servers import PostgreSQL

from ..contestant import Contestant, Handle, Place
from ..service import Service
from .group import Group

__all__ = ["GROUP", "Streams"]

EVENT: Final = {"type": "deposited", "amount": 100, "note": "what people write into such a field"}
SUBSCRIBER_SECONDS: Final = 30.0

PREPARE: Final = (
    # Two that create it at the same time would both begin, and one would fail.
    "SELECT pg_advisory_xact_lock(4)",
    """
    CREATE TABLE IF NOT EXISTS bare_event (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        stream text NOT NULL,
        version bigint NOT NULL,
        data json NOT NULL,
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
    """,
)
INSERT: Final = "INSERT INTO bare_event (stream, version, data) VALUES (%s, %s, %s)"


class Streams(Handle):
    """Something that appends events, one at a time."""

    def try_acquire(self) -> bool:
        """There is nothing to take."""
        return False

    def append_until(self, stream: str, deadline: float) -> list[float]:
        """How long each took."""
        raise NotImplementedError

    def length(self, stream: str) -> int:
        """How many events the stream has."""
        raise NotImplementedError


class Store(Streams):
    """Holdfast's, for threads. It names the version that it expects, as writers that decide do."""

    def __init__(self, place: Place, name: str) -> None:
        self.store = events.connect(url_of_store(place))
        self.store.install()

    def append_until(self, stream: str, deadline: float) -> list[float]:
        append, clock = self.store.append, time.monotonic
        times: list[float] = []
        version = self.length(stream)
        now = clock()
        while now < deadline:
            version = append(stream, [EVENT], version)
            before, now = now, clock()
            times.append(now - before)
        return times

    def length(self, stream: str) -> int:
        return sum(1 for _ in self.store.read(stream))

    def append(self, stream: str, count: int, pause: Callable[[], None]) -> list[float]:
        """When each call of append began."""
        began_at = []
        for number in range(count):
            pause()
            began_at.append(time.monotonic())
            self.store.append(stream, [{"number": number}])
        return began_at

    def receive(self, stream: str, count: int, begins: Callable[[], None]) -> list[float]:
        """When each event of a stream that has none yet arrived."""
        newest = 0
        for event in self.store.read_all():
            newest = event.position or newest
        arrived_at: list[float] = []
        with self.store.subscribe(newest) as subscription:
            begins()
            while len(arrived_at) < count:
                arrived = subscription.get(SUBSCRIBER_SECONDS)
                if arrived is None:
                    break
                if arrived.stream == stream:
                    arrived_at.append(time.monotonic())
        return arrived_at

    def close(self) -> None:
        self.store.close()


class AwaitedStore(Streams):
    """Holdfast's, for asyncio."""

    def __init__(self, place: Place, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.store = aio.connect(url_of_store(place))
        self.loop.run_until_complete(self.store.install())

    def append_until(self, stream: str, deadline: float) -> list[float]:
        return self.loop.run_until_complete(self._append_until(stream, deadline))

    async def _append_until(self, stream: str, deadline: float) -> list[float]:
        append, clock = self.store.append, time.monotonic
        times: list[float] = []
        version = await self._length(stream)
        now = clock()
        while now < deadline:
            version = await append(stream, [EVENT], version)
            before, now = now, clock()
            times.append(now - before)
        return times

    def length(self, stream: str) -> int:
        return self.loop.run_until_complete(self._length(stream))

    async def _length(self, stream: str) -> int:
        return len([event async for event in self.store.read(stream)])

    def close(self) -> None:
        self.loop.run_until_complete(self.store.close())
        self.loop.close()


class BareInsert(Streams):
    """The same row into a table with one index. Nobody looks at the version, and there is no order."""

    def __init__(self, place: Place, name: str) -> None:
        import psycopg
        from psycopg.types.json import Json

        self.connection: Any = psycopg.connect(url_of(place), autocommit=True)
        with self.connection.transaction():
            for statement in PREPARE:
                self.connection.execute(statement)
        self.json = Json

    def append_until(self, stream: str, deadline: float) -> list[float]:
        execute, clock, json = self.connection.execute, time.monotonic, self.json
        times: list[float] = []
        version = self.length(stream)
        now = clock()
        while now < deadline:
            version += 1
            execute(INSERT, (stream, version, json(EVENT)))
            before, now = now, clock()
            times.append(now - before)
        return times

    def length(self, stream: str) -> int:
        found = self.connection.execute("SELECT count(*) FROM bare_event WHERE stream = %s", (stream,))
        return int(found.fetchone()[0])

    def close(self) -> None:
        self.connection.close()


@contextlib.contextmanager
def serve_durable() -> Iterator[Service]:
    """It waits for its disk, as a server does that keeps a history."""
    with PostgreSQL(settings={"fsync": "on", "full_page_writes": "on"}) as server:
        version = server.sql("SHOW server_version").partition(" ")[0]
        yield Service((server.address,), {"PostgreSQL": version})


def url_of(place: Place) -> str:
    return f"postgresql://postgres@{place.addresses[0]}/postgres"


def url_of_store(place: Place) -> str:
    """Each measurement has a store of its own."""
    return f"{url_of(place)}?schema=events_{place.space.replace('-', '_')}"


GROUP = Group(
    "Streams of events in PostgreSQL",
    (
        Contestant("events", "Holdfast", "subject", Store, frozenset({"subscribes"}), "psycopg"),
        Contestant("events-asyncio", "Holdfast, asyncio", "subject", AwaitedStore, distribution="psycopg"),
        Contestant("insert", "a bare INSERT", "raw", BareInsert, distribution="psycopg"),
    ),
    ("appends", "deliveries"),
    {"appends": "insert"},
    dict.fromkeys(("appends", "deliveries"), "One PostgreSQL on loopback, which waits for its disk."),
    serve_durable,
    locks=False,
)
