"""Permits: so many at a time, each with a lease of its own."""

from __future__ import annotations

import asyncio

import pytest

from contract.engines import needs
from contract.harness import Actor, World, held
from holdfast import InvalidArgument, LockLost, NotHeld

pytestmark = needs("semaphore")


async def test_as_many_as_the_limit(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    semaphore = world.client().semaphore("x", 2)
    other = world.client().semaphore("x", 2)
    first, second = held(await ann(semaphore.acquire)), held(await ann(other.acquire))
    assert (first.kind, first.mode) == ("semaphore", "permit")
    assert first.token < second.token
    assert first.id != second.id
    assert await bob(semaphore.acquire, blocking=False) is None
    assert await bob(semaphore.locked)
    await ann(semaphore.release)
    assert not await bob(semaphore.locked)
    assert await bob(other.acquire, timeout=0) is not None


async def test_never_more_than_the_limit(world: World) -> None:
    """Through one object shared by all, and as many permits as were taken are given back."""
    semaphore = world.client().semaphore("x", 3)
    inside = 0
    most = 0

    async def work(actor: Actor) -> None:
        nonlocal inside, most
        for _ in range(8):
            async with actor.inside(semaphore):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

    await asyncio.gather(*(work(world.actor()) for _ in range(8)))
    assert 1 <= most <= 3
    await world.until_free("x")


async def test_a_waiter_gets_the_permit_that_is_given_back(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    semaphore = world.client().semaphore("x", 1)
    await ann(semaphore.acquire)
    waiting = bob(semaphore.acquire)
    await world.until_waiting("x", 1)
    await ann(semaphore.release)
    assert await waiting is not None


async def test_release_of_several_by_any_thread(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    semaphore = world.client().semaphore("x", 3)
    for _ in range(3):
        await ann(semaphore.acquire)
    await bob(semaphore.release, 2)
    assert len(world.look("x").holders) == 1
    with pytest.raises(NotHeld, match="2"):
        await bob(semaphore.release, 2)
    assert len(world.look("x").holders) == 1, "nothing was given back by a release that asked for too many"
    await ann(semaphore.release)
    with pytest.raises(NotHeld):
        await ann(semaphore.release)


async def test_permits_are_of_the_object_they_were_taken_through(world: World) -> None:
    ann, client = world.actor(), world.client()
    one, two = client.semaphore("x", 2), client.semaphore("x", 2)
    await ann(one.acquire)
    with pytest.raises(NotHeld):
        await ann(two.release)
    await ann(one.release)


@pytest.mark.parametrize("wrong", [0, -1, 1.0, True, "1", 10**9])
async def test_counts_that_mean_nothing_are_refused(world: World, wrong: int) -> None:
    ann, client = world.actor(), world.client()
    with pytest.raises(InvalidArgument, match="limit"):
        client.semaphore("x", wrong)
    semaphore = client.semaphore("x", 2)
    with pytest.raises(InvalidArgument, match=r"limit|n "):
        await ann(semaphore.release, wrong)
    with pytest.raises(InvalidArgument, match="limit"):
        await ann(semaphore.resize, wrong)


async def test_all_clients_declare_the_same_limit(world: World) -> None:
    ann, client = world.actor(), world.client()
    semaphore = client.semaphore("x", 2)
    await ann(semaphore.acquire)
    with pytest.raises(InvalidArgument, match="limit 2, here with 3"):
        await ann(client.semaphore("x", 3).acquire)
    with pytest.raises(InvalidArgument, match="limit 2, here with 1"):
        await ann(client.semaphore("x", 1).acquire, blocking=False)
    await ann(semaphore.release)
    with pytest.raises(InvalidArgument, match="resize"):
        await ann(client.semaphore("x", 3).acquire)


async def test_resizing_up_lets_waiters_in(world: World) -> None:
    ann, bob, cid = world.actor(), world.actor(), world.actor()
    client = world.client()
    semaphore = client.semaphore("x", 1)
    await ann(semaphore.acquire)
    waiting = [bob(semaphore.acquire)]
    await world.until_waiting("x", 1)
    waiting.append(cid(semaphore.acquire))
    await world.until_waiting("x", 2)
    await ann(semaphore.resize, 3)
    leases = [held(lease) for lease in await asyncio.gather(*waiting)]
    assert leases[0].token != leases[1].token
    assert world.look("x").limit == 3
    await ann(semaphore.release)
    assert await ann(client.semaphore("x", 1).acquire) is not None, "what was declared stays declared"


async def test_resizing_down_revokes_nobody(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    semaphore = world.client().semaphore("x", 3)
    leases = [held(await ann(semaphore.acquire)) for _ in range(3)]
    await ann(semaphore.resize, 1)
    assert len(world.look("x").holders) == 3
    for lease in leases:
        lease.check()
    await ann(semaphore.release)
    await ann(semaphore.release)
    assert await bob(semaphore.acquire, blocking=False) is None, "one is held, and one is the limit now"
    assert await bob(semaphore.locked)
    await ann(semaphore.release)
    assert await bob(semaphore.acquire, blocking=False) is not None


async def test_a_name_may_be_resized_before_it_is_used(world: World) -> None:
    ann = world.actor()
    semaphore = world.client().semaphore("x", 1)
    await ann(semaphore.resize, 2)
    assert await ann(semaphore.acquire, timeout=0) is not None
    assert await ann(semaphore.acquire, timeout=0) is not None
    assert await ann(semaphore.acquire, timeout=0) is None


async def test_a_permit_that_runs_out_is_free_again(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    client = world.client()
    semaphore = client.semaphore("x", 1, ttl=0.3, renew=False)
    lease = held(await ann(semaphore.acquire))
    assert await bob(semaphore.acquire, timeout=20) is not None
    assert lease.lost
    with pytest.raises(LockLost):
        await ann(semaphore.release)


async def test_closing_a_client_gives_its_permits_back(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    client = world.client()
    semaphore = client.semaphore("x", 2)
    await ann(semaphore.acquire)
    await ann(semaphore.acquire)
    waiting = bob(world.client().semaphore("x", 2).acquire)
    await world.until_waiting("x", 1)
    await ann(client.close)
    assert await waiting is not None


async def test_permits_in_with(world: World) -> None:
    ann = world.actor()
    semaphore = world.client().semaphore("x", 2)
    async with ann.inside(semaphore) as one, ann.inside(semaphore) as two:
        assert one.token < two.token
        assert len(world.look("x").holders) == 2
    assert not world.look("x").locked
