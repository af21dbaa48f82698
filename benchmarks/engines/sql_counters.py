"""Counters in a table of PostgreSQL, changed by transactions that lock, and by those that do not.

No locks of Holdfast: the transactions of ``holdfast.sql`` and ``holdfast.optimistic``, through psycopg.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast import optimistic, sql

from ..contestant import Contestant, Handle, Place
from .group import Group
from .postgresql import serve

__all__ = ["GROUP", "ROWS", "Counters"]

ROWS: Final = 64
TABLE: Final = "counters"
PREPARE: Final = (
    # Two that create it at the same time would both begin, and one would fail.
    "SELECT pg_advisory_xact_lock(2)",
    "CREATE TABLE IF NOT EXISTS counters (id integer PRIMARY KEY, total bigint, version bigint)",
    "INSERT INTO counters SELECT id, 0, 1 FROM generate_series(1, 64) AS id ON CONFLICT DO NOTHING",
)
TOTAL: Final = "SELECT sum(total) FROM counters"
READ: Final = "SELECT total, version FROM counters WHERE id = %s"
ADD: Final = "UPDATE counters SET total = %s WHERE id = %s"
TRIES: Final = 100_000
"""Every change gets through in the end, or the slice is over."""


class Counters(Handle):
    """A connection, and how it adds one to a row: read, think for as long as the section takes, write."""

    def __init__(self, place: Place, name: str) -> None:
        import psycopg

        self.connection: Any = psycopg.connect(f"postgresql://postgres@{place.addresses[0]}/postgres")
        with self.connection.transaction():
            for statement in PREPARE:
                self.connection.execute(statement)
        self.tries = 0
        """Begun so far, those that came to nothing included."""
        self.ends = 0.0
        """The moment after which no try begins."""

    def try_acquire(self) -> bool:
        """There is nothing to take."""
        return False

    def total(self) -> int:
        with self.connection.transaction():
            return int(self.connection.execute(TOTAL).fetchone()[0])

    def add_one(self, row: int, section_seconds: float) -> bool:
        """False: the slice was over before it came about."""
        with rolled_back(self.connection):
            return self._change(row, section_seconds)()

    def _change(self, row: int, section_seconds: float) -> Callable[[], bool]:
        raise NotImplementedError

    def _begins(self) -> bool:
        if time.monotonic() >= self.ends:
            return False
        self.tries += 1
        return True

    def close(self) -> None:
        self.connection.close()


class Pessimistic(Counters):
    """Locks the row before it reads it."""

    def _change(self, row: int, section_seconds: float) -> Callable[[], bool]:
        def change() -> bool:
            if not self._begins():
                return False
            locked = sql.row_lock(self.connection, TABLE, {"id": row})
            if locked is None:
                raise RuntimeError(f"there is no row {row}")
            think(section_seconds)
            self.connection.execute(ADD, (locked["total"] + 1, row))
            self.connection.commit()
            return True

        return change


class Optimistic(Counters):
    """Reads without a lock, writes if the version is still the same, and otherwise does it all again."""

    def _change(self, row: int, section_seconds: float) -> Callable[[], bool]:
        @optimistic.optimistic(retries=TRIES)
        def change() -> bool:
            # Before the pause that follows a conflict: the transaction has the newest row locked.
            with rolled_back(self.connection):
                return attempt()

        def attempt() -> bool:
            if not self._begins():
                return False
            total, version = self.connection.execute(READ, (row,)).fetchone()
            think(section_seconds)
            changes = {"total": total + 1}
            if optimistic.compare_and_update(self.connection, TABLE, {"id": row}, version, changes) is None:
                raise RuntimeError(f"there is no row {row}")
            self.connection.commit()
            return True

        return change


@contextlib.contextmanager
def rolled_back(connection: Any) -> Iterator[None]:
    """What is not committed inside is undone at the end, and locks nothing any more."""
    try:
        yield
    finally:
        connection.rollback()


def think(seconds: float) -> None:
    if seconds:
        time.sleep(seconds)


GROUP = Group(
    "Counters in PostgreSQL",
    (
        Contestant("pessimistic", "pessimistic", "subject", Pessimistic, distribution="psycopg"),
        Contestant("optimistic", "optimistic", "subject", Optimistic, distribution="psycopg"),
    ),
    ("counters",),
    {"counters": "pessimistic"},
    {"counters": "One PostgreSQL on loopback, which does not wait for its disk."},
    serve,
    locks=False,
)
