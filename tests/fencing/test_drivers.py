"""The guard through every driver of the three databases: one story, and what each driver could get wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencing.sql_clients import DRIVERS, Client, Database, lease, new_database, open_client
from holdfast import fencing
from holdfast.errors import HoldfastError, InvalidArgument, StaleToken
from holdfast.model import Fence

pytestmark = [pytest.mark.realtime, pytest.mark.parametrize(("kind", "driver"), DRIVERS)]

CREATE = "CREATE TABLE invoice (id INTEGER PRIMARY KEY, text VARCHAR(200), fencing_token BIGINT)"


@pytest.fixture(scope="module")
def prepared() -> Callable[[str], Database]:
    """A database with a guard and a table to protect, for all drivers of a kind."""
    made: dict[str, Database] = {}

    def get(kind: str) -> Database:
        if kind not in made:
            made[kind] = new_database(kind)
            connection = made[kind].connect()
            fencing.install(connection)
            connection.cursor().execute(CREATE)
            connection.commit()
            connection.close()
        return made[kind]

    return get


@pytest.fixture
def database(kind: str, prepared: Callable[[str], Database]) -> Database:
    database = prepared(kind)
    connection = database.connect()
    for table in ("invoice", "holdfast_fencing.fence" if kind == "postgresql" else "holdfast_fence"):
        connection.cursor().execute(f"DELETE FROM {table}")
    connection.commit()
    connection.close()
    return database


@pytest.fixture
def db(database: Database, driver: str) -> Iterator[Client]:
    with open_client(database, driver) as client:
        yield client


def texts(database: Database) -> list[str]:
    """As another connection sees them."""
    with open_client(database, database.first_driver) as other:
        return [row[0] for row in other.execute("SELECT text FROM invoice ORDER BY id")]


def add(db: Client, number: int, text: str) -> None:
    db.execute(f"INSERT INTO invoice (id, text) VALUES ({number}, '{text}')")


def write(db: Client, presented: Any, number: int, text: str) -> None:
    db.begin()
    try:
        fencing.enforce(db.target, "invoices", presented)
        add(db, number, text)
    except BaseException:
        db.rollback()
        raise
    db.commit()


def test_the_holder_that_woke_up_late_is_refused_and_leaves_nothing(database: Database, db: Client) -> None:
    write(db, lease(41), 1, "in time")
    write(db, lease(42), 2, "by the new holder")
    with pytest.raises(StaleToken) as caught:
        write(db, lease(41), 3, "too late")
    assert (caught.value.resource, caught.value.token, caught.value.newest) == ("invoices", 41, 42)
    write(db, lease(42), 4, "again")
    assert fencing.newest(db.target, "invoices") == Fence("s", 42, "n42")
    db.rollback()
    assert texts(database) == ["in time", "by the new holder", "again"]


def test_advance_commits_with_its_transaction(database: Database, db: Client) -> None:
    db.begin()
    fencing.advance(db.target, "invoices", lease(42))
    db.rollback()
    write(db, lease(41), 1, "it was undone")
    db.begin()
    fencing.advance(db.target, "invoices", lease(42))
    db.commit()
    with pytest.raises(StaleToken):
        write(db, lease(41), 2, "late")


def test_a_whole_guarded_transaction(database: Database, db: Client) -> None:
    with fencing.transaction(db.target, lease(42)) as cursor:
        assert hasattr(cursor, "execute")
        add(db, 1, "x")
    with pytest.raises(StaleToken), fencing.transaction(db.target, lease(41)):
        raise AssertionError("it was run")
    with pytest.raises(KeyError), fencing.transaction(db.target, lease(43)):
        write_and_fail(db)
    with fencing.transaction(db.target, lease(42)):
        add(db, 3, "43 left nothing")
    assert texts(database) == ["x", "43 left nothing"]


def write_and_fail(db: Client) -> None:
    add(db, 2, "y")
    raise KeyError


def test_a_commit_within_is_noticed(database: Database, db: Client, driver: str) -> None:
    if driver == "django":
        pytest.skip("Django itself refuses a commit within its transactions")

    def commit_and_write() -> None:
        add(db, 1, "guarded")
        db.commit()
        add(db, 2, "not guarded")

    with pytest.raises(HoldfastError, match="within"), fencing.transaction(db.target, lease(42)):
        commit_and_write()
    assert texts(database) == ["guarded"]


def test_it_refuses_a_transaction_that_is_open(database: Database, db: Client) -> None:
    db.begin()
    add(db, 1, "of the user")
    with pytest.raises(InvalidArgument, match="is open"), fencing.transaction(db.target, lease(42)):
        pass
    db.commit()
    assert texts(database) == ["of the user"]


def test_autocommit_would_guard_nothing(database: Database, kind: str, driver: str) -> None:
    options: dict[str, Any] = {"isolation_level": None} if driver == "sqlite3" else {"autocommit": True}
    if driver == "django":
        options = {}
    with open_client(database, driver, **options) as db:
        with pytest.raises(InvalidArgument, match="guard"):
            fencing.enforce(db.target, "invoices", lease(41))
        fencing.advance(db.target, "invoices", lease(42))
    with open_client(database, database.first_driver) as other:
        assert fencing.newest(other.target, "invoices") == Fence("s", 42, "n42")


def test_a_transaction_begun_by_a_statement_counts(database: Database, kind: str, driver: str) -> None:
    if driver in {"django", "sqlalchemy", "session"}:
        pytest.skip("they begin by themselves")
    options: dict[str, Any] = {"isolation_level": None} if driver == "sqlite3" else {"autocommit": True}
    with open_client(database, driver, **options) as db:
        db.execute("BEGIN")
        fencing.enforce(db.target, "invoices", lease(41))
        add(db, 1, "x")
        db.execute("COMMIT")
        with fencing.transaction(db.target, lease(42)):
            add(db, 2, "y")
        with pytest.raises(StaleToken), fencing.transaction(db.target, lease(41)):
            pass
        with pytest.raises(KeyError), fencing.transaction(db.target, lease(43)):
            raise KeyError
    assert texts(database) == ["x", "y"]


def test_a_cursor_leads_to_its_connection(database: Database, db: Client, driver: str) -> None:
    if driver in {"sqlalchemy", "session"}:
        pytest.skip("they have none")
    db.begin()
    cursor = db.target.cursor()
    fencing.enforce(cursor, "invoices", lease(42))
    cursor.execute("INSERT INTO invoice (id, text) VALUES (1, 'x')")
    assert fencing.newest(cursor, "invoices") == Fence("s", 42, "n42")
    cursor.close()
    db.commit()
    assert texts(database) == ["x"]


def test_any_text_in_names(database: Database, db: Client) -> None:
    for resource in (
        "ü" * 256,
        "Robert'); DROP TABLE holdfast_fence; --",
        '%s :resource %(token)s ? \\ " ` $1',
    ):
        db.begin()
        fencing.enforce(db.target, resource, FENCE)
        assert fencing.newest(db.target, resource) == FENCE
        fencing.move(db.target, resource, "%s :x ü")
        assert fencing.newest(db.target, resource) == Fence("%s :x ü", 0, "")
        db.commit()
    assert {each.resource for each in fencing.marks(db.target)} >= {"ü" * 256}


FENCE = Fence("'; -- ü %s :x", 42, "'\"\\%(x)s")


def test_a_protected_table(database: Database, db: Client) -> None:
    fencing.protect_table(db.target, "invoice", "invoices")
    db.commit()
    try:
        db.begin()
        with pytest.raises(Exception, match=r"protected by fencing tokens|no such function"):
            add(db, 1, "presented nothing")
        db.rollback()
        write(db, lease(42), 2, "presented")
        with fencing.transaction(db.target, lease(42)):
            add(db, 3, "as well")
    finally:
        db.rollback()
        fencing.unprotect_table(db.target, "invoice")
        db.commit()
    db.begin()
    add(db, 4, "no more")
    db.commit()
    assert texts(database) == ["presented", "as well", "no more"]


def test_the_column_form(database: Database, db: Client) -> None:
    db.begin()
    assert not fencing.fenced_update(db.target, "invoice", {"id": 1}, 41, {"text": "absent"})
    fencing.fenced_upsert(db.target, "invoice", {"id": 1}, 41, {"text": "a"})
    fencing.fenced_upsert(db.target, "invoice", {"id": 1}, 41, {"text": "a"})
    assert fencing.fenced_update(db.target, "invoice", {"id": 1}, 41, {"text": "a"})
    assert fencing.fenced_update(db.target, "invoice", {"id": 1}, lease(42), {"text": "%s :x 'ü'"})
    for call in (fencing.fenced_update, fencing.fenced_upsert):
        with pytest.raises(StaleToken) as caught:
            call(db.target, "invoice", {"id": 1}, 41, {"text": "late"})
        assert (caught.value.token, caught.value.newest) == (41, 42)
    fencing.fenced_upsert(db.target, "invoice", {"id": 1}, 43, {})
    db.commit()
    assert texts(database) == ["%s :x 'ü'"]


def test_before_install_the_error_says_what_to_call(kind: str, driver: str) -> None:
    with open_client(new_database(kind), driver) as db:
        db.begin()
        for call in (fencing.enforce, fencing.advance):
            with pytest.raises(InvalidArgument, match=r"no guard yet: call fencing\.install\(connection\)"):
                call(db.target, "invoices", lease(42))
            db.rollback()
            db.begin()
        db.rollback()
        fencing.install(db.target)
        fencing.install(db.target)
        with fencing.transaction(db.target, lease(42)):
            pass
        assert fencing.newest(db.target, "invoices") == Fence("s", 42, "n42")
