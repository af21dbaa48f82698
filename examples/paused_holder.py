"""What no lock can prevent, and a guard can: a holder stands still past its lease, and then writes.

Two real processes pay into one account of 100: the first pays in 10, the second 50. The first takes the
lock, reads 100, and stands still (SIGSTOP, as a laptop that is closed or a machine that swaps). Its lease
runs out, the second takes the lock, reads 100 and writes 150. Then the first goes on, and writes 110.

    python examples/paused_holder.py                                    locks and data in SQLite
    python examples/paused_holder.py --url redis://localhost:6379       locks in Redis, or any other engine
    python examples/paused_holder.py --store redis://localhost:6379     data in Redis

The first time there is no guard, and the second payment is lost. The second time the data refuses the stale
write: the first process begins again, and both payments are there.
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
from pathlib import Path
from typing import Any, Protocol

import holdfast
from holdfast import Fence, StaleToken, fencing

RESOURCE = "account"
BALANCE, FIRST, SECOND = 100, 10, 50
REFUSED = 3
"""Exit status of a process whose write was refused."""


def main() -> int:
    options = parse_arguments()
    if options.deposit is not None:
        return deposit(options)
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as folder:
        options.url = options.url or f"sqlite:///{folder}/locks.db"
        options.store = options.store or f"sqlite:///{folder}/data.db"
        scenes = {"unguarded": False, "guarded": True}
        wanted = [options.scene] if options.scene else list(scenes)
        shown = [play(options, name, scenes[name]) for name in wanted]
        return 0 if all(shown) else 1


# --- one of the two processes -------------------------------------------------------------------


def deposit(options: argparse.Namespace) -> int:
    """Read, compute, write, under the lock. ``stand_still``: in the middle of it."""
    with (
        holdfast.connect(options.url, namespace=options.namespace, io_timeout=2.0) as locks,
        open_account(options.store, options.scene) as account,
    ):
        # ZooKeeper's session carries all that a client holds, so there the URL says how long it lasts.
        ttl = {} if options.url.startswith("zookeeper") else {"ttl": options.ttl}
        lock = locks.lock(f"{RESOURCE}-{options.scene}", timeout=60, **ttl)
        lease = lock.acquire()
        if lease is None:
            raise SystemExit("the lock was not granted")
        # The fence, not the lease. A lease knows by the clock that it is lost, and a guard may refuse it
        # before it asks the store; but a process can also stop right after that. This is that case.
        fence = lease.fence
        guarded = options.scene == "guarded"
        if guarded:
            account.advance(fence)  # from here on older holders are out: before the first read
        balance = account.read()
        say(options, f"has the lock, token {lease.token}; reads {balance}")
        if options.stand_still:
            say(options, "stands still")
            os.kill(os.getpid(), signal.SIGSTOP)
            say(options, f"goes on; its lease says: {lease.remaining:.1f} s left")
        status = 0
        try:
            account.write(balance + options.deposit, fence if guarded else None)
            say(options, f"writes {balance + options.deposit}")
        except StaleToken as refusal:
            say(options, f"is refused, StaleToken: {refusal}")
            status = REFUSED
        with contextlib.suppress(holdfast.HoldfastError):  # it may be lost by now, or its server
            lock.release()
    return status


def say(options: argparse.Namespace, what: str) -> None:
    print(f"  {options.who:6} {what}", flush=True)


# --- the data -----------------------------------------------------------------------------------


class Account(Protocol):
    def read(self) -> int: ...
    def write(self, balance: int, fence: Fence | None) -> None: ...
    def advance(self, fence: Fence) -> None: ...


class SqliteAccount:
    """One row; the guard is in the same transaction as the write."""

    def __init__(self, db: sqlite3.Connection, resource: str) -> None:
        self._db = db
        self._resource = resource

    def set_up(self) -> None:
        with self._db:
            self._db.execute("CREATE TABLE account (balance INTEGER)")
            self._db.execute("INSERT INTO account VALUES (?)", (BALANCE,))
            fencing.install(self._db)

    def read(self) -> int:
        return int(self._db.execute("SELECT balance FROM account").fetchone()[0])

    def write(self, balance: int, fence: Fence | None) -> None:
        with self._db:
            if fence is not None:
                fencing.enforce(self._db, self._resource, fence)
            self._db.execute("UPDATE account SET balance = ?", (balance,))

    def advance(self, fence: Fence) -> None:
        with self._db:
            fencing.advance(self._db, self._resource, fence)


class RedisAccount:
    """One key; check and write are one script."""

    def __init__(self, client: Any, resource: str) -> None:
        self._client = client
        self._key = f"balance:{{{resource}}}"
        self._guard = fencing.FencedRedis(client, resource)

    def set_up(self) -> None:
        self._client.delete(self._guard.key)
        self._client.set(self._key, BALANCE)

    def read(self) -> int:
        return int(self._client.get(self._key))

    def write(self, balance: int, fence: Fence | None) -> None:
        if fence is None:
            self._client.set(self._key, balance)
        else:
            self._guard.set(self._key, balance, fence)

    def advance(self, fence: Fence) -> None:
        self._guard.advance(fence)


@contextlib.contextmanager
def open_account(store: str, scene: str) -> Any:
    resource = f"{RESOURCE}-{scene}"
    if store.startswith("sqlite:///"):
        path = Path(store.removeprefix("sqlite:///"))
        with contextlib.closing(sqlite3.connect(path.with_suffix(f".{scene}.db"), timeout=30)) as db:
            yield SqliteAccount(db, resource)
    else:
        import redis

        with redis.Redis.from_url(store) as client:
            yield RedisAccount(client, resource)


# --- the show -----------------------------------------------------------------------------------


def play(options: argparse.Namespace, scene: str, guarded: bool) -> bool:
    print(f"An account of {BALANCE}, {'with' if guarded else 'without'} a guard\n", flush=True)
    with open_account(options.store, scene) as account:
        account.set_up()
    first = start(options, scene, "first", FIRST, "--stand-still")
    wait_until_it_stands_still(first)
    if start(options, scene, "second", SECOND).wait() != 0:
        raise SystemExit("the second process failed")
    first.send_signal(signal.SIGCONT)
    status = first.wait()
    if status == REFUSED:
        status = start(options, scene, "first", FIRST).wait()
    with open_account(options.store, scene) as account:
        balance = account.read()
    right, lost = BALANCE + FIRST + SECOND, BALANCE + FIRST
    print(f"\n  balance {balance}: {'right' if balance == right else f'WRONG, {right - balance} are lost'}\n")
    return status == 0 and balance == (right if guarded else lost)


def start(
    options: argparse.Namespace, scene: str, who: str, amount: int, *more: str
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            __file__,
            *("--url", options.url, "--namespace", options.namespace, "--store", options.store),
            *("--ttl", str(options.ttl), "--scene", scene, "--who", who, "--deposit", str(amount)),
            *more,
        ]
    )


def wait_until_it_stands_still(process: subprocess.Popen[bytes]) -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        raise SystemExit("the first process ended before it stood still")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="where the locks are: any engine but memory://")
    parser.add_argument("--store", help="where the data is: sqlite:///file or redis://…")
    parser.add_argument("--ttl", type=float, default=2.0, help="how long a lease lasts, in seconds")
    parser.add_argument("--namespace", default="paused-holder")
    parser.add_argument("--scene", choices=["unguarded", "guarded"], help="only this one")
    # One of the two processes, as the show starts it:
    parser.add_argument("--who", default="", help=argparse.SUPPRESS)
    parser.add_argument("--deposit", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--stand-still", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
