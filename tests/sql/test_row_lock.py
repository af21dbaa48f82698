"""Rows locked through every driver of the three databases, other holders being real second connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fencing.sql_clients import DRIVERS, Client, Database, new_database, open_client
from holdfast import sql
from holdfast.errors import Conflict, InvalidArgument, LockTimeout, Unsupported
from support import wait_until

EVERY_DRIVER = pytest.mark.parametrize(("kind", "driver"), DRIVERS)
POSTGRESQL = [case for case in DRIVERS if case.values[0] == "postgresql"]
MARIADB = [case for case in DRIVERS if case.values[0] == "mariadb"]
KEY = {"Order": 7, "line %:x": "a'b"}
"""Composite, with names that need quoting and hold what drivers take for placeholders."""

_databases: dict[str, Database] = {}


def columns(kind: str) -> tuple[str, str, str]:
    mark = "`" if kind == "mariadb" else '"'
    return f"{mark}Order{mark}", f"{mark}line %:x{mark}", f"{mark}new table{mark}"


@pytest.fixture
def database(kind: str) -> Database:
    """One for each kind, with two rows."""
    order, line, table = columns(kind)
    if kind not in _databases:
        _databases[kind] = new_database(kind)
        with open_client(_databases[kind], _databases[kind].first_driver) as db:
            db.execute(
                f"CREATE TABLE {table} ({order} INTEGER, {line} VARCHAR(20), quantity INTEGER,"
                f" PRIMARY KEY ({order}, {line}))"
            )
            db.commit()
    with open_client(_databases[kind], _databases[kind].first_driver) as db:
        db.execute(f"DELETE FROM {table}")
        db.execute(f"INSERT INTO {table} VALUES (7, 'a''b', 3)")
        db.execute(f"INSERT INTO {table} VALUES (8, 'c', 1)")
        db.commit()
    return _databases[kind]


@pytest.fixture
def db(database: Database, driver: str) -> Iterator[Client]:
    with open_client(database, driver) as client:
        client.begin()
        yield client


@pytest.fixture
def other(database: Database) -> Iterator[Client]:
    with open_client(database, database.first_driver) as client:
        yield client


def lock(client: Client, **options: Any) -> Any:
    return sql.row_lock(client.target, ("new table",), options.pop("key", KEY), **options)


@EVERY_DRIVER
def test_the_row_or_none(db: Client, kind: str) -> None:
    assert lock(db) == {"Order": 7, "line %:x": "a'b", "quantity": 3}
    assert lock(db, wait=False) == {"Order": 7, "line %:x": "a'b", "quantity": 3}
    assert lock(db, wait=0.5) == {"Order": 7, "line %:x": "a'b", "quantity": 3}
    absent = {"Order": 7, "line %:x": "none"}
    assert lock(db, key=absent) is None
    assert lock(db, key=absent, wait=False) is None
    assert lock(db, key=absent, wait=0.5) is None


@EVERY_DRIVER
@pytest.mark.parametrize("wait", [False, 0.05])
def test_a_locked_row_is_a_time_out_that_leaves_the_transaction_whole(
    db: Client, other: Client, kind: str, wait: Any
) -> None:
    table = columns(kind)[2]
    other.begin()
    lock(other)
    if kind != "sqlite":  # there, writing is what the other keeps from everyone
        db.execute(f"UPDATE {table} SET quantity = 9 WHERE {columns(kind)[0]} = 8")
    with pytest.raises(LockTimeout, match="The transaction is open, and as it was before") as caught:
        lock(db, wait=wait)
    assert type(caught.value.__cause__).__module__.partition(".")[0] in {
        "sqlite3",
        "psycopg",
        "psycopg2",
        "pymysql",
        "mysql",
        "MySQLdb",
    }
    assert "new table" in caught.value.name
    other.rollback()
    row = lock(db, wait=False)
    assert row["quantity"] == 3
    db.commit()
    quantities = [row[0] for row in other.execute(f"SELECT quantity FROM {table} ORDER BY quantity")]
    assert quantities == ([1, 3] if kind == "sqlite" else [3, 9])


@pytest.mark.parametrize(("kind", "driver"), POSTGRESQL)
@pytest.mark.parametrize("outcome", ["granted", "refused"])
def test_lock_timeout_is_put_back(db: Client, other: Client, outcome: str) -> None:
    db.execute("SET lock_timeout = '12s'")
    db.execute("SET LOCAL lock_timeout = '34s'")
    other.begin()
    lock(other, mode="share")
    if outcome == "refused":
        with pytest.raises(LockTimeout):
            lock(db, wait=0.05)
    else:
        lock(db, mode="share", wait=0.05)
        assert lock(db, key={"Order": 0, "line %:x": "absent"}, wait=0.05) is None  # through the savepoint
    assert db.execute("SHOW lock_timeout") == [("34s",)]
    db.rollback()
    db.begin()
    assert db.execute("SHOW lock_timeout")[0][0] in {"12s", "0"}  # SET itself was rolled back


@pytest.mark.parametrize(("kind", "driver"), [case for case in DRIVERS if case.values[0] == "sqlite"])
@pytest.mark.parametrize("outcome", ["granted", "refused"])
def test_busy_timeout_is_put_back(db: Client, other: Client, outcome: str) -> None:
    db.execute("PRAGMA busy_timeout = 77")
    if outcome == "refused":
        lock(other)
        with pytest.raises(LockTimeout):
            lock(db, wait=0.01)
    else:
        lock(db, wait=False)
    assert db.execute("PRAGMA busy_timeout") == [(77,)]


@pytest.mark.parametrize(("kind", "driver"), POSTGRESQL)
def test_without_a_limit_of_ours_postgresql_aborts_the_transaction(db: Client, other: Client) -> None:
    other.begin()
    lock(other)
    db.execute("SET LOCAL lock_timeout = '50ms'")
    with pytest.raises(LockTimeout, match="PostgreSQL has aborted the transaction: roll it back"):
        lock(db)


@pytest.mark.parametrize(
    ("kind", "driver"),
    # Django's connections belong to one thread.
    [case for case in [*POSTGRESQL, *MARIADB] if case.values[1] != "django"],
)
def test_the_waiter_is_granted_the_row_as_the_holder_left_it(
    database: Database, db: Client, other: Client, kind: str
) -> None:
    other.begin()
    lock(other)
    other.execute(f"UPDATE {columns(kind)[2]} SET quantity = 2 WHERE quantity = 3")
    rows: list[Any] = []
    if kind == "mariadb":
        db.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        db.commit()
        db.begin()
    waiter = threading.Thread(target=lambda: rows.append(lock(db, wait=60)))
    waiter.start()
    with open_client(database, database.first_driver) as watch:
        wait_until(lambda: is_waiting(watch, kind))
    assert not rows
    other.commit()
    waiter.join()
    assert rows[0]["quantity"] == 2


def is_waiting(watch: Client, kind: str) -> bool:
    watch.rollback()
    if kind == "postgresql":
        return bool(
            watch.execute(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
        )
    return bool(
        watch.execute(
            "SELECT 1 FROM information_schema.PROCESSLIST WHERE info LIKE '%WAIT 60%'"
            " AND id <> CONNECTION_ID()"
        )
    )


@pytest.mark.parametrize(("kind", "driver"), [*POSTGRESQL, *MARIADB])
def test_locked_rows_are_skipped(db: Client, other: Client) -> None:
    other.begin()
    lock(other)
    assert lock(db, skip_locked=True) is None
    assert lock(db, key={"Order": 8, "line %:x": "c"}, skip_locked=True)["quantity"] == 1


@pytest.mark.parametrize(("kind", "driver"), [*POSTGRESQL, *MARIADB])
def test_shared_locks_are_shared(db: Client, other: Client) -> None:
    other.begin()
    lock(other, mode="share")
    assert lock(db, mode="share", wait=False)
    with pytest.raises(LockTimeout):
        lock(db, wait=False)


@pytest.mark.parametrize(("kind", "driver"), [POSTGRESQL[0]])
def test_locks_that_leave_the_key_alone_let_it_be_referenced(db: Client, other: Client) -> None:
    other.begin()
    lock(other, mode="no key update")
    assert lock(db, mode="key share", wait=False)
    with pytest.raises(LockTimeout):
        lock(db, mode="share", wait=False)


@EVERY_DRIVER
def test_what_a_database_has_not_is_unsupported(db: Client, kind: str) -> None:
    if kind != "postgresql":
        with pytest.raises(Unsupported, match=r"PostgreSQL"):
            lock(db, mode="key share")
        with pytest.raises(Unsupported, match=r"GET_LOCK|BEGIN IMMEDIATE"):
            sql.transaction_lock(db.target, "closing")
    if kind == "sqlite":
        with pytest.raises(Unsupported, match="cannot skip"):
            lock(db, skip_locked=True)
        with pytest.raises(Unsupported, match="mode 'share'"):
            lock(db, mode="share")


@EVERY_DRIVER
def test_a_lock_outside_of_a_transaction_is_refused(database: Database, driver: str) -> None:
    options: dict[str, Any] = {"isolation_level": None} if driver == "sqlite3" else {"autocommit": True}
    with open_client(database, driver, **options) as client:
        for wait in (True, False):
            with pytest.raises(InvalidArgument, match="autocommit mode"):
                lock(client, wait=wait)
            client.rollback()


@EVERY_DRIVER
def test_half_a_key_is_refused(db: Client, other: Client, kind: str) -> None:
    table = columns(kind)[2]
    db.execute(f"INSERT INTO {table} VALUES (7, 'second', 1)")
    with pytest.raises(InvalidArgument, match="names 2 rows"):
        lock(db, key={"Order": 7})


@pytest.mark.parametrize(("kind", "driver"), POSTGRESQL)
def test_an_old_snapshot_is_a_conflict(db: Client, other: Client, kind: str) -> None:
    db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    db.execute("SELECT 1 FROM pg_class LIMIT 1")
    other.execute(f"UPDATE {columns(kind)[2]} SET quantity = 4 WHERE quantity = 3")
    other.commit()
    with pytest.raises(Conflict, match="PostgreSQL has aborted the transaction"):
        lock(db, wait=False)


@pytest.mark.parametrize(
    ("kind", "driver"),
    # A session gives its connection back with the transaction, and the setting with it.
    [case for case in MARIADB if case.values[1] != "session"],
)
def test_an_old_snapshot_of_mariadb_is_a_conflict(db: Client, other: Client, kind: str) -> None:
    db.execute("SET SESSION innodb_snapshot_isolation = ON")
    db.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    db.rollback()
    db.begin()
    table = columns(kind)[2]
    db.execute(f"SELECT * FROM {table}")
    other.execute(f"UPDATE {table} SET quantity = 4 WHERE quantity = 3")
    other.commit()
    with pytest.raises(Conflict, match="Roll the transaction back"):
        lock(db)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_an_old_snapshot_of_sqlite_is_a_conflict(database: Database, other: Client) -> None:
    other.execute("PRAGMA journal_mode = WAL")
    with open_client(database, "sqlite3", isolation_level=None) as db:
        db.execute("BEGIN")
        db.execute('SELECT * FROM "new table"')
        other.execute('UPDATE "new table" SET quantity = 4 WHERE quantity = 3')
        other.commit()
        with pytest.raises(Conflict, match="can write no more"):
            lock(db)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "exclusive"}, "mode is one of"),
        ({"wait": -2}, "negative"),
        ({"wait": None}, "wait is True, False"),
        ({"wait": "5"}, "without quotes"),
        ({"wait": 5, "skip_locked": True}, "never waits"),
        ({"skip_locked": 1}, "skip_locked is True or False"),
        ({"key": {}}, "key must map"),
        ({"key": {"id": None}}, "NULL equals nothing"),
        ({"key": {"": 1}}, "is no name"),
        ({"table": "a.b.c"}, "is no name of a table"),
        ({"table": 7}, "is no name of a table"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_sent(options: dict[str, Any], said: str) -> None:
    table, key = options.pop("table", "t"), options.pop("key", {"id": 1})
    with pytest.raises(InvalidArgument, match=said):
        sql.row_lock(object(), table, key, **options)  # type: ignore[arg-type] # the mistake under test
