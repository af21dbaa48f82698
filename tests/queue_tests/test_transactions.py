"""The user's transaction: a job that is put with the data, and a job that is finished with it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest

import holdfast.queue
from fencing.sql_clients import DRIVERS, new_database, open_client
from holdfast.errors import Conflict, EngineUnavailable, InvalidArgument, StaleToken
from holdfast.queue import NewJob, Queue, aio
from queue_tests.databases import FRESH_URL
from queue_tests.test_processes import effects, effects_table, path_in, server_in
from support import wait_until


@contextmanager
def users_connection(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(path_in(url))) as file:
            yield file
    else:
        with closing(psycopg.connect(server_in(url), prepare_threshold=None)) as server:
            yield server


def test_job_and_data_commit_together(url: str, queue: Queue) -> None:
    queue.install()
    table = effects_table(url)
    with users_connection(url) as db:
        db.execute(f"INSERT INTO {table} VALUES (1)")
        queue.put("a", 1, connection=db)
        queue.put("a", 1, key="k", ordered=True, connection=db)
        assert queue.claim("a") == []
        db.rollback()
        assert (effects(url, table), sum(queue.counts().values())) == ({}, 0)
        db.execute(f"INSERT INTO {table} VALUES (2)")
        queue.put("a", 2, connection=db)
        queue.put("a", 3, key="k", ordered=True, connection=db)
        db.commit()
    assert dict(effects(url, table)) == {2: 1}
    assert [job.payload for job in queue.claim("a", limit=9)] == [2, 3]


@pytest.mark.parametrize(("kind", "driver"), [case for case in DRIVERS if case.values[0] != "mariadb"])
def test_every_driver(kind: str, driver: str) -> None:
    database = new_database(kind)
    server = f"postgresql://postgres@{database.host}:{database.port}/{database.name}"
    payload = {"%s": ":name ?"}
    with (
        holdfast.queue.connect(f"sqlite:///{database.name}" if kind == "sqlite" else server) as queue,
        open_client(database, driver) as db,
    ):
        queue.install()
        for end in (db.rollback, db.commit):
            db.begin()
            queue.put("a", payload, connection=db.target)
            queue.put_many([NewJob("a", n, key="%k", ordered=True) for n in range(2)], connection=db.target)
            end()
        one, two = queue.claim("a", limit=9)
        assert (one.payload, two.payload, queue.counts()["blocked"]) == (payload, 0, 1)
        db.begin()
        one.finish("100 %", connection=db.target)
        db.rollback()
        one.check()
        with one.transaction(db.target, result="100 %"):
            two.finish(connection=db.target)
        assert [job.result for job in queue.jobs("finished")] == ["100 %", None]
        (zombie,) = queue.claim("a", lease=0.05)
        wait_until(lambda: queue.claim("a"))
        with pytest.raises(StaleToken), zombie.transaction(db.target):
            pass


@pytest.mark.engine("postgresql")
@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_with_an_old_snapshot_takes_and_leaves_no_place_in_a_lane(
    tmp_path: Path, isolation: str
) -> None:
    """It does not see who has come and gone since: two would run at once, and some for ever not."""
    url = FRESH_URL["postgresql"](tmp_path)
    with holdfast.queue.connect(url) as queue, closing(psycopg.connect(server_in(url))) as db:

        def begin_and(act: Callable[[], object]) -> None:
            db.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}".encode())
            db.execute("SELECT 1")
            act()

        def begin() -> None:
            db.rollback()
            begin_and(lambda: None)

        queue.install()
        begin()
        queue.put("a", 1, key="k", ordered=True)
        (first,) = queue.claim("a")
        for given in ({"ordered": True}, {"unique": "running"}):
            with pytest.raises(InvalidArgument, match=f"this transaction is {isolation}"):
                queue.put("a", key="k", connection=db, **given)
        queue.put("a", 2, key="k", ordered=True)
        with pytest.raises(InvalidArgument, match="READ COMMITTED"):
            first.finish(connection=db)
        first.finish()
        (second,) = queue.claim("a")
        second.finish()

        # What is in no lane needs no newer snapshot; what has lost a race is to be run again.
        queue.limit("limited", key_concurrency=1)
        begin()
        with pytest.raises(InvalidArgument):
            queue.put("limited", key="k", unique=None, connection=db)
        queue.put("b", key="k", unique=None, connection=db)
        queue.put("b", key="q", unique="queued", connection=db)
        db.commit()
        begin()
        queue.put("c", key="k")
        with pytest.raises(Conflict, match="run all of it again"):
            queue.put("c", key="k", connection=db)
        (zombie,) = queue.claim("c", lease=0.05)
        db.rollback()
        with pytest.raises(StaleToken), zombie.transaction(db):
            begin_and(lambda: wait_until(lambda: queue.claim("c")))


def test_autocommit_is_refused(url: str, queue: Queue) -> None:
    queue.install()
    with users_connection(url) as db:
        if url.startswith("sqlite"):
            db.isolation_level = None
        else:
            db.autocommit = True
        with pytest.raises(InvalidArgument, match="autocommit"):
            queue.put("a", connection=db)


def test_a_connection_to_another_database_is_refused(tmp_path: Path) -> None:
    with (
        holdfast.queue.connect("postgresql://127.0.0.1:1/none") as queue,
        closing(sqlite3.connect(tmp_path / "x.db")) as db,
    ):
        queue._store._is_installed = True
        with pytest.raises(InvalidArgument, match="queue is in PostgreSQL"):
            queue.put("a", connection=db)


def fail_after(db: Any, statement: str) -> None:
    db.execute(statement)
    raise ZeroDivisionError


def test_exactly_once(url: str, queue: Queue) -> None:
    queue.install()
    table = effects_table(url)
    insert = f"INSERT INTO {table} VALUES (1)"
    id_ = queue.put("a")
    (zombie,) = queue.claim("a", lease=0.05)
    (job,) = wait_until(lambda: queue.claim("a"))
    with pytest.raises(StaleToken), zombie.transaction() as db:
        db.execute(insert)
    with pytest.raises(ZeroDivisionError), job.transaction() as db:
        fail_after(db, insert)
    assert effects(url, table) == {}
    with job.transaction(result="ok") as db:
        db.execute(insert)
    assert dict(effects(url, table)) == {1: 1}
    found = queue.get(id_)
    assert found is not None
    assert (found.state, found.result) == ("finished", "ok")


def test_finish_in_the_users_own_transaction(url: str, queue: Queue) -> None:
    queue.put("a")
    queue.put("b")
    job, other = queue.claim(limit=2)
    with users_connection(url) as db:
        job.finish(connection=db)
        db.rollback()
        job.check()
        job.finish(connection=db)
        db.commit()
        with pytest.raises(StaleToken):
            job.check()
        with other.transaction(db) as given:
            assert given is db
    assert queue.counts()["finished"] == 2


def test_a_put_of_an_open_transaction_does_not_strand_its_lane(url: str, queue: Queue) -> None:
    """One that sees its predecessor run, and commits after the predecessor's end, is not left behind."""
    if url.startswith("sqlite"):
        return  # one writer at a time: nothing happens within an open transaction
    queue.put("a", 1, key="k", ordered=True)
    (first,) = queue.claim("a")
    with users_connection(url) as db:
        queue.put("a", 2, key="k", ordered=True, connection=db)
        finishing = threading.Thread(target=first.finish)
        finishing.start()
        db.commit()
        finishing.join()
    (second,) = queue.claim("a")
    assert second.payload == 2


@pytest.mark.parametrize("driver", ["threads", "asyncio"])
def test_tables_that_cannot_be_made_beside_the_users_transaction(tmp_path: Path, driver: str) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"

    async def put_awaited() -> None:
        async with (
            aiosqlite.connect(tmp_path / "app.db", isolation_level=None) as connection,
            aio.connect(url, io_timeout=0.2) as queue,
        ):
            await connection.execute("BEGIN IMMEDIATE")
            await queue.put("a", connection=connection)

    def put() -> None:
        connection = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
        with closing(connection), holdfast.queue.connect(url, io_timeout=0.2) as queue:
            connection.execute("BEGIN IMMEDIATE")
            queue.put("a", connection=connection)

    with pytest.raises(EngineUnavailable, match=r"no tables .* call queue.install\(\) once"):
        put() if driver == "threads" else asyncio.run(put_awaited())
