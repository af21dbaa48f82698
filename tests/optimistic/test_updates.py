"""Compare-and-update and conditional updates through every driver of the three databases."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fencing.sql_clients import DATABASES, DRIVERS, Client, Database, new_database, open_client
from holdfast import optimistic
from holdfast.errors import Conflict, InvalidArgument
from holdfast.optimistic import Increment

_databases: dict[str, Database] = {}


@pytest.fixture
def database(kind: str) -> Database:
    if kind not in _databases:
        _databases[kind] = new_database(kind)
        with open_client(_databases[kind], _databases[kind].first_driver) as db:
            db.execute(
                "CREATE TABLE stock (shop INTEGER, item VARCHAR(20), quantity INTEGER, state VARCHAR(20),"
                " version INTEGER, PRIMARY KEY (shop, item))"
            )
            db.commit()
    with open_client(_databases[kind], _databases[kind].first_driver) as db:
        db.execute("DELETE FROM stock")
        db.execute("INSERT INTO stock VALUES (1, 'lamp', 3, 'open', 1), (1, 'chair', 1, NULL, 1)")
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


LAMP = {"shop": 1, "item": "lamp"}
AS_TEXT: Any = "a > 1"
EVERY_DRIVER = pytest.mark.parametrize(("kind", "driver"), DRIVERS)


def lamp(client: Client) -> Any:
    return tuple(client.execute("SELECT quantity, state, version FROM stock WHERE item = 'lamp'")[0])


@EVERY_DRIVER
def test_a_version_is_changed_once(db: Client, other: Client) -> None:
    def write(version: int, **changes: object) -> Any:
        return optimistic.compare_and_update(db.target, "stock", LAMP, version, changes)

    assert write(1, quantity=2, state="it's 100 % :new") == 2
    assert write(2) == 3
    with pytest.raises(Conflict, match=r"has version 3, not 2.*Roll back, read the row again") as caught:
        write(2, quantity=9)
    assert caught.value.version == 3
    absent = {"shop": 2, "item": "lamp"}
    assert optimistic.compare_and_update(db.target, "stock", absent, 1, {"quantity": 1}) is None
    db.commit()
    assert lamp(other) == (2, "it's 100 % :new", 3)


@EVERY_DRIVER
def test_the_newest_version_counts_however_old_the_snapshot(db: Client, other: Client, kind: str) -> None:
    if kind == "postgresql":
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    if kind != "sqlite":  # it would keep the other from writing
        assert lamp(db) == (3, "open", 1)
    other.execute("UPDATE stock SET version = 2 WHERE item = 'lamp' AND shop = 1")
    other.commit()
    with pytest.raises(Conflict):
        optimistic.compare_and_update(db.target, "stock", LAMP, 1, {"quantity": 2})


@EVERY_DRIVER
def test_conditions_hold_or_nothing_is_written(db: Client) -> None:
    def write(changes: dict[str, object], where: Any) -> bool:
        return optimistic.update_where(db.target, "stock", LAMP, changes, where)

    assert write({"state": "paid"}, {"state": "open", "quantity": 3})
    assert not write({"state": "sent"}, {"state": "open"})
    assert write({"quantity": Increment(-2)}, [("quantity", ">=", 2), ("state", "<>", None)])
    assert not write({"quantity": Increment(-2)}, [("quantity", ">=", 2)])
    assert not write({"quantity": 7}, {"state": None})
    assert write({"state": "paid"}, [("quantity", "<", 2)]), "it has this value already, and it was found"
    assert lamp(db) == (1, "paid", 1)


@EVERY_DRIVER
def test_never_below_zero(db: Client) -> None:
    taken = [
        optimistic.decrement_if_available(db.target, "stock", LAMP, "quantity", amount)
        for amount in (2, 2, 1, 1)
    ]
    assert taken == [True, False, True, False]
    assert lamp(db)[0] == 0


@EVERY_DRIVER
def test_half_a_key_is_refused(db: Client) -> None:
    with pytest.raises(InvalidArgument, match="names 2 rows"):
        optimistic.update_where(db.target, "stock", {"shop": 1}, {"state": "x"}, {})


@pytest.mark.parametrize("kind", DATABASES)
def test_the_last_one_in_stock_for_ten_buyers(database: Database, other: Client) -> None:
    sold: list[bool] = []

    def buy() -> None:
        timeout = {"timeout": 30} if database.kind == "sqlite" else {}
        with open_client(database, database.first_driver, **timeout) as db:
            chair = {"shop": 1, "item": "chair"}
            sold.append(optimistic.decrement_if_available(db.target, "stock", chair, "quantity"))
            db.commit()

    run_all(buy, 10)
    assert sorted(sold) == [False] * 9 + [True]
    assert other.execute("SELECT quantity FROM stock WHERE item = 'chair'")[0][0] == 0


@pytest.mark.parametrize("kind", DATABASES)
def test_no_update_is_lost_between_optimistic_writers(database: Database, other: Client) -> None:
    def write_often() -> None:
        timeout = {"timeout": 30} if database.kind == "sqlite" else {}
        with open_client(database, database.first_driver, **timeout) as db:

            @optimistic.optimistic(retries=1000, backoff=0.001)
            def add() -> None:
                try:
                    quantity, _, version = lamp(db)
                    changes = {"quantity": quantity + 1}
                    optimistic.compare_and_update(db.target, "stock", LAMP, version, changes)
                    db.commit()
                finally:
                    db.rollback()

            for _ in range(10):
                add()

    run_all(write_often, 4)
    assert lamp(other) == (43, "open", 41)


def run_all(work: Any, number: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.timeless
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda db: optimistic.compare_and_update(db, "t", {"id": 1}, None, {}), "expected_version is"),
        (lambda db: optimistic.compare_and_update(db, "t", {"id": 1}, "one", {}), "is no number"),
        (lambda db: optimistic.compare_and_update(db, "t", {"id": 1}, 1, {"id": 2}), "given twice"),
        (lambda db: optimistic.compare_and_update(db, "t", {"id": 1}, 1, {"version": 2}), "given twice"),
        (lambda db: optimistic.update_where(db, "t", {"id": 1}, {}, {}), "changes are empty"),
        (lambda db: optimistic.update_where(db, "t", {"id": 1}, {"a": 1}, AS_TEXT), "where is a mapping"),
        (lambda db: optimistic.update_where(db, "t", {"id": 1}, {"a": 1}, [("a", "OR 1=1", 1)]), "compares"),
        (lambda db: optimistic.update_where(db, "t", {"id": 1}, {"a": 1}, [("a", "<", None)]), "no order"),
        (lambda db: optimistic.decrement_if_available(db, "t", {"id": 1}, "n", 0), "greater than 0"),
        (lambda db: optimistic.decrement_if_available(db, "t", {"id": 1}, "n", True), "greater than 0"),
        (lambda db: Increment("1"), "by a number"),  # type: ignore[arg-type] # the mistake under test
    ],
)
def test_bad_arguments_are_refused_before_anything_is_sent(call: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        call(object())
