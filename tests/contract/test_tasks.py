"""What only tasks can do to a lock: have another task await it, be cancelled, block their loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from contract.harness import World
from holdfast import LockLost, NotHeld
from holdfast.aio import AsyncClient, AsyncLease, AsyncLock

pytestmark = pytest.mark.parametrize("driver", ["asyncio"])

TURNS = range(6)
"""How often the loop goes round before a task is cancelled: at every early step of what it does."""

Taking = Callable[[Callable[[], Awaitable[AsyncLease | None]]], Awaitable[AsyncLease | None]]


def client_of(world: World) -> AsyncClient:
    """A client as the tasks of this file see it."""
    return cast(AsyncClient, world.client())


async def cancelled_after(turns: int, task: asyncio.Future[Any]) -> None:
    """Cancel it when the loop has gone round so often, and wait for its end."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def by_wait_for(acquire: Callable[[], Awaitable[AsyncLease | None]]) -> AsyncLease | None:
    return await asyncio.wait_for(acquire(), 20)


async def by_create_task(acquire: Callable[[], Awaitable[AsyncLease | None]]) -> AsyncLease | None:
    return await asyncio.ensure_future(acquire())


@pytest.mark.parametrize("take", [by_wait_for, by_create_task])
async def test_the_task_that_asked_owns_it_whichever_task_awaits(world: World, take: Taking) -> None:
    """A reentrant lock is entered again by the task that called acquire, and released by it."""
    lock = client_of(world).rlock("x")
    lease = await take(lock.acquire)
    assert lease is not None
    assert await take(lock.acquire) is lease
    assert await lock.acquire(timeout=0) is lease
    assert [holder.token for holder in world.look("x").holders] == [lease.token]
    for _ in range(3):
        await lock.release()
    assert not world.look("x").locked


async def test_cancelled_as_soon_as_it_asked(world: World) -> None:
    """It may have been granted by then: either way nobody has to wait for its ttl."""
    client = client_of(world)
    for turns in TURNS:
        lock = client.lock("x")
        asking = asyncio.ensure_future(lock.acquire())
        await cancelled_after(turns, asking)
        if not asking.cancelled():
            await lock.release()
        await world.until_free("x")
        assert await lock.acquire(blocking=False) is not None
        await lock.release()


async def test_cancelled_while_it_waits(world: World) -> None:
    """Nothing of it is left in the queue, and the lock object can be used again."""
    client = client_of(world)
    lock = client.lock("x")
    holder = client.lock("x")
    await holder.acquire()
    for _ in range(2):
        waiting = asyncio.ensure_future(lock.acquire())
        await world.until_waiting("x", 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await world.until_waiting("x", 0)
    await holder.release()
    assert await lock.acquire(blocking=False) is not None
    await lock.release()


async def test_cancelled_while_it_releases(world: World) -> None:
    """It is completed behind the caller's back, or can be called again."""
    lock = client_of(world).lock("x")
    for turns in TURNS:
        lease = await lock.acquire(timeout=5)
        assert lease is not None
        await cancelled_after(turns, asyncio.ensure_future(lock.release()))
        with contextlib.suppress(NotHeld):
            await lock.release()
        await world.until_free("x")
        assert not lease.lost


async def test_a_loop_that_is_blocked_longer_than_the_ttl(world: World) -> None:
    """It could not renew: the first call reports the loss, once."""
    lock = client_of(world).lock("x", ttl=0.3)
    lease = await lock.acquire()
    assert lease is not None
    reported: list[AsyncLease] = []
    lease.on_lost(reported.append)
    while not lease.lost:
        pass
    with pytest.raises(LockLost) as loss:
        lease.check()
    assert loss.value.reason == "expired"
    await world.until(lambda: reported)
    with pytest.raises(LockLost):
        await lock.release()
    again = await lock.acquire(timeout=20)
    assert again is not None
    assert again.token > lease.token
    assert reported == [lease]
    await again.release()


async def hold(lock: AsyncLock, entered: list[AsyncLease]) -> None:
    async with lock as lease:
        entered.append(lease)
        await for_ever()


async def test_a_loss_cancels_the_body_and_nothing_else(world: World) -> None:
    """The body is cancelled, what was around it sees the loss, and no cancellation is left over."""
    client = client_of(world)
    entered: list[AsyncLease] = []

    async def break_it() -> None:
        await world.until(lambda: entered)
        await client.break_lock("x", reason="by the test")

    task = asyncio.current_task()
    assert task is not None
    breaking = asyncio.create_task(break_it())
    with pytest.raises(LockLost, match="by the test"):
        async with asyncio.timeout(20):
            await hold(client.lock("x"), entered)
    await breaking
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_loss_is_an_error_of_a_task_group(world: World) -> None:
    client = client_of(world)
    entered: list[AsyncLease] = []

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(hold(client.lock("x"), entered))
            tasks.create_task(for_ever())
            await world.until(lambda: entered)
            await client.break_lock("x", reason="by the test")

    # In a task of its own: before Python 3.13 a group leaves its parent's count of cancellations raised.
    with pytest.raises(ExceptionGroup) as errors:
        await asyncio.create_task(group())
    assert [type(error) for error in errors.value.exceptions] == [LockLost]


async def test_a_timeout_around_the_body_is_a_timeout(world: World) -> None:
    """Nothing was lost: the lock is given back, and the timeout is what the caller sees."""
    client = client_of(world)
    entered: list[AsyncLease] = []
    limit = asyncio.timeout(None)

    async def run_out() -> None:
        await world.until(lambda: entered)
        limit.reschedule(0)

    running_out = asyncio.create_task(run_out())
    with pytest.raises(TimeoutError):
        async with limit:
            await hold(client.lock("x"), entered)
    await running_out
    await world.until_free("x")
    assert not entered[0].lost
