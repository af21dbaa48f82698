"""An account as a stream: each deposit and withdrawal is an event, and the balance is what they amount to.

Several processes withdraw at once from one account. Each reads the stream, decides, and appends at the
version that it has read: if another one was first, it gets Conflict and decides again. No lock, and no
overdraft.

    python examples/account_stream.py              four processes, an account in a file
    python examples/account_stream.py --url postgresql://localhost/app
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from holdfast import Conflict, events
from holdfast.events import EventStore


def main() -> int:
    options = parse_arguments()
    if options.account:
        with events.connect(options.url) as store:
            print(withdraw_all(store, options.account))
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as folder:
        return show(options.url or f"sqlite:///{Path(folder) / 'events.db'}", options.workers)


def balance_of(store: EventStore, account: str) -> tuple[int, int]:
    """The balance and the version of the account: from the newest snapshot on."""
    snapshot = store.load_snapshot(account)
    balance, version = (snapshot.data["balance"], snapshot.version) if snapshot else (0, 0)
    for event in store.read(account, from_=version):
        balance += event.data["amount"] if event.data["type"] == "deposited" else -event.data["amount"]
        version = event.version
    return balance, version


def withdraw(store: EventStore, account: str, amount: int) -> bool:
    """False: there is not enough. Decided on what nobody has changed since."""
    while True:
        balance, version = balance_of(store, account)
        if balance < amount:
            return False
        try:
            store.append(account, [{"type": "withdrawn", "amount": amount}], expected_version=version)
        except Conflict:
            continue
        if version % 10 == 9:
            store.snapshot(account, version + 1, {"balance": balance - amount})
        return True


def withdraw_all(store: EventStore, account: str) -> int:
    number = 0
    while withdraw(store, account, 7):
        number += 1
    return number


def show(url: str, workers: int) -> int:
    account = f"account-{uuid.uuid4().hex[:8]}"
    with events.connect(url) as store:
        store.append(account, [{"type": "deposited", "amount": 300}], expected_version=0)
        command = [sys.executable, __file__, "--url", url, "--account", account]
        children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
        counts = [int(child.communicate()[0]) for child in children]
        balance, version = balance_of(store, account)
        print(f"{workers} processes withdrew {' + '.join(map(str, counts))} times 7 from 300")
        print(f"the balance is {balance}, the stream has {version} events")
        return 0 if balance == 300 - 7 * sum(counts) == 6 and version == 1 + sum(counts) else 1


def parse_arguments() -> argparse.Namespace:
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", help="the database (default: a file of its own)")
    parser.add_argument("--workers", type=int, default=4, help="how many processes (default 4)")
    parser.add_argument("--account", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
