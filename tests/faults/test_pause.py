"""Processes that stand still: SIGSTOP for longer than the ttl, and the clock on the wall."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from faults.children import acting, holding, waiting
from holdfast import Client, fencing
from holdfast.rules import handoff
from holdfast.rules.handoff import CAME_SECONDS
from support import Seen, renewal_of, wait_until
from support.servers import shared_redis


@pytest.fixture
def locks(sqlite_url: str) -> Iterator[Client]:
    with holdfast.connect(sqlite_url) as client:
        yield client


def test_a_pause_longer_than_the_ttl(sqlite_url: str, locks: Client, tmp_path: Path) -> None:
    """On resume the loss is reported, ``check`` raises, and a fenced write is refused."""
    data = tmp_path / "data.db"
    with closing(sqlite3.connect(data)) as db:
        db.execute("CREATE TABLE invoice (writer TEXT)")
        fencing.install(db)
        db.commit()
    code = f"""
import os, sqlite3
db = sqlite3.connect({str(data)!r})

def write():
    with db:
        fencing.enforce(db, "invoices", lease.fence)
        db.execute("INSERT INTO invoice VALUES ('child')")
    return "written"

def say(line):
    os.write(1, (line + "\\n").encode())  # whole, whichever thread says it

lease = locks.lock("x", ttl=1.0).acquire()
lease.on_lost(lambda lost: say(f"told {{lost.lost}} {{lost.remaining}}"))
with db:
    fencing.advance(db, "invoices", lease)
print("held", lease.token, write(), flush=True)
for line in sys.stdin:
    try:
        say(f"did {{eval(line)}}")
    except holdfast.HoldfastError as error:
        say(f"did {{type(error).__name__}}")
"""
    with acting(sqlite_url, code) as child:
        token = int(child.expect("held").split()[0])
        child.stop()
        lease = locks.lock("x").acquire(timeout=20)
        assert lease is not None
        assert lease.token > token
        with closing(sqlite3.connect(data)) as db, db:
            fencing.advance(db, "invoices", lease)
            db.execute("INSERT INTO invoice VALUES ('parent')")
        child.send("write()")
        child.send("lease.check()")
        child.send("lease.release()")
        child.cont()
        said = [child.expect() for _ in range(4)]
        assert sorted(said) == sorted(["told True 0.0", "did StaleToken", "did LockLost", "did LockLost"])
        lease.check()
        lease.release()
    with closing(sqlite3.connect(data)) as db:
        assert db.execute("SELECT writer FROM invoice").fetchall() == [("child",), ("parent",)]


def test_a_pause_shorter_than_the_ttl(sqlite_url: str, locks: Client) -> None:
    with holding(sqlite_url, ttl=20) as child:
        token = int(child.expect("held"))
        child.stop()
        assert locks.lock("x").acquire(timeout=0.5) is None
        child.cont()
        child.send("lease.check()")
        assert child.expect("did") == "None"
        assert locks.inspect("x").holders[0].token == token


def test_a_waiter_that_is_paused_costs_one_turn(sqlite_url: str, locks: Client) -> None:
    """For so long the lock is kept for it: a fair try is refused, one that barges is not."""
    lock = locks.lock("x")
    lock.acquire()
    with waiting(sqlite_url) as waiter:
        wait_until(lambda: any(w.age > CAME_SECONDS for w in locks.inspect("x").waiters))
        waiter.stop()
        lock.release()
        assert lock.acquire(blocking=False) is None, "it is the waiter's turn"
        barging = locks.lock("x", fair=False)
        assert barging.acquire(blocking=False) is not None
        barging.release()
        assert lock.acquire(timeout=20) is not None, "a turn that is not taken passes"
        waiter.cont()
        lock.release()
        waiter.expect("granted")
        waiter.send()
        waiter.expect("released")


def test_a_waiter_that_was_paused_just_now_costs_its_ttl(
    sqlite_url: str, locks: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is handed the lock, as if it stood still just after it had it."""
    monkeypatch.setattr(handoff, "CAME_SECONDS", 60.0)
    lock = locks.lock("x")
    lock.acquire()
    with waiting(sqlite_url, ttl=1.5) as waiter:
        wait_until(lambda: locks.inspect("x").waiters)
        waiter.stop()
        lock.release()
        lease = lock.acquire(timeout=20)
        assert lease is not None
        waiter.cont()
        lease.release()
        assert int(waiter.expect("granted")) > lease.token, "not what it was handed: that was over by then"
        waiter.send()
        waiter.expect("released")


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.engine("redis"))])
def url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """Of an engine that keeps time in the same process, and of one that does on another machine."""
    if request.param == "sqlite":
        return sqlite_url
    shared_redis().commands(("SELECT", "5"), ("FLUSHDB",))
    return f"{shared_redis().url}/5"


@pytest.mark.parametrize("jump_seconds", [3600, -3600, 10**8])
def test_a_wall_clock_that_jumps_changes_nothing(url: str, jump_seconds: int) -> None:
    """Renewal, expiry and waiting go by a clock that nobody can set; tokens never go back."""
    code = """
offset = 0
real_time, real_time_ns = time.time, time.time_ns
time.time = lambda: real_time() + offset
time.time_ns = lambda: real_time_ns() + offset * 10**9

lock = locks.lock("x", ttl=4)
lease = lock.acquire()
print("held", lease.token, flush=True)
sys.stdin.readline()
offset = options["jump"]
print("jumped", flush=True)
sys.stdin.readline()
lease.check()
print("remaining", lease.remaining, flush=True)
lock.release()
again = lock.acquire()
print("again", again.token, flush=True)
assert again.token > lease.token
lock.release()
short = locks.lock("y", ttl=0.3, renew=False).acquire()
print("lost", short.wait_lost(timeout=20), flush=True)
"""
    with holdfast.connect(url) as locks, acting(url, code, jump=jump_seconds) as child:
        first = int(child.expect("held"))
        child.send()
        child.expect("jumped")
        wait_until(renewal_of(Seen(lambda: locks.inspect("x").holders[0].remaining)))
        assert locks.inspect("x").holders[0].token == first
        child.send()
        assert 0 < float(child.expect("remaining")) <= 4.0
        second = int(child.expect("again"))
        assert second > first
        assert child.expect("lost") == "True"
        child.succeed()
        lease = locks.lock("x").acquire(timeout=5)
        assert lease is not None
        assert lease.token > second, "nobody's clock takes tokens back"
        lease.release()
