"""A process is paused in the middle of a write, so that nothing can be written: what becomes of leases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import holdfast
import holdfast.aio
from holdfast import EngineUnavailable, Lease, LockLost
from holdfast.aio import AsyncLease
from support import async_wait_until, run_python, wait_until

WRITER = """
    import sqlite3, sys

    database = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)
    database.execute("BEGIN IMMEDIATE")
    print("writing")
    input()
    database.execute("COMMIT")
    print("done")
"""

FOR_EVER_SECONDS = 600.0
"""For an answer that does not come: a call that waits for it hangs for as long as the test runs."""

HURRY_SECONDS = 0.3

TTL = 3.0
"""Seconds: there is time for a renewal that fails before the lease is over, also where threads wait."""


@pytest.fixture
def stuck(path: Path) -> Callable[[], AbstractContextManager[None]]:
    """While it is entered, another process is in the middle of a write."""

    @contextmanager
    def writing() -> Iterator[None]:
        with run_python(WRITER, str(path)) as writer:
            writer.expect("writing")
            yield
            writer.send()
            writer.expect("done")

    return writing


Stuck = Callable[[], AbstractContextManager[None]]


def test_others_are_held_up_only_for_so_long(url: str, stuck: Stuck) -> None:
    with holdfast.connect(url, io_timeout=HURRY_SECONDS) as locks:
        with locks.lock("x"):
            pass
        with stuck():
            began = time.monotonic()
            with pytest.raises(EngineUnavailable, match="stopped in the middle of a write"):
                locks.lock("x").acquire()
            assert time.monotonic() - began < 5
        with locks.lock("x", timeout=20):
            pass


def test_a_renewal_that_hangs_is_a_loss_at_the_deadline(url: str, stuck: Stuck) -> None:
    """Told once, while the call still hangs; the object can be used again."""
    with holdfast.connect(url, io_timeout=FOR_EVER_SECONDS) as locks:
        lock = locks.lock("x", ttl=TTL)
        lease = lock.acquire()
        assert lease is not None
        told: list[Lease] = []
        lease.on_lost(told.append)
        with stuck():
            assert lease.wait_lost(timeout=20)
            wait_until(lambda: told)
            with pytest.raises(LockLost) as loss:
                lease.check()
            assert loss.value.reason == "unreachable"
        with pytest.raises(LockLost):
            lock.release()
        again = lock.acquire(timeout=20)
        assert again is not None
        assert again.token > lease.token
        lock.release()
        assert told == [lease]


def test_in_a_loop_too_which_goes_on_meanwhile(url: str, stuck: Stuck) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(url, io_timeout=FOR_EVER_SECONDS) as locks:
            lock = locks.lock("x", ttl=TTL)
            lease = await lock.acquire()
            assert lease is not None
            told: list[AsyncLease] = []
            lease.on_lost(told.append)
            with stuck():
                assert await lease.wait_lost(timeout=20)
                await async_wait_until(lambda: told)
            with pytest.raises(LockLost):
                await lock.release()
            async with lock as again:
                assert again.token > lease.token
            assert told == [lease]

    asyncio.run(main())


def test_a_renewal_that_fails_is_tried_again_until_the_deadline(url: str, stuck: Stuck) -> None:
    """The first ones come back as failures; the one after the write is done keeps the lease."""
    with holdfast.connect(url, io_timeout=HURRY_SECONDS) as locks, locks.lock("x", ttl=5.0) as lease:
        with stuck():
            wait_until(lambda: lease.remaining < 3.0)
        wait_until(lambda: lease.remaining > 4.0)
        lease.check()


def test_a_release_that_failed_can_be_called_again(url: str, stuck: Stuck) -> None:
    with holdfast.connect(url, io_timeout=HURRY_SECONDS) as locks:
        lock = locks.lock("x")
        lock.acquire()
        with stuck(), pytest.raises(EngineUnavailable):
            lock.release()
        lock.release()
        assert not locks.inspect("x").locked
        with locks.lock("x", timeout=20):
            pass
