"""The worker for threads: what becomes of jobs, heartbeats, cancellation, and how it ends."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

import holdfast.queue
from holdfast.errors import EngineUnavailable, InvalidArgument, StaleToken
from holdfast.lab.servers import PostgreSQL
from holdfast.queue import Job, JobInfo, NewJob, Queue, Worker, aio
from queue_tests.test_processes import server_in
from support import wait_until

TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast' AND query LIKE %s
"""


class Unwritable(dict[str, int]):
    """What no writer of JSON is prepared for."""

    def items(self) -> Any:
        raise KeyError("none")


def info(queue: Queue, id_: int) -> JobInfo:
    found = queue.get(id_)
    assert found is not None
    return found


def state_is(queue: Queue, id_: int, state: str) -> Callable[[], bool]:
    return lambda: info(queue, id_).state == state


@contextmanager
def running(worker: Worker) -> Iterator[None]:
    """On another thread, until the block ends."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(20)
    assert not thread.is_alive()


def test_what_becomes_of_a_job(queue: Queue) -> None:
    worker = Worker(queue, concurrency=2)

    @worker.job("returns")
    def returns(job: Job) -> Any:
        return job.payload

    @worker.job("raises")
    def raises(job: Job) -> None:
        raise ValueError("no such order")

    @worker.job("ends itself")
    def ends_itself(job: Job) -> str:
        if job.payload == "transaction":
            with job.transaction(result="exactly once"):
                pass
        elif job.payload == "fail":
            job.fail("given up", final=True)
        else:
            job.finish("early")
        return "too late"

    @worker.job("bad result")
    def bad_result(job: Job) -> object:
        return Unwritable(a=1) if job.payload else object()

    plain = queue.put_many([NewJob("returns", {"n": n}) for n in range(20)])
    lane = [queue.put("returns", n, key="k", ordered=True) for n in range(3)]
    raised = queue.put("raises", max_attempts=1)
    again = queue.put("raises")
    own = {what: queue.put("ends itself", what) for what in ("finish", "fail", "transaction")}
    bad = [queue.put("bad result", which) for which in (False, True)]
    other = queue.put("not ours")
    worker.run(until_idle=True)

    assert [info(queue, id_).result for id_ in plain] == [{"n": n} for n in range(20)]
    assert [info(queue, id_).result for id_ in lane] == [0, 1, 2]
    assert info(queue, raised).state == "dead"
    assert "ValueError: no such order" in (info(queue, raised).error or "")
    assert (info(queue, again).state, info(queue, again).attempt) == ("scheduled", 1)
    assert info(queue, own["finish"]).result == "early"
    assert info(queue, own["fail"]).state == "dead"
    assert info(queue, own["transaction"]).result == "exactly once"
    assert [info(queue, id_).state for id_ in bad] == ["dead", "dead"]
    assert all("JSON" in (info(queue, id_).error or "") for id_ in bad)
    assert info(queue, other).state == "ready"


def test_a_long_job_keeps_its_lease_and_learns_of_its_cancellation(queue: Queue) -> None:
    worker = Worker(queue, lease=0.4)
    begun, may_end = threading.Event(), threading.Event()

    @worker.job("long")
    def long(job: Job) -> None:
        begun.set()
        while not job.should_stop:
            may_end.wait(0.01)
        raise RuntimeError(f"stop reason: {job.stop_reason}")

    id_ = queue.put("long")
    with running(worker):
        assert begun.wait(10)
        lease_until = info(queue, id_).lease_until
        assert lease_until is not None
        wait_until(lambda: (info(queue, id_).lease_until or 0) > lease_until + 0.5)
        assert queue.claim("long") == []
        assert info(queue, id_).attempt == 1
        assert queue.cancel(id_)
        wait_until(state_is(queue, id_, "cancelled"))


def test_it_learns_that_its_job_was_given_to_another(queue: Queue, url: str) -> None:
    worker = Worker(queue, lease=0.5)
    told: list[object] = []
    begun = threading.Event()

    @worker.job("a")
    def take_long(job: Job) -> None:
        worker.stop()  # else it could be the one that claims it
        job.extend(0.05)  # as if this process had been stopped since
        begun.set()
        wait_until(lambda: job.should_stop)
        told.append(job.stop_reason)
        with pytest.raises(StaleToken):
            job.finish()

    id_ = queue.put("a")
    with holdfast.queue.connect(url) as other, running(worker):
        assert begun.wait(10)
        (second,) = wait_until(lambda: other.claim("a"))
        second.extend(60)
        wait_until(lambda: told)
        second.finish("mine")
    assert told == ["lost"]
    assert info(queue, id_).result == "mine"


def test_a_job_that_its_function_has_ended_is_not_lost(
    queue: Queue, beats: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(queue, lease=0.1)
    stops: list[bool] = []

    @worker.job("a")
    def go_on(job: Job) -> None:
        if job.payload == "transaction":
            with job.transaction():
                pass
        else:
            getattr(job, job.payload)(*["x"][: job.payload == "fail"])
        before = len(beats)
        wait_until(lambda: len(beats) > before + 2)
        stops.append(job.should_stop)
        worker.stop()

    for how in ("finish", "transaction", "fail"):
        queue.put("a", how)
        with caplog.at_level("WARNING", "holdfast"):
            worker.run()
    assert stops == [False] * 3
    assert "another claimant" not in caplog.text


def test_it_waits_for_running_jobs_and_gives_back_the_others(queue: Queue) -> None:
    worker = Worker(queue)
    begun, may_end = threading.Event(), threading.Event()

    @worker.job("a")
    def hold(job: Job) -> str:
        begun.set()
        may_end.wait(20)
        return "done"

    first, *rest = queue.put_many([NewJob("a") for _ in range(6)])
    with running(worker):
        assert begun.wait(10)
        # What was claimed ahead is given back, as the first takes long.
        wait_until(lambda: queue.counts()["ready"] == 5)
        worker.stop()
        wait_until(lambda: worker.is_stopping)
        assert info(queue, first).state == "running"
        may_end.set()
    assert info(queue, first).result == "done"
    assert [(info(queue, id_).state, info(queue, id_).attempt) for id_ in rest] == [("ready", 0)] * 5


def test_what_outlasts_the_grace_is_given_back(queue: Queue) -> None:
    worker = Worker(queue, concurrency=2, grace=0.1)
    begun, may_end = threading.Barrier(3), threading.Event()
    refused: list[StaleToken] = []

    @worker.job("listens")
    def listens(job: Job) -> None:
        begun.wait(10)
        wait_until(lambda: job.should_stop)
        raise InterruptedError

    @worker.job("deaf")
    def deaf(job: Job) -> None:
        begun.wait(10)
        may_end.wait(20)
        try:
            job.finish()
        except StaleToken as error:
            refused.append(error)

    ids = [queue.put("listens"), queue.put("deaf")]
    with running(worker):
        begun.wait(10)
    assert [(info(queue, id_).state, info(queue, id_).attempt) for id_ in ids] == [("ready", 0)] * 2
    assert len(queue.claim("deaf")) == 1
    may_end.set()
    wait_until(lambda: refused)


def test_a_job_put_while_it_waits_begins_at_once(queue: Queue) -> None:
    worker = Worker(queue)
    begun: list[float] = []

    @worker.job("a")
    def note(job: Job) -> None:
        begun.append(time.monotonic())

    delays = []
    with running(worker):
        for number in range(6):
            wait_until(lambda number=number: queue.counts()["finished"] == number)  # type: ignore[misc]  # bound at once
            put = time.monotonic()
            queue.put("a")
            wait_until(lambda number=number: len(begun) > number)  # type: ignore[misc]  # as above
            delays.append(begun[-1] - put)
    assert sorted(delays)[2] < 0.3, delays


def test_periodic_jobs_are_put_and_run(queue: Queue) -> None:
    workers = [Worker(queue), Worker(queue)]
    ran: list[float] = []
    for worker in workers:

        @worker.job("tick", every=1)
        def tick(job: Job) -> None:
            ran.append(job.id)

    with running(workers[0]), running(workers[1]):
        wait_until(lambda: len(ran) >= 2, timeout=20)
    assert len(set(ran)) == len(ran)
    (scheduled,) = queue.scheduled()
    assert (scheduled.name, scheduled.schedule) == ("tick", "every 1")


def test_many_jobs_are_claimed_and_finished_together(queue: Queue) -> None:
    worker = Worker(queue, concurrency=2)
    ran: list[int] = []

    @worker.job("a")
    def count(job: Job) -> None:
        ran.append(job.payload)

    queue.put_many([NewJob("a", n) for n in range(300)])
    statements = 0
    run = queue._store.run

    def counted(*arguments: Any) -> Any:
        nonlocal statements
        statements += 1
        return run(*arguments)

    queue._store.run = counted  # type: ignore[assignment, method-assign]  # counts
    worker.run(until_idle=True)
    assert sorted(ran) == list(range(300))
    assert queue.counts()["finished"] == 300
    assert statements < 300


@pytest.mark.engine("postgresql")
@pytest.mark.parametrize("database", ["postgresql"])
def test_an_outage_of_the_database_is_waited_out(queue: Queue, url: str) -> None:
    worker = Worker(queue, lease=2)
    begun, may_end = threading.Event(), threading.Event()

    @worker.job("a")
    def work(job: Job) -> str:
        begun.set()
        may_end.wait(20)
        return "done"

    id_ = queue.put("a")
    with running(worker), psycopg.connect(server_in(url), autocommit=True) as admin:
        assert begun.wait(10)
        for _ in range(3):
            wait_until(lambda: admin.execute(TERMINATE, (f"%{url.partition('schema=')[2]}%",)).fetchall())
        may_end.set()
        wait_until(lambda: begun.is_set() and _finished(url, id_))


@pytest.mark.engine("postgresql")
def test_a_server_that_is_killed_in_the_middle_loses_no_job() -> None:
    """What had begun may run once more; nothing is lost, and everything is finished."""
    with PostgreSQL() as server, holdfast.queue.connect(server.url) as queue:
        worker, runs = Worker(queue, concurrency=3, lease=2), Counter[int]()

        @worker.job("a")
        def work(job: Job) -> None:
            threading.Event().wait(0.01)
            runs[job.payload] += 1

        queue.put_many([NewJob("a", number, max_attempts=10) for number in range(200)])
        with running(worker):
            wait_until(lambda: len(runs) > 50)
            server.kill()
            server.start()
            wait_until(lambda: _are_finished(server.url, 200), timeout=60)
        assert runs.keys() == set(range(200))


def _are_finished(url: str, count: int) -> bool:
    with suppress(EngineUnavailable), holdfast.queue.connect(url) as other:
        return other.counts()["finished"] == count
    return False


def _finished(url: str, id_: int) -> bool:
    with holdfast.queue.connect(url) as other:
        return bool(info(other, id_).result == "done")


def test_a_worker_needs_a_function_and_says_so(queue: Queue) -> None:
    worker = Worker(queue)
    with pytest.raises(InvalidArgument, match=r"@worker\.job"):
        worker.run()
    worker.job("a")(print)
    with pytest.raises(InvalidArgument, match="already"):
        worker.job("a")(print)

    async def awaited(job: Job) -> None: ...

    with pytest.raises(InvalidArgument, match="AsyncWorker"):
        worker.job("b")(awaited)
    with pytest.raises(InvalidArgument, match="cron"):
        worker.job("c", cron="* *")
    with pytest.raises(InvalidArgument, match="concurrency"):
        Worker(queue, concurrency=0)
    with pytest.raises(InvalidArgument, match="use AsyncWorker"):
        Worker(aio.connect("sqlite:///never-made.db"))  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(InvalidArgument, match="use Worker"):
        aio.AsyncWorker(queue)  # type: ignore[arg-type]  # as above
