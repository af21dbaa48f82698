"""Operations that run once within the user's transaction: effect and result commit together, or neither."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from fencing.sql_clients import DRIVERS, Client, Database, new_database, open_client
from fencing.test_aio import OPENERS
from holdfast import sql
from holdfast.errors import Conflict, HoldfastError, InvalidArgument, NotHeld, Unsupported
from holdfast.sql import aio
from support import wait_until
from support.processes import run_python
from support.servers import shared_postgresql

CARRYING = [case for case in DRIVERS if case.values[0] != "mariadb"]
EVERY_DRIVER = pytest.mark.parametrize(("kind", "driver"), CARRYING)
BOTH = pytest.mark.parametrize(
    ("kind", "driver"), [case for case in CARRYING if case.values[1] in {"sqlite3", "psycopg"}]
)


@pytest.fixture
def database(kind: str) -> Database:
    """With an account, and the table of operations."""
    made = new_database(kind)
    with open_client(made, made.first_driver) as db:
        sql.create_idempotency_table(db.target)
        sql.create_idempotency_table(db.target)
        db.commit()
        db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
        db.execute("INSERT INTO account VALUES (1, 100)")
        db.commit()
    return made


def balance(database: Database) -> int:
    with open_client(database, database.first_driver) as db:
        return int(db.execute("SELECT balance FROM account")[0][0])


def waiting_for_a_lock(database: Database) -> int:
    """Sessions of PostgreSQL."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
    return int(shared_postgresql().sql(f"{waiting}'{database.name}'"))


def charge(db: Client, amount: int, **options: Any) -> Any:
    with sql.idempotent(db.target, ("charge", 7), fingerprint=amount, **options) as attempt:
        if not attempt.done:
            db.execute(f"UPDATE account SET balance = balance - {amount}")
            attempt.set_result({"charged": amount})
    return attempt.result


@EVERY_DRIVER
def test_effect_and_result_commit_together(database: Database, driver: str) -> None:
    with open_client(database, driver) as db:
        db.begin()
        assert charge(db, 10) == {"charged": 10}
        db.rollback()
        assert balance(database) == 100
        for _ in range(3):
            db.begin()
            assert charge(db, 10) == {"charged": 10}
            db.commit()
        assert balance(database) == 90
        db.begin()
        with pytest.raises(Conflict, match="another payload"):
            charge(db, 11)
        db.rollback()
        db.begin()
        assert charge(db, 11, scope="another tenant") == {"charged": 11}
        with sql.idempotent(db.target, b"raw") as attempt:
            with pytest.raises(NotHeld, match="no result yet"):
                _ = attempt.result
            attempt.set_result(bytes(range(256)))
        db.commit()
        db.begin()
        with sql.idempotent(db.target, b"raw") as attempt:
            assert (attempt.done, attempt.result) == (True, bytes(range(256)))
            with pytest.raises(NotHeld, match="committed before"):
                attempt.set_result(1)
        db.rollback()
    assert balance(database) == 79


@EVERY_DRIVER
def test_a_body_that_fails_stores_nothing_even_if_its_transaction_is_committed(
    database: Database, driver: str
) -> None:
    with open_client(database, driver) as db:
        db.begin()
        with pytest.raises(KeyError), sql.idempotent(db.target, "x"):
            raise KeyError
        for wrong in ({1, 2}, b"x" * 70_000):
            with pytest.raises(InvalidArgument), sql.idempotent(db.target, "x") as attempt:
                attempt.set_result(wrong)
        db.commit()
        db.begin()
        with sql.idempotent(db.target, "x") as attempt:
            assert not attempt.done
        db.commit()


@BOTH
def test_a_second_transaction_waits_for_the_first(database: Database, driver: str) -> None:
    for first_ends, left in (("rollback", 90), ("commit", 80)):
        with open_client(database, driver, **({"timeout": 30} if driver == "sqlite3" else {})) as db:
            db.begin()
            amount, key = 10, first_ends
            with sql.idempotent(db.target, key) as attempt:
                db.execute(f"UPDATE account SET balance = balance - {amount}")
                attempt.set_result("first")
            results: list[Any] = []
            began = threading.Event()

            def second(key: str = key, began: threading.Event = began, results: list[Any] = results) -> None:
                wait = {"timeout": 30} if driver == "sqlite3" else {}
                with open_client(database, driver, **wait) as other:
                    other.begin()
                    began.set()
                    with sql.idempotent(other.target, key) as attempt:
                        if not attempt.done:
                            other.execute("UPDATE account SET balance = balance - 10")
                            attempt.set_result("second")
                    results.append(attempt.result)
                    other.commit()

            thread = threading.Thread(target=second)
            thread.start()
            assert began.wait(30)
            if driver == "psycopg":
                wait_until(lambda: waiting_for_a_lock(database) == 1)
            getattr(db, first_ends)()
            thread.join(30)
            assert results == ["second" if first_ends == "rollback" else "first"]
            assert balance(database) == left


@BOTH
def test_results_expire_and_are_pruned(database: Database, driver: str) -> None:
    with open_client(database, driver) as db:
        db.begin()
        charge(db, 10, keep=0.001)
        with sql.idempotent(db.target, "other", keep=0.001):
            pass
        db.commit()
        over = "julianday('now')" if driver == "sqlite3" else "clock_timestamp()"
        before = str(db.execute(f"SELECT {over}")[0][0])
        wait_until(lambda: str(db.execute(f"SELECT {over}")[0][0]) > before)
        db.rollback()
        wait_until(lambda: charged_again(db))
        db.begin()
        assert sql.prune_idempotency_table(db.target) == 1
        db.commit()
        assert db.execute("SELECT count(*) FROM holdfast_idempotency_1")[0][0] == 1


def charged_again(db: Client) -> bool:
    db.begin()
    with sql.idempotent(db.target, ("charge", 7), fingerprint=10) as attempt:
        done = attempt.done
    db.commit()
    return not done


@BOTH
def test_what_is_refused(database: Database, driver: str, kind: str) -> None:
    with open_client(database, driver) as db:
        wrong: list[Any] = ["", (), None, 1.5, ("a", None), "\ud800", True]
        for key in wrong:
            with pytest.raises(InvalidArgument), sql.idempotent(db.target, key):
                pass
        with (
            pytest.raises(InvalidArgument, match="fingerprint"),
            sql.idempotent(db.target, "x", fingerprint={1}),
        ):
            pass
        db.begin()
        with pytest.raises(HoldfastError, match="rolled back within"), sql.idempotent(db.target, "x"):
            db.rollback()
        db.begin()
        with (
            sql.idempotent(db.target, "x"),
            pytest.raises(Conflict, match="in this same transaction"),
            sql.idempotent(db.target, "x"),
        ):
            pass
        db.rollback()
        db.begin()
        entered = sql.idempotent(db.target, "committed")
        entered.__enter__()
        db.commit()  # and then it crashes
        db.begin()
        with (
            pytest.raises(Conflict, match="committed before its end"),
            sql.idempotent(db.target, "committed"),
        ):
            pass
        db.rollback()
    options: dict[str, Any] = {"isolation_level": None} if driver == "sqlite3" else {"autocommit": True}
    with (
        open_client(database, driver, **options) as db,
        pytest.raises(InvalidArgument, match="autocommit"),
        sql.idempotent(db.target, "x"),
    ):
        pass
    empty = new_database(kind)
    with (
        open_client(empty, driver) as db,
        pytest.raises(InvalidArgument, match="create_idempotency_table"),
        sql.idempotent(db.target, "x"),
    ):
        pass


@pytest.mark.engine("mariadb")
def test_mariadb_is_refused() -> None:
    with open_client(new_database("mariadb"), "pymysql") as db:
        for call in (sql.create_idempotency_table, sql.prune_idempotency_table):
            with pytest.raises(Unsupported, match="SQLite and PostgreSQL"):
                call(db.target)
        with pytest.raises(Unsupported, match="redis://"), sql.idempotent(db.target, "x"):
            pass


@pytest.mark.parametrize(("kind", "opened"), OPENERS)
def test_the_same_awaited(kind: str, opened: Callable[[Database], Any]) -> None:
    async def main() -> None:
        async with opened(new_database(kind)) as (db, execute):
            await aio.create_idempotency_table(db)
            await execute("CREATE TABLE account (balance INTEGER)")
            await execute("INSERT INTO account VALUES (100)")
            await db.commit()
            for ending in (db.rollback, db.commit, db.commit):
                async with aio.idempotent(db, ("charge", 7), fingerprint=10) as attempt:
                    if not attempt.done:
                        await execute("UPDATE account SET balance = balance - 10")
                        attempt.set_result([10])
                assert attempt.result == [10]
                await ending()
            with pytest.raises(Conflict, match="another payload"):
                async with aio.idempotent(db, ("charge", 7), fingerprint=11):
                    pass
            await db.rollback()
            with pytest.raises(KeyError):
                async with aio.idempotent(db, "fails"):
                    raise KeyError
            assert (await execute("SELECT balance FROM account"))[0][0] == 90
            assert await aio.prune_idempotency_table(db) == 0
            await db.commit()

    asyncio.run(main())


def test_a_process_that_is_killed_in_the_middle_leaves_nothing() -> None:
    made = new_database("sqlite")
    with open_client(made, "sqlite3", timeout=30) as db:
        sql.create_idempotency_table(db.target)
        db.commit()
        code = """
            import sqlite3, sys
            from holdfast import sql
            db = sqlite3.connect(sys.argv[1])
            with sql.idempotent(db, "x") as attempt:
                print("inside", flush=True)
                sys.stdin.readline()
        """
        with run_python(code, made.name) as child:
            child.expect("inside")
            child.kill()
        with sql.idempotent(db.target, "x") as attempt:
            assert not attempt.done
        db.commit()
