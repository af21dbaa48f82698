"""Latches: a count that goes down to zero, once."""

from __future__ import annotations

import asyncio

import pytest

from contract.engines import needs
from contract.harness import World
from holdfast import InvalidArgument

pytestmark = needs("cells")


async def test_those_that_wait_pass_when_the_count_is_zero(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    latch = client.latch("ready", 3)
    waiting = bob(world.client().latch("ready", 3).wait)
    assert await ann(latch.wait, 0) is False
    assert await ann(latch.wait, 0.05) is False
    assert await ann(latch.count_down) == 2
    assert await ann(latch.remaining) == 2
    assert not waiting.done()
    assert await ann(latch.count_down, 2) == 0
    assert await waiting is True
    assert await ann(latch.count_down, 5) == 0, "it stays at zero"
    assert await ann(client.latch("ready", 3).wait) is True, "and lets all pass that come later"


async def test_each_count_down_counts_once(world: World) -> None:
    actors = [world.actor() for _ in range(4)]
    latches = [world.client().latch("x", 20) for _ in actors]

    async def count(index: int) -> None:
        for _ in range(5):
            await actors[index](latches[index].count_down)

    await asyncio.gather(*[count(index) for index in range(4)])
    assert await actors[0](latches[0].remaining) == 0


async def test_wrong_arguments_and_another_count(world: World) -> None:
    ann, client = world.actor(), world.client()
    for wrong in (0, -1, 1.5, True, "3"):
        with pytest.raises(InvalidArgument, match="count"):
            client.latch("x", wrong)  # type: ignore[arg-type]  # a whole number above zero
    with pytest.raises(InvalidArgument, match="empty"):
        client.latch("", 1)
    latch = client.latch("x", 2)
    with pytest.raises(InvalidArgument, match="n must be"):
        await ann(latch.count_down, 0)
    with pytest.raises(InvalidArgument, match="timeout"):
        await ann(latch.wait, -3)
    await ann(latch.count_down)
    other = client.latch("x", 5)
    for call in (other.wait, other.count_down, other.remaining):
        with pytest.raises(InvalidArgument, match="from 2, not from 5"):
            await ann(call)
