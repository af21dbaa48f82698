"""The worker for asyncio: the stories of the one for threads, and a blocked event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import holdfast.queue
from holdfast.errors import InvalidArgument
from holdfast.queue import JobInfo, NewJob, aio
from holdfast.queue.aio import AsyncJob, AsyncQueue, AsyncWorker
from support import async_wait_until


async def info(queue: AsyncQueue, id_: int) -> JobInfo:
    found = await queue.get(id_)
    assert found is not None
    return found


async def until_state(queue: AsyncQueue, id_: int, state: str) -> None:
    async with asyncio.timeout(10):
        while (await info(queue, id_)).state != state:  # noqa: ASYNC110 - the database is asked
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(worker: AsyncWorker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(20):
            await task


def on(url: str, story: Any) -> None:
    async def main() -> None:
        async with aio.connect(url) as queue:
            await queue.install()
            await story(queue)

    asyncio.run(main())


def test_what_becomes_of_a_job(url: str) -> None:
    async def story(queue: AsyncQueue) -> None:
        worker = AsyncWorker(queue, concurrency=5)

        @worker.job("returns")
        async def returns(job: AsyncJob) -> Any:
            await asyncio.sleep(0)
            return job.payload

        @worker.job("raises")
        async def raises(job: AsyncJob) -> None:
            raise ValueError("no such order")

        @worker.job("gives up")
        async def gives_up(job: AsyncJob) -> None:
            await job.fail("given up", final=True)

        plain = await queue.put_many([NewJob("returns", {"n": n}) for n in range(20)])
        lane = [await queue.put("returns", n, key="k", ordered=True) for n in range(3)]
        raised = await queue.put("raises", max_attempts=1)
        own = await queue.put("gives up")
        await worker.run(until_idle=True)
        assert [(await info(queue, id_)).result for id_ in plain] == [{"n": n} for n in range(20)]
        assert [(await info(queue, id_)).result for id_ in lane] == [0, 1, 2]
        assert (await info(queue, raised)).state == "dead"
        assert "ValueError: no such order" in ((await info(queue, raised)).error or "")
        assert (await info(queue, own)).error == "given up"

    on(url, story)


def test_a_blocked_event_loop_loses_no_job(url: str) -> None:
    async def story(queue: AsyncQueue) -> None:
        worker = AsyncWorker(queue, lease=0.3)
        claimed = []

        @worker.job("a")
        async def block(job: AsyncJob) -> str:
            with holdfast.queue.connect(url) as other:
                ends = time.monotonic() + 1.0
                while time.monotonic() < ends:
                    claimed.extend(other.claim("a"))
                    other.wait(0.05)  # the event loop stands still
            return "kept"

        id_ = await queue.put("a")
        await worker.run(until_idle=True)
        found = await info(queue, id_)
        assert (found.result, found.attempt, claimed) == ("kept", 1, [])

    on(url, story)


def test_functions_of_cancelled_and_lost_jobs_are_cancelled(url: str) -> None:
    async def story(queue: AsyncQueue) -> None:
        worker = AsyncWorker(queue, lease=0.3)
        begun: list[int] = []
        told: list[object] = []

        @worker.job("a")
        async def sleep(job: AsyncJob) -> None:
            if job.payload == "lost":
                worker.stop()  # else it could be the one that claims it again
                await job.extend(0.05)
            begun.append(job.id)
            try:
                await asyncio.sleep(60)
            finally:
                told.append(job.stop_reason)

        id_ = await queue.put("a")
        async with running(worker):
            await async_wait_until(lambda: begun)
            await queue.cancel(id_)
            await until_state(queue, id_, "cancelled")
        lost = await queue.put("a", "lost")
        async with aio.connect(url) as other, running(worker):
            await async_wait_until(lambda: len(begun) == 2)
            found: list[AsyncJob] = []
            while not found:
                found = await other.claim("a", lease=60)
            await async_wait_until(lambda: len(told) == 2)
        assert told == ["cancelled", "lost"]
        assert (await info(queue, lost)).token == 2

    on(url, story)


def test_a_job_that_its_function_has_ended_is_not_cancelled(url: str, beats: list[float]) -> None:
    async def story(queue: AsyncQueue) -> None:
        worker = AsyncWorker(queue, lease=0.1)
        ends: list[bool] = []

        @worker.job("a")
        async def go_on(job: AsyncJob) -> None:
            await job.finish()
            await async_wait_until(lambda: len(beats) > 3)
            ends.append(job.should_stop)

        await queue.put("a")
        await worker.run(until_idle=True)
        assert ends == [False]

    on(url, story)


def test_the_end(url: str) -> None:
    async def story(queue: AsyncQueue) -> None:
        worker = AsyncWorker(queue, concurrency=2, grace=0.05)
        begun: list[int] = []

        @worker.job("a")
        async def sleep(job: AsyncJob) -> None:
            begun.append(job.id)
            await asyncio.sleep(60)

        ids = await queue.put_many([NewJob("a"), NewJob("a")])
        async with running(worker):
            await async_wait_until(lambda: len(begun) == 2)
        for id_ in ids:
            assert ((await info(queue, id_)).state, (await info(queue, id_)).attempt) == ("ready", 0)

        task = asyncio.create_task(worker.run(signals=False))
        await async_wait_until(lambda: len(begun) == 4)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await queue.counts())["ready"] == 2

    on(url, story)


def test_a_job_put_while_it_waits_begins_at_once(url: str) -> None:
    async def story(queue: AsyncQueue) -> None:
        worker = AsyncWorker(queue)
        begun: list[float] = []

        @worker.job("a")
        async def note(job: AsyncJob) -> None:
            begun.append(time.monotonic())

        delays = []
        async with running(worker):
            for number in range(6):
                put = time.monotonic()
                await until_state(queue, await queue.put("a"), "finished")
                delays.append(begun[number] - put)
        assert sorted(delays)[2] < 0.3, delays

    on(url, story)


def test_only_what_is_awaited() -> None:
    queue = aio.connect("sqlite:///unused.db")
    worker = AsyncWorker(queue)
    with pytest.raises(InvalidArgument, match="async def"):
        worker.job("a")(print)

    class Called:
        async def __call__(self, job: AsyncJob) -> None: ...

    worker.job("b")(Called())
    assert worker.kinds == ["b"]
