"""The embedded engine, and its raw limit: two bare SQLite transactions."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Callable
from functools import partial

from ..contestant import Contestant, Handle, Place
from . import files
from .group import Group
from .subject import open_asyncio, open_threads

__all__ = ["GROUP"]

URL = "sqlite:///{folder}/locks.db"

BUSY_SECONDS = 60.0


def open_database(place: Place) -> sqlite3.Connection:
    database = sqlite3.connect(place.folder / "bare.db", isolation_level=None, timeout=BUSY_SECONDS)
    write_ahead(database)
    database.execute("PRAGMA synchronous=NORMAL")
    return database


def write_ahead(database: sqlite3.Connection) -> None:
    """Those who do this at the same time get in each other's way, and SQLite does not wait here."""
    ends_at = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if time.monotonic() >= ends_at:
                raise
            time.sleep(0.01)
        else:
            return


class BareTransactions(Handle):
    """A row inserted, a row deleted, each in a transaction of its own (WAL, synchronous NORMAL).

    What a lock in SQLite costs at the very least. It is no lock: nobody waits, no lease, no token, no queue.
    """

    TABLE = "CREATE TABLE IF NOT EXISTS locks (name TEXT PRIMARY KEY, owner TEXT)"

    def __init__(self, place: Place, name: str) -> None:
        self._database = open_database(place)
        self._database.execute(self.TABLE)
        execute = self._database.execute
        self.acquire = partial(execute, "INSERT INTO locks VALUES (?, ?)", (name, "me"))
        self.release = partial(execute, "DELETE FROM locks WHERE name = ?", (name,))

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


class BareQueue(Handle):
    """Numbers in one row: a token, who has it, who waits. They are changed if nobody was quicker, and who is
    next is told by a datagram.

    What handing over a lock that is kept in SQLite costs at the very least. Nobody who waits may die, give up
    or be late, and nothing expires.
    """

    TABLE = "CREATE TABLE IF NOT EXISTS queues (name TEXT PRIMARY KEY, version INTEGER, numbers TEXT)"

    def __init__(self, place: Place, name: str) -> None:
        self._row = f"{name}-queue"
        self._folder = os.open(place.folder, os.O_RDONLY)
        self._database = open_database(place)
        self._database.execute(self.TABLE)
        self._database.execute("INSERT OR IGNORE INTO queues VALUES (?, 0, '0')", (self._row,))
        self._me = str(os.getpid())
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(self._path(self._me))
        self._ways: dict[str, socket.socket] = {}

    def _path(self, who: str) -> str:
        """However long the path of the folder is: that of a socket must be short."""
        return f"/proc/self/fd/{self._folder}/{who}.sock"

    def _change(self, decide: Callable[[list[str]], list[str] | None]) -> list[str] | None:
        """From the numbers as they were to those that are to be; None: nothing is."""
        execute = self._database.execute
        while True:
            version, text = execute(
                "SELECT version, numbers FROM queues WHERE name = ?", (self._row,)
            ).fetchone()
            before = text.split()
            after = decide(before)
            if after is None:
                return None
            written = execute(
                "UPDATE queues SET version = ?, numbers = ? WHERE name = ? AND version = ?",
                (version + 1, " ".join(after), self._row, version),
            )
            if written.rowcount:
                return after

    def acquire(self) -> None:
        numbers = self._change(lambda them: [str(int(them[0]) + (len(them) == 1)), *them[1:], self._me])
        if numbers is not None and len(numbers) > 2:
            self._inbox.recv(100)

    def release(self) -> None:
        numbers = self._change(lambda them: [str(int(them[0]) + (len(them) > 2)), *them[2:]])
        if numbers is not None and len(numbers) > 1:
            self._way_to(numbers[1]).send(numbers[0].encode())

    def try_acquire(self) -> bool:
        return self._change(lambda them: [*them, self._me] if len(them) == 1 else None) is not None

    def _way_to(self, who: str) -> socket.socket:
        way = self._ways.get(who)
        if way is None:
            way = self._ways[who] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            way.connect(self._path(who))
        return way

    def close(self) -> None:
        self._database.close()
        for each in (self._inbox, *self._ways.values()):
            each.close()
        os.close(self._folder)


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
    Contestant(
        "sqlite-queue",
        "a bare queue in SQLite",
        "raw",
        BareQueue,
        frozenset({"processes"}),
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
        "thirds, stands beside it. The ratios refer to the first, and so does the figure to reach.",
        "contention": "A bare queue in SQLite keeps numbers in one row and tells who is next by a datagram: "
        "the least that a lock kept in SQLite costs whoever waits for it.",
        "neighbour": "Files of the peers have nothing in common; bare SQLite transactions share one writer "
        "lock, as Holdfast's do.",
    },
)
