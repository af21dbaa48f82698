"""A fleet of workers, one of them killed and one stopped in the middle of a job.

Nothing is lost, nothing is done twice, and what the stopped one does when it wakes is refused.

    python examples/worker_fleet.py                              a SQLite file of its own
    python examples/worker_fleet.py --database postgresql://…    PostgreSQL (makes and drops a table)

Each job charges an order. The charge is written in the transaction that finishes the job, so it happens
exactly once, whatever becomes of workers in between.
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
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast.queue
from holdfast import StaleToken
from holdfast.queue import Job, NewJob

JOBS = 40
LEASE_SECONDS = 1.0
TABLE = "worker_fleet_charges"
PATIENCE_SECONDS = 60.0


# A worker, in a process of its own


def work(url: str, namespace: str, job_seconds: float) -> None:
    with holdfast.queue.connect(url, namespace=namespace) as queue:
        worker = holdfast.queue.Worker(queue, lease=LEASE_SECONDS)

        @worker.job("charge")
        def charge(job: Job) -> None:
            print(f"  pid {os.getpid()} begins job {job.id}, token {job.token}", flush=True)
            time.sleep(job_seconds)
            try:
                with job.transaction() as db:
                    db.execute(f"INSERT INTO {TABLE} VALUES ({int(job.payload)})")  # noqa: S608 - a number
            except StaleToken:
                print(f"  pid {os.getpid()} is refused: job {job.id} is another's now", flush=True)
                raise

        worker.run()


# The fleet


class Process:
    """A worker of the fleet."""

    def __init__(self, url: str, namespace: str, job_seconds: float) -> None:
        command = [sys.executable, __file__, "--worker", namespace, "--database", url]
        self._process = subprocess.Popen(
            [*command, "--seconds", str(job_seconds)], stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def read_until(self, text: str) -> bool:
        """Whether it prints this."""
        for line in self._process.stdout or ():
            print(line, end="")
            if text in line:
                return True
        return False

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Gracefully: it finishes what it runs."""
        self.signal(signal.SIGTERM)
        self.read_until("\0")
        return self._process.wait(PATIENCE_SECONDS)

    def clean_up(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def run_fleet(url: str, namespace: str, db: Any, stack: contextlib.ExitStack) -> bool:
    def hire(job_seconds: float) -> Process:
        process = Process(url, namespace, job_seconds)
        stack.callback(process.clean_up)
        return process

    queue = stack.enter_context(holdfast.queue.connect(url, namespace=namespace))
    queue.put_many([NewJob("charge", order) for order in range(JOBS)])
    print(f"{JOBS} orders are to be charged")

    killed, stopped = hire(1.0), hire(1.0)
    for process, number in ((killed, signal.SIGKILL), (stopped, signal.SIGSTOP)):
        process.read_until("begins")
        process.signal(number)
        print(f"{number.name} to pid {process.pid}, in the middle of its job")

    others = [hire(0.01), hire(0.01)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while queue.counts()["finished"] < JOBS and time.monotonic() < deadline:
        time.sleep(0.05)

    print(f"SIGCONT to pid {stopped.pid}")
    stopped.signal(signal.SIGCONT)
    is_refused = stopped.read_until("is refused")
    ends = [process.end() for process in (stopped, *others)]

    charged = Counter(row[0] for row in db.execute(f"SELECT * FROM {TABLE}"))  # noqa: S608 - our own name
    taken_back = [job for job in queue.jobs("finished") if job.token > 1]
    is_right = charged == Counter(range(JOBS)) and is_refused and ends == [0, 0, 0]
    print(f"{len(charged)} orders were charged, {max(charged.values(), default=0)} time each at most")
    print(f"{len(taken_back)} jobs were taken back from those who did not finish them")
    print("right: nothing was lost, and nothing was done twice" if is_right else f"WRONG: {charged}, {ends}")
    return is_right


@contextlib.contextmanager
def charges(url: str) -> Iterator[Any]:
    """A connection to the database of the queue, which has the table of charges meanwhile."""
    if url.startswith("sqlite"):
        db: Any = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    else:
        import psycopg

        db = psycopg.connect(url, autocommit=True)
    db.execute(f"CREATE TABLE {TABLE} (order_id integer)")
    try:
        yield db
    finally:
        db.execute(f"DROP TABLE {TABLE}")
        db.close()


def main() -> int:
    options = parse_arguments()
    if options.worker:
        work(options.database, options.worker, options.seconds)
        return 0
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-example-")))
        url = options.database or f"sqlite:///{folder}/queue.db"
        db = stack.enter_context(charges(url))
        namespace = f"fleet-{secrets.token_hex(4)}"
        return 0 if run_fleet(url, namespace, db, stack) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A fleet that loses two of its workers.")
    parser.add_argument("--database", metavar="URL", help="PostgreSQL, instead of a SQLite file")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
