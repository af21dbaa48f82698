"""The data of the workers, in a temporary folder: the log of a job, a shop with little stock, a ledger.

The shop has a race on purpose (read, think, write): it is correct only for one buyer at a time, which a lock
ensures. The ledger exists twice, in a table with a guard and in one without.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast import Lease, fencing

__all__ = ["JobLog", "Ledger", "Shop", "locks_url"]

BUSY_SECONDS = 20.0
PAYMENT_SECONDS = 0.05
OPENING_BALANCE = 100
LEDGER = "ledger"


def locks_url(folder: Path) -> str:
    """The locks of the demo."""
    return f"sqlite:///{folder}/locks.db"


class JobLog:
    """One line for each run of the job."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "job.log"

    def append(self, window: str) -> None:
        with self._path.open("a") as log:
            log.write(f"{window} {os.getpid()}\n")

    def windows(self) -> list[str]:
        """The window of each run, in order."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [line.split()[0] for line in lines]


class Database:
    """A SQLite file. Every change is a transaction."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS)
        try:
            with connection:
                yield connection
        finally:
            connection.close()


class Shop(Database):
    """A stock of one article, and the orders it has taken."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "shop.db")

    def open(self, units: int) -> None:
        """Start again with this many units."""
        with self._open() as db:
            db.execute("CREATE TABLE IF NOT EXISTS stock (units INTEGER)")
            db.execute("CREATE TABLE IF NOT EXISTS orders (buyer INTEGER)")
            db.execute("DELETE FROM stock")
            db.execute("DELETE FROM orders")
            db.execute("INSERT INTO stock VALUES (?)", (units,))

    def buy(self, buyer: int) -> bool:
        """Check the stock, pay, take one unit. False: sold out."""
        units = self.units()
        if units < 1:
            return False
        time.sleep(PAYMENT_SECONDS)
        with self._open() as db:
            db.execute("UPDATE stock SET units = ?", (units - 1,))
            db.execute("INSERT INTO orders VALUES (?)", (buyer,))
        return True

    def units(self) -> int:
        with self._open() as db:
            return int(db.execute("SELECT units FROM stock").fetchone()[0])

    def orders(self) -> int:
        with self._open() as db:
            return int(db.execute("SELECT count(*) FROM orders").fetchone()[0])


class Ledger(Database):
    """A balance, kept with a guard and without one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "ledger.db")

    def open(self) -> None:
        with self._open() as db:
            fencing.install(db)
            db.execute("CREATE TABLE guarded (balance INTEGER)")
            db.execute("CREATE TABLE unguarded (balance INTEGER)")
            db.execute("INSERT INTO guarded VALUES (?)", (OPENING_BALANCE,))
            db.execute("INSERT INTO unguarded VALUES (?)", (OPENING_BALANCE,))

    def read(self, lease: Lease) -> int:
        """The balance, read after the guard has fenced every earlier holder."""
        with self._open() as db:
            fencing.advance(db, LEDGER, lease)
            return self._balance(db, "SELECT balance FROM guarded")

    def write(self, lease: Lease, balance: int) -> None:
        """Raises StaleToken, and writes nothing, if a newer holder has been here.

        The lease itself would be refused as lost before the guard is asked; its fence shows the guard at
        work.
        """
        with self._open() as db:
            fencing.enforce(db, LEDGER, lease.fence)
            db.execute("UPDATE guarded SET balance = ?", (balance,))

    def write_unguarded(self, balance: int) -> None:
        """Write without a guard, as in a database that knows no tokens."""
        with self._open() as db:
            db.execute("UPDATE unguarded SET balance = ?", (balance,))

    def balances(self) -> tuple[int, int]:
        """With the guard, and without."""
        with self._open() as db:
            return (
                self._balance(db, "SELECT balance FROM guarded"),
                self._balance(db, "SELECT balance FROM unguarded"),
            )

    @staticmethod
    def _balance(db: sqlite3.Connection, query: str) -> int:
        return int(db.execute(query).fetchone()[0])
