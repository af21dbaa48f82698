"""A lease is kept as long as it is wanted, and no longer: renewal, extension, max_hold."""

from __future__ import annotations

import pytest

from contract.engines import needs, takes_seconds
from contract.harness import World, held
from holdfast import InvalidArgument, LockLost, NotHeld
from support import renewal_of


@takes_seconds
async def test_renewal_keeps_it_beyond_its_ttl(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    leases = [held(await ann(lock.acquire)) for lock in world.one_of_each(client, ttl=2.0)]
    await world.until(lambda: world.look(leases[-1].name).holders[0].age > 2.5)
    for lease in leases:
        lease.check()
        assert 0 < lease.remaining <= 2.0
        assert world.look(lease.name).holders[0].token == lease.token
    assert await bob(client.lock("lock").acquire, blocking=False) is None


@takes_seconds
@needs("queue")
async def test_renewal_keeps_a_waiter_waiting(world: World) -> None:
    """One who waits for longer than its ttl keeps its place."""
    ann, bob, client = world.actor(), world.actor(), world.client()
    lock = client.lock("x")
    await ann(lock.acquire)
    waiting = bob(client.lock("x", ttl=1.0).acquire)
    await world.until(lambda: any(waiter.age > 1.2 for waiter in world.look("x").waiters))
    await ann(lock.release)
    assert await waiting is not None


async def test_without_renewal_it_runs_out(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=0.3, renew=False).acquire))
    assert lease.remaining <= 0.3
    await world.until(lambda: lease.lost)
    assert lease.remaining == 0
    with pytest.raises(LockLost, match="renew=False") as loss:
        lease.check()
    assert loss.value.reason == "expired"
    assert await bob(client.lock("x").acquire, timeout=20) is not None


@takes_seconds
async def test_max_hold_ends_it_whatever_is_renewed(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    lock = client.lock("x", ttl=2.0, max_hold=2.2)
    lease = held(await ann(lock.acquire))
    next_lease = held(await bob(client.lock("x").acquire, timeout=20))
    assert lease.lost
    with pytest.raises(LockLost, match="max_hold") as loss:
        lease.check()
    assert loss.value.reason == "max_hold"
    assert next_lease.token > lease.token
    with pytest.raises(LockLost):
        await ann(lock.release)


async def test_max_hold_shorter_than_the_ttl(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=30, max_hold=0.3).acquire))
    assert lease.remaining <= 0.3
    assert await ann(lease.wait_lost, timeout=20) is True
    with pytest.raises(LockLost) as loss:
        lease.check()
    assert loss.value.reason == "max_hold"


async def test_max_hold_is_not_extended(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=5, max_hold=8).acquire))
    await ann(lease.extend, 20)
    assert lease.remaining <= 8
    assert world.look("x").holders[0].remaining <= 8


@pytest.mark.parametrize("max_hold", [0, -1, float("nan"), float("inf"), "1", True])
async def test_a_max_hold_that_means_nothing_is_refused(world: World, max_hold: float) -> None:
    with pytest.raises(InvalidArgument, match="max_hold"):
        world.client().lock("x", max_hold=max_hold)


async def test_extending(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=3, renew=False).acquire))
    await ann(lease.extend, 10)
    assert lease.ttl == 10
    assert 5 < lease.remaining <= 10
    assert 5 < world.look("x").holders[0].remaining <= 10
    lease.check()


async def test_extending_never_shortens(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=60).acquire))
    await ann(lease.extend, 1)
    assert lease.ttl == 1, "later renewals are for so long"
    assert lease.remaining > 50
    assert world.look("x").holders[0].remaining > 50


async def test_extending_by_the_same_ttl(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=5, renew=False).acquire))
    await world.until(lambda: lease.remaining < 4.7)
    is_extended = renewal_of(lease)
    await ann(lease.extend)
    assert (lease.ttl, is_extended()) == (5, True)


@takes_seconds
async def test_later_renewals_use_the_new_ttl(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=2.0).acquire))
    await ann(lease.extend, 4.0)
    is_renewed = renewal_of(lease)
    await world.until(is_renewed)
    # What a renewal for the first ttl would leave is less.
    await world.until(lambda: lease.remaining > 2.2 and world.look("x").holders[0].remaining > 2.2)
    lease.check()


async def test_what_is_lost_or_released_is_not_extended(world: World) -> None:
    ann, client = world.actor(), world.client()
    lost = held(await ann(client.lock("x", ttl=0.2, renew=False).acquire))
    await world.until(lambda: lost.lost)
    with pytest.raises(LockLost):
        await ann(lost.extend, 10)
    assert lost.lost, "loss is final"
    released = held(await ann(client.lock("y").acquire))
    await ann(released.release)
    with pytest.raises(NotHeld):
        await ann(released.extend, 10)


@pytest.mark.parametrize("ttl", [0, -1, 0.0004, 1e12, float("nan"), float("inf"), "1", True])
async def test_a_ttl_that_means_nothing_is_refused(world: World, ttl: float) -> None:
    ann, client = world.actor(), world.client()
    with pytest.raises(InvalidArgument, match="ttl"):
        client.lock("x", ttl=ttl)
    lease = held(await ann(client.lock("x").acquire))
    with pytest.raises(InvalidArgument, match="ttl"):
        await ann(lease.extend, ttl)


async def test_extending_below_twice_the_grace_is_refused(world: World) -> None:
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=30, grace=10).acquire))
    with pytest.raises(InvalidArgument, match="grace"):
        await ann(lease.extend, 15)
    lease.check()
