"""A lock dropped without release: renewal stops, a warning is given. The lock or the lease alone keeps it."""

from __future__ import annotations

import asyncio
import gc
import secrets
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast import Client, Lease, Lock
from support import Seen, async_wait_until, renewal_of, wait_until


@pytest.fixture
def client() -> Iterator[Client]:
    with holdfast.connect(f"memory://{secrets.token_hex(8)}") as client:
        yield client


def dropped(last: list[Any] | dict[str, Any]) -> None:
    """Drop what this refers to, which must give a warning."""

    def drop() -> None:
        last.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="'x'"):
        drop()


def holders(client: Client) -> int:
    return len(client.inspect("x").holders)


def seen(client: Client) -> Seen:
    """The lease, by one who does not keep it."""
    return Seen(lambda: client.inspect("x").holders[0].remaining)


@pytest.mark.parametrize("kind", ["lock", "rlock", "semaphore"])
def test_dropping_both_stops_the_renewal(client: Client, kind: str) -> None:
    made: dict[str, Lock] = {
        "lock": client.lock("x", ttl=1.0),
        "rlock": client.rlock("x", ttl=1.0),
        "semaphore": client.semaphore("x", 1, ttl=1.0),
    }
    made[kind].acquire()
    dropped(made)
    wait_until(lambda: holders(client) == 0, message="it was renewed on")


def test_a_lock_keeps_its_lease(client: Client) -> None:
    lock = client.lock("x", ttl=4.0)
    lock.acquire()
    gc.collect()
    wait_until(renewal_of(seen(client)))
    assert lock.lease is not None
    lock.lease.check()
    lock.release()


def test_a_lease_keeps_itself(client: Client) -> None:
    lease = client.lock("x", ttl=4.0).acquire()
    assert lease is not None
    gc.collect()
    wait_until(renewal_of(seen(client)))
    lease.check()
    lease.release()
    assert holders(client) == 0


def test_callbacks_do_not_keep_it(client: Client) -> None:
    lease = client.lock("x", ttl=1.0).acquire()
    assert lease is not None
    lease.on_lost(lambda lost: None)
    leases = [lease]
    del lease
    dropped(leases)
    wait_until(lambda: holders(client) == 0)


def test_the_callback_of_a_dropped_lease_is_not_called(client: Client) -> None:
    reported: list[Lease] = []
    lease = client.lock("x", ttl=1.0).acquire()
    assert lease is not None
    lease.on_lost(reported.append)
    leases = [lease]
    del lease
    dropped(leases)
    wait_until(lambda: holders(client) == 0)
    assert reported == []


def test_released_lost_and_exported_leases_are_dropped_in_silence(client: Client) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lock = client.lock("x")
        lock.acquire()
        lock.release()
        del lock
        lease = client.lock("x").acquire()
        assert lease is not None
        text = lease.export()
        del lease
        client.adopt(text).release()
        lease = client.lock("x", ttl=0.1, renew=False).acquire()
        assert lease is not None
        assert lease.wait_lost(timeout=20)
        del lease
        gc.collect()


def test_nothing_is_said_at_the_end_of_a_closed_client() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client = holdfast.connect(f"memory://{secrets.token_hex(8)}")
        lease = client.lock("x").acquire()
        client.close()
        del lease, client
        gc.collect()


def test_a_client_dropped_without_closing_ends_its_threads() -> None:
    before = set(threading.enumerate())
    client = holdfast.connect(f"memory://{secrets.token_hex(8)}")
    with client.lock("x"):
        assert len(set(threading.enumerate()) - before) == 2, "the keeper and the timer"
    del client
    gc.collect()
    wait_until(lambda: not set(threading.enumerate()) - before)


def test_the_same_in_asyncio() -> None:
    async def main() -> None:
        url = f"memory://{secrets.token_hex(8)}"
        async with holdfast.aio.connect(url) as client:
            with holdfast.connect(url) as observer:
                leases = [await client.lock("x", ttl=2.0).acquire()]
                dropped(leases)
                await async_wait_until(lambda: holders(observer) == 0)
                lock = client.lock("x", ttl=4.0)
                await lock.acquire()
                gc.collect()
                await async_wait_until(renewal_of(seen(observer)))
                assert lock.lease is not None
                lock.lease.check()
                await lock.release()

    asyncio.run(main())
