"""The end of a client: everything is given back, and using it afterwards is a clear error."""

from __future__ import annotations

import pytest

from contract.engines import lacks
from contract.harness import World, held
from holdfast import InvalidArgument, NotHeld


async def test_closing_gives_everything_back(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    leases = [held(await ann(lock.acquire)) for lock in world.one_of_each(client)]
    await ann(client.close)
    for lease in leases:
        assert not world.look(lease.name).locked
        assert lease.remaining == 0
        with pytest.raises(NotHeld):
            lease.check()
    await bob(client.close)  # once more does no harm


async def test_closing_a_client_that_was_never_used(world: World) -> None:
    ann, client = world.actor(), world.client()
    await ann(client.close)
    await ann(client.close)
    assert "closed" in repr(client)


async def test_a_closed_client_says_so(world: World) -> None:
    ann, client = world.actor(), world.client()
    lock = client.lock("x")
    lease = held(await ann(lock.acquire))
    exporting = held(await ann(client.lock("y").acquire)).export
    text = "" if "handing over" in lacks(world.url) else await ann(exporting)
    await ann(client.close)
    with pytest.raises(InvalidArgument, match="closed"):
        await ann(lock.acquire)
    with pytest.raises(InvalidArgument, match="closed"):
        await ann(lock.acquire, blocking=False)
    with pytest.raises(InvalidArgument, match="closed"):
        async with ann.inside(client.lock("x")):
            raise AssertionError("the body ran")
    with pytest.raises(InvalidArgument, match="closed"):
        await ann(client.inspect, "x")
    with pytest.raises(InvalidArgument, match="closed"):
        await ann(client.list)
    with pytest.raises(InvalidArgument, match="closed"):
        await ann(client.break_lock, "x", reason="test")
    if text:
        with pytest.raises(InvalidArgument, match="closed"):
            await ann(client.adopt, text)
    with pytest.raises(InvalidArgument, match="closed"):
        await ann(lease.set_value, b"")


async def test_closing_wakes_threads_that_wait_for_a_loss(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    waiting = bob(lease.wait_lost)
    await ann(client.close)
    assert await waiting is False


async def test_closing_ends_waits_for_a_lock(world: World) -> None:
    """Waiters get an error and leave the queue, and nothing is granted to a closed client."""
    ann, bob, client = world.actor(), world.actor(), world.client()
    other = world.client()
    lock = other.lock("x")
    await ann(lock.acquire)
    waiting = bob(client.lock("x").acquire)
    await world.until_waiting("x", 1)
    await ann(client.close)
    with pytest.raises(InvalidArgument, match="closed"):
        await waiting
    await world.until(lambda: not world.look("x").waiters, "it is still in the queue", timeout=3)
    await ann(lock.release)
    assert await ann(lock.acquire, timeout=5) is not None


async def test_the_bodys_error_survives_a_closed_client(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()

    async def body() -> None:
        async with ann.inside(client.lock("x")):
            await bob(client.close)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await body()


async def test_a_client_is_a_context_manager(world: World) -> None:
    ann, client = world.actor(), world.client()
    names = ("__enter__", "__exit__") if world.driver == "threads" else ("__aenter__", "__aexit__")
    assert await ann(getattr(client, names[0])) is client
    await ann(client.lock("x").acquire)
    await ann(getattr(client, names[1]), None, None, None)
    assert not world.look("x").locked
    assert "closed" in repr(client)


async def test_other_clients_are_not_concerned(world: World) -> None:
    ann, first, second = world.actor(), world.client(), world.client()
    lease = held(await ann(second.lock("y").acquire))
    await ann(first.lock("x").acquire)
    await ann(first.close)
    lease.check()
    assert world.look("y").locked


async def test_closing_inside_a_watch(world: World) -> None:
    """There is nothing left to unsubscribe."""
    ann, client = world.actor(), world.client()
    names = ("__enter__", "__exit__") if world.driver == "threads" else ("__aenter__", "__aexit__")
    watch = client.watch("x")
    await ann(getattr(watch, names[0]))
    await ann(client.close)
    await ann(getattr(watch, names[1]), None, None, None)


async def test_closing_ends_watches(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    enter = "__enter__" if world.driver == "threads" else "__aenter__"
    watch = client.watch("x")
    await bob(getattr(watch, enter))
    await bob(watch.next)
    waiting = bob(watch.next)
    await ann(client.inspect, "x")
    await ann(client.close)
    with pytest.raises(InvalidArgument, match="closed"):
        await waiting
