"""Protected tables: whatever a client sends, only a transaction that presented a current token writes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from fencing.sql_clients import DATABASES, Database, lease, new_database
from holdfast import fencing
from holdfast.errors import InvalidArgument, StaleToken, Unsupported
from support.servers import shared_postgresql

pytestmark = pytest.mark.realtime

REFUSED = r"protected by fencing tokens|no such function: holdfast_fence_presented"
ODD = "Odd `ta\"b'le %s :x"
"""The name of a table."""


@pytest.fixture(scope="module", params=DATABASES)
def shop(request: pytest.FixtureRequest) -> Database:
    return new_database(request.param)


def execute(db: Any, statement: str) -> list[Any]:
    cursor = db.cursor()
    cursor.execute(statement)
    rows = list(cursor.fetchall()) if cursor.description else []
    cursor.close()
    return rows


@pytest.fixture
def db(shop: Database) -> Iterator[Any]:
    """With the table ``invoice``, protected by tokens of ``invoices``, and one row in it."""
    with closing(shop.connect()) as db:
        fencing.install(db)
        execute(db, "DROP TABLE IF EXISTS invoice")
        execute(db, "CREATE TABLE invoice (a INTEGER, b INTEGER, total BIGINT, PRIMARY KEY (a, b))")
        execute(db, "INSERT INTO invoice VALUES (1, 1, 100)")
        execute(
            db, f"DELETE FROM {'holdfast_fencing.fence' if shop.kind == 'postgresql' else 'holdfast_fence'}"
        )
        db.commit()
        fencing.protect_table(db, "invoice", "invoices")
        db.commit()
        yield db
        db.rollback()


def writes(kind: str) -> list[str]:
    every = ["INSERT INTO invoice VALUES (2, 2, 1)", "UPDATE invoice SET total = 0", "DELETE FROM invoice"]
    if kind == "postgresql":
        return [
            *every,
            "TRUNCATE invoice",
            "INSERT INTO invoice VALUES (1, 1, 7) ON CONFLICT (a, b) DO UPDATE SET total = 7",
            "WITH gone AS (DELETE FROM invoice RETURNING *) SELECT * FROM gone",
            "MERGE INTO invoice USING (VALUES (1)) AS v (x) ON a = x WHEN MATCHED THEN DELETE",
        ]
    if kind == "mariadb":
        return [
            *every,
            "REPLACE INTO invoice VALUES (1, 1, 7)",
            "INSERT IGNORE INTO invoice VALUES (3, 3, 7)",
            "UPDATE IGNORE invoice SET total = 0",
            "DELETE IGNORE FROM invoice",
            "INSERT INTO invoice VALUES (1, 1, 7) ON DUPLICATE KEY UPDATE total = 7",
        ]
    return [
        *every,
        "REPLACE INTO invoice VALUES (1, 1, 7)",
        "INSERT OR IGNORE INTO invoice VALUES (3, 3, 7)",
        "UPDATE OR IGNORE invoice SET total = 0",
        "INSERT INTO invoice VALUES (1, 1, 7) ON CONFLICT DO UPDATE SET total = 7",
    ]


def test_whatever_a_stranger_sends_is_refused(shop: Database, db: Any) -> None:
    for statement in writes(shop.kind):
        with pytest.raises(Exception, match=REFUSED):
            execute(db, statement)
        db.rollback()
    assert execute(db, "SELECT a, b, total FROM invoice") == [(1, 1, 100)]


def test_the_presenter_may_do_all_of_it(shop: Database, db: Any) -> None:
    for statement in writes(shop.kind):
        with fencing.transaction(db, lease(42)) as cursor:
            cursor.execute(statement)
        with pytest.raises(Exception, match=REFUSED):
            execute(db, "INSERT INTO invoice VALUES (9, 9, 9)")
        db.rollback()


def test_a_stale_holder_is_refused_by_both(shop: Database, db: Any) -> None:
    with fencing.transaction(db, lease(41)) as cursor:
        cursor.execute("UPDATE invoice SET total = 41")
    with closing(shop.connect()) as other, fencing.transaction(other, lease(42)) as cursor:
        cursor.execute("UPDATE invoice SET total = 42")
    with pytest.raises(StaleToken):
        fencing.enforce(db, "invoices", lease(41))
    with pytest.raises(Exception, match=REFUSED):
        execute(db, "UPDATE invoice SET total = 0")
    db.rollback()
    assert execute(db, "SELECT total FROM invoice") == [(42,)]


def test_advancing_is_not_presenting_for_a_write(db: Any) -> None:
    """A read lease advances, and may not write."""
    fencing.advance(db, "invoices", lease(42, mode="read"))
    with pytest.raises(Exception, match=REFUSED):
        execute(db, "UPDATE invoice SET total = 0")


def test_a_token_of_another_resource_is_none(db: Any) -> None:
    fencing.enforce(db, "customers", lease(42))
    with pytest.raises(Exception, match=REFUSED):
        execute(db, "UPDATE invoice SET total = 0")


def test_several_resources_in_one_transaction(db: Any) -> None:
    fencing.enforce(db, "invoices", lease(42))
    fencing.enforce(db, "customers", lease(42))
    execute(db, "UPDATE invoice SET total = 1")
    db.commit()


def test_the_next_transaction_of_the_connection_has_to_present_its_own(shop: Database, db: Any) -> None:
    fencing.enforce(db, "invoices", lease(42))
    execute(db, "UPDATE invoice SET total = 1")
    db.commit()
    if shop.kind == "mariadb":
        # Triggers of MariaDB know connections only: it may go on until another presents.
        execute(db, "UPDATE invoice SET total = 2")
        db.commit()
        with closing(shop.connect()) as other:
            fencing.advance(other, "invoices", lease(43))
            other.commit()
    with pytest.raises(Exception, match=REFUSED):
        execute(db, "UPDATE invoice SET total = 3")


def test_a_check_that_was_rolled_back_to_a_savepoint_does_not_count(shop: Database, db: Any) -> None:
    execute(db, "BEGIN") if shop.kind != "postgresql" else None
    execute(db, "SAVEPOINT before_it")
    fencing.enforce(db, "invoices", lease(42))
    execute(db, "ROLLBACK TO SAVEPOINT before_it")
    with pytest.raises(Exception, match=REFUSED):
        execute(db, "UPDATE invoice SET total = 0")


def test_protecting_again_changes_the_resource_and_unprotecting_is_idempotent(db: Any) -> None:
    fencing.protect_table(db, "invoice", "other's %s :x \\ ü")
    db.commit()
    with pytest.raises(Exception, match=REFUSED), fencing.transaction(db, lease(42)) as cursor:
        cursor.execute("UPDATE invoice SET total = 1")
    with fencing.transaction(db, lease(42), "other's %s :x \\ ü") as cursor:
        cursor.execute("UPDATE invoice SET total = 2")
    fencing.unprotect_table(db, "invoice")
    fencing.unprotect_table(db, "invoice")
    db.commit()
    execute(db, "UPDATE invoice SET total = 3")
    db.commit()


def test_names_are_quoted_and_may_have_a_schema(shop: Database, db: Any) -> None:
    quote = "`" if shop.kind == "mariadb" else '"'
    quoted = quote + ODD.replace(quote, quote * 2) + quote
    schema = {"postgresql": "Sho.p", "mariadb": "sho.p", "sqlite": "main"}[shop.kind]
    if shop.kind != "sqlite":
        execute(db, f"CREATE SCHEMA IF NOT EXISTS {quote}{schema}{quote}")
    place = f"{quote}{schema}{quote}.{quoted}"
    execute(db, f"CREATE TABLE {place} (x INTEGER, fencing_token BIGINT)")
    db.commit()
    try:
        fencing.protect_table(db, (schema, ODD), "invoices")
        db.commit()
        with pytest.raises(Exception, match=REFUSED):
            execute(db, f"INSERT INTO {place} (x) VALUES (1)")
        db.rollback()
        with fencing.transaction(db, lease(42)) as cursor:
            cursor.execute(f"INSERT INTO {place} (x) VALUES (1)")
            assert fencing.fenced_update(cursor, (schema, ODD), {"x": 1}, 42, {})
        fencing.unprotect_table(db, (schema, ODD))
        db.commit()
    finally:
        db.rollback()
        execute(db, f"DROP TABLE {place}")
        db.commit()


NO_TABLES: list[Any] = ["", "a.b.c", "x\0", ("", "a"), (), "x" * 300, ("a", 7), "\ud800", " ", None, 5]


@pytest.mark.parametrize("name", NO_TABLES, ids=ascii)
def test_what_is_no_name_of_a_table(name: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        with pytest.raises(InvalidArgument, match="table"):
            fencing.protect_table(db, name, "r")
        with pytest.raises(InvalidArgument, match="table"):
            fencing.unprotect_table(db, name)
        with pytest.raises(InvalidArgument, match="table"):
            fencing.fenced_update(db, name, {"id": 1}, 1, {})


BAD_ROWS: list[Any] = [
    ({}, {}),
    ({"id": None}, {}),
    ({"id": 1}, {"id": 2}),
    ({"id": 1}, {"fencing_token": 2}),
    ({"": 1}, {}),
    ({"id": 1}, {"x\0": 1}),
    ([("id", 1)], {}),
    ({"id": 1}, None),
]


@pytest.mark.parametrize(("key", "changes"), BAD_ROWS, ids=ascii)
def test_what_is_no_row(key: Any, changes: Any) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        for call in (fencing.fenced_update, fencing.fenced_upsert):
            with pytest.raises(InvalidArgument):
                call(db, "invoice", key, 1, changes)
        assert not db.in_transaction


def test_tables_that_are_not_there_or_no_tables(db: Any) -> None:
    execute(db, "DROP VIEW IF EXISTS totals")
    execute(db, "CREATE VIEW totals AS SELECT total FROM invoice")
    db.commit()
    with pytest.raises(InvalidArgument, match="there is no table"):
        fencing.protect_table(db, "nowhere", "r")
    db.rollback()
    with pytest.raises(InvalidArgument, match="there is no table"):
        fencing.unprotect_table(db, "nowhere")
    db.rollback()
    with pytest.raises(InvalidArgument, match=r"view|VIEW"):
        fencing.protect_table(db, "totals", "r")
    db.rollback()
    execute(db, "DROP VIEW totals")
    db.commit()


def test_a_table_without_the_tokens_column(db: Any) -> None:
    fencing.unprotect_table(db, "invoice")
    db.commit()
    for call in (fencing.fenced_update, fencing.fenced_upsert):
        with pytest.raises(Exception, match="fencing_token") as caught:
            call(db, "invoice", {"a": 1, "b": 1}, 42, {"total": 1})
        assert any("token_column=" in note for note in caught.value.__notes__)
        db.rollback()


def test_a_composite_key_names_one_row(db: Any) -> None:
    fencing.unprotect_table(db, "invoice")
    execute(db, "ALTER TABLE invoice ADD COLUMN version BIGINT")
    db.commit()
    execute(db, "INSERT INTO invoice VALUES (1, 2, 7, NULL)")
    token = {"token_column": "version"}
    assert fencing.fenced_update(db, "invoice", {"a": 1, "b": 2}, 42, {"total": 8}, **token)
    fencing.fenced_upsert(db, "invoice", {"a": 1, "b": 3}, 42, {"total": 9}, **token)
    assert execute(db, "SELECT b, total, version FROM invoice ORDER BY b") == [
        (1, 100, None),
        (2, 8, 42),
        (3, 9, 42),
    ]
    with pytest.raises(InvalidArgument, match="names 3 rows"):
        fencing.fenced_update(db, "invoice", {"a": 1}, 43, {"total": 0}, **token)
    db.rollback()


# What triggers of one database cannot see


@pytest.mark.engine("postgresql")
def test_postgresql_families_of_tables_are_refused_and_replica_mode_is_not_a_way_around() -> None:
    with closing(new_database("postgresql").connect()) as db:
        fencing.install(db)
        execute(db, "CREATE TABLE parent (x int) PARTITION BY RANGE (x)")
        execute(db, "CREATE TABLE child PARTITION OF parent DEFAULT")
        execute(db, "CREATE TABLE plain (x int)")
        execute(db, "CREATE TEMP TABLE passing (x int)")
        db.commit()
        for name, expected in (
            ("parent", InvalidArgument),
            ("child", Unsupported),
            ("passing", InvalidArgument),
        ):
            with pytest.raises(expected, match=name):
                fencing.protect_table(db, name, "r")
            db.rollback()
        fencing.protect_table(db, "plain", "r")
        execute(db, "SET session_replication_role = replica")
        db.commit()
        with pytest.raises(Exception, match=REFUSED):
            execute(db, "INSERT INTO plain VALUES (1)")
        db.rollback()
        execute(db, "ALTER TABLE plain DISABLE TRIGGER holdfast_fence")
        execute(db, "INSERT INTO plain VALUES (1)")
        db.rollback()


@pytest.mark.engine("mariadb")
def test_mariadb_cascades_and_engines_without_transactions_are_refused_and_truncate_is_not_seen() -> None:
    with closing(new_database("mariadb").connect()) as db:
        fencing.install(db)
        execute(db, "CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        execute(
            db, "CREATE TABLE child (p INTEGER, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)"
        )
        execute(db, "CREATE TABLE old (x INTEGER) ENGINE = Aria")
        for name in ("child", "old"):
            with pytest.raises(Unsupported, match=name):
                fencing.protect_table(db, name, "r")
            db.rollback()
        fencing.protect_table(db, "parent", "r")
        db.rollback()
        with pytest.raises(Exception, match=REFUSED):
            execute(db, "INSERT INTO parent VALUES (1)")
        execute(db, "DROP TABLE child")
        execute(db, "TRUNCATE parent")
        execute(db, "BEGIN")
        execute(db, "SELECT 1 FROM parent")
        with pytest.raises(InvalidArgument, match="MariaDB would commit it"):
            fencing.install(db)


def test_sqlite_a_process_without_holdfast_is_refused_and_cascades_are_seen() -> None:
    database = new_database("sqlite")
    with closing(database.connect(isolation_level=None)) as db:
        fencing.install(db)
        db.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE child (p INTEGER REFERENCES parent ON DELETE CASCADE)")
        db.execute("INSERT INTO parent VALUES (1)")
        db.execute("INSERT INTO child VALUES (1)")
        fencing.protect_table(db, "child", "r")
        db.execute("PRAGMA foreign_keys = ON")
        with pytest.raises(sqlite3.OperationalError, match="holdfast_fence_presented"):
            db.execute("DELETE FROM parent")
        db.execute("CREATE VIRTUAL TABLE words USING fts5(x)")
        with pytest.raises(InvalidArgument, match="virtual"):
            fencing.protect_table(db, "words", "r")
        with pytest.raises(Unsupported, match="attached"):
            fencing.protect_table(db, "other.child", "r")
        with fencing.transaction(db, lease(42), "r") as cursor:
            cursor.execute("DELETE FROM parent")
        with closing(database.connect()) as newer:
            fencing.enforce(newer, "r", lease(43))
            newer.commit()
        # The mark of the transaction is not enough by itself.
        db.execute("BEGIN")
        db.execute("PRAGMA defer_foreign_keys = ON")
        with pytest.raises(sqlite3.IntegrityError, match=REFUSED):
            db.execute("INSERT INTO child VALUES (NULL)")
        db.execute("ROLLBACK")
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('INSERT INTO child VALUES (1)')"
    stranger = subprocess.run(
        [sys.executable, "-c", code, database.name], capture_output=True, text=True, check=False
    )
    assert "no such function: holdfast_fence_presented" in stranger.stderr


@pytest.mark.parametrize("kind", DATABASES)
def test_a_table_of_a_database_without_a_guard_is_not_made_unwritable(kind: str) -> None:
    with closing(new_database(kind).connect()) as db:
        execute(db, "CREATE TABLE invoice (id INTEGER PRIMARY KEY)")
        db.commit()
        with pytest.raises(InvalidArgument, match=r"fencing\.install"):
            fencing.protect_table(db, "invoice", "invoices")
        db.rollback()
        execute(db, "INSERT INTO invoice VALUES (1)")
        db.rollback()


def test_sqlite_a_guard_of_an_earlier_version_is_brought_up_to_date() -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(
            "CREATE TABLE holdfast_fence (resource TEXT NOT NULL PRIMARY KEY, source TEXT NOT NULL"
            " DEFAULT '',"
            " token INTEGER NOT NULL, nonce TEXT NOT NULL DEFAULT '', peers TEXT NOT NULL DEFAULT '',"
            " updated_at TEXT NOT NULL)"
        )
        db.execute("INSERT INTO holdfast_fence VALUES ('r', 's', 41, 'n', '', '2026-01-01T00:00:00.000Z')")
        db.commit()
        with pytest.raises(InvalidArgument, match=r"fencing\.install"):
            fencing.enforce(db, "r", 42)
        db.rollback()
        fencing.install(db)
        with pytest.raises(StaleToken):
            fencing.enforce(db, "r", 40)
        fencing.enforce(db, "r", 42)


# Rights


@pytest.mark.engine("postgresql")
def test_postgresql_the_error_names_the_missing_rights(
    shop: Database, request: pytest.FixtureRequest
) -> None:
    import psycopg

    if shop.kind != "postgresql":
        pytest.skip("of PostgreSQL")
    owner = request.getfixturevalue("db")
    server = shared_postgresql()
    execute(owner, "DROP ROLE IF EXISTS clerk")
    execute(owner, "CREATE ROLE clerk LOGIN")
    owner.commit()
    where: dict[str, Any] = {"host": server.host, "port": server.port, "dbname": shop.name}
    with closing(psycopg.connect(user="clerk", **where)) as db:
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            fencing.enforce(db, "invoices", 42)
        assert any("GRANT USAGE ON SCHEMA holdfast_fencing" in note for note in caught.value.__notes__)
        execute(owner, "GRANT USAGE ON SCHEMA holdfast_fencing TO clerk")
        execute(owner, "GRANT SELECT, INSERT, UPDATE ON holdfast_fencing.fence TO clerk")
        execute(owner, "GRANT SELECT, INSERT, UPDATE, DELETE ON invoice TO clerk")
        owner.commit()
        fencing.install(db)  # it is there: no right is needed
        with pytest.raises(psycopg.IntegrityError, match=REFUSED):
            execute(db, "DELETE FROM invoice")
        db.rollback()
        with fencing.transaction(db, lease(42)) as cursor:
            cursor.execute("DELETE FROM invoice")
    execute(owner, "DROP OWNED BY clerk")
    execute(owner, "DROP ROLE clerk")
    owner.commit()


# Fences of idle resources


def test_only_fences_that_are_old_enough_are_pruned(shop: Database, db: Any) -> None:
    for resource in ("idle", "busy"):
        fencing.advance(db, resource, 42)
    place = "holdfast_fencing.fence" if shop.kind == "postgresql" else "holdfast_fence"
    old = "2026-01-01T00:00:00.000Z" if shop.kind == "sqlite" else "2026-01-01 00:00:00"
    execute(db, f"UPDATE {place} SET updated_at = '{old}' WHERE resource = 'idle'")
    db.commit()
    for seconds in (0, -1, 86_399, float("nan")):
        with pytest.raises(InvalidArgument, match="at least a day"):
            fencing.prune(db, seconds)
    no_seconds: list[Any] = ["90d", None, float("inf"), 1e300]
    for each in no_seconds:
        with pytest.raises(InvalidArgument, match="as a number"):
            fencing.prune(db, each)
    assert fencing.prune(db, 30 * 86_400) == 1
    assert fencing.prune(db, 30 * 86_400) == 0
    db.commit()
    kept = fencing.marks(db)
    assert [each.resource for each in kept] == ["busy"]
    assert kept[0].updated_at.startswith("20")
    assert "T" in kept[0].updated_at
    assert fencing.newest(db, "idle") is None
    fencing.advance(db, "idle", 41)  # what pruning means: nobody remembers 42
    db.rollback()
