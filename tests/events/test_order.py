"""The order of all events on PostgreSQL: nothing is skipped, nothing stalls, nothing moves."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from events.order_checks import CHECKS, transactions, whatever_transactions_do
from events.stores import new_store, open_store, url_of
from fencing.sql_clients import new_database
from holdfast import events
from holdfast.errors import EngineUnavailable
from support.thorough import THOROUGH

pytestmark = pytest.mark.engine("postgresql")

SCHEDULES = 250 if THOROUGH else 25
"""In each part."""
PARTS = 8 if THOROUGH else 1


@pytest.mark.parametrize("check", CHECKS)
def test_the_order(check: str) -> None:
    database = new_database("postgresql")
    with open_store(database) as store:
        CHECKS[check](store, url_of(database))


@pytest.mark.parametrize("part", range(PARTS))
def test_schedules_of_transactions(part: int) -> None:
    database = new_database("postgresql")
    for seed in range(part * SCHEDULES, (part + 1) * SCHEDULES):
        schema = f"schedule_{seed}"
        with events.connect(f"{url_of(database)}?schema={schema}") as store:
            whatever_transactions_do(store, url_of(database), seed)
        with new_connection(url_of(database)) as connection:
            execute(connection, f"DROP SCHEMA {schema} CASCADE")


def new_connection(conninfo: str) -> psycopg.Connection[Any]:
    return psycopg.connect(conninfo, autocommit=True)


def test_a_database_restored_elsewhere_goes_on() -> None:
    """The numbers of its transactions mean nothing on another server."""
    database = new_database("postgresql")
    with open_store(database) as store, new_connection(url_of(database)) as connection:
        store.append("a", [{"n": 1}])
        assert len(list(store.read_all())) == 1
        store.append("a", [{"n": 2}])  # not in order yet
        execute(connection, "UPDATE holdfast_events.event SET xid = '900000000000'")
        execute(
            connection,
            "UPDATE holdfast_events.progress SET server = '0', seen = '900000000000:900000000000:'",
        )
        store.append("b", [{"n": 3}])
        assert [event.data["n"] for event in store.read_all()] == [1, 2, 3]
        store.append("a", [{"n": 4}])
        assert [event.data["n"] for event in store.read_all()] == [1, 2, 3, 4]


def test_a_database_of_repeatable_reads() -> None:
    """The store's own connections read what is newest, whatever the default of the database is."""
    database = new_database("postgresql")
    with new_connection(url_of(database)) as connection:
        execute(
            connection, f"ALTER DATABASE {database.name} SET default_transaction_isolation TO serializable"
        )
    with open_store(database) as store, transactions(url_of(database), store) as new:
        late = new.open()
        store.append("late", [{"n": 1}], connection=late)
        store.append("early", [{"n": 2}])
        assert [event.data["n"] for event in store.read_all()] == [2]
        late.commit()
        assert [event.data["n"] for event in store.read_all()] == [2, 1]


def test_a_role_with_the_rights_that_the_error_names() -> None:
    database = new_database("postgresql")
    with open_store(database) as store, new_connection(url_of(database)) as connection:
        store.install()
        execute(connection, f"DROP ROLE IF EXISTS {database.name}")
        execute(connection, f"CREATE ROLE {database.name} LOGIN")
        with (
            open_store_as(database.name, url_of(database)) as other,
            pytest.raises(EngineUnavailable, match="grants USAGE"),
        ):
            other.append("a", [{"n": 1}])
        for grant in (
            "USAGE ON SCHEMA holdfast_events",
            "EXECUTE ON ALL FUNCTIONS IN SCHEMA holdfast_events",
            "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA holdfast_events",
        ):
            execute(connection, f"GRANT {grant} TO {database.name}")
        with open_store_as(database.name, url_of(database)) as other:
            other.append("a", [{"n": 1}])
            assert [event.data["n"] for event in other.read_all()] == [1]


def execute(connection: psycopg.Connection[Any], statement: str) -> None:
    connection.execute(statement.encode())


def open_store_as(role: str, url: str) -> events.EventStore:
    return events.connect(url.replace("postgres@", f"{role}@"))


def test_many_events_are_read_in_parts() -> None:
    with new_store("postgresql") as store:
        store.append("many", [{"n": n} for n in range(1234)])
        assert [event.data["n"] for event in store.read_all()] == list(range(1234))
        assert [event.data["n"] for event in store.read("many")] == list(range(1234))
