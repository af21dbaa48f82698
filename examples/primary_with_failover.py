"""A primary with failover: one of three nodes writes, and whatever happens to it, the journal stays right.

Three processes are candidates of one election. The leader appends to a journal, a database behind a guard:
each write presents the fence of the leader's term. Then the primary is stopped in the middle of a write, for
longer than its lease. Another node becomes the primary. When the old one goes on, it still believes what it
checked before, and its write is refused. Last, the new primary is killed.

    python examples/primary_with_failover.py                       on the embedded engine
    python examples/primary_with_failover.py redis://localhost     on another one
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import holdfast
from holdfast import Leader, LockLost, StaleToken, fencing

TTL_SECONDS = 1.5
PATIENCE_SECONDS = 60.0


class HasCheck(Protocol):
    def check(self) -> None: ...


# A node, in a process of its own


def serve(node: str, url: str, name: str, journal: str) -> None:
    with (
        holdfast.connect(url) as client,
        contextlib.closing(sqlite3.connect(journal, timeout=30)) as database,
    ):
        for term in client.election(name, node.encode(), ttl=TTL_SECONDS).terms():
            with term:
                fencing.advance(database, "journal", term)  # before it reads: older terms write no more
                database.commit()
                while True:
                    check(term)
                    print("writes", flush=True)
                    time.sleep(0.3)  # The work of a write. Anything can happen to the process meanwhile.
                    append(database, node, term.fence)


def check(term: HasCheck) -> None:
    try:
        term.check()
    except LockLost:
        print("over: it noticed before it wrote", flush=True)
        raise


def append(database: sqlite3.Connection, node: str, fence: holdfast.Fence) -> None:
    try:
        with database:
            fencing.enforce(database, "journal", fence)
            database.execute("INSERT INTO journal (node, term) VALUES (?, ?)", (node, fence.token))
    except StaleToken:
        print("over: the guard refused its write", flush=True)


# The show


class Show:
    """The nodes, and what an observer knows of them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.journal = folder / "journal.db"
        self.url = url
        self.name = f"primary-{secrets.token_hex(4)}"
        self.client = holdfast.connect(url)
        self.election = self.client.election(self.name)
        self.nodes: dict[str, subprocess.Popen[str]] = {}
        with contextlib.closing(sqlite3.connect(self.journal)) as database:
            database.execute("CREATE TABLE journal (entry INTEGER PRIMARY KEY, node TEXT, term INTEGER)")
            fencing.install(database)
            database.commit()

    def start(self, node: str) -> None:
        words = [sys.executable, __file__, "--node", node, self.url, self.name, str(self.journal)]
        self.nodes[node] = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def entries(self) -> list[tuple[str, int]]:
        with contextlib.closing(sqlite3.connect(self.journal, timeout=30)) as database:
            return database.execute("SELECT node, term FROM journal ORDER BY entry").fetchall()

    def next_primary(self, after: int) -> Leader:
        """The first leader of a later term that has written."""
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE_SECONDS:
            leader = self.election.leader()
            if (
                leader is not None
                and leader.token > after
                and self.entries()[-1:] == [(leader.value.decode(), leader.token)]
            ):
                return leader
            time.sleep(0.02)
        raise TimeoutError("no node became the primary")

    def wait_for(self, node: str, word: str) -> str:
        """Read what a node says, up to a line that begins with this word. Returns the line."""
        for line in self.nodes[node].stdout or ():
            if line.startswith(word):
                return line.strip()
        raise RuntimeError(f"{node} ended")

    def close(self) -> None:
        for process in self.nodes.values():
            process.kill()
            process.communicate()
        self.client.close()


def play(show: Show) -> bool:
    for node in ("north", "south", "west"):
        show.start(node)
    first = show.next_primary(after=0)
    old = first.value.decode()
    print(f"{old} is the primary, term {first.token}")

    # What it said before is read away, so that the next word is said just now, at the beginning of a write.
    show.wait_for(old, "writes")
    while lately(lambda: show.wait_for(old, "writes")) < 0.1:
        pass
    show.nodes[old].send_signal(signal.SIGSTOP)
    print(f"{old} is stopped in the middle of a write, for longer than its lease of {TTL_SECONDS} s")
    second = show.next_primary(after=first.token)
    print(f"{second.value.decode()} is the primary, term {second.token}")
    show.nodes[old].send_signal(signal.SIGCONT)
    print(f"{old} goes on, and its term is {show.wait_for(old, 'over')}")

    new = second.value.decode()
    show.nodes[new].kill()
    killed = time.monotonic()
    third = show.next_primary(after=second.token)
    print(f"{new} is killed; {third.value.decode()} has written {time.monotonic() - killed:.2f} s later")

    terms = [term for _, term in show.entries()]
    in_order = terms == sorted(terms)
    print(f"the journal has {len(terms)} entries of 3 terms: {'in order' if in_order else 'OUT OF ORDER'}")
    return in_order and len(set(terms)) == 3


def lately(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def main() -> int:
    if sys.argv[1:2] == ["--node"]:
        with contextlib.suppress(KeyboardInterrupt):
            serve(*sys.argv[2:])
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as name:
        folder = Path(name)
        show = Show(folder, sys.argv[1] if sys.argv[1:] else f"sqlite:///{folder}/locks.db")
        try:
            return 0 if play(show) else 1
        finally:
            show.close()


if __name__ == "__main__":
    sys.exit(main())
