"""Projections: each event is handled once, whatever happens to those who handle it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from events.stores import KINDS, open_store, url_of
from fencing.sql_clients import Database, new_database, open_client
from holdfast.errors import InvalidArgument
from holdfast.events import Event, EventStore
from holdfast.events import aio as events_aio
from support import run_python, wait_until


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest) -> Database:
    made = new_database(request.param)
    with open_client(made, made.first_driver) as db:
        db.execute("CREATE TABLE handled (position INTEGER, runner VARCHAR(20))")
        db.commit()
    return made


@pytest.fixture
def store(database: Database) -> Iterator[EventStore]:
    with open_store(database) as opened:
        yield opened


def handle(connection: Any, event: Event, runner: str = "one") -> None:
    connection.execute(f"INSERT INTO handled VALUES ({event.position}, '{runner}')")


def handled(database: Database) -> list[int]:
    with open_client(database, database.first_driver) as db:
        return [int(row[0]) for row in db.execute("SELECT position FROM handled ORDER BY position")]


def patient(database: Database) -> dict[str, Any]:
    """SQLite has one writer at a time: wait for it, as a program would."""
    return {"timeout": 30} if database.kind == "sqlite" else {}


def fill(store: EventStore, number: int) -> None:
    for n in range(number):
        store.append(f"s{n % 3}", [{"n": n}])


def test_the_checkpoint_is_committed_with_what_was_computed(store: EventStore, database: Database) -> None:
    fill(store, 5)
    projection = store.projection("sums")
    assert projection.position() == 0
    with open_client(database, database.first_driver) as db:
        db.commit()
        begin(db, database)
        assert projection.apply(db.target, handle, batch=3) == 3
        db.rollback()
        assert (projection.position(), handled(database)) == (0, [])
        begin(db, database)
        assert projection.apply(db.target, handle, batch=3) == 3
        db.commit()
        assert (projection.position(), handled(database)) == (3, [1, 2, 3])
        assert projection.run(db.target, handle, timeout=0) == 2
        assert (projection.position(), handled(database)) == (5, [1, 2, 3, 4, 5])
        begin(db, database)
        db.execute("DELETE FROM handled")
        projection.reset(db.target)
        db.commit()
        assert projection.run(db.target, handle, timeout=0) == 5
    assert handled(database) == [1, 2, 3, 4, 5]


def begin(db: Any, database: Database) -> None:
    if database.kind == "sqlite":
        db.execute("BEGIN")


def test_a_handler_that_fails_leaves_nothing(store: EventStore, database: Database) -> None:
    fill(store, 3)

    def fail(connection: Any, event: Event) -> None:
        handle(connection, event)
        if event.position == 2:
            raise RuntimeError("no")

    with open_client(database, database.first_driver) as db:
        with pytest.raises(RuntimeError, match="no"):
            store.projection("p").run(db.target, fail, timeout=0)
        assert store.projection("p").position() == 0
        assert handled(database) == []
        assert store.projection("p").run(db.target, handle, timeout=0) == 3


def test_two_runners_share_the_work_and_nothing_twice(store: EventStore, database: Database) -> None:
    store.install()
    failures: list[BaseException] = []

    def run(runner: str) -> None:
        try:
            with (
                open_client(database, database.first_driver, **patient(database)) as db,
                open_store(database) as own,
            ):
                own.projection("p").run(
                    db.target, lambda db, event: handle(db, event, runner), batch=2, timeout=0.5
                )
        except BaseException as error:
            failures.append(error)

    runners = [threading.Thread(target=run, args=(f"r{n}",)) for n in range(2)]
    for runner in runners:
        runner.start()
    fill(store, 30)
    for runner in runners:
        runner.join()
    assert not failures, failures
    assert handled(database) == list(range(1, 31))


def test_a_runner_is_stopped_from_another_thread(store: EventStore, database: Database) -> None:
    projection = store.projection("p")
    counts: list[int] = []

    def run() -> None:
        with open_client(database, database.first_driver, **patient(database)) as db:
            counts.append(projection.run(db.target, handle))

    runner = threading.Thread(target=run)
    runner.start()
    fill(store, 2)
    wait_until(lambda: handled(database) == [1, 2])
    projection.stop()
    runner.join()
    assert counts == [2]


def test_without_a_transaction_it_is_refused(store: EventStore, database: Database) -> None:
    options: Any = {"isolation_level": None} if database.kind == "sqlite" else {"autocommit": True}
    projection = store.projection("p")
    with (
        open_client(database, database.first_driver, **options) as db,
        pytest.raises(InvalidArgument, match="autocommit mode"),
    ):
        projection.apply(db.target, handle)


RUNNER = """
import sys
from holdfast import events
import {driver} as driver

def handle(db, event):
    db.execute("INSERT INTO handled VALUES (%d, 'killed')" % event.position)
    if event.position == 3:
        print("in the middle", flush=True)
        sys.stdin.readline()

with events.connect(sys.argv[1]) as store:
    store.projection("p").run(driver.connect(sys.argv[2]), handle, timeout=0)
"""


def test_a_runner_killed_in_the_middle_of_a_batch(store: EventStore, database: Database) -> None:
    """What it wrote is gone with its transaction; the next runner handles each event once."""
    fill(store, 5)
    sqlite = database.kind == "sqlite"
    code = RUNNER.format(driver="sqlite3" if sqlite else "psycopg")
    with run_python(code, url_of(database), database.name if sqlite else url_of(database)) as child:
        child.expect("in the middle")
        child.kill()
    with open_client(database, database.first_driver, **patient(database)) as db:
        assert store.projection("p").run(db.target, handle, timeout=0) == 5
    assert handled(database) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_awaited(kind: str) -> None:
    asyncio.run(awaited_story(new_database(kind)))


async def awaited_story(database: Database) -> None:
    import aiosqlite
    import psycopg

    fifth = asyncio.Event()

    async def handle_awaited(connection: Any, event: Event) -> None:
        await connection.execute(f"INSERT INTO handled VALUES ({event.position}, 'a')")
        if event.position == 5:
            fifth.set()

    opened: Any = (
        aiosqlite.connect(database.name)
        if database.kind == "sqlite"
        else await psycopg.AsyncConnection.connect(url_of(database))
    )
    async with opened as db, events_aio.connect(url_of(database)) as store:
        await db.execute("CREATE TABLE handled (position INTEGER, runner VARCHAR(20))")
        await db.commit()
        assert await store.append("a", [{"n": 1}, {"n": 2}], 0) == 2
        with pytest.raises(Exception, match="at version 2, not 0"):
            await store.append("a", [{"n": 3}], 0)
        assert [event.data["n"] async for event in store.read("a", 1)] == [2]
        await store.append("b", [{"n": 3}], connection=db)
        assert [event.data["n"] async for event in store.read_all()] == [1, 2]
        await db.commit()
        async with store.subscribe(timeout=0.05) as subscription:
            assert [event.position async for event in subscription] == [1, 2, 3]
            later = asyncio.create_task(append_later(store))
            found = await subscription.get(timeout=30)
            await later
            assert found is not None
            assert found.data == {"n": 4}
        await store.snapshot("a", 2, {"sum": 3})
        snapshot = await store.load_snapshot("a")
        assert snapshot is not None
        assert snapshot.version == 2
        projection = store.projection("p")
        assert await projection.run(db, handle_awaited, timeout=0) == 4
        assert await projection.position() == 4
        await projection.reset(db, 3)
        assert await projection.apply(db, handle_awaited) == 1
        await db.commit()
        running = asyncio.create_task(projection.run(db, handle_awaited))
        await append_later(store)
        await fifth.wait()
        projection.stop()
        assert await running == 1
        waiting = asyncio.create_task(anext(store.subscribe(99)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert handled(database) == [1, 2, 3, 4, 4, 5]


async def append_later(store: events_aio.AsyncEventStore) -> None:
    await asyncio.sleep(0)
    await store.append("c", [{"n": 4}])
