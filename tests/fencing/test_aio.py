"""The awaited guard: psycopg, aiosqlite and SQLAlchemy, the same story for each."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from typing import Any

import pytest

from fencing.sql_clients import Database, lease, new_database
from holdfast import fencing
from holdfast.errors import HoldfastError, InvalidArgument, StaleToken
from holdfast.fencing import aio
from holdfast.model import Fence

pytestmark = pytest.mark.realtime

CREATE = "CREATE TABLE invoice (id INTEGER PRIMARY KEY, text VARCHAR(200), fencing_token BIGINT)"

Execute = Callable[[str], Any]
Opened = AbstractAsyncContextManager[tuple[Any, Execute]]


@asynccontextmanager
async def psycopg_connection(database: Database) -> AsyncIterator[tuple[Any, Execute]]:
    import psycopg

    where: dict[str, Any] = {"host": database.host, "port": database.port, "dbname": database.name}
    async with await psycopg.AsyncConnection.connect(user="postgres", **where) as connection:

        async def execute(statement: str) -> Any:
            cursor = await connection.execute(statement)
            return await cursor.fetchall() if cursor.description else []

        yield connection, execute


@asynccontextmanager
async def aiosqlite_connection(database: Database) -> AsyncIterator[tuple[Any, Execute]]:
    import aiosqlite

    async with aiosqlite.connect(database.name) as connection:

        async def execute(statement: str) -> Any:
            return list(await connection.execute_fetchall(statement))

        yield connection, execute


def engine_of(database: Database, driver: str | None = None, **options: Any) -> Any:
    from sqlalchemy import NullPool
    from sqlalchemy.ext.asyncio import create_async_engine

    usual = {"sqlite": "aiosqlite", "postgresql": "psycopg", "mariadb": "aiomysql"}[database.kind]
    url = database.sqlalchemy_url(driver or usual)
    return create_async_engine(url, poolclass=NullPool, **options)


@asynccontextmanager
async def sqlalchemy_connection(
    database: Database, driver: str | None = None
) -> AsyncIterator[tuple[Any, Execute]]:
    async with engine_of(database, driver).connect() as connection:

        async def execute(statement: str) -> Any:
            result = await connection.exec_driver_sql(statement)
            return result.fetchall() if result.returns_rows else []

        yield connection, execute


@asynccontextmanager
async def sqlalchemy_session(
    database: Database, driver: str | None = None
) -> AsyncIterator[tuple[Any, Execute]]:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession

    async with AsyncSession(engine_of(database, driver)) as session:

        async def execute(statement: str) -> Any:
            result: Any = await session.execute(text(statement))
            return result.fetchall() if result.returns_rows else []

        yield session, execute


OPENERS = [
    pytest.param("postgresql", psycopg_connection, marks=pytest.mark.engine("postgresql"), id="psycopg"),
    pytest.param("sqlite", aiosqlite_connection, id="aiosqlite"),
    pytest.param("sqlite", sqlalchemy_connection, id="sqlite-sqlalchemy"),
    pytest.param("sqlite", sqlalchemy_session, id="sqlite-session"),
    *(
        pytest.param("postgresql", opener, marks=pytest.mark.engine("postgresql"), id=f"postgresql-{name}")
        for name, opener in (("sqlalchemy", sqlalchemy_connection), ("session", sqlalchemy_session))
    ),
]


@pytest.mark.parametrize(("kind", "opened"), OPENERS)
def test_the_same_story_awaited(kind: str, opened: Callable[[Database], Opened]) -> None:
    async def main() -> None:
        async with opened(new_database(kind)) as (db, execute):
            await story(db, execute)

    asyncio.run(main())


ON_POSTGRESQL, ON_MARIADB = pytest.mark.engine("postgresql"), pytest.mark.engine("mariadb")
# Drivers that only SQLAlchemy knows.
BENEATH_SQLALCHEMY = [
    pytest.param("postgresql", "asyncpg", marks=ON_POSTGRESQL),
    pytest.param("mariadb", "asyncmy", marks=ON_MARIADB),
]


@pytest.mark.parametrize("opened", [sqlalchemy_connection, sqlalchemy_session])
@pytest.mark.parametrize(("kind", "driver"), BENEATH_SQLALCHEMY)
def test_the_same_story_through_sqlalchemy(kind: str, driver: str, opened: Any) -> None:
    async def main() -> None:
        async with opened(new_database(kind), driver) as (db, execute):
            await story(db, execute)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "driver"),
    [
        *BENEATH_SQLALCHEMY,
        pytest.param("sqlite", "aiosqlite"),
        pytest.param("postgresql", "psycopg", marks=ON_POSTGRESQL),
    ],
)
def test_sqlalchemy_in_autocommit_mode_would_guard_nothing(kind: str, driver: str) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession

    async def main() -> None:
        database = new_database(kind)
        with closing(database.connect()) as blocking:
            fencing.install(blocking)
            blocking.commit()
        engine = engine_of(database, driver, isolation_level="AUTOCOMMIT")
        for opened in (engine.connect, lambda: AsyncSession(engine)):
            async with opened() as db:
                with pytest.raises(InvalidArgument, match="guard"):
                    await aio.enforce(db, "invoices", lease(41))
            async with opened() as db:
                with pytest.raises(InvalidArgument, match="autocommit"):
                    async with aio.transaction(db, lease(41)):
                        raise AssertionError("it was run")

    asyncio.run(main())


async def story(db: Any, execute: Execute) -> None:
    with pytest.raises(InvalidArgument, match=r"fencing\.install"):
        await aio.advance(db, "invoices", lease(1))
    await db.rollback()
    await aio.install(db)
    await execute(CREATE)
    await db.commit()
    await write_and_be_refused(db, execute)
    await transactions(db, execute)
    await tables(db, execute)
    assert [each.resource for each in await aio.marks(db)] == ["invoices"]
    assert await aio.prune(db, 86_400) == 0
    await aio.move(db, "invoices", "t")
    assert await aio.newest(db, "invoices") == Fence("t", 0, "")
    await db.rollback()


async def write_and_be_refused(db: Any, execute: Execute) -> None:
    await aio.enforce(db, "invoices", lease(41))
    await execute("INSERT INTO invoice (id, text) VALUES (1, 'in time')")
    await db.commit()
    await aio.advance(db, "invoices", lease(42))
    await db.commit()
    with pytest.raises(StaleToken, match="too old"):
        await aio.enforce(db, "invoices", lease(41))
    await db.rollback()


async def transactions(db: Any, execute: Execute) -> None:
    async with aio.transaction(db, lease(42)) as given:
        assert given is db
        await execute("INSERT INTO invoice (id, text) VALUES (2, 'guarded')")
    with pytest.raises(StaleToken):
        async with aio.transaction(db, lease(41)):
            raise AssertionError("it was run")
    with pytest.raises(KeyError):
        async with aio.transaction(db, lease(43)):
            await write_and_fail(execute)
    with pytest.raises(HoldfastError, match="within"):
        async with aio.transaction(db, lease(42)):
            await commit_and_write(db, execute)
    assert [row[0] for row in await execute("SELECT id FROM invoice ORDER BY id")] == [1, 2]
    await db.rollback()


async def write_and_fail(execute: Execute) -> None:
    await execute("INSERT INTO invoice (id, text) VALUES (3, 'undone')")
    raise KeyError


async def commit_and_write(db: Any, execute: Execute) -> None:
    await db.commit()
    await execute("INSERT INTO invoice (id, text) VALUES (4, 'not guarded')")


async def tables(db: Any, execute: Execute) -> None:
    await aio.fenced_upsert(db, "invoice", {"id": 1}, 41, {"text": "a"})
    assert await aio.fenced_update(db, "invoice", {"id": 1}, 42, {"text": "b"})
    with pytest.raises(StaleToken):
        await aio.fenced_update(db, "invoice", {"id": 1}, 41, {"text": "c"})
    await db.commit()
    await aio.protect_table(db, "invoice", "invoices")
    await db.commit()
    with pytest.raises(Exception, match=r"protected by fencing tokens|no such function"):
        await execute("DELETE FROM invoice")
    await db.rollback()
    async with aio.transaction(db, lease(44)):
        await execute("DELETE FROM invoice")
    await aio.unprotect_table(db, "invoice")
    await db.commit()


def test_each_module_names_the_other() -> None:
    async def main() -> None:
        async with aiosqlite_connection(new_database("sqlite")) as (db, _):
            with pytest.raises(InvalidArgument, match=r"holdfast\.fencing\.aio"):
                fencing.enforce(db, "invoices", 1)
        with closing(sqlite3.connect(":memory:")) as blocking:
            with pytest.raises(InvalidArgument, match=r"blocks: use holdfast\.fencing,"):
                await aio.enforce(blocking, "invoices", 1)
            assert not blocking.in_transaction
        nothing: Any = object()
        with pytest.raises(InvalidArgument, match="not a connection or cursor"):
            await aio.enforce(nothing, "invoices", 1)

    asyncio.run(main())


def test_a_cursor_of_psycopg_that_is_awaited() -> None:
    import psycopg

    class Cursor(psycopg.AsyncCursor[Any]):
        """As a user may have one."""

        def __init__(self) -> None:
            pass

    unusable: Any = Cursor()
    with pytest.raises(InvalidArgument, match=r"is awaited: use holdfast\.fencing\.aio"):
        fencing.enforce(unusable, "invoices", 1)
