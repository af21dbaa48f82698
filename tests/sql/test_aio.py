"""Row locks, transaction locks, retries and optimistic updates awaited: the same story for each driver."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from fencing.sql_clients import Database, new_database, open_client
from fencing.test_aio import OPENERS, psycopg_connection, sqlalchemy_connection, sqlalchemy_session
from holdfast.errors import Conflict, InvalidArgument, LockTimeout, Unsupported
from holdfast.optimistic import aio as optimistic
from holdfast.sql import aio as sql
from support import wait_until

OTHERS = [
    pytest.param(
        "postgresql",
        functools.partial(sqlalchemy_connection, driver="asyncpg"),
        marks=pytest.mark.engine("postgresql"),
        id="postgresql-asyncpg",
    ),
    pytest.param("mariadb", sqlalchemy_session, marks=pytest.mark.engine("mariadb"), id="mariadb-session"),
]

Execute = Callable[[str], Any]
Opened = AbstractAsyncContextManager[tuple[Any, Execute]]


def prepared(kind: str) -> Database:
    database = new_database(kind)
    with open_client(database, database.first_driver) as db:
        db.execute("CREATE TABLE stock (id INTEGER PRIMARY KEY, quantity INTEGER, version INTEGER)")
        db.execute("INSERT INTO stock VALUES (1, 3, 1)")
        db.commit()
    return database


@pytest.mark.parametrize(("kind", "opened"), [*OPENERS, *OTHERS])
def test_the_same_story_awaited(kind: str, opened: Callable[[Database], Opened]) -> None:
    async def main() -> None:
        database = prepared(kind)
        async with opened(database) as (db, execute), opened(database) as (other, _):
            await optimistic_story(db)
            await retry_story(db, execute)
            await locking_story(db, other, kind)

    asyncio.run(main())


async def optimistic_story(db: Any) -> None:
    one = {"id": 1}
    assert await optimistic.compare_and_update(db, "stock", one, 1, {"quantity": 2}) == 2
    with pytest.raises(Conflict, match="has version 2, not 1"):
        await optimistic.compare_and_update(db, "stock", one, 1, {"quantity": 9})
    assert await optimistic.compare_and_update(db, "stock", {"id": 0}, 1, {"quantity": 9}) is None
    assert await optimistic.decrement_if_available(db, "stock", one, "quantity", 2)
    assert not await optimistic.decrement_if_available(db, "stock", one, "quantity")
    assert await optimistic.update_where(db, "stock", one, {"quantity": 5}, {"quantity": 0})
    await db.commit()


async def retry_story(db: Any, execute: Execute) -> None:
    tries: list[int] = []

    async def add(connection: Any) -> str:
        assert connection is db
        await execute("UPDATE stock SET quantity = quantity + 1 WHERE id = 1")
        tries.append(1)
        if len(tries) < 3:
            raise Conflict("another writer was first")
        return "done"

    assert await sql.retry_transaction(add, db, backoff=0) == "done"
    assert (await execute("SELECT quantity FROM stock"))[0][0] == 6, "rolled back twice, committed once"
    await db.rollback()

    @optimistic.optimistic(backoff=0)
    async def own() -> int:
        tries.append(1)
        if len(tries) < 6:
            raise Conflict("x")
        return len(tries)

    assert await own() == 6


async def locking_story(db: Any, other: Any, kind: str) -> None:
    row = {"id": 1, "quantity": 6, "version": 2}
    assert await sql.row_lock(db, "stock", {"id": 1}) == row
    for wait in (False, 0.05):
        with pytest.raises(LockTimeout, match="The transaction is open, and as it was"):
            await sql.row_lock(other, "stock", {"id": 1}, wait=wait)
    if kind == "postgresql":
        await sql.transaction_lock(db, "closing")
        for timeout in (0, 0.05):
            with pytest.raises(LockTimeout, match="The transaction is open, and as it was"):
                await sql.transaction_lock(other, "closing", timeout=timeout)
    else:
        with pytest.raises(Unsupported):
            await sql.transaction_lock(db, "closing")
    await db.rollback()
    assert await sql.row_lock(other, "stock", {"id": 1}, wait=False) == row
    await other.rollback()


@pytest.mark.engine("postgresql")
def test_a_waiter_that_is_cancelled_leaves_its_transaction_usable() -> None:
    """And its limit is put back."""

    async def main() -> None:
        database = prepared("postgresql")
        async with psycopg_connection(database) as (db, execute), psycopg_connection(database) as (other, _):
            await sql.row_lock(other, "stock", {"id": 1})
            waiter = asyncio.create_task(sql.row_lock(db, "stock", {"id": 1}, wait=60))
            with open_client(database, "psycopg") as watch:
                await asyncio.to_thread(wait_until, lambda: waiting(watch))
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert (await execute("SHOW lock_timeout"))[0][0] == "0"
            await other.rollback()
            assert await sql.row_lock(db, "stock", {"id": 1}, wait=False)

    asyncio.run(main())


def waiting(watch: Any) -> bool:
    watch.rollback()
    return bool(watch.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


def test_connections_of_the_other_kind_are_refused() -> None:
    from holdfast import sql as blocking

    database = prepared("sqlite")
    with open_client(database, "sqlite3") as db, pytest.raises(InvalidArgument, match="blocks: use"):
        asyncio.run(sql.row_lock(db.target, "stock", {"id": 1}))

    async def main() -> None:
        opened: Any = OPENERS[1].values[1]
        async with opened(database) as (connection, _):
            with pytest.raises(InvalidArgument, match=r"`aio` of holdfast\.sql"):
                blocking.row_lock(connection, "stock", {"id": 1})

    asyncio.run(main())
