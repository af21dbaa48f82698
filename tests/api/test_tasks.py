"""asyncio: a lease belongs to the task that asked, a client to one loop; a blocked loop loses its leases."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import time
import warnings
from collections.abc import Awaitable, Callable

import pytest

import holdfast
import holdfast.aio
from holdfast import InvalidArgument, LockLost, NotHeld
from holdfast.aio import AsyncClient, AsyncLease


def fresh_url() -> str:
    return f"memory://{secrets.token_hex(8)}"


def run(test: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(fresh_url()) as client:
            await test(client)

    asyncio.run(main())


# --- ownership ----------------------------------------------------------------------------------


async def by_wait_for(acquire: Callable[[], Awaitable[AsyncLease | None]]) -> AsyncLease | None:
    return await asyncio.wait_for(acquire(), 20)


async def by_create_task(acquire: Callable[[], Awaitable[AsyncLease | None]]) -> AsyncLease | None:
    return await asyncio.ensure_future(acquire())


async def by_gather(acquire: Callable[[], Awaitable[AsyncLease | None]]) -> AsyncLease | None:
    return (await asyncio.gather(acquire()))[0]


async def by_shield(acquire: Callable[[], Awaitable[AsyncLease | None]]) -> AsyncLease | None:
    return await asyncio.shield(acquire())


through = pytest.mark.parametrize("take", [by_wait_for, by_create_task, by_gather, by_shield])
Take = Callable[[Callable[[], Awaitable[AsyncLease | None]]], Awaitable[AsyncLease | None]]


@through
def test_the_task_that_asked_owns_it_whichever_task_awaits(take: Take) -> None:
    """A reentrant lock is entered again by the task that called acquire, and released by it."""

    async def test(client: AsyncClient) -> None:
        lock = client.rlock("x")
        lease = await take(lock.acquire)
        assert lease is not None
        assert await asyncio.wait_for(lock.acquire(), 5) is lease
        assert await lock.acquire(timeout=0) is lease
        for _ in range(3):
            await lock.release()
        assert not await lock.locked()

    run(test)


@through
def test_release_concerns_the_own_lease_first(take: Take) -> None:
    """Two tasks share a lock object; the first one's lease is lost; its release leaves the second's alone."""

    async def test(client: AsyncClient) -> None:
        lock = client.lock("x")
        lost = await take(lock.acquire)
        assert lost is not None
        await client.break_lock("x", reason="to lose it")
        assert await lost.wait_lost(timeout=20)

        async def second() -> AsyncLease | None:
            return await lock.acquire(timeout=20)

        kept = await asyncio.create_task(second())
        assert kept is not None
        with pytest.raises(LockLost):
            await lock.release()
        kept.check()
        assert (await client.inspect("x")).holders[0].token == kept.token
        await kept.release()

    run(test)


def test_the_owners_name_is_the_tasks() -> None:
    async def test(client: AsyncClient) -> None:
        async def work() -> str:
            async with client.lock("x") as lease:
                return lease.owner

        owner = await asyncio.create_task(work(), name="the nightly report")
        assert owner.endswith("/the nightly report")

    run(test)


def test_wait_for_that_times_out_leaves_nothing() -> None:
    async def test(client: AsyncClient) -> None:
        held = await client.lock("x").acquire()
        assert held is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.lock("x").acquire(), 0.05)
        assert not (await client.inspect("x")).waiters
        await held.release()

    run(test)


def test_outside_a_task() -> None:
    client = holdfast.aio.connect(fresh_url())
    calls: list[Callable[[], object]] = [client.lock("x").acquire, client.lock("x").release]
    for call in calls:
        with pytest.raises(InvalidArgument, match="task"):
            call()


# --- loops --------------------------------------------------------------------------------------


def test_a_client_belongs_to_one_loop() -> None:
    client = holdfast.aio.connect(fresh_url())
    asyncio.run(_use(client))

    async def elsewhere() -> None:
        lock = client.lock("x")
        for use in (lock.acquire, lock.release, lambda: client.inspect("x"), client.list, client.close):
            with pytest.raises(InvalidArgument, match="another event loop"):
                await use()

    asyncio.run(elsewhere())


async def _use(client: AsyncClient) -> None:
    async with client.lock("x"):
        pass


def test_a_client_may_be_made_outside_the_loop() -> None:
    client = holdfast.aio.connect(fresh_url())
    lock = client.lock("x")

    async def main() -> None:
        async with client, lock:
            assert await lock.locked()

    asyncio.run(main())


def test_two_loops_with_a_client_each_exclude_each_other() -> None:
    url = fresh_url()

    async def hold_and_try() -> None:
        async with holdfast.aio.connect(url) as client, client.lock("x"):
            assert await asyncio.to_thread(asyncio.run, _try(url)) is False
        assert await asyncio.to_thread(asyncio.run, _try(url)) is True

    asyncio.run(hold_and_try())


async def _try(url: str) -> bool:
    async with holdfast.aio.connect(url) as client:
        lease = await client.lock("x").acquire(blocking=False)
        if lease is not None:
            await lease.release()
        return lease is not None


def test_threads_and_tasks_exclude_each_other() -> None:
    url = fresh_url()

    async def main() -> None:
        async with holdfast.aio.connect(url) as client:
            with holdfast.connect(url) as threads:
                async with client.lock("x") as lease:
                    assert await asyncio.to_thread(threads.lock("x").acquire, blocking=False) is None
                waiting = asyncio.create_task(asyncio.to_thread(threads.lock("x").acquire))
                other = await waiting
                assert other is not None
                assert other.token > lease.token
                await asyncio.to_thread(other.release)

    asyncio.run(main())


def test_a_loop_that_is_blocked_longer_than_the_ttl() -> None:
    """It could not renew; when it runs again, the first call reports the loss."""

    async def test(client: AsyncClient) -> None:
        reported: list[AsyncLease] = []
        lock = client.lock("x", ttl=0.3)
        lease = await lock.acquire()
        assert lease is not None
        lease.on_lost(reported.append)
        _block_until(lambda: lease.lost)
        with pytest.raises(LockLost) as loss:
            lease.check()
        assert loss.value.reason == "expired"
        assert await lease.wait_lost(timeout=5)
        await asyncio.sleep(0.05)
        assert reported == [lease]
        with pytest.raises(LockLost):
            await lock.release()

    run(test)


def test_a_blocked_loop_does_not_keep_others_out_for_ever() -> None:
    url = fresh_url()

    async def main() -> None:
        async with holdfast.aio.connect(url) as client:
            with holdfast.connect(url) as threads:
                lease = await client.lock("x", ttl=0.3).acquire()
                assert lease is not None
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # blocking the loop is the point
                    other = threads.lock("x").acquire(timeout=20)
                assert other is not None
                assert lease.lost
                assert other.token > lease.token
                other.release()

    asyncio.run(main())


def _block_until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends_at


def test_no_task_of_ours_outlives_the_client() -> None:
    async def main() -> None:
        async with holdfast.aio.connect(fresh_url()) as client, client.lock("x"):
            assert len(asyncio.all_tasks()) == 3, "the keeper and the timer"
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


# --- the threads API in a loop ------------------------------------------------------------------


def test_the_threads_api_in_a_running_loop_warns_once() -> None:
    async def main() -> None:
        with holdfast.connect(fresh_url()) as client, warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            lock = client.lock("x")
            lock.acquire()
            lock.release()
            with client.lock("y"):
                pass
        (warning,) = reported
        assert issubclass(warning.category, RuntimeWarning)
        assert "holdfast.aio" in str(warning.message)
        assert warning.filename == __file__, "it points at the caller"

    asyncio.run(main())


def test_the_threads_api_beside_a_loop_does_not_warn() -> None:
    async def main() -> None:
        with holdfast.connect(fresh_url()) as client:

            def work() -> None:
                with client.lock("x"):
                    pass

            await asyncio.to_thread(work)

    asyncio.run(main())


# --- tasks come and go --------------------------------------------------------------------------


def test_a_new_task_is_never_taken_for_one_that_is_gone() -> None:
    """The old one ended holding; many new ones come, some of them where it lay in memory."""

    async def test(client: AsyncClient) -> None:
        lock = client.rlock("x")
        leases: list[AsyncLease | None] = []

        async def take() -> None:
            leases.append(await lock.acquire())

        await asyncio.create_task(take())

        async def try_to_enter() -> bool:
            return await lock.acquire(blocking=False) is not None

        for _ in range(300):
            assert not await asyncio.create_task(try_to_enter())
        with pytest.raises(NotHeld):
            await lock.release()
        (lease,) = leases
        assert lease is not None
        await lease.release()

    run(test)


def test_close_from_another_task_while_bodies_run() -> None:
    async def main() -> None:
        client = holdfast.aio.connect(fresh_url())
        entered = asyncio.Event()

        async def work() -> None:
            async with client.lock("x"):
                entered.set()
                await asyncio.sleep(30)

        task = asyncio.create_task(work())
        await entered.wait()
        await client.close()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(main())


def test_a_client_closed_before_the_loop_came_round_leaves_no_warning() -> None:
    """Its keeper was made and never ran."""

    async def main() -> None:
        async with holdfast.aio.connect(fresh_url()) as client, client.lock("x"):
            pass

    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert reported == []
