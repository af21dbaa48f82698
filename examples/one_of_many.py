"""Several real processes, one lock: who got it, with which token, and is the result right?

Each worker adds one to a number in a file, the careless way: read, think, write. Two at once would
lose an update. The lock lets one in at a time; its fencing token grows with every grant.

    python examples/one_of_many.py                 six workers, four rounds each
    python examples/one_of_many.py --no-lock       the same without the lock: see it go wrong
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import holdfast

NAME = "one-of-many"


def main() -> int:
    options = parse_arguments()
    if options.worker:
        work(options.worker, options.folder, options.rounds, locked=not options.no_lock)
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as name:
        folder = Path(name)
        right = show_contention(folder, options.workers, options.rounds, locked=not options.no_lock)
        if not options.no_lock:
            right = show_crash(folder) and right
    return 0 if right else 1


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder}/locks.db"


# The job itself, in a process of its own


def work(worker: str, folder: Path, rounds: int, *, locked: bool) -> None:
    with holdfast.connect(url_in(folder)) as locks:
        for _ in range(rounds):
            if not locked:
                add_one(folder / "counter")
                continue
            with locks.lock(NAME, ttl=30, timeout=60) as lease:
                count = add_one(folder / "counter")
                print(
                    f"  worker {worker} (pid {os.getpid()})  token {lease.token}  count {count}", flush=True
                )
                with (folder / "tokens").open("a") as tokens:
                    tokens.write(f"{lease.token}\n")


def add_one(counter: Path) -> int:
    """Read, think, write: right only for one at a time."""
    count = int(counter.read_text()) + 1
    time.sleep(0.005)
    draft = counter.with_suffix(f".{os.getpid()}")
    draft.write_text(str(count))
    draft.replace(counter)  # In one step, so that what goes wrong without the lock is the counting alone.
    return count


# The show


def show_contention(folder: Path, workers: int, rounds: int, *, locked: bool) -> bool:
    (folder / "counter").write_text("0")
    print(f"{workers} processes, {rounds} rounds each, {'one lock' if locked else 'NO lock'}:\n", flush=True)
    started = time.monotonic()
    more = [] if locked else ["--no-lock"]
    children = [start_worker(str(n + 1), folder, "--rounds", str(rounds), *more) for n in range(workers)]
    failed = [child.pid for child in children if child.wait() != 0]
    elapsed = time.monotonic() - started

    expected = workers * rounds
    count = int((folder / "counter").read_text() or 0)
    print(f"\n  count   {count} of {expected}: {'no update lost' if count == expected else 'UPDATES LOST'}")
    if not locked:
        return count == expected
    tokens = [int(line) for line in (folder / "tokens").read_text().split()]
    growing = len(tokens) == expected and all(a < b for a, b in itertools.pairwise(tokens))
    print(f"  tokens  {len(tokens)} grants: {'each larger than all before' if growing else 'OUT OF ORDER'}")
    print(f"  time    {elapsed:.2f} s")
    return count == expected and growing and not failed


def show_crash(folder: Path) -> bool:
    """A holder is killed with the lock in its hands; its lease still had half a minute to run."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_FOR_EVER, url_in(folder), NAME], stdout=subprocess.PIPE, text=True
    )
    with holder, holdfast.connect(url_in(folder)) as locks:
        if holder.stdout is None:
            raise RuntimeError("no pipe to the holder")
        old_token = int(holder.stdout.readline())
        print(
            f"\na holder (pid {holder.pid}, token {old_token}, 30 s of lease left) is killed with SIGKILL:\n"
        )
        holder.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        with locks.lock(NAME, timeout=60) as lease:
            waited = time.monotonic() - killed
            newer = lease.token > old_token
            print(f"  the next one holds it after {waited * 1000:.0f} ms, with token {lease.token}")
            print(f"  tokens  {'larger: a guard would refuse the dead one' if newer else 'OUT OF ORDER'}")
    return newer


HOLD_FOR_EVER = """
import sys, time, holdfast
lease = holdfast.connect(sys.argv[1]).lock(sys.argv[2], ttl=30).acquire()
print(lease.token, flush=True)
time.sleep(60)
"""


def start_worker(worker: str, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, __file__, "--worker", worker, "--folder", str(folder), *more]
    return subprocess.Popen(arguments)


def parse_arguments() -> argparse.Namespace:
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--workers", type=int, default=6, help="how many processes (default 6)")
    parser.add_argument("--rounds", type=int, default=4, help="how often each wants the lock (default 4)")
    parser.add_argument("--no-lock", action="store_true", help="leave the lock out and see it go wrong")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, default=Path(), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
