"""The queue awaited: the same story, told once more."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import aiosqlite
import psycopg
import pytest

from holdfast.errors import InvalidArgument, StaleToken
from holdfast.queue import JobCancelled, NewJob, aio
from queue_tests.test_processes import path_in, server_in
from support import async_wait_until


def test_the_same_story_awaited(url: str) -> None:
    asyncio.run(story(url))


async def story(url: str) -> None:
    async with aio.connect(url) as queue:
        assert await queue.install()
        id_ = await queue.put("a", {"n": 1}, key="k")
        assert await queue.put("a", key="k") == id_
        await queue.put_many([NewJob("a", n, key="o", ordered=True) for n in range(2)])
        later = await queue.put("b", run_at=timedelta(hours=1))
        job, ordered = await queue.claim("a", limit=9)
        await job.extend()
        await job.check()
        assert await queue.extend_many([job]) == {id_: False}
        await queue.cancel(id_)
        with pytest.raises(JobCancelled):
            await job.check()
        assert await job.fail("stopped") == "cancelled"
        with pytest.raises(StaleToken):
            await job.finish()
        await ordered.release()
        (ordered,) = await queue.claim("a", limit=9)
        await finish_in_a_transaction(url, ordered)
        (second,) = await queue.claim("a", limit=9)
        await second.finish({"n": 2})
        found = await queue.get(second.id)
        assert found is not None
        assert found.result == {"n": 2}
        assert await queue.cancel(later)
        assert await queue.retry(later)
        await queue.pause("b")
        assert await queue.claim() == []
        await queue.resume("b")
        await queue.limit("b", concurrency=1)
        assert [kind.concurrency for kind in await queue.kinds()] == [1]
        await queue.schedule("s", "c", every=3600)
        assert [each.name for each in await queue.scheduled()] == ["s"]
        assert await queue.unschedule("s")
        assert len(await queue.claim()) == 1
        assert (await queue.counts())["finished"] == 2
        assert len(await queue.jobs("finished")) == 2
        assert await queue.prune(0) == 3


async def finish_in_a_transaction(url: str, job: aio.AsyncJob) -> None:
    if url.startswith("sqlite"):
        with pytest.raises(InvalidArgument, match="aiosqlite"):
            async with job.transaction():
                pass
        async with aiosqlite.connect(path_in(url)) as db, job.transaction(db):
            await db.execute("SELECT 1")
    else:
        async with job.transaction() as own:
            await own.execute("SELECT 1")


def test_put_in_the_users_transaction(url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as queue:
            await queue.install()
            db: Any
            if url.startswith("sqlite"):
                db = await aiosqlite.connect(path_in(url))
            else:
                db = await psycopg.AsyncConnection.connect(server_in(url), prepare_threshold=None)
            await queue.put("a", 1, connection=db)
            await db.rollback()
            await queue.put("a", 2, connection=db)
            await db.commit()
            await db.close()
            assert [job.payload for job in await queue.claim("a", limit=9)] == [2]

    asyncio.run(main())


def test_a_waiting_task_is_woken(url: str) -> None:
    async def main() -> None:
        async with aio.connect(url) as queue:
            await queue.install()

            async def work() -> int:
                while True:
                    for job in await queue.claim("a"):
                        await job.finish()
                        return job.id
                    await queue.wait(1)

            task = asyncio.create_task(work())
            id_ = await queue.put("a")
            await async_wait_until(task.done)
            assert task.result() == id_

    asyncio.run(main())


def test_a_claim_that_is_cancelled_keeps_no_job(url: str) -> None:
    """At whatever moment: the database may have done it already."""

    async def main() -> None:
        async with aio.connect(url) as queue:
            await queue.put("a")
            kept = 0
            for turns in range(30):
                claiming = asyncio.create_task(queue.claim("a"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                claiming.cancel()
                try:
                    for job in await claiming:  # it was quicker
                        await job.release()
                        kept += 1
                except asyncio.CancelledError:
                    assert (await queue.counts())["running"] == 0
            assert kept < 30
            (job,) = await queue.claim("a")
            assert job.attempt == 1

    asyncio.run(main())


def test_another_loop_is_refused(url: str) -> None:
    if url.startswith("sqlite"):
        return  # its connections belong to no loop
    queue = aio.connect(url)

    async def use() -> None:
        await queue.put("a")

    async def use_and_close() -> None:
        await queue.put("a")
        await queue.close()

    async def main() -> None:
        await use()
        with pytest.raises(InvalidArgument, match="another event loop"):
            await asyncio.to_thread(asyncio.run, use())
        await use_and_close()

    asyncio.run(main())
