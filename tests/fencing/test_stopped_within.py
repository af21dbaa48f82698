"""A holder that is stopped *within* its guarded transaction: it has the guard's row, so the next one waits.

The server can be told to end such a transaction. Then the next holder goes on, and what the stopped one wrote
is undone: its commit fails when it wakes.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from fencing.sql_clients import Database, lease, new_database
from holdfast import fencing
from support import run_python

pytestmark = pytest.mark.realtime

HOLDER = """
    import sys
    from holdfast import fencing
    from holdfast.model import Fence

    kind, host, port, name = sys.argv[1:]
    if kind == "postgresql":
        import psycopg as driver
        db = driver.connect(host=host, port=int(port), user="postgres", dbname=name)
        db.execute("SET idle_in_transaction_session_timeout = 1000")
    else:
        import pymysql as driver
        db = driver.connect(host=host, port=int(port), user="holdfast", database=name)
        db.cursor().execute("SET SESSION idle_transaction_timeout = 1")
    db.commit()
    try:
        with fencing.transaction(db, Fence("s", 41, "n41"), "invoices") as cursor:
            cursor.execute("UPDATE account SET balance = balance + 10")
            print("within")
            input()
        print("committed")
    except driver.Error:
        print("the transaction was gone")
"""


def balance(db: Any) -> int:
    cursor = db.cursor()
    cursor.execute("SELECT balance FROM account")
    return int(cursor.fetchone()[0])


@pytest.fixture
def bank(kind: str) -> Database:
    database = new_database(kind)
    with closing(database.connect()) as db:
        fencing.install(db)
        db.cursor().execute("CREATE TABLE account (balance INTEGER)")
        db.cursor().execute("INSERT INTO account VALUES (100)")
        db.commit()
    return database


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("postgresql", marks=pytest.mark.engine("postgresql")),
        pytest.param("mariadb", marks=pytest.mark.engine("mariadb")),
    ],
)
def test_the_next_holder_gets_through_and_the_stopped_one_has_written_nothing(bank: Database) -> None:
    where = (bank.kind, bank.host, str(bank.port), bank.name)
    with run_python(HOLDER, *where) as holder, closing(bank.connect()) as db:
        holder.expect("within")
        holder.stop()
        with fencing.transaction(db, lease(42), "invoices") as cursor:
            cursor.execute("UPDATE account SET balance = balance + 50")
        assert balance(db) == 150
        db.rollback()
        holder.cont()
        holder.send()
        holder.expect("the transaction was gone")
        assert balance(db) == 150
