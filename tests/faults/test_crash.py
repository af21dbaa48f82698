"""Processes that die: what they held is free at once, what they waited for goes to the next."""

from __future__ import annotations

import signal
import textwrap
import time
from collections.abc import Iterator

import pytest

import holdfast
from faults.children import acting, holding, waiting
from holdfast import Client
from support import wait_until


@pytest.fixture
def locks(sqlite_url: str) -> Iterator[Client]:
    with holdfast.connect(sqlite_url) as client:
        yield client


def waiters(locks: Client) -> int:
    return len(locks.inspect("x").waiters)


def test_a_holder_that_is_killed_holds_no_more(sqlite_url: str, locks: Client) -> None:
    """At once, not after its ttl."""
    with holding(sqlite_url, ttl=600) as child:
        token = int(child.expect("held"))
        assert locks.lock("x").acquire(blocking=False) is None
        child.kill()
        lease = locks.lock("x").acquire(timeout=10)
    assert lease is not None
    assert lease.token > token
    lease.release()


def test_a_waiter_is_woken_by_the_holders_death(sqlite_url: str, locks: Client) -> None:
    with holding(sqlite_url, ttl=600) as holder:
        holder.expect("held")
        with waiting(sqlite_url) as waiter:
            wait_until(lambda: waiters(locks) == 1)
            holder.kill()
            began = time.monotonic()
            waiter.expect("granted")
            assert time.monotonic() - began < 10
            waiter.send()
            waiter.expect("released")


def test_a_permit_of_the_dead_is_free(sqlite_url: str, locks: Client) -> None:
    code = """
semaphore = locks.semaphore("x", 2, ttl=600)
leases = [semaphore.acquire(), semaphore.acquire()]
print("held", flush=True)
sys.stdin.readline()
"""
    with acting(sqlite_url, code) as child:
        child.expect("held")
        semaphore = locks.semaphore("x", 2)
        assert semaphore.acquire(blocking=False) is None
        child.kill()
        leases = [semaphore.acquire(timeout=10), semaphore.acquire(timeout=10)]
    assert all(leases)
    semaphore.release(2)


def test_a_waiter_that_is_killed_holds_up_nobody(sqlite_url: str, locks: Client) -> None:
    mine = locks.lock("x").acquire()
    assert mine is not None
    with waiting(sqlite_url) as first:
        wait_until(lambda: waiters(locks) == 1)
        with waiting(sqlite_url) as second:
            wait_until(lambda: waiters(locks) == 2)
            first.kill()
            mine.release()
            second.expect("granted")
            second.send()
            second.expect("released")


def test_a_try_is_not_held_up_by_a_dead_waiter_either(sqlite_url: str, locks: Client) -> None:
    lock = locks.lock("x")
    lock.acquire()
    with waiting(sqlite_url) as waiter:
        wait_until(lambda: waiters(locks) == 1)
        waiter.kill()
        lock.release()

        def taken() -> bool:
            return lock.acquire(blocking=False) is not None

        wait_until(taken)
        lock.release()


@pytest.mark.parametrize("ending", ["sys.exit(3)", "raise ZeroDivisionError", "pass", "os._exit(0)"])
def test_a_process_that_ends_leaves_nothing_held(sqlite_url: str, locks: Client, ending: str) -> None:
    code = f"""
lock = locks.lock("x", ttl=600)
lease = lock.acquire()
print("held", flush=True)
{ending}
"""
    with acting(sqlite_url, code) as child:
        child.expect("held")
        child.wait()
    with locks.lock("x", timeout=5):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGABRT])
def test_a_process_that_is_ended_by_a_signal(sqlite_url: str, locks: Client, number: int) -> None:
    with holding(sqlite_url, ttl=600) as child:
        child.expect("held")
        child.signal(number)
        child.wait()
        lease = locks.lock("x").acquire(timeout=10)
    assert lease is not None
    lease.release()


def test_ctrl_c_while_waiting(sqlite_url: str, locks: Client) -> None:
    with locks.lock("x"), waiting(sqlite_url) as waiter:
        wait_until(lambda: waiters(locks) == 1)
        waiter.interrupt()
        assert waiter.expect("interrupted") == "None"
        assert waiters(locks) == 0, "it left the queue before it went on"
        waiter.succeed()


def test_ctrl_c_in_the_body(sqlite_url: str, locks: Client) -> None:
    code = """
try:
    with locks.lock("x", ttl=600):
        print("held", flush=True)
        sys.stdin.readline()
except KeyboardInterrupt:
    print("interrupted", locks.inspect("x").locked, flush=True)
"""
    with acting(sqlite_url, code) as child:
        child.expect("held")
        child.interrupt()
        assert child.expect("interrupted") == "False"
        child.succeed()


def test_a_lease_is_handed_from_process_to_process(sqlite_url: str, locks: Client) -> None:
    """The first may end meanwhile; the token stays."""
    code = """
lease = locks.lock("x", ttl=600).acquire()
print("token", lease.token, flush=True)
print("text", lease.export(), flush=True)
"""
    with acting(sqlite_url, code) as child:
        token = int(child.expect("token"))
        text = child.expect("text")
        child.succeed()
    assert locks.lock("x").acquire(blocking=False) is None
    lease = locks.adopt(text)
    assert lease.token == token
    lease.check()
    lease.release()
    assert not locks.inspect("x").locked


def test_breaking_reaches_the_holder_in_another_process(sqlite_url: str, locks: Client) -> None:
    with holding(sqlite_url, ttl=600) as child:
        token = int(child.expect("held"))
        broken = locks.break_lock("x", token=token, reason="asked to")
        assert broken is not None
        assert broken > token
        assert child.expect("told") == "True"
        child.send("lease.check()")
        assert child.expect("did") == "LockLost broken"


def test_first_come_first_served_among_processes(sqlite_url: str, locks: Client) -> None:
    mine = locks.lock("x").acquire()
    assert mine is not None
    with waiting(sqlite_url) as first, waiting(sqlite_url) as second:
        for child in (first, second):
            child.expect("asking")
        wait_until(lambda: waiters(locks) == 2)
        pids = [waiter.pid for waiter in locks.inspect("x").waiters]
        order = [next(child for child in (first, second) if child.pid == pid) for pid in pids]
        mine.release()
        earlier = int(order[0].expect("granted"))
        order[0].send()
        assert int(order[1].expect("granted")) > earlier
        order[1].send()
        order[1].expect("released")


@pytest.mark.slow
def test_eight_processes_hammer_one_file(sqlite_url: str, locks: Client, tmp_path: object) -> None:
    """Every increment survives, no error of the database's reaches any caller, tokens grow."""
    path = f"{tmp_path}/counter"
    with open(path, "w") as counter:
        counter.write("0")
    code = textwrap.dedent(f"""
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(40):
            with locks.lock("x") as lease:
                value = int(open({path!r}).read())
                with open({path!r}, "w") as counter:
                    counter.write(str(value + 1))
        print("done", flush=True)
    """)
    children = [acting(sqlite_url, code) for _ in range(8)]
    try:
        for child in children:
            child.expect("ready")
        for child in children:
            child.send()
        for child in children:
            child.expect("done", timeout=60)
            child.succeed()
    finally:
        for child in children:
            child.cleanup()
    with open(path) as counter:
        assert counter.read() == "320"
    assert not locks.inspect("x").locked
