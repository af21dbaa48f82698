"""Barriers: parties that wait for each other, again and again, and learn when one of them is gone."""

from __future__ import annotations

import asyncio
import threading

import pytest

from contract.engines import needs
from contract.harness import Actor, World
from holdfast import BrokenBarrierError, Client, InvalidArgument
from support import async_wait_until

pytestmark = needs("cells")


async def until_waiting(world: World, count: int, parties: int, actor: Actor, client: Client) -> None:
    barrier = client.barrier("x", parties)
    for _ in range(2000):
        if await actor(barrier.n_waiting) == count:
            return
    raise AssertionError(f"never {count} waiting")


async def test_all_parties_pass_together_again_and_again(world: World) -> None:
    actors = [world.actor() for _ in range(3)]
    barriers = [world.client().barrier("x", 3) for _ in actors]
    for _ in range(3):
        indices = await asyncio.gather(
            *[actor(barrier.wait, 60) for actor, barrier in zip(actors, barriers, strict=True)]
        )
        assert sorted(indices) == [0, 1, 2]
    assert await actors[0](barriers[0].n_waiting) == 0
    assert await actors[0](barriers[0].broken) is False


async def test_nobody_passes_before_the_last_one(world: World) -> None:
    ann, bob, cid = world.actor(), world.actor(), world.actor()
    client = world.client()
    first = ann(client.barrier("x", 2).wait)
    await until_waiting(world, 1, 2, cid, client)
    assert not first.done()
    assert await bob(client.barrier("x", 2).wait) == 1
    assert await first == 0


async def test_one_that_gives_up_breaks_it_for_all_until_it_is_reset(world: World) -> None:
    ann, bob, cid = world.actor(), world.actor(), world.actor()
    client = world.client()
    barrier = client.barrier("x", 3)
    waiting = ann(barrier.wait)
    await until_waiting(world, 1, 3, cid, client)
    with pytest.raises(BrokenBarrierError, match="in time"):
        await bob(barrier.wait, 0.05)
    with pytest.raises(threading.BrokenBarrierError):  # as threading has it
        await waiting
    assert await cid(barrier.broken) is True
    with pytest.raises(BrokenBarrierError, match="not reset"):
        await cid(barrier.wait)
    await cid(barrier.reset)
    indices = await asyncio.gather(*[actor(barrier.wait, 60) for actor in (ann, bob, cid)])
    assert sorted(indices) == [0, 1, 2]


async def test_abort_and_reset_are_reported_to_parties_that_wait(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    barrier = client.barrier("x", 2)
    for stop in (barrier.abort, barrier.reset):
        waiting = ann(barrier.wait)
        await until_waiting(world, 1, 2, bob, client)
        await bob(stop)
        with pytest.raises(BrokenBarrierError, match="aborted or reset"):
            await waiting
        await bob(barrier.reset)
    assert await bob(barrier.broken) is False


async def test_a_party_that_is_gone_breaks_it(world: World) -> None:
    """Its client was closed; that a killed one is noticed is tested with real processes."""
    ann, bob, cid = world.actor(), world.actor(), world.actor()
    client, doomed = world.client(), world.client()
    gone = bob(doomed.barrier("x", 3).wait)
    await until_waiting(world, 1, 3, cid, client)
    waiting = ann(client.barrier("x", 3).wait)
    await until_waiting(world, 2, 3, cid, client)
    await cid(doomed.close)
    with pytest.raises(BrokenBarrierError):
        await waiting
    await async_wait_until(gone.done, timeout=20)
    assert await cid(client.barrier("x", 3).broken) is True


async def test_wrong_arguments_and_another_number_of_parties(world: World) -> None:
    ann, client = world.actor(), world.client()
    for wrong in (0, -1, 1.5, True, 1001):
        with pytest.raises(InvalidArgument, match="parties"):
            client.barrier("x", wrong)  # type: ignore[arg-type]  # a whole number from 1 to 1000
    with pytest.raises(InvalidArgument, match="ttl"):
        client.barrier("x", 2, ttl=0)
    assert await ann(client.barrier("x", 1).wait) == 0
    with pytest.raises(InvalidArgument, match="for 1 parties, not for 2"):
        await ann(client.barrier("x", 2).wait)
