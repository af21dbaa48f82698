"""The store in SQLite: tables in ``main``. Texts only.

SQLite has one writer at a time, so the order in which events are inserted is the order in which they become
visible, and their positions are given at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..errors import InvalidArgument
from ..fencing.plans import Plan, Result, Statement
from .plans import Appended, json_array

__all__ = ["SqliteStore"]

_LOCKS_DATABASE: Final = 0x486F6C64
"""The application id of a database of locks."""

_TABLES: Final = (
    """\
CREATE TABLE IF NOT EXISTS main.holdfast_event (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    stream   TEXT NOT NULL,
    version  INTEGER NOT NULL CHECK (version > 0),
    data     TEXT NOT NULL,
    at       REAL NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400.0),
    UNIQUE (stream, version)
)""",
    """\
CREATE TABLE IF NOT EXISTS main.holdfast_event_snapshot (
    stream  TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    data    TEXT NOT NULL
)""",
    """\
CREATE TABLE IF NOT EXISTS main.holdfast_event_checkpoint (
    projection TEXT NOT NULL PRIMARY KEY,
    position   INTEGER NOT NULL
)""",
)

# One statement, so that in any transaction no writer comes between the check of the version and the write.
# It must begin with the word INSERT: that is how sqlite3 knows to open a transaction.
_APPEND: Final = """\
INSERT INTO main.holdfast_event (stream, version, data)
SELECT :stream, stored.version + 1 + each.key, each.value
FROM (SELECT coalesce(max(version), 0) AS version FROM main.holdfast_event WHERE stream = :stream) AS stored,
     json_each(:events) AS each
WHERE :expected IS NULL OR stored.version = :expected
ORDER BY each.key
RETURNING version"""

_VERSION: Final = (
    "SELECT coalesce(max(version), 0) AS version FROM main.holdfast_event WHERE stream = :stream"
)
_READ: Final = """\
SELECT stream, version, data, at, NULL AS position FROM main.holdfast_event
WHERE stream = :stream AND version > :after ORDER BY version LIMIT :most"""
_READ_ALL: Final = """\
SELECT stream, version, data, at, position FROM main.holdfast_event
WHERE position > :after ORDER BY position LIMIT :most"""
_NEWEST: Final = "SELECT coalesce(max(position), 0) AS newest FROM main.holdfast_event"
_SAVE_SNAPSHOT: Final = """\
INSERT INTO main.holdfast_event_snapshot AS stored (stream, version, data) VALUES (:stream, :version, :data)
ON CONFLICT (stream) DO UPDATE SET version = excluded.version, data = excluded.data
WHERE stored.version <= excluded.version"""
_LOAD_SNAPSHOT: Final = "SELECT version, data FROM main.holdfast_event_snapshot WHERE stream = :stream"
_CHECKPOINT: Final = "SELECT position FROM main.holdfast_event_checkpoint WHERE projection = :projection"
# It takes the write lock of the database, so what is read afterwards is the newest.
_LOCK_CHECKPOINT: Final = """\
INSERT INTO main.holdfast_event_checkpoint AS stored (projection, position) VALUES (:projection, 0)
ON CONFLICT (projection) DO UPDATE SET position = stored.position"""
_SAVE_CHECKPOINT: Final = (
    "UPDATE main.holdfast_event_checkpoint SET position = :position WHERE projection = :projection"
)


class SqliteStore:
    """``plans.StoreDialect``."""

    poll_first_seconds = 0.002
    poll_most_seconds = 0.05

    def is_installed(self) -> Plan[bool]:
        result: Result = yield Statement(
            "SELECT count(*) FROM main.sqlite_master WHERE type = 'table' AND name IN"
            " ('holdfast_event', 'holdfast_event_snapshot', 'holdfast_event_checkpoint')"
        )
        return int(result.rows[0][0]) == len(_TABLES)

    def install(self) -> Plan[bool]:
        if (yield from self.is_installed()):
            return False
        application: Result = yield Statement("PRAGMA application_id")
        if int(application.rows[0][0]) == _LOCKS_DATABASE:
            raise InvalidArgument(
                "this file is a database of locks, and holds nothing else: name another file for the events"
            )
        for text in _TABLES:
            yield Statement(text)
        return True

    def append(self, stream: str, events: Sequence[str], expected: int | None) -> Plan[Appended]:
        inserted: Result = yield Statement(
            _APPEND, {"stream": stream, "events": json_array(events), "expected": expected}
        )
        if inserted.rows:
            return Appended(True, max(int(row[0]) for row in inserted.rows))
        found: Result = yield Statement(_VERSION, {"stream": stream})
        return Appended(False, int(found.rows[0][0]))

    def read(self, stream: str, after: int, limit: int) -> Statement:
        return Statement(_READ, {"stream": stream, "after": after, "most": limit})

    def read_all(self, after: int, limit: int) -> Statement:
        return Statement(_READ_ALL, {"after": after, "most": limit})

    def order(self) -> Statement:
        return Statement(_NEWEST)

    def announce_waiting(self) -> Plan[None]:
        """Nothing notifies: a look costs microseconds, and comes often."""
        return
        yield

    def end_waiting(self) -> Plan[None]:
        return
        yield

    def save_snapshot(self, stream: str, version: int, data: str) -> Statement:
        return Statement(_SAVE_SNAPSHOT, {"stream": stream, "version": version, "data": data})

    def load_snapshot(self, stream: str) -> Statement:
        return Statement(_LOAD_SNAPSHOT, {"stream": stream})

    def checkpoint(self, projection: str) -> Statement:
        return Statement(_CHECKPOINT, {"projection": projection})

    def lock_checkpoint(self, projection: str) -> Plan[int]:
        yield Statement(_LOCK_CHECKPOINT, {"projection": projection})
        result: Result = yield self.checkpoint(projection)
        return int(result.rows[0][0])

    def save_checkpoint(self, projection: str, position: int) -> Statement:
        return Statement(_SAVE_CHECKPOINT, {"projection": projection, "position": position})
