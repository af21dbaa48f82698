"""The embedded engine, and its raw limit: two bare SQLite transactions."""

from __future__ import annotations

import sqlite3
import time
from functools import partial

from ..contestant import Contestant, Handle, Place
from . import files
from .group import Group
from .subject import open_asyncio, open_threads

__all__ = ["GROUP"]

URL = "sqlite:///{folder}/locks.db"

BUSY_SECONDS = 60.0


class BareTransactions(Handle):
    """A row inserted, a row deleted, each in a transaction of its own (WAL, synchronous NORMAL).

    What a lock in SQLite costs at the very least. It is no lock: nobody waits, no lease, no token, no queue.
    """

    TABLE = "CREATE TABLE IF NOT EXISTS locks (name TEXT PRIMARY KEY, owner TEXT)"

    def __init__(self, place: Place, name: str) -> None:
        self._name = name
        self._database = sqlite3.connect(place.folder / "bare.db", isolation_level=None, timeout=BUSY_SECONDS)
        self._write_ahead()
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.execute(self.TABLE)
        execute = self._database.execute
        self.acquire = partial(execute, "INSERT INTO locks VALUES (?, ?)", (name, "me"))
        self.release = partial(execute, "DELETE FROM locks WHERE name = ?", (name,))

    def _write_ahead(self) -> None:
        """Those who do this at the same time get in each other's way, and SQLite does not wait here."""
        ends_at = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError:
                if time.monotonic() >= ends_at:
                    raise
                time.sleep(0.01)
            else:
                return

    def try_acquire(self) -> bool:
        try:
            self.acquire()
        except sqlite3.IntegrityError:
            return False
        return True

    def hold_many(self, count: int, ttl_seconds: float) -> None:
        rows = ((f"held-{number}", "me") for number in range(count))
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO locks VALUES (?, ?)", rows)
        self._database.execute("COMMIT")

    def held(self) -> int:
        number: int = self._database.execute(
            "SELECT count(*) FROM locks WHERE name LIKE 'held-%'"
        ).fetchone()[0]
        return number

    def close(self) -> None:
        self._database.close()


class LeanTransactions(BareTransactions):
    """The same with nothing but the one tree that holds the row: the least that SQLite can write."""

    TABLE = BareTransactions.TABLE + " WITHOUT ROWID"


CONTESTANTS = (
    Contestant(
        "holdfast-sqlite",
        "Holdfast, embedded engine",
        "subject",
        partial(open_threads, URL),
        frozenset({"processes", "many", "renews"}),
        "holdfast",
    ),
    Contestant(
        "holdfast-sqlite-asyncio",
        "Holdfast, embedded engine, asyncio",
        "subject",
        partial(open_asyncio, URL),
        frozenset({"transactions"}),
        "holdfast",
    ),
    Contestant(
        "sqlite-bare",
        "two bare SQLite transactions",
        "raw",
        BareTransactions,
        frozenset({"transactions", "many"}),
    ),
    Contestant(
        "sqlite-lean",
        "the same, in a table without rowid",
        "raw",
        LeanTransactions,
        frozenset({"transactions"}),
    ),
)

GROUP = Group(
    "Embedded engine (SQLite)",
    (*CONTESTANTS, *files.CONTESTANTS),
    ("pairs", "handoff", "waiting", "contention", "neighbour", "held", "waiters", "renewal"),
    {"pairs": "sqlite-bare", "handoff": "flock", "waiting": "filelock", "contention": "filelock"},
    {
        "pairs": "Two bare SQLite transactions are a row inserted and a row deleted (WAL, synchronous "
        "NORMAL) in an ordinary table, as one would write it; a table without rowid, which costs about two "
        "thirds, stands beside it. Which of the two is the base decides whether the figure of 0.35 is "
        "reached.",
        "neighbour": "Files of the peers have nothing in common; bare SQLite transactions share one writer "
        "lock, as Holdfast's do.",
    },
)
