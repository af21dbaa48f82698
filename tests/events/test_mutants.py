"""Stores that are broken on purpose: what catches them is worth something."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from events.order_checks import CHECKS
from events.stores import open_store, url_of
from fencing.sql_clients import new_database
from holdfast import events
from holdfast.events import Event, Projection
from holdfast.events.postgresql import install_script

pytestmark = pytest.mark.engine("postgresql")

OPEN_ONES = (
    "UNION ALL\n            SELECT e.* FROM pg_snapshot_xip(progress.seen) AS open (xid)"
    " JOIN @schema@.event e ON e.xid = open.xid"
)

MUTANTS = {
    "positions by the number that the sequence gave at the insert": (
        "a_late_commit_is_not_skipped",
        [
            (
                "progress.newest + row_number() OVER (ORDER BY new.id), new.stream",
                "new.id, new.stream",
            ),
            ("RETURN progress.newest + added", "RETURN (SELECT max(position) FROM @schema@.ordered)"),
        ],
    ),
    "wait for the oldest transaction that is open": (
        "an_idle_transaction_holds_up_nothing",
        [
            (
                "WHERE pg_visible_in_snapshot(new.xid, seen_now)",
                "WHERE new.xid < pg_snapshot_xmin(pg_current_snapshot())",
            )
        ],
    ),
    "forget the transactions that were open at the last run": (
        "a_late_commit_is_not_skipped",
        [(OPEN_ONES, "")],
    ),
    "in the order of the transactions' numbers": (
        "a_stream_is_in_order",
        [("OVER (ORDER BY new.id), new.stream", "OVER (ORDER BY new.xid, new.id), new.stream")],
    ),
    "look at the version, and write without uniqueness": (
        "one_writer_for_each_version",
        [("    PRIMARY KEY (stream, version)\n", "    PRIMARY KEY (id)\n")],
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_check_catches_it(mutant: str) -> None:
    check, changes = MUTANTS[mutant]
    database = new_database("postgresql")
    script = broken(changes)
    with psycopg.connect(url_of(database), autocommit=True) as connection:
        connection.execute(script.encode())
    with open_store(database) as store, pytest.raises(AssertionError):
        CHECKS[check](store, url_of(database))


def broken(changes: list[tuple[str, str]]) -> str:
    text = install_script("holdfast_events")
    for change in changes:
        old, new = (each.replace("@schema@", "holdfast_events") for each in change)
        assert old in text, f"the script has changed: {old}"
        text = text.replace(old, new)
    return text


class ApartProjection(Projection):
    """Stores the checkpoint by a connection of its own: before what it stands for is committed."""

    def apply(self, connection: Any, handler: Any, batch: int = 100) -> int:
        with psycopg.connect(self.conninfo) as other:
            return super().apply(other, lambda _, event: handler(connection, event), batch)

    conninfo = ""


@pytest.mark.parametrize("kind", [Projection, ApartProjection])
def test_a_checkpoint_apart_from_its_transaction(kind: type[Projection]) -> None:
    """The transaction is rolled back, and the event is never handled."""
    database = new_database("postgresql")
    ApartProjection.conninfo = url_of(database)
    seen: list[Event] = []
    with events.connect(url_of(database)) as store, psycopg.connect(url_of(database)) as db:
        store.append("a", [{"n": 1}])
        projection = kind(store, "p")
        projection.apply(db, lambda _, event: seen.append(event))
        db.rollback()
        is_handled_again = projection.apply(db, lambda _, event: seen.append(event)) == 1
        assert is_handled_again is (kind is Projection)
