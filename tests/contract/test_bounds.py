"""The waiters of one name are limited, and a further one is refused at once."""

from __future__ import annotations

import asyncio

import pytest

from contract.engines import needs
from contract.harness import World, held
from holdfast import EngineUnavailable, InvalidArgument

pytestmark = needs("counted queue")


async def waiters(world: World, name: str, count: int) -> None:
    await world.until(lambda: len(world.look(name).waiters) == count)


async def test_one_too_many_is_turned_away_and_leaves_nothing_behind(world: World) -> None:
    ann, client = world.actor(), world.client(max_waiters=2)
    lease = held(await ann(client.lock("x").acquire))
    first, second, third = world.actor(), world.actor(), world.actor()
    waiting = []
    for place, waiter in enumerate((first, second), 1):
        waiting.append(asyncio.ensure_future(waiter(world.client(max_waiters=2).lock("x").acquire)))
        await waiters(world, "x", place)
    with pytest.raises(EngineUnavailable, match=r"'x' has 2 waiters already.*max_waiters"):
        await third(client.lock("x").acquire, timeout=20)
    await waiters(world, "x", 2)
    assert await third(client.lock("x").acquire, timeout=0) is None, "who does not wait is not counted"
    await ann(lease.release)
    for waiter, granted in zip((first, second), waiting, strict=True):
        await waiter(held(await granted).release)
    assert not world.look("x").locked


async def test_another_name_has_a_queue_of_its_own(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client(max_waiters=1)
    for name in ("x", "y"):
        lease = held(await ann(client.lock(name).acquire))
        waiting = asyncio.ensure_future(bob(client.lock(name).acquire))
        await waiters(world, name, 1)
        await ann(lease.release)
        held(await waiting)


@pytest.mark.parametrize("given", [0, -1, 1.5, "many", None, True, 10**9])
async def test_what_is_no_number_of_waiters_is_refused(world: World, given: object) -> None:
    with pytest.raises(InvalidArgument, match="max_waiters"):
        world.client(max_waiters=given)
