"""How many requests things cost: on a network each is a round trip."""

from __future__ import annotations

from typing import Any

from api.spy import SpyWorld
from contract.harness import held


async def test_acquire_and_release_of_a_free_lock_are_one_request_each(world: SpyWorld) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    for _ in range(3):
        await ann(lock.acquire)
        await ann(lock.release)
    assert [call.asked for call in world.spy.calls] == [("Acquire",), ("Release",)] * 3


async def test_where_others_were_before_one_asks_for_a_place_at_once(world: SpyWorld) -> None:
    """The first time it is tried, then asked for a place, then taken; after that, trying is left out."""
    ann, bob = world.actor("ann"), world.actor("bob")
    mine, theirs = world.client().lock("x"), world.client().lock("x")
    asked = []
    for _ in range(3):
        lease = held(await ann(mine.acquire))
        before = world.spy.asked("Acquire")
        waiting = bob(theirs.acquire)
        await world.until_waiting("x", 1)
        await ann(lease.release)
        await waiting
        asked.append(world.spy.asked("Acquire") - before)
        await bob(theirs.release)
    assert asked == [3, 2, 2]


async def test_one_try_never_takes_a_place(world: SpyWorld) -> None:
    ann, bob = world.actor("ann"), world.actor("bob")
    client = world.client()
    mine, theirs = client.lock("x"), client.lock("x")
    await ann(mine.acquire)
    assert await bob(theirs.acquire, timeout=0.05) is None
    before = world.spy.asked("Acquire")
    assert await bob(theirs.acquire, blocking=False) is None
    assert world.spy.asked("Acquire") == before + 1
    assert not world.look("x").waiters
    await ann(mine.release)


async def test_a_stored_result_is_one_request(world: SpyWorld) -> None:
    ann, client = world.actor(), world.client()

    def plain() -> str:
        return "done"

    async def awaited() -> str:
        return plain()

    work: Any = plain if world.driver == "threads" else awaited
    assert await ann(client.idempotent("x").run, work) == "done"
    first = [call.asked for call in world.spy.calls]
    assert first == [("Inspect",), ("Acquire",), ("Inspect",), ("SetValue",), ("Release",)]
    assert await ann(client.idempotent("x").run, work) == "done"
    assert [call.asked for call in world.spy.calls[len(first) :]] == [("Inspect",)]


async def test_several_free_locks_are_one_request_and_their_release_is_another(world: SpyWorld) -> None:
    ann, several = world.actor(), world.client().all("x", "y", "z")
    for _ in range(2):
        await ann(several.acquire)
        await ann(several.release)
    assert [call.asked for call in world.spy.calls] == [("Acquire",) * 3, ("Release",) * 3] * 2
