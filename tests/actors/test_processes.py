"""Real processes: killed in the middle of a message, stopped and woken. Nothing is lost or applied twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing

import psycopg
import pytest

import holdfast.queue
from holdfast import actors
from holdfast.queue import Queue
from queue_tests.test_processes import path_in, server_in
from support import Process, run_python, wait_until

WORKER = """
import sys, holdfast.queue
from holdfast import actors

url, how, driver = sys.argv[1:4]
# PostgreSQL ends the transaction of a process that was stopped in it after twice this time.
io_timeout = 2

class Counter:
    def __init__(self):
        self.numbers = []
    def add(self, number):
        self.numbers.append(number)
        actors.context().tell("copy", "x", "add", number=number)
        if how == "waits" and number == 2:
            print("in the middle", flush=True)
            input()
        return self.numbers

class Copy(Counter):
    def add(self, number):
        self.numbers.append(number)

def register(system):
    system.actor("counter", backoff=0.01)(Counter)
    system.actor("copy", backoff=0.01)(Copy)
    print("ready", flush=True)

if driver == "threads":
    with holdfast.queue.connect(url, io_timeout=io_timeout) as queue:
        system = actors.System(None, queue, lease=0.6)
        register(system)
        system.run()
else:
    import asyncio, holdfast.queue.aio, holdfast.actors.aio
    async def main():
        async with holdfast.queue.aio.connect(url, io_timeout=io_timeout) as queue:
            system = holdfast.actors.aio.System(None, queue, lease=0.6)
            register(system)
            await system.run()
    asyncio.run(main())
"""

CUT = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND pid <> ALL (%s) AND query LIKE %s
"""


UNDER_WAY = """
SELECT FROM pg_stat_activity WHERE state = %s AND application_name = 'holdfast' AND pid <> pg_backend_pid()
"""


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with holdfast.queue.connect(url) as opened:
        yield opened


class Numbers:
    def __init__(self) -> None:
        self.numbers: list[int] = []

    def add(self, number: int) -> None: ...


def looking(queue: Queue) -> actors.System:
    system = actors.System(None, queue)
    for kind in ("counter", "copy"):
        system.actor(kind)(Numbers)
    return system


def numbers(system: actors.System, kind: str) -> list[int]:
    state = system.state(kind, "x")
    return [] if state is None else list(state["numbers"])


def worker(url: str, how: str, driver: str = "threads") -> Process:
    return run_python(WORKER, url, how, driver)


def test_a_worker_killed_in_the_middle_of_a_message(url: str, queue: Queue, driver: str) -> None:
    system = looking(queue)
    for number in (1, 2, 3):
        system.tell("counter", "x", "add", number=number)
    with worker(url, "waits", driver) as first:
        first.expect("in the middle")
        assert numbers(system, "counter") == [1]
        first.kill()
        with worker(url, "goes on", driver):
            wait_until(lambda: numbers(system, "copy") == [1, 2, 3])
    assert numbers(system, "counter") == [1, 2, 3]
    assert queue.counts()["finished"] == 6 == sum(queue.counts().values())


def stop_outside_of_transactions(child: Process, url: str) -> None:
    """A process that is stopped while it writes keeps all others from a SQLite file, whatever it does
    afterwards, and from its rows in PostgreSQL for ten seconds."""
    while True:
        child.stop()
        if not url.startswith("sqlite"):
            with psycopg.connect(server_in(url), autocommit=True) as admin:
                wait_until(lambda db=admin: not db.execute(UNDER_WAY, ("active",)).fetchall())  # type: ignore[misc]  # called at once
                if not admin.execute(UNDER_WAY, ("idle in transaction",)).fetchall():
                    return
            child.cont()
            continue
        with closing(sqlite3.connect(path_in(url), timeout=0.2, isolation_level=None)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                child.cont()
            else:
                db.execute("ROLLBACK")
                return


def test_a_stopped_worker_that_wakes_is_refused(url: str, queue: Queue) -> None:
    system = looking(queue)
    for number in (1, 2, 3):
        system.tell("counter", "x", "add", number=number)
    with ExitStack() as stack:
        zombie = stack.enter_context(worker(url, "waits"))
        zombie.expect("in the middle")
        stop_outside_of_transactions(zombie, url)
        stack.enter_context(worker(url, "goes on"))
        wait_until(lambda: numbers(system, "counter") == [1, 2, 3])
        zombie.cont()
        zombie.send("go")
        wait_until(lambda: "handled too late, and changed nothing" in zombie.stderr)
        system.tell("counter", "x", "add", number=4)
        wait_until(lambda: numbers(system, "copy") == [1, 2, 3, 4])
    assert numbers(system, "counter") == [1, 2, 3, 4]


def test_many_processes_and_one_is_killed(url: str, queue: Queue) -> None:
    system = looking(queue)
    count = 60
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(url, "goes on")) for _ in range(3)]
        for each in workers:
            each.expect("ready")
        for number in range(10, 10 + count):
            system.tell("counter", "x", "add", number=number, id=str(number))
            system.tell("counter", "x", "add", number=number, id=str(number))
            if number == 30:
                workers[0].kill()
        wait_until(lambda: len(numbers(system, "copy")) >= count, timeout=20)
    assert numbers(system, "counter") == numbers(system, "copy") == list(range(10, 10 + count))


@pytest.mark.parametrize("scheme", [pytest.param("postgresql", marks=pytest.mark.engine("postgresql"))])
def test_connections_are_cut_while_messages_are_handled(url: str, queue: Queue, driver: str) -> None:
    system = looking(queue)
    system.tell("counter", "x", "add", number=0)
    ours = [connection.info.backend_pid for connection in queue._store._idle]
    tables = f"%{url.partition('schema=')[2]}.queue_%"
    with worker(url, "goes on", driver), psycopg.connect(server_in(url), autocommit=True) as db:
        wait_until(lambda: numbers(system, "copy") == [0])
        for number in range(1, 40):
            system.tell("counter", "x", "add", number=number)
            if number % 10 == 5:
                wait_until(lambda: db.execute(CUT, (ours, tables)).fetchone() != (0,))
        wait_until(lambda: numbers(system, "copy") == list(range(40)), timeout=20)
    assert numbers(system, "counter") == list(range(40))
