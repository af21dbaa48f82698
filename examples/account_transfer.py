"""Transfers between accounts by many processes: each needs two locks, and none waits for ever.

Two processes that lock the two accounts one by one, in the order of the transfer, can wait for each other:
one pays from A to B, the other from B to A. ``locks.all(…)`` acquires both or none, in an order that every
process shares.

    python examples/account_transfer.py                                four processes, fifteen transfers each
    python examples/account_transfer.py --url redis://localhost:6379   locks in Redis, or any other engine
    python examples/account_transfer.py --one-by-one                   deadlocks, which a time limit ends
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import holdfast
from holdfast import LockTimeout

BALANCE = 100
GIVE_UP_SECONDS = 1.0


def main() -> int:
    options = parse_arguments()
    if options.worker is not None:
        return work(options)
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as folder:
        options.url = options.url or f"sqlite:///{folder}/locks.db"
        options.folder = Path(folder)
        return show(options)


# --- one of the processes -----------------------------------------------------------------------


def work(options: argparse.Namespace) -> int:
    """Transfer random amounts between random accounts. Returns how often it gave up waiting, at most 100."""
    chance = random.Random(options.worker)
    gave_up = 0
    with holdfast.connect(options.url, namespace=options.namespace) as locks:
        for _ in range(options.transfers):
            source, target = chance.sample(range(options.accounts), 2)
            amount = chance.randrange(1, 20)
            if options.one_by_one:
                gave_up += not transfer_one_by_one(locks, options.folder, source, target, amount)
            else:
                with locks.all(lock_of(source), lock_of(target)) as leases:
                    transfer(options.folder, source, target, amount)
                    leases.check()
    return min(gave_up, 100)


def transfer_one_by_one(locks: holdfast.Client, folder: Path, source: int, target: int, amount: int) -> bool:
    """What ``all()`` is for. False: it waited too long, most likely for a process that waits for this one."""
    try:
        with locks.lock(lock_of(source)):
            time.sleep(0.005)
            with locks.lock(lock_of(target), timeout=GIVE_UP_SECONDS):
                transfer(folder, source, target, amount)
    except LockTimeout:
        return False
    return True


def transfer(folder: Path, source: int, target: int, amount: int) -> None:
    """Read both, compute, write both: right only while nobody else does anything to either."""
    balances = read(folder, source), read(folder, target)
    if balances[0] < amount:
        return
    write(folder, source, balances[0] - amount)
    write(folder, target, balances[1] + amount)


def lock_of(account: int) -> str:
    return f"account-{account}"


def read(folder: Path, account: int) -> int:
    return int((folder / f"account-{account}").read_text())


def write(folder: Path, account: int, balance: int) -> None:
    draft = folder / f"draft-{os.getpid()}"
    draft.write_text(str(balance))
    draft.replace(folder / f"account-{account}")


# --- the show -----------------------------------------------------------------------------------


def show(options: argparse.Namespace) -> int:
    for account in range(options.accounts):
        write(options.folder, account, BALANCE)
    how = "one lock after the other" if options.one_by_one else "both locks or none"
    print(
        f"{options.workers} processes, {options.transfers} transfers each, between {options.accounts} "
        f"accounts of {BALANCE}: {how}",
        flush=True,
    )
    started = time.monotonic()
    workers = [start(options, number) for number in range(options.workers)]
    statuses = [worker.wait() for worker in workers]
    seconds = time.monotonic() - started
    balances = [read(options.folder, account) for account in range(options.accounts)]
    print(f"balances {balances}, together {sum(balances)}, after {seconds:.1f} s")
    if options.one_by_one:
        print(f"gave up waiting: {sum(statuses)} times")
        return 0 if sum(balances) == BALANCE * options.accounts else 1
    conserved = sum(balances) == BALANCE * options.accounts and not any(statuses)
    print("no money was lost or made" if conserved else "MONEY WAS LOST OR MADE, or a process failed")
    return 0 if conserved else 1


def start(options: argparse.Namespace, number: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--worker", str(number), "--folder", str(options.folder)]
    command += ["--url", options.url, "--namespace", options.namespace]
    command += ["--transfers", str(options.transfers), "--accounts", str(options.accounts)]
    return subprocess.Popen(command + ["--one-by-one"] * options.one_by_one)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default=os.environ.get("HOLDFAST_URL"), help="where the locks are")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--transfers", type=int, default=15)
    parser.add_argument("--accounts", type=int, default=10)
    parser.add_argument("--one-by-one", action="store_true", help="lock the accounts one after the other")
    parser.add_argument("--namespace", default=f"example-{secrets.token_hex(4)}", help=argparse.SUPPRESS)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
