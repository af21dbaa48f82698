"""The store in PostgreSQL (13 and later): a schema of its own. ``postgresql.sql`` says how it works."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from ..fencing.plans import Plan, Result, Statement
from .plans import Appended, json_array

__all__ = ["PostgresqlStore", "install_script"]

_SCRIPT: Final = Path(__file__).with_name("postgresql.sql")

_INSTALLING: Final = 0x686F6C61
_ORDERING: Final = 0x686F6C62
_WAITING: Final = 0x686F6C63
"""The first halves of the keys of advisory locks; the other half is the schema's."""

_RETURNING: Final = f"""\
ON CONFLICT DO NOTHING
RETURNING version,
    CASE WHEN pg_try_advisory_lock({_WAITING}, hashtext('@schema@'))
         THEN CAST(pg_advisory_unlock({_WAITING}, hashtext('@schema@')) AS text)
         ELSE CAST(pg_notify('@schema@', '') AS text) END AS notified"""

_APPEND_AFTER: Final = f"""\
INSERT INTO @schema@.event (stream, version, data)
SELECT CAST(:stream AS text), CAST(:expected AS bigint) + 1, CAST(:event AS json)
WHERE CAST(:expected AS bigint) = 0 OR EXISTS (
    SELECT FROM @schema@.event AS e
    WHERE e.stream = CAST(:stream AS text) AND e.version = CAST(:expected AS bigint)
)
{_RETURNING}"""  # noqa: S608 - the schema's name is checked
"""``append_1`` for one event after a version: no row is returned if that function has to decide. If another
event followed that version, the primary key refuses this one: there is no need to find the newest version."""

_APPEND_ONE: Final = f"""\
INSERT INTO @schema@.event (stream, version, data)
SELECT CAST(:stream AS text), coalesce((
    SELECT e.version FROM @schema@.event AS e WHERE e.stream = CAST(:stream AS text)
    ORDER BY e.version DESC LIMIT 1
), 0) + 1, CAST(:event AS json)
{_RETURNING}"""  # noqa: S608 - the schema's name is checked
"""The same after whatever is there."""


@cache
def install_script(schema: str) -> str:
    text = _SCRIPT.read_text("utf-8")
    return (
        text.replace("@schema@", schema)
        .replace("@ordering@", str(_ORDERING))
        .replace("@waiting@", str(_WAITING))
    )


class PostgresqlStore:
    """``plans.StoreDialect``. The schema's name was checked."""

    poll_first_seconds = 0.01
    poll_most_seconds = 1.0

    def __init__(self, schema: str, is_pooled: bool = False) -> None:
        self.schema = schema
        self._is_pooled = is_pooled
        self._append_after = _APPEND_AFTER.replace("@schema@", schema)
        self._append_one = _APPEND_ONE.replace("@schema@", schema)

    def is_installed(self) -> Plan[bool]:
        result: Result = yield Statement(
            "SELECT to_regprocedure(CAST(:name AS text)) IS NOT NULL AS installed",
            {"name": f"{self.schema}.order_1()"},
        )
        return bool(result.rows[0][0])

    def install(self) -> Plan[bool]:
        yield Statement(f"SELECT pg_advisory_xact_lock({_INSTALLING}, hashtext('{self.schema}'))")
        # Reading a table makes a session that waited see the changes of the catalogue.
        yield Statement("SELECT FROM pg_catalog.pg_namespace WHERE false")
        if (yield from self.is_installed()):
            return False
        yield Statement(install_script(self.schema))
        return True

    def append(self, stream: str, events: Sequence[str], expected: int | None) -> Plan[Appended]:
        """A single event, which is the usual number, mostly needs no function: that takes half the time."""
        if len(events) == 1:
            values: dict[str, object] = {"stream": stream, "event": events[0]}
            if expected is None:
                statement = Statement(self._append_one, values)
            else:
                statement = Statement(self._append_after, {**values, "expected": expected})
            inserted: Result = yield statement
            if inserted.rows:
                return Appended(True, int(inserted.rows[0][0]))
        result: Result = yield Statement(
            f"SELECT is_appended, at_version FROM {self.schema}.append_1("  # noqa: S608 - the schema's name was checked
            "CAST(:stream AS text), CAST(:events AS json), CAST(:expected AS bigint))",
            {"stream": stream, "events": json_array(events), "expected": expected},
        )
        is_appended, version = result.rows[0]
        return Appended(bool(is_appended), int(version))

    def read(self, stream: str, after: int, limit: int) -> Statement:
        return Statement(
            "SELECT stream, version, CAST(data AS text) AS data,"  # noqa: S608 - as above
            " CAST(extract(epoch FROM at) AS float8) AS at, NULL AS position"
            f" FROM {self.schema}.event WHERE stream = :stream AND version > :after"
            " ORDER BY version LIMIT :most",
            {"stream": stream, "after": after, "most": limit},
        )

    def read_all(self, after: int, limit: int) -> Statement:
        return Statement(
            "SELECT e.stream, e.version, CAST(e.data AS text) AS data,"  # noqa: S608 - as above
            " CAST(extract(epoch FROM e.at) AS float8) AS at, o.position"
            f" FROM {self.schema}.ordered AS o JOIN {self.schema}.event AS e USING (stream, version)"
            " WHERE o.position > :after ORDER BY o.position LIMIT :most",
            {"after": after, "most": limit},
        )

    def order(self) -> Statement:
        return Statement(f"SELECT {self.schema}.order_1() AS newest")

    # --- subscriptions

    def listen(self) -> str:
        return f"LISTEN {self.schema}"

    def announce_waiting(self) -> Plan[None]:
        if not self._is_pooled:
            yield Statement(
                f"SELECT CAST(pg_advisory_lock_shared({_WAITING}, hashtext('{self.schema}')) AS text) AS done"
            )

    def end_waiting(self) -> Plan[None]:
        if not self._is_pooled:
            yield Statement(
                f"SELECT pg_advisory_unlock_shared({_WAITING}, hashtext('{self.schema}')) AS unlocked"
            )

    # --- snapshots and checkpoints

    def save_snapshot(self, stream: str, version: int, data: str) -> Statement:
        return Statement(
            f"INSERT INTO {self.schema}.snapshot AS stored (stream, version, data)"  # noqa: S608 - as above
            " VALUES (:stream, :version, CAST(:data AS json))"
            " ON CONFLICT (stream) DO UPDATE SET version = excluded.version, data = excluded.data,"
            " at = excluded.at WHERE stored.version <= excluded.version",
            {"stream": stream, "version": version, "data": data},
        )

    def load_snapshot(self, stream: str) -> Statement:
        return Statement(
            f"SELECT version, CAST(data AS text) AS data FROM {self.schema}.snapshot WHERE stream = :stream",  # noqa: S608 - as above
            {"stream": stream},
        )

    def checkpoint(self, projection: str) -> Statement:
        return Statement(
            f"SELECT position FROM {self.schema}.checkpoint WHERE projection = :projection",  # noqa: S608 - as above
            {"projection": projection},
        )

    def lock_checkpoint(self, projection: str) -> Plan[int]:
        select = self.checkpoint(projection)
        locking = Statement(f"{select.text} FOR UPDATE", select.values)
        result: Result = yield locking
        if not result.rows:
            yield Statement(
                f"INSERT INTO {self.schema}.checkpoint VALUES (:projection, 0) ON CONFLICT DO NOTHING",  # noqa: S608 - as above
                {"projection": projection},
            )
            result = yield locking
        return int(result.rows[0][0])

    def save_checkpoint(self, projection: str, position: int) -> Statement:
        return Statement(
            f"UPDATE {self.schema}.checkpoint SET position = :position WHERE projection = :projection",  # noqa: S608 - as above
            {"projection": projection, "position": position},
        )
