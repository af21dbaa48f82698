"""Names locked for a transaction on PostgreSQL, through every driver; others hold by second connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencing.sql_clients import Client, Database, new_database, open_client
from holdfast import sql
from holdfast.errors import InvalidArgument, LockTimeout
from holdfast.sql.postgresql import key_of_name

pytestmark = [
    pytest.mark.engine("postgresql"),
    pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "django", "sqlalchemy", "session"]),
]


@pytest.fixture(scope="module")
def database() -> Database:
    return new_database("postgresql")


@pytest.fixture
def db(database: Database, driver: str) -> Iterator[Client]:
    with open_client(database, driver) as client:
        client.begin()
        yield client


@pytest.fixture
def other(database: Database) -> Iterator[Client]:
    with open_client(database, "psycopg") as client:
        yield client


def held(client: Client) -> int:
    """How many advisory locks this connection holds."""
    found = client.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
    )
    number: int = found[0][0]
    return number


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_one_holder_until_its_transaction_ends(db: Client, other: Client, timeout: float) -> None:
    sql.transaction_lock(other.target, "closing")
    db.execute("CREATE TABLE mine (id INTEGER)")
    with pytest.raises(LockTimeout, match="The transaction is open, and as it was before") as caught:
        sql.transaction_lock(db.target, "closing", timeout=timeout)
    assert caught.value.name == "closing"
    assert db.execute("SELECT count(*) FROM mine")[0][0] == 0, "what was done so far is kept"
    sql.transaction_lock(db.target, "another name", timeout=timeout)
    other.commit()
    sql.transaction_lock(db.target, "closing", timeout=timeout)
    assert held(db) == 2
    db.rollback()
    db.begin()
    assert held(db) == 0


def test_lock_timeout_is_put_back_also_after_a_refusal(db: Client, other: Client) -> None:
    db.execute("SET LOCAL lock_timeout = '34s'")
    sql.transaction_lock(other.target, "closing")
    with pytest.raises(LockTimeout):
        sql.transaction_lock(db.target, "closing", timeout=0.01)
    assert db.execute("SHOW lock_timeout")[0][0] == "34s"


def test_shared_locks_keep_out_the_exclusive_one_alone(db: Client, other: Client) -> None:
    sql.transaction_lock(other.target, "closing", shared=True)
    sql.transaction_lock(db.target, "closing", timeout=0, shared=True)
    with pytest.raises(LockTimeout):
        sql.transaction_lock(db.target, "closing", timeout=0)


def test_without_a_timeout_that_of_the_connection_counts(db: Client, other: Client) -> None:
    sql.transaction_lock(other.target, "closing")
    db.execute("SET LOCAL lock_timeout = '20ms'")
    with pytest.raises(LockTimeout, match="PostgreSQL has aborted the transaction") as caught:
        sql.transaction_lock(db.target, "closing")
    assert getattr(caught.value.__cause__, "sqlstate", None) or getattr(caught.value.__cause__, "pgcode", "")


def test_in_autocommit_mode_it_is_refused(database: Database, driver: str) -> None:
    with open_client(database, driver, autocommit=True) as client:
        with pytest.raises(InvalidArgument, match="autocommit mode"):
            sql.transaction_lock(client.target, "closing", timeout=0)
        client.rollback()


def test_names_are_hashed_whole(db: Client, other: Client) -> None:
    long = "x" * 500
    sql.transaction_lock(other.target, f"{long}1")
    sql.transaction_lock(db.target, f"{long}2", timeout=0)
    assert key_of_name("closing") == -1256848103105970807, "another number would be another lock"
    with pytest.raises(InvalidArgument):
        sql.transaction_lock(db.target, "x" * 513)
    with pytest.raises(InvalidArgument, match="shared is True or False"):
        sql.transaction_lock(db.target, "closing", shared=1)  # type: ignore[arg-type] # the mistake under test
