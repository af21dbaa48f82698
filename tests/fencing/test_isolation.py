"""The guard at every isolation level: a hand-over before the snapshot, after it, and during the check.

A fence that is only read under an old snapshot would admit the stale writer. The guard always writes or locks
its row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from fencing.sql_clients import DATABASES, Database, lease, new_database
from holdfast import fencing
from holdfast.errors import StaleToken
from support import wait_until

pytestmark = pytest.mark.realtime

SNAPSHOT = "REPEATABLE READ with innodb_snapshot_isolation"
LEVELS = [
    *(
        pytest.param("postgresql", level, marks=pytest.mark.engine("postgresql"))
        for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
    ),
    *(
        pytest.param("mariadb", level, marks=pytest.mark.engine("mariadb"))
        for level in ("READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", SNAPSHOT, "SERIALIZABLE")
    ),
]
FAILS_LATE = {("postgresql", "REPEATABLE READ"), ("postgresql", "SERIALIZABLE"), ("mariadb", SNAPSHOT)}
"""Where the database refuses what its snapshot does not show, by an error of its own."""
DEADLOCK = 1213
"""ER_LOCK_DEADLOCK of MariaDB: this transaction was chosen as the victim."""


@pytest.fixture(scope="module")
def databases() -> Callable[[str], Database]:
    made: dict[str, Database] = {}

    def get(kind: str) -> Database:
        if kind not in made:
            made[kind] = new_database(kind)
            with closing(made[kind].connect()) as db:
                fencing.install(db)
                db.cursor().execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY, total BIGINT)")
                db.commit()
        return made[kind]

    return get


@pytest.fixture
def database(kind: str, databases: Callable[[str], Database]) -> Database:
    database = databases(kind)
    with closing(database.connect()) as db:
        cursor = db.cursor()
        cursor.execute("DELETE FROM invoice")
        cursor.execute("INSERT INTO invoice VALUES (1, 100)")
        cursor.execute(
            f"DELETE FROM {'holdfast_fencing.fence' if kind == 'postgresql' else 'holdfast_fence'}"
        )
        db.commit()
    return database


@contextmanager
def at_level(database: Database, level: str) -> Iterator[Any]:
    with closing(database.connect()) as db:
        cursor = db.cursor()
        if database.kind == "postgresql":
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")
        elif database.kind == "mariadb":
            name, _, snapshot = level.partition(" with ")
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {name}")
            cursor.execute(f"SET SESSION innodb_snapshot_isolation = {'ON' if snapshot else 'OFF'}")
        db.commit()
        yield db
        db.rollback()


def read(db: Any) -> int:
    cursor = db.cursor()
    cursor.execute("SELECT total FROM invoice WHERE id = 1")
    return int(cursor.fetchone()[0])


def write(db: Any, total: int) -> None:
    db.cursor().execute(f"UPDATE invoice SET total = {total} WHERE id = 1")


def hand_over(database: Database, token: int = 42) -> None:
    """The next holder advances the guard."""
    with closing(database.connect()) as other:
        fencing.advance(other, "invoices", lease(token))
        other.commit()


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_a_hand_over_before_the_snapshot(database: Database, level: str, known: bool) -> None:
    with at_level(database, level) as db:
        if known:
            hand_over(database, 41)
        hand_over(database)
        read(db)
        with pytest.raises(StaleToken):
            fencing.enforce(db, "invoices", lease(41))


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_a_hand_over_after_the_snapshot(database: Database, kind: str, level: str, known: bool) -> None:
    """In the user's own transaction: refused by rule or by database, and by the rule when it is run again."""
    with at_level(database, level) as db:
        if known:
            hand_over(database, 41)
        assert read(db) == 100
        hand_over(database)
        with pytest.raises(Exception, match=r".") as caught:
            fencing.enforce(db, "invoices", lease(41))
        if (kind, level) in FAILS_LATE and not isinstance(caught.value, StaleToken):
            assert any("run the whole transaction again" in note for note in caught.value.__notes__)
        else:
            assert isinstance(caught.value, StaleToken)
        db.rollback()
        with pytest.raises(StaleToken):
            fencing.enforce(db, "invoices", lease(41))
        db.rollback()
        assert read(db) == 100


@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_a_newer_holder_with_an_old_snapshot_may_try_again(database: Database, kind: str, level: str) -> None:
    """It is not stale, and is not told so."""
    with at_level(database, level) as db:
        hand_over(database, 41)
        read(db)
        hand_over(database, 42)
        try:
            fencing.enforce(db, "invoices", lease(43))
        except StaleToken:
            raise
        except Exception:
            if (kind, level) not in FAILS_LATE:
                raise
            db.rollback()
            fencing.enforce(db, "invoices", lease(43))
        write(db, 143)
        db.commit()
        assert read(db) == 143


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, failed


def waits_for_a_lock(database: Database) -> bool:
    with closing(database.connect()) as db:
        cursor = db.cursor()
        if database.kind == "postgresql":
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        else:
            cursor.execute("SELECT count(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'")
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize("form", ["enforce", "transaction"])
@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_a_hand_over_during_the_check(database: Database, level: str, form: str) -> None:
    """The check waits for the newer holder's transaction, and then tells the truth: nothing of the user's is
    lost by rolling back a transaction that the check itself has opened."""
    hand_over(database, 41)
    with at_level(database, level) as db, closing(database.connect()) as newer:

        def check() -> None:
            if form == "enforce":
                fencing.enforce(db, "invoices", lease(41))
                return
            with fencing.transaction(db, lease(41)):
                raise AssertionError("it was run")

        fencing.advance(newer, "invoices", lease(42))
        thread, failed = in_thread(check)
        wait_until(lambda: waits_for_a_lock(database))
        newer.commit()
        thread.join()
        assert [type(error) for error in failed] == [StaleToken]
        assert failed[0].args
        db.rollback()


@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_a_race_that_is_lost_to_an_older_holder_stays_the_drivers_error(
    database: Database, kind: str, level: str
) -> None:
    hand_over(database, 41)
    with at_level(database, level) as db, closing(database.connect()) as older:
        fencing.enforce(older, "invoices", lease(41))
        thread, failed = in_thread(lambda: fencing.enforce(db, "invoices", lease(42)))
        wait_until(lambda: waits_for_a_lock(database))
        older.commit()
        thread.join()
        assert not any(isinstance(error, StaleToken) for error in failed)
        if failed:
            assert (kind, level) in FAILS_LATE
            assert any("run the whole transaction again" in note for note in failed[0].__notes__)
            fencing.enforce(db, "invoices", lease(42))
        db.rollback()


@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_many_that_are_first_on_one_resource(database: Database, kind: str, level: str) -> None:
    """Some roll back, and the newest that committed is known.

    InnoDB may choose a victim among those that wait for a first row whose insertion is rolled back: each has
    a lock on the gap, and all want to insert into it. Its error says so; the transaction is run again.
    """
    committed: list[int] = []

    def present(token: int) -> None:
        with at_level(database, level) as db:
            for _ in range(10):
                try:
                    fencing.enforce(db, "fresh", lease(token))
                except StaleToken:
                    return
                except Exception as error:
                    is_victim = kind == "mariadb" and error.args[0] == DEADLOCK
                    if (kind, level) not in FAILS_LATE and not is_victim:
                        raise AssertionError from error
                    db.rollback()
                    continue
                if token % 3:
                    db.commit()
                    committed.append(token)
                else:
                    db.rollback()
                return

    for base in (100, 200):
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(present, range(base, base + 6)))
    with closing(database.connect()) as db:
        found = fencing.newest(db, "fresh")
        assert found is not None
        assert found.token == max(committed)


@pytest.mark.parametrize("kind", DATABASES)
def test_many_that_install_at_once(kind: str) -> None:
    empty = new_database(kind)

    def install(number: int) -> None:
        with closing(empty.connect(timeout=30) if kind == "sqlite" else empty.connect()) as db:
            fencing.install(db)
            fencing.advance(db, f"r{number}", 1)
            db.commit()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(install, range(6)))
    with closing(empty.connect()) as db:
        assert len(fencing.marks(db)) == 6


@pytest.mark.parametrize(("kind", "level"), LEVELS)
def test_resources_do_not_wait_for_each_other(database: Database, level: str) -> None:
    """Rows beside each other in the index, each presented by a transaction that stays open."""
    with at_level(database, level) as first, at_level(database, level) as second:
        for number in range(8):
            fencing.enforce((first, second)[number % 2], f"r{number}", lease(41))
        first.rollback()
        second.commit()
        for number in range(8):
            fencing.enforce((second, first)[number % 2], f"r{number}", lease(42))
        first.commit()


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_sqlite_in_both_of_its_modes(database: Database, journal: str) -> None:
    with closing(database.connect(isolation_level=None)) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
        hand_over(database, 41)
        db.execute("BEGIN")
        read(db)
        if journal == "DELETE":
            with pytest.raises(Exception, match="locked"):
                hand_over(database)  # a reader keeps the writer out
            fencing.enforce(db, "invoices", lease(41))
            db.execute("COMMIT")
            return
        hand_over(database)
        with pytest.raises(Exception, match="locked") as caught:
            fencing.enforce(db, "invoices", lease(41))
        assert any("its first statement" in note for note in caught.value.__notes__)
        db.execute("ROLLBACK")
        with pytest.raises(StaleToken), fencing.transaction(db, lease(41)):
            pass
