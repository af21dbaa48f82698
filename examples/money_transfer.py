"""Money between accounts, many transfers at once in both directions: row locks in one order, no coin lost.

    python examples/money_transfer.py                              a SQLite file of its own
    python examples/money_transfer.py --database postgresql://…    PostgreSQL (makes and drops a table)

Two transfers that lock the same two rows in opposite orders wait for each other for ever. Here every transfer
locks the smaller number first. If a deadlock has another cause,
``retry_transaction`` runs the transfer again.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast import optimistic, sql

TABLE = "money_transfer_accounts"
ACCOUNTS = 4
TOTAL = 400
WORKERS = 6
TRANSFERS = 20


class NotCovered(Exception):
    """The account has less than that."""


def transfer(db: Any, source: int, target: int, amount: int) -> None:
    """All of it or nothing, in one transaction."""

    def move(db: Any) -> None:
        # In one order everywhere, whichever way the money goes.
        rows = {number: sql.row_lock(db, TABLE, {"id": number}) for number in sorted({source, target})}
        row = rows[source]
        if row is None or rows[target] is None:
            raise LookupError(f"there is no account {source} or {target}")
        if row["balance"] < amount:
            raise NotCovered(f"account {source} has {row['balance']}, not {amount}")
        for number, change in ((source, -amount), (target, amount)):
            optimistic.update_where(
                db, TABLE, {"id": number}, {"balance": optimistic.Increment(change)}, where={}
            )

    sql.retry_transaction(move, db)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--database", help="postgresql://…; a SQLite file if not given")
    database = parser.parse_args().database
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as folder:
        opened = opener(database or f"{folder}/bank.db")
        with contextlib.closing(opened()) as db:
            db.execute(
                "CREATE TABLE money_transfer_accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)"
            )
            db.execute("INSERT INTO money_transfer_accounts VALUES (1, 100), (2, 100), (3, 100), (4, 100)")
            db.commit()
            try:
                return show(opened, db)
            finally:
                db.rollback()
                db.execute("DROP TABLE money_transfer_accounts")
                db.commit()


def opener(database: str) -> Callable[[], Any]:
    if not database.startswith("postgresql://"):
        return lambda: sqlite3.connect(database, timeout=60)
    import psycopg

    return lambda: psycopg.connect(database)


def show(opened: Callable[[], Any], db: Any) -> int:
    def worker(seed: int) -> tuple[int, int]:
        chance, moved, refused = random.Random(seed), 0, 0
        with contextlib.closing(opened()) as own:
            for _ in range(TRANSFERS):
                source, target = chance.sample(range(1, ACCOUNTS + 1), 2)
                try:
                    transfer(own, source, target, chance.randint(1, 60))
                    moved += 1
                except NotCovered:
                    refused += 1
        return moved, refused

    with ThreadPoolExecutor(WORKERS) as workers:
        results = list(workers.map(worker, range(WORKERS)))
    balances = [
        row[0] for row in db.execute("SELECT balance FROM money_transfer_accounts ORDER BY id").fetchall()
    ]
    print(f"{sum(moved for moved, _ in results)} transfers, {sum(no for _, no in results)} not covered")
    right = sum(balances) == TOTAL and min(balances) >= 0
    print(f"balances {balances}, together {sum(balances)}: {'right' if right else 'WRONG'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
