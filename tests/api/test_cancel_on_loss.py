"""Losing a lock cancels the body of ``async with``; no other cancellation is lost, and none is left over."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest

import holdfast
import holdfast.aio
from holdfast import LockLost
from holdfast.aio import AsyncClient, AsyncLock
from support import async_wait_until


def run(test: Callable[[AsyncClient], Awaitable[None]]) -> None:
    """In a loop and with a client of its own; afterwards no cancellation may be left on the task."""

    async def main() -> None:
        async with holdfast.aio.connect(f"memory://{secrets.token_hex(8)}") as client:
            await test(client)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "a stray cancellation was left behind"
        await asyncio.sleep(0)

    asyncio.run(main())


def short(client: AsyncClient, name: str = "x") -> AsyncLock:
    """A lock that is lost soon."""
    return client.lock(name, ttl=0.2, renew=False)


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def test_the_body_is_cancelled_at_once_and_the_loss_raised() -> None:
    async def test(client: AsyncClient) -> None:
        seen: list[type[BaseException]] = []

        async def body() -> None:
            async with short(client):
                try:
                    await for_ever()
                except asyncio.CancelledError as error:
                    seen.append(type(error))
                    raise

        with pytest.raises(LockLost) as loss:
            await body()
        assert seen == [asyncio.CancelledError]
        assert loss.value.reason == "expired"
        assert cancelling() == 0

    run(test)


def test_at_once_means_long_before_the_ttl_when_it_is_broken() -> None:
    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with client.lock("x", ttl=3600):
                breaking = asyncio.create_task(client.break_lock("x", reason="test"))
                await for_ever()
                await breaking

        with pytest.raises(LockLost, match="test") as loss:
            await asyncio.wait_for(body(), 20)
        assert loss.value.reason == "broken"

    run(test)


def test_a_body_that_swallows_the_cancellation() -> None:
    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with short(client):
                with contextlib.suppress(asyncio.CancelledError):
                    await for_ever()

        with pytest.raises(LockLost):
            await body()
        assert cancelling() == 0
        await asyncio.sleep(0)

    run(test)


def test_a_body_that_turns_it_into_another_error() -> None:
    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with short(client):
                try:
                    await for_ever()
                except asyncio.CancelledError:
                    raise ZeroDivisionError("of the body") from None

        with pytest.raises(ZeroDivisionError) as error:
            await body()
        assert any("was lost" in note for note in error.value.__notes__)
        assert cancelling() == 0

    run(test)


def test_a_body_that_ends_as_the_loss_is_signalled() -> None:
    """The cancellation was sent and is not delivered yet when the body ends: it must not strike later."""

    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with client.lock("x", ttl=3600) as lease:
                lease._state.mark_lost("broken", "by the test")
                client._driver.signal(lease._state)
                await asyncio.sleep(0)  # the listener runs now: our own task is cancelled

        with pytest.raises(LockLost):
            await body()
        assert cancelling() == 0
        await asyncio.sleep(0)

    run(test)


def test_it_is_lost_without_an_await_in_the_body() -> None:
    """The loop was blocked longer than the ttl: nothing could be cancelled, so the end of ``with`` raises."""

    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with short(client) as lease:
                while not lease.lost:
                    pass

        with pytest.raises(LockLost):
            await body()
        assert cancelling() == 0
        await asyncio.sleep(0.05)

    run(test)


def test_a_timeout_from_outside_is_a_timeout() -> None:
    async def test(client: AsyncClient) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), client.lock("x", ttl=30):
                await for_ever()
        assert cancelling() == 0
        assert not await client.lock("x").locked()

    run(test)


def test_a_timeout_inside_is_the_bodys_own() -> None:
    async def test(client: AsyncClient) -> None:
        async with client.lock("x", ttl=30):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await for_ever()
        assert cancelling() == 0

    run(test)


def test_a_loss_inside_a_timeout_inside_the_body() -> None:
    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with short(client), asyncio.timeout(20):
                await for_ever()

        with pytest.raises(LockLost):
            await body()
        assert cancelling() == 0

    run(test)


def test_a_loss_inside_an_outer_timeout_that_has_time_left() -> None:
    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with asyncio.timeout(20), short(client):
                await for_ever()

        with pytest.raises(LockLost):
            await body()
        assert cancelling() == 0

    run(test)


@pytest.mark.parametrize("loss_first", [True, False])
def test_a_loss_and_an_outer_timeout_at_once(loss_first: bool) -> None:
    """Both cancel in the same turn of the loop: the time-out gets its own."""

    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with asyncio.timeout(None) as timeout, client.lock("x", ttl=3600) as lease:
                loop = asyncio.get_running_loop()

                def lose() -> None:
                    lease._state.mark_lost("broken", "by the test")
                    client._driver.signal(lease._state)

                if loss_first:
                    lose()
                    timeout.reschedule(loop.time())
                else:
                    timeout.reschedule(loop.time())
                    loop.call_soon(lose)
                await for_ever()

        with pytest.raises((TimeoutError, LockLost)):
            await body()
        assert cancelling() == 0
        await asyncio.sleep(0)

    run(test)


def test_a_cancellation_from_outside_is_not_swallowed() -> None:
    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with client.lock("x", ttl=30):
                await for_ever()

        task = asyncio.create_task(body())
        await until_held(client)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert not await client.lock("x").locked()

    run(test)


def test_a_cancellation_from_outside_and_a_loss() -> None:
    """The task that cancelled it sees it cancelled, and the loss is noted on the cancellation."""

    async def test(client: AsyncClient) -> None:
        notes: list[str] = []

        async def body() -> None:
            try:
                async with client.lock("x", ttl=3600) as lease:
                    lease._state.mark_lost("broken", "by the test")
                    client._driver.signal(lease._state)
                    myself = asyncio.current_task()
                    assert myself is not None
                    asyncio.get_running_loop().call_soon(myself.cancel)
                    await for_ever()
            except asyncio.CancelledError as error:
                notes.extend(error.__notes__)
                raise

        task = asyncio.create_task(body())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert "was lost" in notes[0]

    run(test)


def test_a_second_cancel_while_it_is_given_back() -> None:
    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with client.lock("x", ttl=30):
                try:
                    await for_ever()
                finally:
                    myself = asyncio.current_task()
                    assert myself is not None
                    myself.cancel()

        task = asyncio.create_task(body())
        await until_held(client)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 2
        await until_held(client, 0)

    run(test)


def test_a_task_group_inside_the_body() -> None:
    """Its tasks are cancelled along with the body."""

    async def test(client: AsyncClient) -> None:
        ended: list[str] = []

        async def child() -> None:
            try:
                await for_ever()
            finally:
                ended.append("child")

        async def body() -> None:
            async with short(client), asyncio.TaskGroup() as group:
                group.create_task(child())
                group.create_task(child())

        with pytest.raises(LockLost):
            await body()
        assert ended == ["child", "child"]
        assert cancelling() == 0

    run(test)


def test_a_task_group_outside_sees_the_loss_as_its_childs_error() -> None:
    async def test(client: AsyncClient) -> None:
        others: list[str] = []

        async def other() -> None:
            try:
                await for_ever()
            except asyncio.CancelledError:
                others.append("cancelled by the group")
                raise

        async def holder() -> None:
            async with short(client):
                await for_ever()

        async def body() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(holder())
                group.create_task(other())

        # In a task of its own: before Python 3.13 a group leaves its parent's count of cancellations raised.
        with pytest.raises(ExceptionGroup) as errors:
            await asyncio.create_task(body())
        assert [type(error) for error in errors.value.exceptions] == [LockLost]
        assert others == ["cancelled by the group"]

    run(test)


def test_a_task_group_that_cancels_the_holder() -> None:
    """A sibling fails: the holder is cancelled by its group, not by a loss."""

    async def test(client: AsyncClient) -> None:
        async def fails() -> None:
            await until_held(client)
            raise ZeroDivisionError

        async def body() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(fails())
                async with client.lock("x", ttl=30):
                    await for_ever()

        with pytest.raises(ExceptionGroup) as errors:
            await body()
        assert [type(error) for error in errors.value.exceptions] == [ZeroDivisionError]
        assert cancelling() == 0
        assert not await client.lock("x").locked()

    run(test)


def test_nested_locks_lost_one_after_the_other() -> None:
    async def test(client: AsyncClient) -> None:
        async def body() -> None:
            async with short(client, "outer"), short(client, "inner"):
                await for_ever()

        with pytest.raises(LockLost):
            await body()
        assert cancelling() == 0
        await asyncio.sleep(0)

    run(test)


def test_only_the_inner_one_is_lost() -> None:
    async def test(client: AsyncClient) -> None:
        async with client.lock("outer", ttl=30) as outer:

            async def body() -> None:
                async with short(client, "inner"):
                    await for_ever()

            with pytest.raises(LockLost, match="inner"):
                await body()
            outer.check()
            assert cancelling() == 0

    run(test)


def test_entered_by_a_task_that_is_being_cancelled() -> None:
    """Cleaning up under a lock: the cancellation that was there before is there afterwards, once."""

    async def test(client: AsyncClient) -> None:
        counts: list[int] = []

        async def body() -> None:
            try:
                await for_ever()
            finally:
                counts.append(cancelling())
                with pytest.raises(LockLost):
                    async with short(client):
                        await for_ever()
                counts.append(cancelling())

        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert counts == [1, 1]

    run(test)


@pytest.mark.parametrize("if_lost", ["raise", "note"])
def test_the_other_ways_do_not_cancel(if_lost: Literal["raise", "note"]) -> None:
    async def test(client: AsyncClient) -> None:
        ran_to_the_end = False

        async def body() -> None:
            nonlocal ran_to_the_end
            lock = client.lock("x", ttl=0.2, renew=False, if_lost=if_lost)
            async with lock as lease:
                assert await lease.wait_lost(timeout=20)
                await asyncio.sleep(0.05)
                ran_to_the_end = True

        if if_lost == "raise":
            with pytest.raises(LockLost):
                await body()
        else:
            await body()
        assert ran_to_the_end

    run(test)


def test_acquire_without_with_is_never_cancelled() -> None:
    async def test(client: AsyncClient) -> None:
        lock = short(client)
        lease = await lock.acquire()
        assert lease is not None
        assert await lease.wait_lost(timeout=20)
        await asyncio.sleep(0.05)
        with pytest.raises(LockLost):
            await lock.release()

    run(test)


def test_the_decorator_cancels_too() -> None:
    async def test(client: AsyncClient) -> None:
        @short(client)
        async def work() -> None:
            await for_ever()

        with pytest.raises(LockLost):
            await asyncio.wait_for(work(), 20)
        assert cancelling() == 0

    run(test)


def test_an_async_callback_is_awaited() -> None:
    async def test(client: AsyncClient) -> None:
        reported = asyncio.Event()

        async def tell(lease: object) -> None:
            await asyncio.sleep(0)
            reported.set()

        lease = await short(client).acquire()
        assert lease is not None
        lease.on_lost(tell)
        await asyncio.wait_for(reported.wait(), 20)

    run(test)


async def until_held(client: AsyncClient, by: int = 1) -> None:
    with holdfast.connect(client.url) as observer:
        await async_wait_until(lambda: len(observer.inspect("x").holders) == by)
