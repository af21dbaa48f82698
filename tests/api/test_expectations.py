"""What users expect: durations, releasing inside ``with``, errors that say what to do."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

import holdfast
import holdfast.aio
from api.spy import SpyWorld
from contract.harness import held
from holdfast import Deadlock, EngineUnavailable, InvalidArgument, NotHeld
from holdfast.core.effects import NotApplied

# --- a reader that asks for its own write side ----------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 30, timedelta(seconds=30)])
async def test_a_reader_that_asks_for_its_own_write_side(world: SpyWorld, timeout: Any) -> None:
    ann, client = world.actor(), world.client()
    read = client.rwlock("x").read()
    lease = held(await ann(read.acquire))
    asked = len(world.spy.calls)
    for write in (client.rwlock("x").write(), client.rwlock("x", timeout=timeout).write()):
        with pytest.raises(Deadlock, match=r"'x'.*release.*downgrade") as refusal:
            await ann(write.acquire, timeout=timeout)
        assert refusal.value.name == "x"
        with pytest.raises(Deadlock):
            async with ann.inside(write):
                raise AssertionError("the body never runs")
        assert await ann(write.acquire, blocking=False) is None, "one who tries does not wait"
    assert len(world.spy.calls) == asked + 2, "only the tries were asked"
    lease.check()
    await ann(read.release)
    await ann(held(await ann(client.rwlock("x").write().acquire)).release)


async def test_others_wait_and_so_does_a_writer_for_another_reader(world: SpyWorld) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    rwlock = client.rwlock("x")
    read = held(await ann(rwlock.read().acquire))
    await ann(client.rwlock("y").write().acquire)
    writer = bob(rwlock.write().acquire)
    await world.until_waiting("x", 1)
    await ann(read.release)
    assert held(await writer).mode == "write"


async def test_what_was_downgraded_is_held_to_read(world: SpyWorld) -> None:
    ann, rwlock = world.actor(), world.client().rwlock("x")
    async with ann.inside(rwlock.write()) as written:
        await ann(written.downgrade)
        with pytest.raises(Deadlock):
            await ann(rwlock.write().acquire)
    await ann(rwlock.write().acquire)


async def test_a_read_lease_that_was_lost_keeps_nobody(world: SpyWorld) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.rwlock("x", ttl=0.2, renew=False).read().acquire))
    await world.until(lambda: lease.lost)
    assert await ann(client.rwlock("x").write().acquire, timeout=20) is not None


# --- releasing inside with ------------------------------------------------------------------------


@pytest.mark.parametrize("by_lease", [True, False])
@pytest.mark.parametrize("kind", ["lock", "rlock", "semaphore"])
async def test_release_inside_its_own_with(world: SpyWorld, by_lease: bool, kind: str) -> None:
    ann, client = world.actor(), world.client()
    lock: Any = client.semaphore("x", 2) if kind == "semaphore" else getattr(client, kind)("x")
    for _ in range(3):
        async with ann.inside(lock) as lease:
            await ann(lease.release if by_lease else lock.release)
            assert not world.look("x").locked
            assert lock.lease is None
            with pytest.raises(NotHeld):
                await ann(lock.release)
    assert not world.look("x").locked


async def test_the_end_of_with_takes_nothing_from_another(world: SpyWorld) -> None:
    for by_lease in (True, False):
        ann, bob = world.actor(), world.actor()
        lock = world.client().lock("x")
        async with ann.inside(lock) as lease:
            await ann(lease.release if by_lease else lock.release)
            theirs = bob.inside(lock)
            held_by_bob = await theirs.__aenter__()
        held_by_bob.check()
        assert world.look("x").locked
        await theirs.__aexit__(None, None, None)
        assert not world.look("x").locked


@pytest.mark.parametrize("by_lease", [True, False])
async def test_another_released_it_inside_the_body(world: SpyWorld, by_lease: bool) -> None:
    """The body went on without the lock: the end of ``with`` must raise."""
    ann, bob, lock = world.actor(), world.actor(), world.client().lock("x")
    with pytest.raises(NotHeld):
        async with ann.inside(lock) as lease:
            await bob(lease.release if by_lease else lock.release)


async def test_again_inside_after_release(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    async with ann.inside(lock):
        await ann(lock.release)
        async with ann.inside(lock):
            assert world.look("x").locked
        assert not world.look("x").locked


async def test_a_release_inside_that_did_not_get_through(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client(io_timeout=0.2).lock("x")

    def refuse(call: Any) -> None:
        if "Release" in call.asked:
            raise NotApplied("out of order")

    async with ann.inside(lock):
        world.spy.before = refuse
        with pytest.raises(EngineUnavailable):
            await ann(lock.release)
        world.spy.before = lambda call: None
    assert not world.look("x").locked


# --- durations and other arguments ----------------------------------------------------------------


async def test_a_timedelta_wherever_there_are_seconds(world: SpyWorld) -> None:
    ann, second = world.actor(), timedelta(seconds=1)
    client = world.client()
    lock = client.lock("x", ttl=20 * second, timeout=second, max_hold=60 * second, grace=second / 2)
    lease = held(await ann(lock.acquire, timeout=second))
    assert lease.ttl == 20
    await ann(lease.extend, 30 * second)
    assert lease.ttl == 30
    assert await ann(lease.wait_lost, second / 100) is False
    await ann(lease.set_value, b"1", retention=timedelta(days=1))
    assert await ann(client.lock("x", timeout=second / 10).acquire) is None
    for connect in (holdfast.connect, holdfast.aio.connect):
        assert connect("memory://", io_timeout=second).namespace == "holdfast"
    with pytest.raises(InvalidArgument, match="ttl"):
        client.lock("x", ttl=timedelta(0))
    with pytest.raises(InvalidArgument, match="negative"):
        client.lock("x", timeout=timedelta(seconds=-2))


@pytest.mark.parametrize(
    ("text", "advice"), [("30", "write 30, without"), ("1h", "timedelta"), ("nan", "ttl")]
)
def test_text_is_no_duration(text: Any, advice: str) -> None:
    with holdfast.connect("memory://") as client, pytest.raises(InvalidArgument, match=advice):
        client.lock("x", ttl=text)


def test_bytes_are_no_name() -> None:
    name: Any = b"x"
    with (
        holdfast.connect("memory://") as client,
        pytest.raises(InvalidArgument, match=r"name\.decode\(\)"),
    ):
        client.lock(name)


def test_pickling_a_client_says_what_to_do_instead() -> None:
    with holdfast.connect("memory://") as client:
        for each in (client, client.lock("x"), holdfast.aio.connect("memory://")):
            with pytest.raises(TypeError, match=r"URL.*each process.*connect"):
                pickle.dumps(each)
