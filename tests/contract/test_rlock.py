"""The reentrant lock: its holder may acquire it again."""

from __future__ import annotations

import pytest

from contract.harness import World, held
from holdfast import LockLost, NotHeld


async def test_reentry_gives_the_same_lease(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    lock = world.client().rlock("x")
    lease = held(await ann(lock.acquire))
    assert await ann(lock.acquire) is lease
    assert await ann(lock.acquire, blocking=False) is lease
    assert await bob(lock.acquire, blocking=False) is None
    for _ in range(2):
        await ann(lock.release)
        assert world.look("x").holders[0].token == lease.token
    await ann(lock.release)
    assert not world.look("x").locked
    with pytest.raises(NotHeld):
        await ann(lock.release)


async def test_reentry_is_by_client_and_name_whatever_the_object(world: World) -> None:
    ann, client = world.actor(), world.client()
    one, two = client.rlock("x"), client.rlock("x")
    lease = held(await ann(one.acquire))
    assert await ann(two.acquire) is lease
    await ann(one.release)
    assert world.look("x").locked
    with pytest.raises(NotHeld):
        await ann(one.release)
    await ann(two.release)
    assert not world.look("x").locked


async def test_another_client_is_another_owner(world: World) -> None:
    ann = world.actor()
    await ann(world.client().rlock("x").acquire)
    assert await ann(world.client().rlock("x").acquire, blocking=False) is None


async def test_it_is_the_same_kind_as_a_lock(world: World) -> None:
    """But a plain lock never re-enters, not even into a reentrant one."""
    ann, client = world.actor(), world.client()
    lock = client.rlock("x")
    await ann(lock.acquire)
    assert await ann(client.lock("x").acquire, blocking=False) is None
    await ann(lock.release)
    async with ann.inside(client.lock("x")):
        assert await ann(lock.acquire, blocking=False) is None


async def test_only_the_holder_may_release_it(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    lock = world.client().rlock("x")
    await ann(lock.acquire)
    with pytest.raises(NotHeld):
        await bob(lock.release)
    assert world.look("x").locked
    await ann(lock.release)


async def test_nested_with(world: World) -> None:
    ann, client = world.actor(), world.client()
    lock = client.rlock("x")
    async with ann.inside(lock) as outer:
        async with ann.inside(client.rlock("x")) as inner, ann.inside(lock) as innermost:
            assert inner is outer
            assert innermost is outer
        assert world.look("x").locked
    assert not world.look("x").locked


async def test_waiters_get_it_after_the_last_release(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    lock = world.client().rlock("x")
    lease = held(await ann(lock.acquire))
    await ann(lock.acquire)
    waiting = bob(lock.acquire)
    await world.until_waiting("x", 1)
    await ann(lock.release)
    await world.until_waiting("x", 1)
    await ann(lock.release)
    assert held(await waiting).token > lease.token


async def test_a_lost_lease_is_not_entered_again(world: World) -> None:
    """And every entry that was taken has to be left, after which the lock can be used again."""
    ann, client = world.actor(), world.client()
    lock = client.rlock("x", ttl=3)
    lease = held(await ann(lock.acquire))
    assert await ann(lock.acquire) is lease
    await ann(client.break_lock, "x", reason="to lose it")
    await world.until(lambda: lease.lost)
    with pytest.raises(LockLost):
        await ann(lock.acquire)
    with pytest.raises(LockLost):
        await ann(lock.acquire, blocking=False)
    await ann(lock.release)
    with pytest.raises(LockLost):
        await ann(lock.release)
    assert held(await ann(lock.acquire, timeout=5)).token > lease.token


async def test_loss_is_signalled_at_the_end_of_every_with(world: World) -> None:
    ann = world.actor()
    lock = world.client().rlock("x", ttl=0.3, renew=False, if_lost="raise")

    async def body() -> None:
        async with ann.inside(lock) as lease:
            with pytest.raises(LockLost):
                async with ann.inside(lock):
                    await world.until(lambda: lease.lost)

    with pytest.raises(LockLost):
        await body()
    await world.until_free("x")


async def test_releasing_the_lease_itself_leaves_every_entry(world: World) -> None:
    """Any owner of the lease may release it; a later entry is a new grant."""
    ann = world.actor()
    lock = world.client().rlock("x")
    lease = held(await ann(lock.acquire))
    await ann(lock.acquire)
    await ann(lease.release)
    assert not world.look("x").locked
    fresh = held(await ann(lock.acquire, timeout=5))
    assert fresh.token > lease.token
    await ann(lock.release)
    assert not world.look("x").locked
