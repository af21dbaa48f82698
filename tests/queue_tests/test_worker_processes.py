"""Fleets of worker processes, some of which are killed and stopped: each job takes effect exactly once."""

from __future__ import annotations

import os
import random
import time
from array import array
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.queue import NewJob, Queue
from queue_tests.databases import SERVER_MARK
from queue_tests.test_processes import effects, effects_table
from support import Process, run_python, wait_until

JOBS = 150
KILLS = 3

SAYS_WHEN_IT_CAN_BE_TERMINATED = """
import signal, threading, time

def say():
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        time.sleep(0.005)
    print("ready", flush=True)

threading.Thread(target=say).start()
"""

THREADS = """
import sys, time, holdfast.queue
url, table = sys.argv[1:]
queue = holdfast.queue.connect(url, io_timeout=30)
worker = holdfast.queue.Worker(queue, concurrency=2, lease=0.6)

@worker.job("work")
def work(job):
    time.sleep(0.01)
    with job.transaction() as db:
        db.execute(f"INSERT INTO {table} VALUES ({int(job.payload)})")

worker.run()
print("ended", flush=True)
"""

TASKS = """
import asyncio, sys, holdfast.queue.aio as aio
url, table = sys.argv[1:]

async def main():
    async with aio.connect(url, io_timeout=30) as queue:
        worker = aio.AsyncWorker(queue, concurrency=4, lease=0.6)

        @worker.job("work")
        async def work(job):
            await asyncio.sleep(0.02)
            async with job.transaction() as db:
                await db.execute(f"INSERT INTO {table} VALUES ({int(job.payload)})")

        await worker.run()
    print("ended", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("database", "code"),
    [
        pytest.param("postgresql", THREADS, marks=SERVER_MARK, id="postgresql, threads"),
        pytest.param("postgresql", TASKS, marks=SERVER_MARK, id="postgresql, asyncio"),
        pytest.param("sqlite", THREADS, id="sqlite, threads"),
    ],
)
def test_killed_and_stopped_workers_lose_nothing(url: str, queue: Queue, code: str) -> None:
    queue.install()
    table = effects_table(url)
    choose = random.Random(7)

    with ExitStack() as stack:

        def hire() -> Process:
            return stack.enter_context(run_python(SAYS_WHEN_IT_CAN_BE_TERMINATED + code, url, table))

        fleet, hired = [hire() for _ in range(3)], list[Process]()
        for worker in fleet:
            worker.expect("ready")
        queue.put_many([NewJob("work", number, max_attempts=100) for number in range(JOBS)])
        for _ in range(KILLS):
            more = min(queue.counts()["finished"] + 1, JOBS)
            wait_until(lambda least=more: queue.counts()["finished"] >= least)  # type: ignore[misc]  # bound at once
            killed = fleet.pop(choose.randrange(len(fleet)))
            killed.kill()
            hired = [worker for worker in [*hired, hire()] if worker is not killed]
            fleet.append(hired[-1])
            stopped = fleet[0]
            stopped.stop()
            ends = time.monotonic() + 0.3
            wait_until(lambda moment=ends: time.monotonic() > moment)  # type: ignore[misc]  # bound at once
            stopped.cont()
        wait_until(lambda: queue.counts()["finished"] == JOBS, timeout=30)
        for worker in hired:
            worker.expect("ready")
        for worker in fleet:
            worker.terminate()
        for worker in fleet:
            worker.expect("ended", timeout=10)
            worker.succeed()
    assert effects(url, table) == Counter(range(JOBS))
    counts = queue.counts()
    assert counts["finished"] == JOBS == sum(counts.values())


CROWD = """
import array, sys, holdfast.queue
queue = holdfast.queue.connect(sys.argv[1], io_timeout=30)
worker, ran = holdfast.queue.Worker(queue), array.array("q")

@worker.job("work")
def work(job):
    ran.append(job.payload)

print("ready", flush=True)
input()
worker.run(until_idle=True)
with open(sys.argv[2], "wb") as file:
    ran.tofile(file)
print("ended", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("database", [pytest.param("postgresql", marks=SERVER_MARK)])
def test_a_hundred_thousand_jobs_through_eight_processes(url: str, queue: Queue, tmp_path: Path) -> None:
    """Each is run once, and finished once."""
    number = 100_000
    for first in range(0, number, 10_000):
        queue.put_many([NewJob("work", n) for n in range(first, first + 10_000)])
    files = [tmp_path / f"ran{n}" for n in range(8)]
    with ExitStack() as stack:
        fleet = [stack.enter_context(run_python(CROWD, url, str(file))) for file in files]
        for worker in fleet:
            worker.expect("ready")
        for worker in fleet:
            worker.send("go")
        for worker in fleet:
            worker.expect("ended", timeout=60)
    ran = array("q")
    for file in files:
        ran.frombytes(file.read_bytes())
    assert sorted(ran) == list(range(number))
    counts = queue.counts()
    assert counts["finished"] == number == sum(counts.values())
    assert min(map(os.path.getsize, files)) > 0


FORKING = """
import asyncio, multiprocessing, sys, threading, holdfast.queue, holdfast.queue.aio as aio
url, driver = sys.argv[1:]
fork = multiprocessing.get_context("fork")

def terminate_a_child():
    begun = fork.Event()
    child = fork.Process(target=lambda: (begun.set(), threading.Event().wait(60)), daemon=True)
    child.start()
    begun.wait()
    child.terminate()
    child.join(10)
    child.kill()
    return child.exitcode

if driver == "threads":
    worker = holdfast.queue.Worker(holdfast.queue.connect(url))

    @worker.job("a")
    def run(job):
        return terminate_a_child()

    worker.run(until_idle=True)
else:
    async def main():
        worker = aio.AsyncWorker(aio.connect(url), concurrency=1)

        @worker.job("a")
        async def run(job):
            code = await asyncio.to_thread(terminate_a_child)
            await asyncio.sleep(0.05)
            return code

        await worker.run(until_idle=True)

    asyncio.run(main())
"""


@pytest.mark.parametrize("driver", ["threads", "asyncio"])
@pytest.mark.parametrize("database", ["sqlite"])
def test_a_signal_to_a_child_that_a_job_has_forked_ends_the_child_alone(
    url: str, queue: Queue, driver: str
) -> None:
    queue.put_many([NewJob("a"), NewJob("a")])
    with run_python(FORKING, url, driver) as child:
        child.close_stdin()
        child.succeed()
    assert [job.result for job in queue.jobs("finished")] == [-15, -15]
