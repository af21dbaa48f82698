"""Deadlocks: waiters that wait for each other are found, and one of them gives up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from contract.engines import needs, takes_seconds
from contract.harness import Actor, World, held
from holdfast import Client, Deadlock, InvalidArgument, Lease, Lock
from holdfast.protocols.records import acquisition
from holdfast.recipes import deadlock as recipe
from holdfast.recipes.names import waits

pytestmark = needs("rwlock")


@pytest.fixture(autouse=True)
def sooner() -> Iterator[None]:
    """Waiters look after a fifth of a second; ``tests/faults`` waits as long as users do."""
    with (
        mock.patch.object(acquisition, "LONG_WAIT_SECONDS", 0.2),
        mock.patch.object(recipe, "LOOK_SECONDS_MIN", 0.2),
    ):
        yield


async def finish(waiting: list[tuple[Actor, Lock, asyncio.Future[Lease | None]]]) -> list[Deadlock]:
    """The errors of the victims: each releases what it holds, and so does each waiter that is served."""
    victims: list[Deadlock] = []

    async def finish_one(actor: Actor, holds: Lock, granted: asyncio.Future[Lease | None]) -> None:
        try:
            lease = held(await granted)
        except Deadlock as error:
            victims.append(error)
        else:
            await actor(lease.release)
        await actor(holds.release)

    await asyncio.gather(*[finish_one(*each) for each in waiting])
    return victims


async def ring(world: World, names: str) -> list[Deadlock]:
    """Each holds one name and waits for the next one."""
    actors = [world.actor(f"{name}-holder") for name in names]
    clients = [world.client() for _ in names]
    holds = [client.lock(name) for client, name in zip(clients, names, strict=True)]
    for actor, lock in zip(actors, holds, strict=True):
        held(await actor(lock.acquire))
    waiting = [
        (actor, lock, actor(client.lock(name, deadlock="raise").acquire, timeout=30))
        for actor, client, lock, name in zip(actors, clients, holds, names[1:] + names[0], strict=True)
    ]
    return await finish(waiting)


@takes_seconds
@pytest.mark.parametrize("names", ["ab", "abc"])
async def test_one_waiter_of_a_cycle_gives_up_and_the_others_go_on(world: World, names: str) -> None:
    (victim,) = await ring(world, names)
    assert sorted(edge.name for edge in victim.cycle) == sorted(names)
    assert [edge.is_victim for edge in victim.cycle] == [True] + [False] * (len(names) - 1)
    assert [edge.held_by for edge in victim.cycle] == [
        edge.owner for edge in victim.cycle[1:] + victim.cycle[:1]
    ]
    assert victim.cycle[-1].token == max(edge.token for edge in victim.cycle), "the last to take its lock"
    assert victim.name == victim.cycle[0].name
    for edge in victim.cycle:
        assert repr(edge.name) in str(victim)
        assert edge.owner in str(victim)
    closer, client = world.actor(), world.client()
    assert await closer(client.deadlocks) == ()
    assert [info.name for info in await closer(client.list) if info.locked] == []


async def published(world: World, client: Client, count: int) -> None:
    """Until so many waiters of this client have said what they wait for."""
    place = waits(client._driver.client_state.client)
    await world.until(lambda: len(world.look(place).holders) >= count, f"never {count} waiters")


@takes_seconds
async def test_waits_that_converge_are_no_cycle(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Two wait for the same holder, one of them for the other as well; the holder waits for nobody."""
    caplog.set_level(logging.WARNING, "holdfast")
    ann, bob, cid, client = world.actor("ann"), world.actor("bob"), world.actor("cid"), world.client()
    last, mine, other = client.lock("last"), client.lock("mine"), client.lock("other")
    await cid(last.acquire)
    await ann(mine.acquire)
    await bob(other.acquire)
    first = ann(client.lock("last", deadlock="raise").acquire, timeout=30)
    second = bob(client.lock("mine", deadlock="raise").acquire, timeout=30)
    eve = world.actor("eve")
    # Nobody waits for what bob holds, so he publishes nothing, where the engine shows that.
    await published(world, client, 1 if client.guarantees.has_counted_queue else 2)
    assert await eve(client.deadlocks) == ()
    assert [info.name for info in await eve(client.list)] == ["last", "mine", "other"]
    await cid(last.release)
    await ann(held(await first).release)
    await ann(mine.release)
    await bob(held(await second).release)
    assert not [each for each in caplog.records if "deadlock" in each.getMessage()]


@takes_seconds
async def test_a_warning_names_every_lock_and_owner(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "holdfast")
    ann, bob, eve = world.actor("ann"), world.actor("bob"), world.actor("eve")
    client = world.client()
    mine, other = client.lock("mine"), client.lock("other")
    await ann(mine.acquire)
    await bob(other.acquire)
    waiting = [ann(client.lock("other").acquire, timeout=30), bob(client.lock("mine").acquire, timeout=30)]
    await published(world, client, 2)

    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if "deadlock:" in each.getMessage()]

    await world.until(lambda: len(warnings()) == 2, "a warning in each waiter")
    for text in warnings():
        assert "'mine'" in text
        assert "'other'" in text
        assert "/ann" in text
        assert "/bob" in text
    (cycle,) = await eve(client.deadlocks)
    assert {(edge.owner.rpartition("/")[2], edge.name) for edge in cycle} == {
        ("ann", "other"),
        ("bob", "mine"),
    }
    assert not any(edge.is_victim for edge in cycle)
    await eve(client.break_lock, "mine", reason="the end of the test")
    await bob(held(await waiting[1]).release)
    await bob(other.release)
    await ann(held(await waiting[0]).release)
    assert len(warnings()) == 2, "once for each waiter"


@takes_seconds
async def test_readers_and_a_writer(world: World) -> None:
    """Two readers ask for each other's write side."""
    ann, bob, client = world.actor("ann"), world.actor("bob"), world.client()
    mine, other = client.rwlock("mine"), client.rwlock("other")
    await ann(mine.read().acquire)
    await bob(other.read().acquire)
    waiting = [
        (ann, mine.read(), ann(client.rwlock("other", deadlock="raise").write().acquire, timeout=30)),
        (bob, other.read(), bob(client.rwlock("mine", deadlock="raise").write().acquire, timeout=30)),
    ]
    (victim,) = await finish(waiting)
    assert {edge.mode for edge in victim.cycle} == {"write"}


@needs("semaphore")
@takes_seconds
async def test_permits(world: World) -> None:
    """A waiter for a permit waits for no holder in particular: only when all of them wait for it."""
    ann, bob, cid, client = world.actor("ann"), world.actor("bob"), world.actor("cid"), world.client()
    lock, permits = client.lock("lock"), client.semaphore("permits", 2)
    await ann(lock.acquire)
    await bob(permits.acquire)
    third = held(await cid(client.semaphore("permits", 2).acquire))
    first = ann(client.semaphore("permits", 2, deadlock="raise").acquire, timeout=30)
    second = bob(client.lock("lock", deadlock="raise").acquire, timeout=30)
    eve = world.actor("eve")
    await published(world, client, 2)
    assert await eve(client.deadlocks) == (), "cid may release its permit"
    waiting = cid(client.lock("lock", deadlock="raise").acquire, timeout=30)
    (victim,) = await finish([(ann, lock, first), (bob, permits, second), (cid, third, waiting)])  # type: ignore[list-item]  # a lease is released as a lock is
    assert len(victim.cycle) == 2
    assert {edge.name for edge in victim.cycle} == {"lock", "permits"}


@takes_seconds
@pytest.mark.parametrize("order", ["sorted", "given"])
async def test_a_waiter_for_several_locks_takes_part(world: World, order: Any) -> None:
    """Ann acquires several locks together, and waits for the one that bob holds, who waits for one of hers.

    Sorted, she holds ``a`` of them; with an order of her own none of them, but ``mine``.
    """
    ann, bob = world.actor("ann"), world.actor("bob")
    hers, his = world.client(), world.client()
    mine, other = hers.lock("mine"), his.lock("b")
    await ann(mine.acquire)
    await bob(other.acquire)
    several = hers.all("a", "b", order=order, deadlock="raise")
    together = ann(several.acquire, timeout=60)
    if order == "sorted":
        await world.until_waiting("b", 1)
    wanted = his.lock("a" if order == "sorted" else "mine", deadlock="raise")
    alone = bob(wanted.acquire, timeout=60)
    victims: list[Deadlock] = []

    async def finish_ann() -> None:
        try:
            leases = await together
        except Deadlock as error:
            victims.append(error)
            await ann(mine.release)
        else:
            assert leases is not None
            assert list(leases) == ["a", "b"]
            leases.check()
            await ann(mine.release)
            await ann(several.release)

    async def finish_bob() -> None:
        try:
            lease = held(await alone)
        except Deadlock as error:
            victims.append(error)
        else:
            await bob(lease.release)
        await bob(other.release)

    await asyncio.gather(finish_ann(), finish_bob())
    (victim,) = victims
    assert {edge.name for edge in victim.cycle} == {"b", wanted.name}
    assert {edge.owner.rpartition("/")[2] for edge in victim.cycle} == {"ann", "bob"}
    for name in ("a", "b", "mine"):
        await world.until_free(name)


@takes_seconds
async def test_what_was_acquired_together_is_held_by_the_caller_that_waits_afterwards(world: World) -> None:
    """The locks of ``all`` count as held in a later wait for a single lock, too."""
    ann, bob, client = world.actor("ann"), world.actor("bob"), world.client()
    first, second = client.all("a", "b"), client.all("c", "d")
    await ann(first.acquire)
    await bob(second.acquire)
    waiting = [
        (ann, first, ann(client.lock("d", deadlock="raise").acquire, timeout=60)),
        (bob, second, bob(client.lock("b", deadlock="raise").acquire, timeout=60)),
    ]
    (victim,) = await finish(waiting)  # type: ignore[arg-type]  # several are released as one is
    assert {edge.name for edge in victim.cycle} == {"b", "d"}


@takes_seconds
async def test_without_it_a_waiter_for_several_locks_is_not_seen(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """``deadlock="ignore"`` publishes nothing; the time-out ends the wait."""
    caplog.set_level(logging.WARNING, "holdfast")
    ann, bob, client = world.actor("ann"), world.actor("bob"), world.client()
    other = client.lock("b")
    await bob(other.acquire)
    together = ann(client.all("a", "b", deadlock="ignore").acquire, timeout=2)
    await world.until_waiting("b", 1)
    alone = bob(client.lock("a", deadlock="raise").acquire, timeout=60)
    await published(world, client, 1)
    assert await world.actor("eve")(client.deadlocks) == ()
    assert await together is None
    await bob(held(await alone).release)
    await bob(other.release)
    assert not [each for each in caplog.records if "deadlock" in each.getMessage()]


async def test_a_wrong_option(world: World) -> None:
    client = world.client()
    calls: list[Any] = [client.lock, client.all]
    for call in calls:
        with pytest.raises(InvalidArgument, match="'warn', 'raise' or 'ignore'"):
            call("x", deadlock="die")
