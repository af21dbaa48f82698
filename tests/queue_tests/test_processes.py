"""Real processes: many at once, killed and stopped ones. Nothing is lost, and nothing is finished twice."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast.queue
from holdfast.queue import NewJob, Queue
from queue_tests.databases import FRESH_URL, SERVER_MARK
from support import Process, run_python, wait_until

JOBS = int(os.environ.get("HOLDFAST_QUEUE_JOBS", "1000"))
"""How many the crowd works off, each with an effect in its transaction. ``test_worker_processes`` has a
hundred thousand without."""

WORKER = """
import sys, holdfast.queue
url, batch = sys.argv[1], int(sys.argv[2])
with holdfast.queue.connect(url, io_timeout=30) as queue:
    print("ready", flush=True)
    input()
    done = []
    while True:
        jobs = queue.claim("work", limit=batch, lease=60)
        if not jobs:
            counts = queue.counts("work")
            if not counts["ready"] and not counts["running"]:
                break
            queue.wait(0.2)
        for job in jobs:
            with job.transaction() as db:
                db.execute(f"INSERT INTO {sys.argv[3]} VALUES ({int(job.payload)})")
            done.append(job.id)
    print("done", len(done), flush=True)
"""

CLAIMANT = """
import sys, holdfast.queue
queue = holdfast.queue.connect(sys.argv[1])
(job,) = queue.claim("work", lease=float(sys.argv[2]))
print("claimed", job.id, job.token, flush=True)
input()
try:
    job.finish("zombie")
    print("finished", flush=True)
except holdfast.StaleToken as error:
    print("refused", error.newest, flush=True)
queue.close()
"""


def effects_table(url: str) -> str:
    """A table of the user's in the database of the queue."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_in(url))) as connection:
            connection.execute("CREATE TABLE effects (job integer)")
        return "effects"
    schema = url.partition("schema=")[2]
    with psycopg.connect(server_in(url), autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {schema}.effects (job integer)")
    return f"{schema}.effects"


def path_in(url: str) -> str:
    return url.removeprefix("sqlite:///").partition("?")[0]


def server_in(url: str) -> str:
    return url.partition("?")[0]


def effects(url: str, table: str) -> Counter[int]:
    query = f"SELECT job FROM {table}"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_in(url))) as file:
            return Counter(row[0] for row in file.execute(query))
    with psycopg.connect(server_in(url)) as server:
        cursor: Any = server.cursor()
        return Counter(row[0] for row in cursor.execute(query).fetchall())


@pytest.mark.parametrize(
    ("database", "processes", "share"),
    [
        pytest.param("postgresql", 4, 1.0, marks=SERVER_MARK),
        pytest.param("pgbouncer", 4, 0.2, marks=SERVER_MARK),
        pytest.param("sqlite", 4, 0.2),
    ],
)
def test_nothing_is_lost_and_nothing_is_done_twice(
    url: str, queue: Queue, processes: int, share: float
) -> None:
    queue.install()
    table = effects_table(url)
    number = int(JOBS * share)
    queue.put_many([NewJob("work", n) for n in range(number)])
    with ExitStack() as stack:
        workers = [
            stack.enter_context(run_python(WORKER, url, "3" if n % 2 else "1", table))
            for n in range(processes)
        ]
        for worker in workers:
            worker.expect("ready")
        for worker in workers:
            worker.send("go")
        done = sum(int(worker.expect("done", timeout=20 + number / 50)) for worker in workers)
    assert done == number
    assert effects(url, table) == Counter(range(number))
    counts = queue.counts()
    assert counts["finished"] == number == sum(counts.values())


def claimant(url: str, lease: str) -> Process:
    return run_python(CLAIMANT, url, lease)


def test_the_job_of_a_killed_claimant_is_taken_back(url: str, queue: Queue) -> None:
    id_ = queue.put("work")
    with claimant(url, "0.5") as child:
        child.expect("claimed")
        assert queue.claim("work") == []
        child.kill()
        job = wait_until(lambda: queue.claim("work"))[0]
    assert (job.id, job.attempt, job.token) == (id_, 2, 2)
    job.finish()


def test_a_stopped_claimant_that_wakes_is_refused(url: str, queue: Queue) -> None:
    id_ = queue.put("work")
    with claimant(url, "0.3") as child:
        child.expect("claimed")
        child.stop()
        job = wait_until(lambda: queue.claim("work"))[0]
        child.cont()
        child.send("go")
        assert child.expect("refused") == "2"
    job.finish("mine")
    found = queue.get(id_)
    assert found is not None
    assert found.result == "mine"


def test_many_prepare_the_database_at_once(database: str, tmp_path: Path) -> None:
    url = FRESH_URL[database](tmp_path)
    install = "import sys, holdfast.queue\nprint('done', holdfast.queue.connect(sys.argv[1]).install())"
    with ExitStack() as stack:
        children = [stack.enter_context(run_python(install, url)) for _ in range(4)]
        done = Counter(child.expect("done") for child in children)
    assert done == {"True": 1, "False": 3}


def test_a_periodic_job_is_put_once_in_a_fleet(url: str, queue: Queue) -> None:
    queue.schedule("often", "tick", every=1)
    first = queue.scheduled()[0].next_at
    workers = [holdfast.queue.connect(url) for _ in range(4)]
    try:
        wait_until(lambda: sum(len(worker.claim("tick", limit=9)) for worker in workers))
        wait_until(lambda: sum(len(worker.claim("tick", limit=9)) for worker in workers))
        times = [job.run_at for job in queue.jobs(kind="tick")]
        assert times[0] == first
        assert len(set(times)) == len(times)
    finally:
        for worker in workers:
            worker.close()
