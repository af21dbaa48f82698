"""Sell the last units of an inventory, never more than there are: by compare-and-swap, by lock, by queue.

    python examples/inventory.py                              SQLite files of its own
    python examples/inventory.py --url redis://localhost      the cell and the lock in Redis, or elsewhere
    python examples/inventory.py --database postgresql://…    the stock and the queue in PostgreSQL
    python examples/inventory.py --units 1000 --buyers 8

There are more orders than units, and several buyers order at the same time.

Compare-and-swap: the stock is a cell. A sale replaces exactly the number that it has read, or reads again.

Lock and guard: the stock is a row. A sale reads and writes it while it holds a lock, and the database refuses
the write of a holder that lost the lock without noticing.

Queue: the stock is a row. A buyer puts the order into a queue and goes; sellers decide the orders one at a
time, first come, first served, and an order is over in the transaction that sells.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import holdfast
import holdfast.queue
from holdfast import fencing

SELLERS = 2


class Shop(NamedTuple):
    """What all ways share."""

    locks: holdfast.Client
    connect: Callable[[], Any]
    """A new connection to the database of the stock."""
    database: str
    units: int
    orders: int
    buyers: int


class SoldOutError(Exception):
    pass


class Result(NamedTuple):
    sold: set[int]
    """The orders that got a unit."""
    left: int
    seconds: float


# --- compare-and-swap ---------------------------------------------------------------------------


def by_compare_and_swap(shop: Shop) -> Result:
    stock = shop.locks.cell("inventory/lamp")
    stock.update(lambda _: str(shop.units).encode())

    def one_less(value: bytes | None) -> bytes:
        left = int(value or b"0")
        if left < 1:
            raise SoldOutError
        return str(left - 1).encode()

    def sell(_: int) -> bool:
        try:
            stock.update(one_less)  # reads and writes; again, if another buyer was first
        except SoldOutError:
            return False
        return True

    sold, seconds = everybody_orders(shop, sell)
    return Result(sold, int(stock.get()[0] or b"0"), seconds)


# --- a lock and a guard -------------------------------------------------------------------------


def by_lock_and_guard(shop: Shop) -> Result:
    own = threading.local()
    name = f"inventory/{uuid.uuid4().hex}"  # a guard refuses tokens of another engine than it knows

    def sell(_: int) -> bool:
        if not hasattr(own, "db"):
            own.db = connections.enter_context(contextlib.closing(shop.connect()))
        with (
            shop.locks.lock(name, timeout=60) as lease,
            fencing.transaction(own.db, lease) as cursor,  # StaleToken if a newer holder came
        ):
            return take_one(cursor)

    with contextlib.ExitStack() as connections, stocked(shop) as left:
        sold, seconds = everybody_orders(shop, sell)
        return Result(sold, left(), seconds)


# --- a queue ------------------------------------------------------------------------------------


def by_queue(shop: Shop) -> Result:
    with holdfast.queue.connect(shop.database, namespace="inventory") as queue, stocked(shop) as left:
        queue.install()
        decided: dict[int, bool] = {}

        def order(number: int) -> bool:
            queue.put("sell", number, key="lamp", ordered=True)
            return True  # the buyer need not wait for the answer

        def decide() -> None:
            while len(decided) < shop.orders:
                for job in queue.claim("sell", lease=30):
                    with job.transaction() as db:  # the sale and the end of the order; StaleToken if too late
                        sold = take_one(db)
                    decided[job.payload] = sold
                if len(decided) < shop.orders:
                    queue.wait(0.05)

        sellers = [threading.Thread(target=decide) for _ in range(SELLERS)]
        started = time.monotonic()
        for seller in sellers:
            seller.start()
        everybody_orders(shop, order)
        for seller in sellers:
            seller.join()
        seconds = time.monotonic() - started
        queue.prune(older_than=0)
        return Result({number for number, sold in decided.items() if sold}, left(), seconds)


# --- what they share ----------------------------------------------------------------------------


def everybody_orders(shop: Shop, sell: Callable[[int], bool]) -> tuple[set[int], float]:
    """All orders, by several buyers at the same time: those that were served, and how long it took."""
    started = time.monotonic()
    with ThreadPoolExecutor(shop.buyers) as buyers:
        served = list(buyers.map(sell, range(shop.orders)))
    return {number for number, was_sold in enumerate(served) if was_sold}, time.monotonic() - started


def take_one(cursor: Any) -> bool:
    """Read, decide and write: right only if nobody else does so meanwhile."""
    row = cursor.execute("SELECT quantity FROM inventory_stock WHERE item = 'lamp'").fetchone()
    if row[0] < 1:
        return False
    cursor.execute("UPDATE inventory_stock SET quantity = quantity - 1 WHERE item = 'lamp'")
    return True


@contextlib.contextmanager
def stocked(shop: Shop) -> Iterator[Callable[[], int]]:
    """The row with all units. Gives a function that says how many are left."""
    with contextlib.closing(shop.connect()) as db:
        db.execute("DROP TABLE IF EXISTS inventory_stock")
        db.execute("CREATE TABLE inventory_stock (item VARCHAR(20) PRIMARY KEY, quantity INTEGER)")
        db.execute(f"INSERT INTO inventory_stock VALUES ('lamp', {shop.units:d})")  # noqa: S608 - a number
        fencing.install(db)
        db.commit()

        def left() -> int:
            quantity: int = db.execute("SELECT quantity FROM inventory_stock").fetchone()[0]
            db.rollback()
            return quantity

        yield left
        db.execute("DROP TABLE inventory_stock")
        db.commit()


WAYS: dict[str, Callable[[Shop], Result]] = {
    "compare-and-swap": by_compare_and_swap,
    "lock + guard": by_lock_and_guard,
    "queue": by_queue,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", help="where the cell and the lock are; a SQLite file if not given")
    parser.add_argument("--database", help="postgresql://…; a SQLite file if not given")
    parser.add_argument("--units", type=int, default=100)
    parser.add_argument("--buyers", type=int, default=4)
    arguments = parser.parse_args()
    right = True
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as folder:
        database = arguments.database or f"sqlite:///{folder}/shop.db"
        units, orders = arguments.units, arguments.units + arguments.units // 4 + 1
        print(f"{units} units, {orders} orders, {arguments.buyers} buyers")
        print(f"{'':17}{'sold':>6}{'left':>6}{'orders/s':>10}")
        with holdfast.connect(arguments.url or f"sqlite:///{folder}/locks.db") as locks:
            shop = Shop(locks, opener(database), database, units, orders, arguments.buyers)
            for name, way in WAYS.items():
                result = way(shop)
                is_right = len(result.sold) == units and result.left == 0
                print(
                    f"{name:17}{len(result.sold):>6}{result.left:>6}{orders / result.seconds:>10.0f}  "
                    f"{'right' if is_right else 'WRONG'}"
                )
                right = right and is_right
    return 0 if right else 1


def opener(database: str) -> Callable[[], Any]:
    if database.startswith("sqlite:///"):
        # Connections are closed by the main thread.
        return lambda: sqlite3.connect(
            database.removeprefix("sqlite:///"), timeout=60, check_same_thread=False
        )
    import psycopg

    return lambda: psycopg.connect(database)


if __name__ == "__main__":
    sys.exit(main())
