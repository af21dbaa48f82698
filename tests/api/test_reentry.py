"""Re-entry: no word to the engine, and by identity, never by a number that may be used again."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

import holdfast
from api.spy import SpyWorld
from contract.harness import held
from holdfast import Client, Lease, NotHeld
from support import wait_until

T = TypeVar("T")


async def test_reentry_says_nothing_to_the_engine(world: SpyWorld) -> None:
    ann, client = world.actor(), world.client()
    one, two = client.rlock("x"), client.rlock("x")
    await ann(one.acquire)
    world.spy.calls.clear()
    for _ in range(10):
        await ann(one.acquire)
        await ann(two.acquire, blocking=False)
        async with ann.inside(two):
            pass
    for _ in range(10):
        await ann(two.release)
        await ann(one.release)
    assert world.spy.calls == []
    await ann(one.release)
    assert world.spy.asked("Release") == 1


async def test_an_uncontended_lock_is_one_call_each_way(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    await ann(lock.acquire)
    assert [call.asked for call in world.spy.calls] == [("Acquire",)]
    world.spy.calls.clear()
    await ann(lock.release)
    assert [call.asked for call in world.spy.calls] == [("Release",)]


async def test_after_the_lease_was_released_elsewhere_reentry_is_a_new_grant(world: SpyWorld) -> None:
    ann, bob, lock = world.actor(), world.actor(), world.client().rlock("x")
    first = held(await ann(lock.acquire))
    await bob(first.release)
    second = held(await ann(lock.acquire, timeout=5))
    assert second.token > first.token
    await ann(lock.release)
    with pytest.raises(NotHeld):
        await ann(lock.release)


def in_thread(work: Callable[[], T], name: str = "worker") -> tuple[T, int]:
    """What a thread of its own returned, and the number it had."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()), name=name)
    thread.start()
    ident = thread.ident
    thread.join(20)
    assert ident is not None
    return results[0], ident


def test_a_new_thread_with_the_number_of_an_old_one_does_not_enter() -> None:
    with holdfast.connect(f"memory://{secrets.token_hex(8)}") as client:
        lock = client.rlock("x")
        lease, ident = in_thread(lock.acquire)
        assert lease is not None
        for _ in range(200):
            entered, again = in_thread(lambda: lock.acquire(blocking=False))
            assert entered is None
            if again == ident:
                break
        else:
            pytest.skip("no thread got the number of the first one")
        with pytest.raises(NotHeld):
            lock.release()
        lease.release()


def test_what_is_remembered_of_holders_that_are_gone_does_not_grow() -> None:
    with holdfast.connect(f"memory://{secrets.token_hex(8)}") as client:
        for number in range(500):
            lease, _ = in_thread(client.rlock(f"x{number}").acquire)
            assert lease is not None
            lease.release()
        assert len(client._driver.client_state.holds) < 200


# --- one object, many threads -------------------------------------------------------------------


@pytest.fixture
def client() -> Client:
    return holdfast.connect(f"memory://{secrets.token_hex(8)}")


@pytest.mark.parametrize("kind", ["semaphore", "read"])
def test_a_shared_object_forgets_no_lease(client: Client, kind: str) -> None:
    """Eight threads take and give back through one object, with switches between them everywhere."""
    lock = client.semaphore("x", 8) if kind == "semaphore" else client.rwlock("x").read()

    def work(number: int) -> None:
        for _ in range(150):
            lease = lock.acquire()
            assert lease is not None
            lock.release()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with client, ThreadPoolExecutor(8) as pool:
            for outcome in [pool.submit(work, number) for number in range(8)]:
                outcome.result(60)
            assert not client.inspect("x").holders
    finally:
        sys.setswitchinterval(before)


def test_permits_given_back_by_many_threads_at_once(client: Client) -> None:
    """Each of them gives back one, though none of them took one."""
    semaphore = client.semaphore("x", 100)
    leases = [semaphore.acquire() for _ in range(100)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with client, ThreadPoolExecutor(8) as pool:
            for outcome in [pool.submit(semaphore.release) for _ in range(100)]:
                outcome.result(60)
            wait_until(lambda: not client.inspect("x").holders)
    finally:
        sys.setswitchinterval(before)
    assert all(isinstance(lease, Lease) and lease.remaining == 0 for lease in leases)
