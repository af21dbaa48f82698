"""What can be seen from outside: who holds, who waits, what changed."""

from __future__ import annotations

import os
import socket

import pytest

from contract.engines import needs
from contract.harness import World, held
from holdfast import InvalidArgument


async def test_a_name_that_nobody_used(world: World) -> None:
    ann, client = world.actor(), world.client()
    info = await ann(client.inspect, "x")
    assert (info.name, info.kind, info.holders, info.waiters) == ("x", None, (), ())
    assert (info.value, info.limit, info.token, info.locked) == (None, None, 0, False)
    assert await ann(client.list) == [], "looking does not make it one in use"


async def test_a_holder(world: World) -> None:
    ann, client = world.actor("ann/of the hills"), world.client()
    lease = held(await ann(client.lock("x", ttl=20, metadata={"job": "7", "né": "é"}).acquire))
    info = await ann(client.inspect, "x")
    assert (info.kind, info.locked, info.token, info.limit) == ("lock", True, lease.token, None)
    (holder,) = info.holders
    assert (holder.token, holder.mode) == (lease.token, "exclusive")
    assert (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
    assert holder.thread == "ann/of the hills"
    assert holder.owner == lease.owner == f"{holder.host}/{holder.pid}/{holder.thread}"
    assert holder.metadata == {"job": "7", "né": "é"}
    assert 0 <= holder.age < 10
    assert 10 < holder.remaining <= 20
    assert lease.remaining <= holder.remaining, "the holder gives up before the engine does"
    await ann(lease.release)
    info = await ann(client.inspect, "x")
    assert (info.kind, info.holders, info.token) == ("lock", (), lease.token)


@needs("semaphore")
async def test_clients_have_ids_of_their_own(world: World) -> None:
    ann, first, second = world.actor(), world.client(), world.client()
    await ann(first.semaphore("x", 3).acquire)
    await ann(second.semaphore("x", 3).acquire)
    await ann(first.semaphore("x", 3).acquire)
    one, two, three = (holder.client for holder in world.look("x").holders)
    assert one == three != two


@needs("queue")
async def test_waiters_in_the_order_in_which_they_are_served(world: World) -> None:
    client = world.client()
    await world.actor("holder")(client.lock("x").acquire)
    for number in range(3):
        world.actor(f"waiter-{number}")(client.lock("x").acquire, timeout=30)
        await world.until_waiting("x", number + 1)
    waiters = world.look("x").waiters
    assert [waiter.thread for waiter in waiters] == ["waiter-0", "waiter-1", "waiter-2"]
    assert all((w.host, w.pid) == (socket.gethostname(), os.getpid()) for w in waiters)
    assert all(w.owner == f"{w.host}/{w.pid}/{w.thread}" for w in waiters)
    assert {waiter.mode for waiter in waiters} == {"exclusive"}
    ages = [waiter.age for waiter in waiters]
    assert ages == sorted(ages, reverse=True)
    await world.actor("breaker")(client.break_lock, "x", reason="the end of the test")


@needs("semaphore")
async def test_holders_of_a_semaphore_and_its_limit(world: World) -> None:
    ann, client = world.actor(), world.client()
    leases = [held(await ann(client.semaphore("x", 3).acquire)) for _ in range(2)]
    info = world.look("x")
    assert (info.kind, info.limit) == ("semaphore", 3)
    assert [holder.token for holder in info.holders] == [lease.token for lease in leases]
    assert {holder.mode for holder in info.holders} == {"permit"}


async def test_list_is_in_the_order_of_bytes_and_by_prefix(world: World) -> None:
    ann, client = world.actor(), world.client()
    names = ["b", "a", "a%c", "a_b", "ab", "é", "Z", "a/1", "a/2", "🔒"]
    for name in names:
        await ann(client.lock(name).acquire)
    await ann(world.client(namespace=world.namespace + "-other").lock("a/3").acquire)

    async def listed(prefix: str = "") -> list[str]:
        return [info.name for info in await ann(client.list, prefix)]

    assert await listed() == sorted(names, key=str.encode)
    assert await listed("a/") == ["a/1", "a/2"]
    assert await listed("a%") == ["a%c"], "a prefix is text, not a pattern"
    assert await listed("a_") == ["a_b"]
    assert await listed("nothing") == []
    with pytest.raises(InvalidArgument, match="prefix"):
        await ann(client.list, "x" * 513)
    with pytest.raises(InvalidArgument, match="prefix"):
        await ann(client.list, None)  # type: ignore[arg-type]  # what is refused here


@needs("queue")
async def test_list_shows_what_is_in_use(world: World) -> None:
    ann, bob, client = world.actor(), world.actor("bob"), world.client()
    lock = client.lock("x")
    await ann(lock.acquire)
    waiting = bob(client.lock("x").acquire)
    await world.until_waiting("x", 1)
    (info,) = await ann(client.list)
    assert [waiter.thread for waiter in info.waiters] == ["bob"]
    await ann(lock.release)
    await bob(held(await waiting).release)
    assert await ann(client.list) == []


@needs("value")
async def test_watching_a_name(world: World) -> None:
    ann, eve, client = world.actor("ann"), world.actor("eve"), world.client()
    watch = world.client().watch("x")
    enter, leave = _ends(world)
    await eve(getattr(watch, enter))
    first = await eve(watch.next, timeout=20)
    assert first is not None
    assert not first.locked
    lease = held(await ann(client.lock("x").acquire))
    changed = await eve(watch.next, timeout=20)
    assert changed is not None
    assert [holder.token for holder in changed.holders] == [lease.token]
    await ann(lease.set_value, b"news")
    changed = await eve(watch.next, timeout=20)
    assert changed is not None
    assert changed.value == b"news"
    await ann(lease.release)
    changed = await eve(watch.next, timeout=20)
    assert changed is not None
    assert not changed.locked
    assert await eve(watch.next, timeout=0.05) is None, "nothing changed"
    await eve(getattr(watch, leave), None, None, None)


async def test_a_change_between_two_looks_is_not_missed(world: World) -> None:
    ann, eve, client = world.actor(), world.actor(), world.client()
    watch = client.watch("x")
    enter, leave = _ends(world)
    await eve(getattr(watch, enter))
    await eve(watch.next)
    for _ in range(3):
        async with ann.inside(client.lock("x")) as lease:
            pass
    latest = await eve(watch.next, timeout=20)
    assert latest is not None
    assert latest.token == lease.token, "some changes may be skipped, but never the last"
    await eve(getattr(watch, leave), None, None, None)


def _ends(world: World) -> tuple[str, str]:
    return ("__enter__", "__exit__") if world.driver == "threads" else ("__aenter__", "__aexit__")
