"""A table of locks of one's own, as it is often written: what becomes of its rows, and what answers that.

A row inserted is the lock, deleting the row releases it, and a job deletes rows that are old.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import holdfast
from fencing.sql_clients import Database, new_database, open_client
from holdfast import StaleToken, fencing
from support import Process, run_python, wait_until

pytestmark = pytest.mark.engine("postgresql")

TAKE = "INSERT INTO locks VALUES ('report', '{owner}', clock_timestamp()) ON CONFLICT DO NOTHING RETURNING 1"
CLEAN_UP = "DELETE FROM locks WHERE acquired_at < clock_timestamp() - interval '{age}'"

OWN_TABLE = """
    import sys, psycopg
    db = psycopg.connect(sys.argv[1], autocommit=True)
    db.execute("INSERT INTO locks VALUES ('report', 'A', clock_timestamp())")
    total = db.execute("SELECT total FROM report").fetchone()[0]
    print("held", flush=True)
    sys.stdin.readline()
    db.execute("UPDATE report SET total = %s", (total + 1,))
    db.execute("DELETE FROM locks WHERE name = 'report'")
    print("done", flush=True)
"""

HOLDFAST = """
    import sys, psycopg, holdfast
    from holdfast import fencing
    db = psycopg.connect(sys.argv[1])
    locks = holdfast.connect(sys.argv[1])
    lease = locks.lock("report", ttl=1, if_lost="note").acquire()
    fencing.advance(db, "report", lease)
    total = db.execute("SELECT total FROM report").fetchone()[0]
    db.commit()
    print("held", flush=True)
    sys.stdin.readline()
    try:
        # As if it did not know of its loss: the fence alone is asked, as a paused process would.
        with fencing.transaction(db, fencing.Grant(lease.fence), "report") as cursor:
            cursor.execute("UPDATE report SET total = %s", (total + 1,))
    except holdfast.StaleToken:
        print("refused", flush=True)
    else:
        print("written", flush=True)
"""


@contextmanager
def shop() -> Iterator[tuple[Database, str, Any]]:
    database = new_database("postgresql")
    url = f"postgresql://postgres@{database.host}:{database.port}/{database.name}"
    with open_client(database, "psycopg", autocommit=True) as db:
        db.execute("CREATE TABLE locks (name text PRIMARY KEY, owner text, acquired_at timestamptz)")
        db.execute("CREATE TABLE report (total integer)")
        db.execute("INSERT INTO report VALUES (0)")
        yield database, url, db


def holder(code: str, url: str) -> Process:
    child = run_python(code, url)
    child.expect("held")
    return child


def total_of(db: Any) -> int:
    return int(db.execute("SELECT total FROM report")[0][0])


def test_the_row_of_a_dead_holder_keeps_everyone_out() -> None:
    with shop() as (_, url, db):
        with holder(OWN_TABLE, url) as first:
            first.kill()
        wait_until(lambda: not db.execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
                                          " AND pid <> pg_backend_pid()"))  # fmt: skip
        assert not db.execute(TAKE.format(owner="B")), "its connection is gone, and its row is not"
        assert db.execute("SELECT owner FROM locks") == [("A",)]


def test_cleaning_up_by_age_gives_the_lock_of_a_slow_holder_away_and_loses_an_update() -> None:
    with shop() as (_, url, db), holder(OWN_TABLE, url) as first:
        wait_until(lambda: bool(db.execute(CLEAN_UP.format(age="0.1 s") + " RETURNING 1")))
        assert db.execute(TAKE.format(owner="B")), "two hold it now"
        db.execute("UPDATE report SET total = total + 10")
        first.send("go")
        first.expect("done")
        assert total_of(db) == 1, "the ten of B are lost"
        assert not db.execute("SELECT 1 FROM locks"), "and A deleted the row of B"


@pytest.mark.realtime
def test_a_lease_ends_by_itself_and_its_token_refuses_the_late_write() -> None:
    with shop() as (database, url, db), database.connect() as own:
        fencing.install(own)
        own.commit()
        with holder(HOLDFAST, url) as first, holdfast.connect(url) as locks:
            first.stop()
            with locks.lock("report", ttl=30, timeout=60) as lease:
                with fencing.transaction(own, lease, "report") as cursor:
                    cursor.execute("UPDATE report SET total = total + 10")
                first.cont()
                first.send("go")
                first.expect("refused")
        assert total_of(db) == 10
        with pytest.raises(StaleToken):
            fencing.enforce(own.cursor(), "report", lease.token - 1)
        own.rollback()
