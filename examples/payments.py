"""Charge each order once, though processes stand still and die: three ways, of which one is right.

    python examples/payments.py                                    keys and orders in SQLite
    python examples/payments.py --url redis://localhost:6379       keys in Redis, or any other engine

A lock alone: the first process finds the order unpaid, and stands still (SIGSTOP) before it charges. Its
lease runs out, the second process charges. Then the first goes on, and charges again.

Marked before: the order is marked as paid before it is charged, and the process is killed between the two.
The next process finds the mark, and the order is never charged.

Idempotent: the process runs under the order's key, and passes that key on to the gateway, which charges once
for each key. It stands still and is killed at the worst moments, and there is one charge.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import holdfast
from holdfast import LockLost

AMOUNT = 10
LOST = 3
"""Exit status of a process that was taken over."""


# --- what is charged ----------------------------------------------------------------------------


@contextlib.contextmanager
def open_shop(path: str) -> Iterator[sqlite3.Connection]:
    """The orders, and the payment gateway, which has one table here and a web service in life."""
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db:
        yield db


def set_up(path: str) -> None:
    with open_shop(path) as db:
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, is_paid INTEGER NOT NULL)")
        db.execute("CREATE TABLE charges (order_id TEXT, amount INTEGER, idempotency_key TEXT UNIQUE)")


def is_paid(db: sqlite3.Connection, order: str) -> bool:
    return bool(db.execute("SELECT 1 FROM orders WHERE id = ?", (order,)).fetchone())


def mark_paid(db: sqlite3.Connection, order: str) -> None:
    db.execute("INSERT OR IGNORE INTO orders VALUES (?, 1)", (order,))


def charge(db: sqlite3.Connection, order: str, key: str | None = None) -> None:
    """A gateway that is given a key charges once for it. Without a key (NULL), each call is a charge."""
    db.execute("INSERT OR IGNORE INTO charges VALUES (?, ?, ?)", (order, AMOUNT, key))


# --- one process --------------------------------------------------------------------------------


def pay(options: argparse.Namespace) -> int:
    with holdfast.connect(options.url, namespace="payments") as locks, open_shop(options.shop) as db:
        return {"lock": with_a_lock, "mark": marked_before, "idempotent": idempotent}[options.way](
            locks, db, options
        )


def with_a_lock(locks: holdfast.Client, db: sqlite3.Connection, options: argparse.Namespace) -> int:
    try:
        with locks.lock(options.order, ttl=options.ttl):
            if not is_paid(db, options.order):
                accident(options, "before")
                charge(db, options.order)
                mark_paid(db, options.order)
    except LockLost:
        return LOST  # it learns of the loss when the second charge is made
    return 0


def marked_before(locks: holdfast.Client, db: sqlite3.Connection, options: argparse.Namespace) -> int:
    with locks.lock(options.order, ttl=options.ttl):
        if not is_paid(db, options.order):
            mark_paid(db, options.order)
            accident(options, "before")
            charge(db, options.order)
    return 0


def idempotent(locks: holdfast.Client, db: sqlite3.Connection, options: argparse.Namespace) -> int:
    key = ("charge", options.order)
    try:
        with locks.idempotent(key, fingerprint={"amount": AMOUNT}, ttl=options.ttl) as attempt:
            if not attempt.done:
                accident(options, "before")
                charge(db, options.order, key=f"charge/{options.order}")
                accident(options, "after")
                attempt.set_result({"charged": AMOUNT})
    except LockLost:
        return LOST  # another process has charged, and stored the result
    return 0


def accident(options: argparse.Namespace, moment: str) -> None:
    if options.accident == f"stop {moment}":
        os.kill(os.getpid(), signal.SIGSTOP)
    if options.accident == f"kill {moment}":
        os.kill(os.getpid(), signal.SIGKILL)


# --- the show -----------------------------------------------------------------------------------


def main() -> int:
    options = parse_arguments()
    if options.way:
        return pay(options)
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as folder:
        options.url = options.url or f"sqlite:///{folder}/locks.db"
        options.shop = f"{folder}/shop.db"
        set_up(options.shop)
        shown = [
            play(options, "lock", "stop before", charges=2),
            play(options, "mark", "kill before", charges=0),
            play(options, "idempotent", "stop before", charges=1),
            play(options, "idempotent", "stop after", charges=1),
            play(options, "idempotent", "kill before", charges=1),
            play(options, "idempotent", "kill after", charges=1),
        ]
    return 0 if all(shown) else 1


def play(options: argparse.Namespace, way: str, accident: str, charges: int) -> bool:
    """One process has the accident, another comes after it. Whether there were so many charges."""
    order = f"{way}, {accident}"
    first = start(options, way, order, accident)
    wait_until_it_stands_still_or_dies(first)
    if start(options, way, order, "").wait() != 0:
        raise SystemExit("the second process failed")
    if accident.startswith("stop"):
        first.send_signal(signal.SIGCONT)
        if first.wait() != LOST:
            raise SystemExit("the first process was not told that it was taken over")
    with open_shop(options.shop) as db:
        found = db.execute("SELECT count(*) FROM charges WHERE order_id = ?", (order,)).fetchone()[0]
    verdict = "right" if found == 1 else "WRONG"
    print(f"{way:<12} {accident + ' the charge':<24} charged {found} times: {verdict}", flush=True)
    return bool(found == charges)


def start(options: argparse.Namespace, way: str, order: str, accident: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            __file__,
            *("--url", options.url, "--ttl", str(options.ttl), "--shop", options.shop),
            *("--way", way, "--order", order, "--accident", accident),
        ]
    )


def wait_until_it_stands_still_or_dies(process: subprocess.Popen[bytes]) -> None:
    """Of a process that is dead it leaves the status to ``wait``."""
    found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    if found is None or found.si_status not in (signal.SIGSTOP, signal.SIGKILL):
        raise SystemExit("the first process ended without its accident")
    if found.si_status == signal.SIGKILL:
        process.wait()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="where the keys are: any engine but memory:// and redlock://")
    parser.add_argument("--ttl", type=float, default=1.0, help="how long a lease lasts, in seconds")
    # One of the processes, as the show starts it:
    for name in ("--way", "--order", "--accident", "--shop"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
