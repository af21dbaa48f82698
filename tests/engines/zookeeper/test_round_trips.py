"""What is sent, and how often one waits for it: each batch is one wait."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import holdfast.aio
from engines.zookeeper.conftest import Connect, Hold
from engines.zookeeper.spy import Spy
from holdfast import Client, Lease
from support import wait_until


def until_waiting(client: Client, count: int) -> None:
    wait_until(lambda: len(client.inspect("x").waiters) == count)


def test_an_uncontended_pair_is_one_change_and_one_delete(connect: Connect, spy: Spy) -> None:
    client = connect(session_timeout=60)
    lock = client.lock("x")
    with lock:
        pass
    spy.batches()
    for _ in range(3):
        with lock:
            assert spy.batches() == [["Multi"]]
        assert spy.batches() == [["Delete"]]


@pytest.mark.parametrize("kind", ["read", "write", "semaphore"])
def test_so_it_is_for_every_kind(connect: Connect, spy: Spy, kind: str) -> None:
    client = connect(session_timeout=60)
    lock = {
        "read": client.rwlock("x").read(),
        "write": client.rwlock("x").write(),
        "semaphore": client.semaphore("x", 3),
    }[kind]
    with lock:
        pass
    spy.batches()
    with lock:
        assert spy.batches() == [["Multi"]]
    assert spy.batches() == [["Delete"]]


def test_a_name_that_others_use_too_is_looked_at_first(connect: Connect, spy: Spy) -> None:
    """Two waits; and a guess that goes wrong is made once."""
    ann, bob = connect(session_timeout=60), connect(session_timeout=60)
    for client in (ann, bob):
        with client.lock("x"):
            pass
    spy.batches()
    with ann.lock("x"):
        assert spy.batches() == [["Multi"], ["Sync", "GetChildren2"], ["Multi"]], "it was left empty by us"
    for client in (bob, ann, bob, ann):
        with client.lock("x"):
            looked = spy.batches()[-2:]
            assert looked == [["Sync", "GetChildren2"], ["Multi"]]
        spy.batches()
    with ann.lock("x"):
        assert spy.batches() == [["Sync", "GetChildren2"], ["Multi"]]
    spy.batches()
    with ann.lock("x"):
        assert spy.batches() == [["Multi"]], "nobody else has been there"


def test_a_try_that_fails_puts_nothing(connect: Connect, hold: Hold, spy: Spy) -> None:
    client, other = connect(session_timeout=60), connect(session_timeout=60)
    hold(other.lock("x"))
    hold(client.lock("y"))
    spy.batches()
    assert client.lock("x").acquire(blocking=False) is None
    sent = spy.batches()
    assert sent == [["Sync", "GetChildren2"], ["GetData"]], "a look, and who holds it"


def test_a_waiter_is_notified_once_and_looks_once(connect: Connect, hold: Hold, spy: Spy) -> None:
    """Of many waiters only the next one is notified of a release."""
    client, other = connect(session_timeout=60), connect(session_timeout=60)
    first = hold(other.lock("x"))
    granted: list[Lease] = []
    threads = []

    def is_armed() -> bool:
        return ["GetData", "Exists"] in spy.batches()

    for _ in range(3):
        thread = threading.Thread(target=lambda: granted.append(hold(client.lock("x"))))
        threads.append(thread)
        thread.start()
        wait_until(is_armed)
    first.release()
    wait_until(lambda: len(granted) == 1)
    assert sorted(spy.batches()) == [["Delete"], ["GetChildren2"]]
    for number in (1, 2):
        granted[number - 1].release()
        wait_until(lambda number=number: len(granted) > number)  # type: ignore[misc]  # bound here
        assert sorted(spy.batches()) == [["Delete"], ["GetChildren2"]]
    for thread in threads:
        thread.join(20)


def test_a_client_that_knows_that_it_has_to_wait_waits_twice_for_the_server(
    connect: Connect, hold: Hold, spy: Spy
) -> None:
    """Once to put its ticket and see who is before it, once to watch that one and see if it is still so."""
    client, other = connect(session_timeout=60), connect(session_timeout=60)
    lease = hold(other.lock("x"))
    hold(client.lock("connected"))
    client._driver.client_state.mark_contended("x")
    spy.batches()
    waits: list[list[str]] = []

    def answered(count: int) -> bool:
        waits.extend(spy.batches())
        return len(waits) >= count

    waiting = threading.Thread(target=lambda: hold(client.lock("x")))
    waiting.start()
    wait_until(lambda: answered(2))
    assert waits == [["Multi", "GetChildren2"], ["GetData", "Exists"]]
    (nonce,) = client._driver.client_state.waiting
    client._driver.post(nonce)
    wait_until(lambda: answered(3))
    assert waits[2:] == [["Exists", "Exists"]], "a look, when it is woken"
    lease.release()
    waiting.join(20)


def test_a_stored_result_costs_one_wait(connect: Connect, spy: Spy) -> None:
    operation = connect(session_timeout=60).idempotent("x")
    assert operation.run(lambda: "first") == "first"
    spy.batches()
    assert operation.run(lambda: "again") == "first"
    assert spy.batches() == [["Sync", "GetChildren2", "GetChildren2", "GetData", "GetData"]]


def test_many_leases_cost_one_sign_of_life(connect: Connect, hold: Hold, spy: Spy) -> None:
    """And a look at some of them."""
    client = connect(session_timeout=60)
    for number in range(150):
        hold(client.lock(f"x{number}", ttl=3))
    spy.batches()
    sent: list[list[str]] = []

    def renewed() -> bool:
        sent.extend(spy.batches())
        return len(sent) >= 2

    wait_until(renewed, timeout=20)
    for batch in sent:
        assert batch.count("Multi") == 1
        assert batch.count("Exists") <= 100
        assert len(batch) == 1 + batch.count("Exists")


def test_an_idle_client_sends_nothing(connect: Connect, spy: Spy) -> None:
    client = connect(session_timeout=3)
    with client.lock("x"):
        pass
    spy.batches()
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 1.2, timeout=20)
    assert spy.batches() == []
    with client.lock("x"):
        assert spy.batches() == [["Multi"], ["Multi"]], "a sign of life; its session is there still"


def test_asyncio_needs_no_thread_for_each_call(url: str, namespace: str) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(url, namespace=namespace) as client:
            async with client.lock("x"):
                before = set(threading.enumerate())
            for _ in range(20):
                async with client.lock("x"):
                    assert not set(threading.enumerate()) - before

    asyncio.run(main())
