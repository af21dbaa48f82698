"""One lamp is in stock and ten buyers want it: four ways to sell it exactly once.

    python examples/last_unit.py                              a SQLite file of its own
    python examples/last_unit.py --database postgresql://…    PostgreSQL (makes and drops a table)

Each buyer is a thread with a connection of its own. All four ways read, decide and write; they differ
in which buyers wait.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import holdfast
from holdfast import fencing, optimistic, sql

BUYERS = 10
TABLE = "last_unit_stock"
LAMP = {"item": "lamp"}

Buy = Callable[[Any, holdfast.Client], bool]


def with_a_row_lock(db: Any, _: holdfast.Client) -> bool:
    """The database makes the others wait until this transaction ends."""

    def buy(db: Any) -> bool:
        row = sql.row_lock(db, TABLE, LAMP)
        if row is None or row["quantity"] < 1:
            return False
        db.execute("UPDATE last_unit_stock SET quantity = quantity - 1 WHERE item = 'lamp'")
        return True

    return sql.retry_transaction(buy, db)


def with_compare_and_swap(db: Any, _: holdfast.Client) -> bool:
    """One statement decides and writes: nothing to lock, nothing to try again."""
    sold = optimistic.decrement_if_available(db, TABLE, LAMP, "quantity")
    db.commit()
    return sold


@optimistic.optimistic(retries=50)
def optimistically(db: Any, _: holdfast.Client) -> bool:
    """Read, think for as long as it takes, and write only if the row is still the same."""
    try:
        quantity, version = db.execute(
            "SELECT quantity, version FROM last_unit_stock WHERE item = 'lamp'"
        ).fetchone()
        db.rollback()  # Nothing is locked while this one thinks.
        if quantity < 1:
            return False
        optimistic.compare_and_update(db, TABLE, LAMP, version, {"quantity": quantity - 1})
        db.commit()
        return True
    finally:
        db.rollback()  # Before the pause after a conflict.


def with_a_lock_and_a_guard(db: Any, locks: holdfast.Client) -> bool:
    """A lock beside the database, for work outside it, too. The guard refuses a holder who lost the lock."""
    with locks.lock("lamp", timeout=60) as lease, fencing.transaction(db, lease, "lamp") as cursor:
        cursor.execute("SELECT quantity FROM last_unit_stock WHERE item = 'lamp'")
        if cursor.fetchone()[0] < 1:
            return False
        cursor.execute("UPDATE last_unit_stock SET quantity = quantity - 1 WHERE item = 'lamp'")
        return True


WAYS: dict[str, Buy] = {
    "row lock": with_a_row_lock,
    "compare-and-swap": with_compare_and_swap,
    "optimistic": optimistically,
    "lock + guard": with_a_lock_and_a_guard,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--database", help="postgresql://…; a SQLite file if not given")
    database = parser.parse_args().database
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as folder:
        opened = opener(database or f"{folder}/shop.db")
        with holdfast.connect(f"sqlite:///{folder}/locks.db") as locks:
            right = [sell(name, buy, opened, locks) for name, buy in WAYS.items()]
        with contextlib.closing(opened()) as db:
            db.execute("DROP TABLE last_unit_stock")
            db.commit()
    return 0 if all(right) else 1


def opener(database: str) -> Callable[[], Any]:
    if not database.startswith("postgresql://"):
        return lambda: sqlite3.connect(database, timeout=60)
    import psycopg

    return lambda: psycopg.connect(database)


def sell(name: str, buy: Buy, opened: Callable[[], Any], locks: holdfast.Client) -> bool:
    """One lamp, ten buyers at the same time; whether exactly one got it."""
    with contextlib.closing(opened()) as db:
        db.execute("DROP TABLE IF EXISTS last_unit_stock")
        db.execute(
            "CREATE TABLE last_unit_stock (item VARCHAR(20) PRIMARY KEY, quantity INTEGER, version INTEGER)"
        )
        db.execute("INSERT INTO last_unit_stock VALUES ('lamp', 1, 1)")
        fencing.install(db)
        db.commit()

        def one_buyer(_: int) -> bool:
            with contextlib.closing(opened()) as own:
                return buy(own, locks)

        started = time.monotonic()
        with ThreadPoolExecutor(BUYERS) as buyers:
            sold = sum(buyers.map(one_buyer, range(BUYERS)))
        elapsed = time.monotonic() - started
        left = db.execute("SELECT quantity FROM last_unit_stock").fetchone()[0]
        db.rollback()
    right = sold == 1 and left == 0
    print(f"{name:17} sold {sold}, left {left}: {'right' if right else 'WRONG'}  ({elapsed * 1000:.0f} ms)")
    return right


if __name__ == "__main__":
    sys.exit(main())
