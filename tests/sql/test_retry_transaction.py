"""Whole transactions run again on real databases: real deadlocks, real serialization failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fencing.sql_clients import DATABASES, DRIVERS, Client, Database, new_database, open_client
from holdfast import sql
from holdfast.errors import Conflict, Deadlock, HoldfastError, InvalidArgument
from holdfast.sql import aio

SERVERS = DATABASES[1:]
_databases: dict[str, Database] = {}


@pytest.fixture
def database(kind: str) -> Database:
    if kind not in _databases:
        _databases[kind] = new_database(kind)
        with open_client(_databases[kind], _databases[kind].first_driver) as db:
            db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, total INTEGER)")
            db.commit()
    with open_client(_databases[kind], _databases[kind].first_driver) as db:
        db.execute("DELETE FROM account")
        db.execute("INSERT INTO account (id, total) VALUES (1, 100), (2, 100)")
        db.commit()
    return _databases[kind]


@pytest.fixture
def other(database: Database) -> Iterator[Client]:
    with open_client(database, database.first_driver) as client:
        yield client


def totals(other: Client) -> list[int]:
    other.rollback()
    return [row[0] for row in other.execute("SELECT total FROM account ORDER BY id")]


@pytest.mark.parametrize(("kind", "driver"), DRIVERS)
def test_it_begins_commits_and_rolls_back(database: Database, driver: str, other: Client) -> None:
    with open_client(database, driver) as db:

        def add(connection: Any) -> str:
            assert connection is db.target
            db.execute("UPDATE account SET total = total + 1 WHERE id = 1")
            return "done"

        assert sql.retry_transaction(add, db.target) == "done"
        assert totals(other) == [101, 100]

        def fail(connection: Any) -> None:
            add(connection)
            raise KeyError("mine")

        with pytest.raises(KeyError):
            sql.retry_transaction(fail, db.target)
        tries: list[int] = []

        def conflict(connection: Any) -> None:
            add(connection)
            tries.append(1)
            if len(tries) < 3:
                raise Conflict("another writer was first")

        sql.retry_transaction(conflict, db.target, backoff=0)
        assert totals(other) == [102, 100], "what had a conflict was rolled back each time"


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("wait", [True, 60])
def test_a_deadlock_is_run_again_by_the_one_that_was_chosen(
    database: Database, other: Client, wait: bool | float
) -> None:
    both = threading.Barrier(2)
    runs: list[int] = []

    def move(first: int, second: int) -> None:
        with open_client(database, database.first_driver) as db:

            def once(connection: Any) -> None:
                runs.append(first)
                sql.row_lock(connection, "account", {"id": first}, wait)
                if runs.count(first) == 1:
                    both.wait(30)
                sql.row_lock(connection, "account", {"id": second}, wait)
                db.execute(f"UPDATE account SET total = total - 10 WHERE id = {first}")
                db.execute(f"UPDATE account SET total = total + 10 WHERE id = {second}")

            sql.retry_transaction(once, db.target)

    threads = [threading.Thread(target=move, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 3
    assert totals(other) == [100, 100]


@pytest.mark.parametrize(("kind", "driver"), [case for case in DRIVERS if case.values[0] == "postgresql"])
def test_a_serialization_failure_is_run_again_and_at_last_is_a_conflict(
    database: Database, driver: str, other: Client
) -> None:
    with open_client(database, driver) as db:

        def add(connection: Any) -> None:
            db.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            (total,) = db.execute("SELECT total FROM account WHERE id = 1")[0]
            other.execute("UPDATE account SET total = total + 1 WHERE id = 1")
            other.commit()
            db.execute(f"UPDATE account SET total = {total + 10} WHERE id = 1")

        with pytest.raises(Conflict, match=r"failed 2 times in a row.*rolled back") as caught:
            sql.retry_transaction(add, db.target, retries=1, backoff=0)
        assert type(caught.value.__cause__).__name__ == "SerializationFailure"
        assert totals(other) == [102, 100]


@pytest.mark.parametrize(("kind", "driver"), DRIVERS)
def test_only_a_whole_transaction_can_be_run_again(database: Database, driver: str) -> None:
    with open_client(database, driver) as db:
        db.begin()
        db.execute("UPDATE account SET total = 1 WHERE id = 1")
        with pytest.raises(InvalidArgument, match="a transaction is open"):
            sql.retry_transaction(lambda _: None, db.target)


@pytest.mark.parametrize("kind", [DATABASES[1]])
def test_an_error_kept_to_itself_does_not_pass_for_a_commit(database: Database, other: Client) -> None:
    with open_client(database, database.first_driver) as db:

        def swallow(connection: Any) -> None:
            db.execute("UPDATE account SET total = 0 WHERE id = 1")
            with pytest.raises(Exception, match="no_such"):
                db.execute("SELECT no_such")

        with pytest.raises(HoldfastError, match="aborted by an error that the function caught"):
            sql.retry_transaction(swallow, db.target)
    assert totals(other) == [100, 100]


@pytest.mark.parametrize("kind", [DATABASES[0], DATABASES[2]])
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_ended_within_is_reported(database: Database, other: Client, end: str) -> None:
    with open_client(database, database.first_driver) as db:

        def ends(connection: Any) -> None:
            getattr(db, end)()
            db.execute("UPDATE account SET total = 0 WHERE id = 1")

        with pytest.raises(HoldfastError, match="was ended within"):
            sql.retry_transaction(ends, db.target)
    assert totals(other) == [100, 100]


def test_without_a_connection_the_function_is_the_transaction() -> None:
    tries: list[int] = []

    def own() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise Deadlock("x")
        return "done"

    async def awaited() -> str:
        return own()

    assert sql.retry_transaction(own, backoff=0) == "done"
    tries.clear()
    assert asyncio.run(aio.retry_transaction(awaited, backoff=0)) == "done"
    assert len(tries) == 2
