"""PostgreSQL, the lease table and the advisory locks, and their raw limits: two bare statements of psycopg.

Packages are imported when a handle is opened: what is not installed is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from holdfast.lab.servers import PostgreSQL

from ..contestant import Ability, Contestant, Handle, Place
from ..service import Service
from .group import Group
from .subject import open_asyncio, open_threads
from .tooz import open_tooz

__all__ = ["ADVISORY", "LEASES"]

URL: Final = "postgresql://postgres@{addresses}/postgres"
ADVISORY_URL: Final = "postgresql+advisory://postgres@{addresses}/postgres"


@contextlib.contextmanager
def serve() -> Iterator[Service]:
    with PostgreSQL() as server:
        version = server.sql("SHOW server_version").partition(" ")[0]
        yield Service((server.address,), {"PostgreSQL": version})


def connected(place: Place) -> Any:
    """A connection on which every statement is a transaction of its own."""
    import psycopg

    return psycopg.connect(f"postgresql://postgres@{place.addresses[0]}/postgres", autocommit=True)


def number_of(place: Place, name: str) -> int:
    digest = hashlib.blake2b(f"{place.space}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class BareRow(Handle):
    """A row inserted unless it is there, a row deleted: what a lock in a table costs at the very least.

    It is no lock: nobody waits, no lease, no token, no queue.
    """

    TABLE = "CREATE TABLE IF NOT EXISTS bare_locks (name text PRIMARY KEY, owner text NOT NULL)"
    INSERT = "INSERT INTO bare_locks VALUES (%s, %s) ON CONFLICT DO NOTHING"
    DELETE = "DELETE FROM bare_locks WHERE name = %s AND owner = %s"

    def __init__(self, place: Place, name: str) -> None:
        self._connection = connected(place)
        with self._connection.transaction():
            # Two that create it at the same time would both begin, and one would fail.
            self._connection.execute("SELECT pg_advisory_xact_lock(1)")
            self._connection.execute(self.TABLE)
        self._row = (f"{place.space}:{name}", secrets.token_hex(8))
        self.acquire = partial(self._one_row, self.INSERT)
        self.release = partial(self._one_row, self.DELETE)

    def _one_row(self, statement: str) -> None:
        if self._connection.execute(statement, self._row).rowcount != 1:
            raise RuntimeError("not granted")

    def try_acquire(self) -> bool:
        return bool(self._connection.execute(self.INSERT, self._row).rowcount == 1)

    def close(self) -> None:
        self._connection.close()


class BareAdvisory(Handle):
    """``pg_advisory_lock`` and ``pg_advisory_unlock``: the server's own blocking lock, on one connection."""

    def __init__(self, place: Place, name: str) -> None:
        self._connection = connected(place)
        self._key = (number_of(place, name),)
        execute = self._connection.execute
        self.acquire = partial(execute, "SELECT pg_advisory_lock(%s)", self._key)
        self.release = partial(execute, "SELECT pg_advisory_unlock(%s)", self._key)

    def try_acquire(self) -> bool:
        return bool(self._connection.execute("SELECT pg_try_advisory_lock(%s)", self._key).fetchone()[0])

    def close(self) -> None:
        self._connection.close()


class SqlalchemyDlock(Handle):
    """``sqlalchemy_dlock.create_sadlock`` on a connection of SQLAlchemy's."""

    def __init__(self, place: Place, name: str) -> None:
        import sqlalchemy
        import sqlalchemy_dlock

        self._engine: Any = sqlalchemy.create_engine(
            f"postgresql+psycopg://postgres@{place.addresses[0]}/postgres"
        )
        self._connection: Any = self._engine.connect()
        self._lock: Any = sqlalchemy_dlock.create_sadlock(self._connection, f"{place.space}:{name}")
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(block=False))

    def close(self) -> None:
        self._connection.close()
        self._engine.dispose()


PROCESSES: frozenset[Ability] = frozenset({"processes"})
MEASURES: Final = ("pairs", "tasks", "handoff", "waiting", "contention")

BARE_ADVISORY = Contestant(
    "advisory-bare", "bare pg_advisory_lock", "raw", BareAdvisory, PROCESSES, "psycopg"
)

LEASES = Group(
    "PostgreSQL, lease table",
    (
        Contestant(
            "holdfast-postgresql",
            "Holdfast, lease table",
            "subject",
            partial(open_threads, URL),
            PROCESSES | {"many", "renews", "crowd"},
            "holdfast",
        ),
        Contestant(
            "holdfast-postgresql-asyncio",
            "Holdfast, lease table, asyncio",
            "subject",
            partial(open_asyncio, URL),
            frozenset({"transactions", "tasks", "crowd"}),
            "holdfast",
        ),
        Contestant(
            "row-bare",
            "a bare row inserted and deleted",
            "raw",
            BareRow,
            frozenset({"transactions"}),
            "psycopg",
        ),
        BARE_ADVISORY,
    ),
    (*MEASURES, "crowd", "renewal"),
    {
        "pairs": "row-bare",
        "handoff": "advisory-bare",
        "waiting": "advisory-bare",
        "contention": "advisory-bare",
    },
    {
        "pairs": "One PostgreSQL on loopback, which does not wait for its disk. The raw limit is `INSERT … "
        "ON CONFLICT DO NOTHING` and `DELETE` of a row, each in a transaction of its own.",
    },
    serve,
)

ADVISORY = Group(
    "PostgreSQL, advisory locks",
    (
        Contestant(
            "holdfast-advisory",
            "Holdfast, advisory",
            "subject",
            partial(open_threads, ADVISORY_URL),
            PROCESSES,
            "holdfast",
        ),
        Contestant(
            "holdfast-advisory-asyncio",
            "Holdfast, advisory, asyncio",
            "subject",
            partial(open_asyncio, ADVISORY_URL),
            frozenset({"transactions", "tasks"}),
            "holdfast",
        ),
        Contestant(
            "sqlalchemy-dlock",
            "sqlalchemy-dlock",
            "peer",
            SqlalchemyDlock,
            PROCESSES,
            "sqlalchemy-dlock",
        ),
        Contestant(
            "tooz-postgresql",
            "tooz",
            "peer",
            partial(open_tooz, "postgresql://postgres@{address}/postgres"),
            PROCESSES,
            "psycopg2-binary",
        ),
        BARE_ADVISORY,
    ),
    MEASURES,
    dict.fromkeys(("pairs", "handoff", "waiting", "contention"), "advisory-bare"),
    {
        "pairs": "One PostgreSQL on loopback, which does not wait for its disk. The raw limit is "
        "`pg_advisory_lock` and `pg_advisory_unlock` on one connection, without a token.",
    },
    serve,
)
