"""Real processes: killed, stopped, or many at once."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import holdfast
from faults.children import acting, holding, waiting
from holdfast import Client, fencing
from holdfast.lab.proxy import Proxy
from support import run_python, wait_until
from support.servers import shared_postgresql

CONTENDER = """
import json, os, sys, threading, time, holdfast
url, over = sys.argv[1:]
stood_still = 0.0

def notice():
    global stood_still
    while True:
        before = time.monotonic()
        time.sleep(0.02)
        stood_still = max(stood_still, time.monotonic() - before)

threading.Thread(target=notice, daemon=True).start()
with holdfast.connect(url) as client:
    lock = client.lock("x", ttl=10)
    spans = []
    while not os.path.exists(over):
        with lock as lease:
            entered = time.monotonic_ns()
            time.sleep(0.001)
            spans.append((entered, time.monotonic_ns(), lease.token))
    print("spans", json.dumps([stood_still, spans]), flush=True)
"""

STOOD_STILL = 0.5
"""Seconds: a process that did not run for so long may have missed many turns."""


RELEASING = """
lease = locks.lock("x", **options).acquire()
print("held", flush=True)
sys.stdin.readline()
try:
    lease.release()
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def locks(url: str) -> Iterator[Client]:
    with holdfast.connect(url) as client:
        yield client


def test_a_holder_that_is_killed_is_followed_after_its_ttl(url: str, locks: Client) -> None:
    """After what remains of the holder's, not after the waiter's own."""
    with holding(url, ttl=2) as holder:
        token = int(holder.expect("held"))
        with waiting(url, ttl=600) as waiter:
            wait_until(lambda: len(locks.inspect("x").waiters) == 1)
            holder.kill()
            began = time.monotonic()
            assert int(waiter.expect("granted")) > token
            assert time.monotonic() - began < 8
            waiter.send()
            waiter.expect("released")


def test_a_stopped_holder_learns_of_its_loss_and_is_fenced(url: str, locks: Client, tmp_path: Path) -> None:
    """Declared dead, it cannot finish what was given to another."""
    data = tmp_path / "data.db"
    with closing(sqlite3.connect(data)) as db:
        fencing.install(db)
        db.commit()
    writing = (
        f"fencing.enforce(__import__('sqlite3').connect({str(data)!r}).cursor(), 'invoice', lease.fence)"
    )
    with holding(url, ttl=1.5) as holder:
        token = int(holder.expect("held"))
        holder.stop()
        with locks.lock("x", timeout=30) as lease:
            assert lease.token > token
            with closing(sqlite3.connect(data)) as db:
                fencing.enforce(db.cursor(), "invoice", lease)
                db.commit()
            holder.cont()
            holder.expect("told")
            holder.send(writing)
            assert holder.expect("did").startswith("StaleToken")
            holder.send("lease.check()")
            assert holder.expect("did").startswith("LockLost")
            holder.send("lease.release()")
            assert holder.expect("did").startswith("LockLost")
            lease.check()


def test_ctrl_c_while_waiting(url: str, locks: Client) -> None:
    with locks.lock("x"), waiting(url) as waiter:
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
        waiter.interrupt()
        assert waiter.expect("interrupted") == "None"
        assert not locks.inspect("x").waiters, "it is gone before the program goes on"
        waiter.succeed()


@pytest.mark.parametrize(
    ("engine", "statement", "ttl"),
    [
        ("postgresql", b"holdfast_release_1", 600.0),
        # For the server the connection is idle: it ends the session after its ttl, and the lock with it.
        ("postgresql+advisory", b"holdfast_session_release_1", 2.0),
    ],
)
def test_ctrl_c_while_releasing(engine: str, statement: bytes, ttl: float, url: str) -> None:
    """The server never receives it. Whatever the program does then, the lock does not stay taken."""
    server = shared_postgresql()
    ours = url.replace("postgresql:", f"{engine}:")
    with (
        Proxy(server.host, server.port) as proxy,
        holdfast.connect(ours) as locks,
        acting(ours.replace(server.address, proxy.address), RELEASING, ttl=ttl) as child,
    ):
        child.expect("held")
        lost = proxy.lose_request(statement, ending="silence")
        child.send()
        wait_until(lost.is_set)
        child.interrupt()
        child.expect("interrupted")
        wait_until(lambda: not locks.inspect("x").holders)
        child.send()
        child.succeed()


def test_a_waiter_that_is_killed_costs_one_turn(url: str, locks: Client) -> None:
    lock = locks.lock("x")
    lock.acquire()
    with waiting(url) as dead:
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
        with waiting(url) as living:
            wait_until(lambda: len(locks.inspect("x").waiters) == 2)
            dead.kill()
            lock.release()
            began = time.monotonic()
            living.expect("granted")
            assert time.monotonic() - began < 8
            living.send()
            living.expect("released")


def test_eight_processes_exclude_each_other_and_take_turns(url: str, locks: Client, tmp_path: Path) -> None:
    """All of them wait when it begins, and it ends for all at the same time."""
    assert locks.list() == []
    over = tmp_path / "over"
    with ExitStack() as stack:
        with locks.lock("x"):
            children = [stack.enter_context(run_python(CONTENDER, url, str(over))) for _ in range(8)]
            wait_until(lambda: len(locks.inspect("x").waiters) == 8, timeout=60)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 3)
        over.touch()
        results = [json.loads(child.expect("spans", timeout=60)) for child in children]
        for child in children:
            child.succeed()
    every = sorted(span for _, spans in results for span in spans)
    for (_, left, token), (entered, _, following) in itertools.pairwise(every):
        assert left <= entered, "two were inside at once"
        assert token < following
    counts = sorted(len(spans) for stood_still, spans in results if stood_still < STOOD_STILL)
    assert not counts or counts[0] * 2 >= counts[-1], f"not fair: {counts}"
    assert len(every) > 50
