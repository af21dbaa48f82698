"""A sharded consumer: messages are processed once and in order for each key, whatever happens to the workers.

Messages lie in a database, each with a key. The keys are divided into partitions, and each partition belongs
to one worker, a process of its own. A worker works through the messages of its partitions, and stores each
result behind a guard: the write presents the fence of the partition's lease.

In the middle of it, one worker is killed. Then another one is stopped for longer than its leases last, and
goes on: what it had begun is refused, because the partition has a new owner. At the end every message has
one result, and those of each key are in order.

    python examples/sharded_consumer.py                       on the embedded engine
    python examples/sharded_consumer.py redis://localhost     on another one
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import holdfast
from holdfast import StaleToken, fencing, ownership

PARTITIONS = 8
KEYS = 40
TTL_SECONDS = 1.5
WORK_SECONDS = 0.01
PATIENCE_SECONDS = 60.0

TABLES = """
CREATE TABLE message (id INTEGER PRIMARY KEY, partition INTEGER, key TEXT, number INTEGER);
CREATE TABLE result (id INTEGER PRIMARY KEY, place INTEGER, key TEXT, number INTEGER, worker TEXT);
CREATE INDEX of_partition ON message (partition, id);
"""


# A worker, in a process of its own


class Consumer:
    """Works on the partitions of one worker, each in a thread."""

    def __init__(self, worker: str, database: str) -> None:
        self.worker = worker
        self.database = database
        self.threads: dict[int, tuple[threading.Event, threading.Thread]] = {}

    def start(self, partition: int, lease: holdfast.Lease) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=self.work, args=(partition, lease, stop), daemon=True)
        self.threads[partition] = stop, thread
        thread.start()

    def drain(self, partition: int, lease: holdfast.Lease) -> None:
        """The partition moves to another worker when this returns: finish the message at hand."""
        stop, thread = self.threads[partition]
        stop.set()
        thread.join()

    def abandon(self, partition: int, lease: holdfast.Lease) -> None:
        """The partition may have another owner already."""
        self.threads[partition][0].set()

    def work(self, partition: int, lease: holdfast.Lease, stop: threading.Event) -> None:
        with contextlib.closing(sqlite3.connect(self.database, timeout=60)) as database:
            try:
                with database:
                    fencing.advance(database, f"messages/{partition}", lease.fence)  # before it reads
                while not stop.is_set():
                    self.next_message(database, partition, lease, stop)
            except StaleToken:
                print(f"refused: {self.worker} no longer owns partition {partition}", flush=True)

    def next_message(
        self, database: sqlite3.Connection, partition: int, lease: holdfast.Lease, stop: threading.Event
    ) -> None:
        message = database.execute(
            "SELECT id, key, number FROM message WHERE partition = ? AND id NOT IN (SELECT id FROM result) "
            "ORDER BY id LIMIT 1",
            (partition,),
        ).fetchone()
        if message is None:
            stop.wait(0.05)
            return
        time.sleep(WORK_SECONDS)  # The work. Anything can happen to the process meanwhile.
        with database:
            fencing.enforce(database, f"messages/{partition}", lease.fence)
            database.execute(
                "INSERT INTO result SELECT ?, coalesce(max(place), 0) + 1, ?, ?, ? FROM result",
                (*message, self.worker),
            )


def work(worker: str, url: str, group: str, database: str) -> None:
    consumer = Consumer(worker, database)
    with (
        holdfast.connect(url) as client,
        ownership.join(
            client,
            group,
            PARTITIONS,
            ttl=TTL_SECONDS,
            on_assigned=consumer.start,
            on_revoked=consumer.drain,
            on_lost=consumer.abandon,
        ),
    ):
        sys.stdin.read()  # until the show is over


# The show


class Show:
    """The workers, and what an observer knows of them."""

    def __init__(self, folder: Path, url: str, messages: int) -> None:
        self.database = folder / "data.db"
        self.url = url
        self.group = f"consumers-{secrets.token_hex(4)}"
        self.messages = messages
        self.client = holdfast.connect(url)
        self.workers: dict[str, subprocess.Popen[str]] = {}

    def start(self, worker: str) -> None:
        words = [sys.executable, __file__, "--worker", worker, self.url, self.group, str(self.database)]
        self.workers[worker] = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)

    def produce(self) -> None:
        """The messages: of each key, the numbers 0, 1, 2 and so on."""
        with contextlib.closing(sqlite3.connect(self.database)) as database:
            database.executescript(f"PRAGMA journal_mode = wal; {TABLES}")
            fencing.install(database)
            rows = [
                (
                    ownership.partition_of(f"customer-{index % KEYS}", PARTITIONS),
                    f"customer-{index % KEYS}",
                    index // KEYS,
                )
                for index in range(self.messages)
            ]
            database.executemany("INSERT INTO message (partition, key, number) VALUES (?, ?, ?)", rows)
            database.commit()

    def results(self) -> list[tuple[str, int, str]]:
        with contextlib.closing(sqlite3.connect(self.database, timeout=60)) as database:
            return database.execute("SELECT key, number, worker FROM result ORDER BY place").fetchall()

    def until_settled(self, members: int, seconds: float = PATIENCE_SECONDS) -> bool:
        """Until the group has so many members, and each partition is owned by the right one."""

        def settled() -> bool:
            info = ownership.show(self.client, self.group)
            return info is not None and len(info.members) == members and info.settled

        return wait(settled, seconds)

    def until_progress(self, seconds: float = PATIENCE_SECONDS) -> bool:
        count = len(self.results())
        return wait(lambda: len(self.results()) >= min(count + 20, self.messages), seconds)

    def end(self) -> None:
        for process in self.workers.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.communicate()
        self.client.close()


def wait(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return False
        time.sleep(0.02)
    return True


def show(folder: Path, url: str, messages: int) -> bool:
    the_show = Show(folder, url, messages)
    the_show.produce()
    try:
        for worker in ("ann", "bob", "cid"):
            the_show.start(worker)
        print(f"three workers share {PARTITIONS} partitions: {the_show.until_settled(3)}")
        the_show.until_progress()

        os.kill(the_show.workers["ann"].pid, signal.SIGKILL)
        the_show.workers["ann"].wait()
        began = time.monotonic()
        print(f"ann was killed, and the others took over: {the_show.until_settled(2)}", end=" ")
        print(f"after {time.monotonic() - began:.1f} s")
        the_show.until_progress()

        bob = the_show.workers["bob"]
        for _ in range(5):
            bob.send_signal(signal.SIGSTOP)
            has_taken_over = the_show.until_settled(1, 10 * TTL_SECONDS) and the_show.until_progress(5.0)
            if has_taken_over:
                break
            bob.send_signal(signal.SIGCONT)  # it was in a transaction, for whose end everyone has to wait
            the_show.until_settled(2)
        print(f"bob stands still, and cid took over: {has_taken_over}")
        bob.send_signal(signal.SIGCONT)
        print(f"bob goes on, and has its share again: {the_show.until_settled(2)}", flush=True)
        print(f"all messages were processed: {wait(lambda: len(the_show.results()) == messages)}")
    finally:
        the_show.end()
    return judge(the_show.results(), messages)


def judge(results: list[tuple[str, int, str]], messages: int) -> bool:
    numbers: dict[str, list[int]] = {}
    for key, number, _ in results:
        numbers.setdefault(key, []).append(number)
    in_order = all(found == list(range(len(found))) for found in numbers.values())
    counts = {worker: sum(name == worker for _, _, name in results) for worker in ("ann", "bob", "cid")}
    print(", ".join(f"{worker} stored {count} results" for worker, count in counts.items()))
    right = in_order and len(results) == messages
    print(f"each message has one result, in the order of its key: {right}")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description="a sharded consumer with a worker killed in the middle")
    parser.add_argument("url", nargs="?", help="the engine; by default a file of the embedded engine")
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as name:
        folder = Path(name)
        return 0 if show(folder, options.url or f"sqlite:///{folder}/locks.db", options.messages) else 1


if __name__ == "__main__":
    sys.exit(main())
