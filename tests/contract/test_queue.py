"""Who is next: first come, first served, and nobody is left waiting for one who gave up."""

from __future__ import annotations

import asyncio

from contract.engines import needs
from contract.harness import Actor, World, held
from holdfast import Lock


@needs("queue")
async def test_first_come_first_served(world: World) -> None:
    """Whatever their clients, and whether or not they came through the same object."""
    clients = [world.client(), world.client()]
    shared = clients[0].lock("x")
    holder = world.actor("holder")
    await holder(shared.acquire)
    actors = [world.actor(f"waiter-{number}") for number in range(5)]
    locks = [shared, shared, *(clients[number % 2].lock("x") for number in range(3))]
    served: list[str] = []

    async def take_a_turn(actor: Actor, lock: Lock) -> None:
        async with actor.inside(lock):
            served.append(actor.name)

    turns = []
    for number, (actor, lock) in enumerate(zip(actors, locks, strict=True), start=1):
        turns.append(asyncio.create_task(take_a_turn(actor, lock)))
        await world.until_waiting("x", number)
    assert [waiter.thread for waiter in world.look("x").waiters] == [actor.name for actor in actors]
    await holder(shared.release)
    await asyncio.gather(*turns)
    assert served == [actor.name for actor in actors]


@needs("queue")
async def test_a_waiter_that_gives_up_leaves_nothing_and_delays_no_other(world: World) -> None:
    ann, bob, cid = world.actor(), world.actor(), world.actor("cid")
    client = world.client()
    lock = client.lock("x")
    await ann(lock.acquire)
    gives_up = bob(client.lock("x").acquire, timeout=1.0)
    await world.until_waiting("x", 1, unless=gives_up)
    stays = cid(client.lock("x").acquire)
    await world.until_waiting("x", 2, unless=gives_up)
    assert await gives_up is None
    await world.until_waiting("x", 1)
    assert [waiter.thread for waiter in world.look("x").waiters] == ["cid"]
    await ann(lock.release)
    assert held(await stays).token == world.look("x").holders[0].token
    assert not world.look("x").waiters


@needs("rwlock", "queue")
async def test_a_try_respects_waiters(world: World) -> None:
    """A reader could share with the readers inside, but a writer came before it."""
    ann, bob, cid = world.actor(), world.actor(), world.actor()
    rwlock = world.client().rwlock("x")
    await ann(rwlock.read().acquire)
    writer = bob(rwlock.write().acquire)
    await world.until_waiting("x", 1)
    assert await cid(rwlock.read().acquire, blocking=False) is None
    assert await cid(world.client().rwlock("x").read().acquire, timeout=0) is None
    await ann(rwlock.read().release)
    await writer


@needs("rwlock", "queue")
async def test_barging_is_asked_for(world: World) -> None:
    """``fair=False`` passes those who wait, where the holders allow it and the engine can."""
    ann, bob, cid = world.actor(), world.actor(), world.actor()
    client = world.client()
    rwlock = client.rwlock("x")
    await ann(rwlock.read().acquire)
    writer = bob(rwlock.write().acquire)
    await world.until_waiting("x", 1)
    barging = client.rwlock("x", fair=False).read()
    if not client.guarantees.can_barge:
        assert await cid(barging.acquire, timeout=0) is None, "it is accepted, and changes nothing"
        await ann(rwlock.read().release)
        await bob(held(await writer).release)
        assert await cid(barging.acquire, timeout=0) is not None
        return
    lease = held(await cid(barging.acquire, timeout=0))
    assert len(world.look("x").holders) == 2
    await cid(lease.release)
    await ann(rwlock.read().release)
    await writer


async def test_an_unfair_lock_still_waits_for_the_holder(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    client = world.client()
    await ann(client.lock("x").acquire)
    unfair = client.lock("x", fair=False)
    assert await bob(unfair.acquire, timeout=0) is None
    waiting = bob(unfair.acquire)
    await world.until_waiting("x", 1)
    assert await ann(client.break_lock, "x", reason="make room") is not None
    assert await waiting is not None


@needs("queue")
async def test_fair_is_the_default(world: World) -> None:
    ann, bob, cid = world.actor(), world.actor("bob"), world.actor("cid")
    client = world.client()
    lock = client.lock("x", fair=True)
    await ann(lock.acquire)
    first = bob(client.lock("x", fair=None).acquire)
    await world.until_waiting("x", 1)
    second = cid(client.lock("x", fair=True).acquire)
    await world.until_waiting("x", 2)
    await ann(lock.release)
    lease = held(await first)
    assert not second.done()
    await bob(lease.release)
    assert held(await second).token > lease.token


async def test_the_next_is_served_when_a_lease_runs_out(world: World) -> None:
    """At the holder's own end, not at the waiter's ttl."""
    ann, bob = world.actor(), world.actor()
    client = world.client()
    lost = held(await ann(client.lock("x", ttl=0.4, renew=False).acquire))
    lease = held(await bob(client.lock("x", ttl=60).acquire, timeout=20))
    assert lost.lost
    assert lease.token > lost.token


async def test_many_wait_at_once(world: World) -> None:
    client = world.client()
    lock = client.lock("x")
    actors = [world.actor() for _ in range(30)]
    tokens: list[int] = []

    async def once(number: int) -> None:
        async with actors[number].inside(lock) as lease:
            tokens.append(lease.token)

    await asyncio.gather(*(once(number) for number in range(30)))
    assert len(set(tokens)) == 30
    assert tokens == sorted(tokens)
    await world.until_free("x")
