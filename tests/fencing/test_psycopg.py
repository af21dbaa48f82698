"""The guard's own statement through psycopg: one message with the BEGIN before it, and what that must not
change."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from fencing.sql_clients import Database, lease, new_database
from fencing.test_isolation import waits_for_a_lock
from holdfast import fencing
from holdfast.errors import InvalidArgument, StaleToken
from holdfast.fencing import aio
from holdfast.model import Fence
from support import wait_until

pytestmark = [pytest.mark.realtime, pytest.mark.engine("postgresql")]


@pytest.fixture(scope="module")
def shop() -> Database:
    database = new_database("postgresql")
    with closing(database.connect()) as db:
        fencing.install(db)
        db.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY, total BIGINT)")
        db.execute("INSERT INTO invoice VALUES (1, 100)")
        db.commit()
    return database


@pytest.fixture(params=[False, True], ids=["transactions", "autocommit"])
def db(shop: Database, request: pytest.FixtureRequest) -> Iterator[Any]:
    with closing(shop.connect(autocommit=request.param)) as connection:
        connection.execute("DELETE FROM holdfast_fencing.fence")
        connection.commit()
        yield connection
        connection.rollback()


def sent(db: Any, work: Any) -> list[str]:
    """The messages that open a round trip, as libpq writes them down."""
    with tempfile.TemporaryFile("w+") as trace:
        db.pgconn.trace(trace.fileno())
        try:
            work()
        finally:
            db.pgconn.untrace()
        trace.seek(0)
        lines = [line.strip().split("\t") for line in trace]
    return [line[-1].strip() for line in lines if "F" in line and ("Query" in line or "Sync" in line)]


def test_a_guarded_transaction_takes_no_more_round_trips_than_an_unguarded_one(db: Any) -> None:
    def guarded() -> None:
        with fencing.transaction(db, lease(42)) as cursor:
            cursor.execute("UPDATE invoice SET total = 1 WHERE id = 1")

    for _ in range(2):  # the first mark of a resource, and one that is known
        first, update, commit = sent(db, guarded)
        assert first.startswith('"BEGIN; SELECT holdfast_fencing.present(')
        assert "UPDATE invoice" in update
        assert commit == '"COMMIT"'


def test_a_refusal_is_one_round_trip_more(db: Any) -> None:
    fencing.advance(db, "invoices", lease(42))
    db.commit()

    def refused() -> None:
        with pytest.raises(StaleToken), fencing.transaction(db, lease(41)):
            raise AssertionError("it was run")

    assert len(sent(db, refused)) == 3  # present, read the fence, roll back


def test_it_begins_as_the_connection_says(db: Any) -> None:
    db.isolation_level = IsolationLevel.REPEATABLE_READ
    db.deferrable = True
    for _ in range(2):
        with fencing.transaction(db, lease(42)) as cursor:
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone() == ("repeatable read",)
            cursor.execute("SHOW transaction_deferrable")
            assert cursor.fetchone() == ("on",)
    db.read_only = True
    with (
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as caught,
        fencing.transaction(db, lease(43)),
    ):
        pass
    assert any("read-only" in note for note in caught.value.__notes__)


def test_in_a_transaction_that_is_open_nothing_begins(db: Any) -> None:
    with db.transaction():
        db.execute("SELECT 1")
        (message,) = sent(db, lambda: fencing.enforce(db, "invoices", lease(42)))
        assert message.startswith('"SELECT holdfast_fencing.present(')
        db.execute("UPDATE invoice SET total = 2 WHERE id = 1")


@pytest.mark.parametrize("settings", ["", "-c standard_conforming_strings=off -c client_encoding=latin1"])
def test_values_are_what_they_were(shop: Database, settings: str) -> None:
    names = ["Robert'); DROP TABLE invoice; --", "\\'; SELECT 1; --", '%s :x %(token)s $1 $$ "ü" \\', "\\"]
    with closing(shop.connect(options=settings)) as db, closing(shop.connect()) as other:
        for name in names:
            fence = Fence(name, 42, name)
            fencing.enforce(db, name, fence)
            db.commit()
            assert fencing.newest(other, name) == fence
            with pytest.raises(StaleToken) as caught:
                fencing.enforce(db, name, Fence(name, 41, name))
            assert caught.value.resource == name
            db.rollback()


def test_no_text_of_the_user_is_formatted_into_the_statement(db: Any) -> None:
    (message,) = sent(db, lambda: fencing.advance(db, "it's mine; --", Fence("here", 42, "\\n")))
    assert "present(" in message
    assert not any(each in message for each in ("mine", "here", "\\n", "--"))
    db.rollback()


def test_who_has_cursors_of_another_class_sees_the_statement(shop: Database) -> None:
    seen: list[str] = []

    class Traced(psycopg.Cursor[Any]):
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            seen.append(str(query))
            return super().execute(query, *arguments, **options)

    for factory in (Traced, psycopg.ClientCursor):
        for autocommit in (False, True):
            with closing(shop.connect(cursor_factory=factory, autocommit=autocommit)) as db:
                with fencing.transaction(db, lease(50)):
                    assert db.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
                with pytest.raises(StaleToken), fencing.transaction(db, lease(41)):
                    pass
    assert sum("holdfast_fencing.present" in each for each in seen) == 4


def test_a_pipeline_of_the_users_own(shop: Database) -> None:
    with closing(shop.connect()) as db, db.pipeline():
        with fencing.transaction(db, lease(60)) as cursor:
            cursor.execute("UPDATE invoice SET total = 3 WHERE id = 1")
        with pytest.raises(StaleToken), fencing.transaction(db, lease(59)):
            pass


def test_a_connection_that_is_closed_or_cut(shop: Database) -> None:
    with closing(shop.connect()) as db, closing(shop.connect(autocommit=True)) as other:
        other.execute("SELECT pg_terminate_backend(%s)", [db.info.backend_pid])
        with pytest.raises(psycopg.OperationalError):
            fencing.enforce(db, "invoices", lease(70))
        with pytest.raises(psycopg.OperationalError, match=r"closed|lost"):
            fencing.enforce(db, "invoices", lease(70))


def test_a_task_that_is_cancelled_while_it_waits_for_the_guard(shop: Database) -> None:
    """The connection is whole afterwards."""

    async def main() -> None:
        where: dict[str, Any] = {"host": shop.host, "port": shop.port, "dbname": shop.name}
        async with await psycopg.AsyncConnection.connect(user="postgres", **where) as db:
            with closing(shop.connect()) as holder:
                fencing.enforce(holder, "invoices", lease(80))
                waiting = asyncio.create_task(aio.enforce(db, "invoices", lease(80)))
                await asyncio.to_thread(wait_until, lambda: waits_for_a_lock(shop))
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
                holder.commit()
            await db.rollback()
            async with aio.transaction(db, lease(80)):
                await db.execute("UPDATE invoice SET total = 4 WHERE id = 1")

    asyncio.run(main())


def test_a_guard_of_an_earlier_version_is_brought_up_to_date(shop: Database) -> None:
    with closing(shop.connect()) as db:
        fencing.advance(db, "kept", lease(42))
        db.execute("DROP FUNCTION holdfast_fencing.present")
        db.commit()
        with pytest.raises(InvalidArgument, match=r"fencing\.install"):
            fencing.enforce(db, "kept", lease(43))
        db.rollback()
        fencing.install(db)
        with pytest.raises(StaleToken):
            fencing.enforce(db, "kept", lease(41))
        db.rollback()
        db.commit()
        fencing.install(db)
        db.commit()
