"""Behind a proxy that pools by transaction: locks end with it, and no setting stays on its connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fencing.sql_clients import Client, Database, open_client
from holdfast import sql
from holdfast.errors import LockTimeout
from support.servers import shared_pgbouncer

pytestmark = pytest.mark.engine("postgresql")


@pytest.fixture
def behind() -> Database:
    proxy = shared_pgbouncer()
    return Database("postgresql", "postgres", proxy.host, proxy.port)


@pytest.fixture
def one(behind: Database) -> Iterator[Client]:
    with open_client(behind, "psycopg", prepare_threshold=None) as client:
        yield client


@pytest.fixture
def two(behind: Database) -> Iterator[Client]:
    with open_client(behind, "psycopg", prepare_threshold=None) as client:
        yield client


def test_names(one: Client, two: Client) -> None:
    sql.transaction_lock(one.target, "closing")
    with pytest.raises(LockTimeout):
        sql.transaction_lock(two.target, "closing", timeout=0.05)
    assert two.execute("SHOW lock_timeout") == [("0",)]
    two.commit()
    one.commit()
    sql.transaction_lock(two.target, "closing", timeout=0)


def test_rows(one: Client, two: Client) -> None:
    one.execute("DROP TABLE IF EXISTS pooled")
    one.execute("CREATE TABLE pooled (id integer PRIMARY KEY)")
    one.execute("INSERT INTO pooled VALUES (1)")
    one.commit()
    sql.row_lock(one.target, "pooled", {"id": 1})
    with pytest.raises(LockTimeout):
        sql.row_lock(two.target, "pooled", {"id": 1}, wait=0.05)
    assert sql.row_lock(two.target, "pooled", {"id": 1}, skip_locked=True) is None
    assert two.execute("SHOW lock_timeout") == [("0",)]
    two.commit()
    one.commit()
    for client in (one, two):
        assert sql.row_lock(client.target, "pooled", {"id": 1}, wait=0.05) == {"id": 1}
        client.commit()
        assert client.execute("SHOW lock_timeout") == [("0",)]
        client.commit()
