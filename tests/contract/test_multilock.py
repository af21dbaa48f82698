"""Several locks at once: all or none, and the first that is free."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contract.engines import lacks, needs
from contract.harness import World, held
from holdfast import Deadlock, InvalidArgument, LockLost, LockTimeout, NotHeld
from support import async_wait_until


async def test_all_are_held_together_and_released_together(world: World) -> None:
    ann, client = world.actor(), world.client()
    lock = client.all("b", "a", "ä", ttl=20)
    assert lock.names == ("a", "b", "ä")
    leases = await ann(lock.acquire)
    assert leases is not None
    assert list(leases) == ["a", "b", "ä"]
    assert lock.leases is leases
    for name, lease in leases.items():
        assert (lease.name, lease.token > 0, lease.ttl) == (name, True, 20)
        lease.check()
        assert [holder.token for holder in world.look(name).holders] == [lease.token]
    leases.check()
    assert not leases.lost
    assert 15 < leases.remaining <= 20
    await ann(lock.release)
    for name in ("a", "b", "ä"):
        await world.until_free(name)
    assert lock.leases is None
    with pytest.raises(NotHeld, match="'a', 'b' and 'ä'"):
        await ann(lock.release)
    with pytest.raises(NotHeld):
        leases.check()


async def test_none_is_held_where_one_is_not_granted(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    busy = held(await bob(client.lock("b").acquire))
    for order in ("sorted", "given"):
        lock = client.all("c", "a", "b", timeout=0.05, order=order)
        assert await ann(lock.acquire, False) is None
        assert await ann(lock.acquire) is None
        with pytest.raises(
            LockTimeout, match=f"granted together in 0.05 s: 'b' is held by .*{busy.token}"
        ) as e:
            await ann(getattr(lock, ann.enter_name))
        assert e.value.name == "b"
        for name in ("a", "c"):
            await world.until_free(name)
    assert client.all("c", "a", order="given").names == ("c", "a")
    busy.check()


@pytest.mark.parametrize("order", ["sorted", "given"])
async def test_a_waiter_gets_them_when_they_are_released_together(world: World, order: Any) -> None:
    ann, bob = world.actor(), world.actor()
    first, second = world.client().all("a", "b", order=order), world.client().all("b", "a", order=order)
    taken = await ann(first.acquire)
    waiting = bob(second.acquire)
    await world.until_waiting("a" if order == "sorted" else "b", 1)
    await ann(first.release)
    leases = await waiting
    assert leases is not None
    assert taken is not None
    assert all(leases[name].token > taken[name].token for name in taken)
    await bob(second.release)


async def test_opposite_orders_end_well(world: World) -> None:
    """Two callers, each with an order of its own: none waits for ever."""
    actors = [world.actor(), world.actor()]
    clients = [world.client(), world.client()]
    orders = [("a", "b"), ("b", "a")]

    async def work(index: int) -> None:
        lock = clients[index].all(*orders[index], order="given", timeout=60)
        for _ in range(4):
            leases = await actors[index](lock.acquire)
            assert leases is not None
            leases.check()
            await actors[index](lock.release)

    await asyncio.gather(work(0), work(1))


@needs("rwlock")
@needs("semaphore")
async def test_kinds_and_modes_are_mixed(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    kinds = client.rwlock("r").read(), client.rwlock("w").write(), client.semaphore("s", 2)
    first, second = client.all("x", *kinds), client.all("y", kinds[0], kinds[2])
    leases = await ann(first.acquire)
    assert leases is not None
    assert [lease.mode for lease in leases.values()] == ["read", "permit", "write", "exclusive"]
    others = await bob(second.acquire)
    assert others is not None
    assert await bob(client.all("z", kinds[1]).acquire, False) is None
    with pytest.raises(Deadlock):
        await ann(client.all("z", client.rwlock("r").write()).acquire)
    await ann(first.release)
    await bob(second.release)


async def test_losing_one_is_losing_all(world: World) -> None:
    ann, client, other = world.actor(), world.client(), world.client()
    reported: list[Any] = []
    lock = client.all("a", "b", ttl=5)
    leases = await ann(lock.acquire)
    assert leases is not None
    leases.on_lost(reported.append)
    await ann(other.break_lock, "b", reason="stuck")
    if "wake-ups" not in lacks(world.url):
        await async_wait_until(lambda: reported == [leases], timeout=20)
    await async_wait_until(lambda: leases.lost and leases["a"].lost, timeout=20)
    with pytest.raises(LockLost, match=r"'b'.*broken") as lost:
        leases.check()
    assert (lost.value.name, lost.value.reason) == ("b", "broken")
    with pytest.raises(LockLost, match="together") as lost:
        leases["a"].check()
    assert lost.value.reason == "together"
    assert leases.remaining == 0
    with pytest.raises(LockLost, match=r"'b'.*broken"):
        await ann(lock.release)
    await world.until_free("a")


async def test_a_loss_ends_the_body(world: World) -> None:
    """Threads: LockLost at the end of ``with``. Tasks: the body is cancelled, too."""
    ann, client, other = world.actor(), world.client(), world.client()
    ended: list[str] = []

    def body() -> None:
        with client.all("a", "b", ttl=5) as leases:
            other.break_lock("a", reason="stuck")
            leases["a"].wait_lost(20)
            ended.append("body")

    async def async_body() -> None:
        async with client.all("a", "b", ttl=5):  # type: ignore[attr-defined]  # a client of asyncio
            await other.break_lock("a", reason="stuck")  # type: ignore[misc]  # as above
            await asyncio.sleep(60)
            ended.append("body")

    with pytest.raises(LockLost, match="broken"):
        await ann(body if world.driver == "threads" else async_body)
    assert ended == (["body"] if world.driver == "threads" else [])
    await world.until_free("b")


async def test_the_first_that_is_free(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    first = client.any("a", "b")
    assert first.names == ("a", "b")
    one, two = held(await ann(first.acquire)), held(await bob(first.acquire))
    assert [one.name, two.name] == ["a", "b"]
    assert await ann(first.acquire, False) is None
    assert await ann(first.locked) is True
    with pytest.raises(LockTimeout, match=r"'a' or 'b' was free in 0\.05 s"):
        await ann(getattr(client.any("a", "b", timeout=0.05), ann.enter_name))
    waiting = ann(client.any("b", "a").acquire)
    await bob(two.release)
    assert held(await waiting).name == "b"
    assert await ann(first.locked) is True
    await ann(first.release)
    assert await ann(first.locked) is False


async def test_wrong_items_are_refused_before_any_request(world: World) -> None:
    client, other = world.client(), world.client()
    a_list: Any = ["a", "b"]
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((), "takes the names"),
        (("a", client.rwlock("a").read()), "'a' is given twice to .*, as a lock and as a rwlock to read"),
        ((client.rwlock("a").read(), client.rwlock("a").write()), "to read and as a rwlock to write"),
        ((client.semaphore("a", 2), client.semaphore("a", 3)), "a permit of 2 and as a permit of 3"),
        ((a_list,), r"\*names"),
        ((7,), "int"),
        (("a", ""), "empty"),
        ((other.lock("a"),), "another client"),
        ((client.rwlock("a"),), r"\.read\(\) or \.write\(\)"),
        ((client.rlock("a"),), "rlock"),
        ((client.all("a"),), "MultiLock"),
        ((client.any("a"),), "AnyLock"),
    ]
    for items, message in wrong:
        for call in (client.all, client.any):
            with pytest.raises(InvalidArgument, match=message):
                call(*items)
    with pytest.raises(InvalidArgument, match="order"):
        client.all("a", order="random")  # type: ignore[arg-type]  # one of two words
    with pytest.raises(TypeError, match="did you mean 'ttl'"):
        client.all(client.lock("a"), tttl=3)  # type: ignore[call-arg]  # as the message says
    assert world.look("a").holders == ()


async def test_duplicates_are_removed(world: World) -> None:
    """Of the names, and of locks of one name and mode: the first one counts. The order stays."""
    ann, client = world.actor(), world.client()
    assert client.all("b", "a", "b", order="given").names == ("b", "a")
    assert client.any("b", "a", client.lock("b")).names == ("b", "a")
    lock = client.all("b", client.lock("a", metadata={"x": "first"}), "b", client.lock("a"), "a")
    assert lock.names == ("a", "b")
    leases = await ann(lock.acquire)
    assert leases is not None
    assert list(leases) == ["a", "b"]
    assert leases["a"].metadata == {"x": "first"}
    assert len(world.look("a").holders) == 1
    await ann(lock.release)
    for name in leases:
        await world.until_free(name)


async def test_it_decorates_functions(world: World) -> None:
    ann, client = world.actor(), world.client()

    def plain() -> int:
        return len(world.look("a").holders) + len(world.look("b").holders)

    async def coroutine() -> int:
        return plain()

    work: Any = client.all("a", "b")(plain if world.driver == "threads" else coroutine)
    assert await ann(work) == 2
    await world.until_free("a")
