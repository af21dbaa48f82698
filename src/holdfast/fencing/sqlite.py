"""The guard's table in SQLite: statements, and what Python's sqlite3 does with transactions around them.

Nothing here decides; ``_UPSERT`` is the table of ``rule`` written as SQL, and a differential test holds
the two together. Every value is bound, none is formatted into a statement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .plans import Result, Statement, load, run
from .rule import Mark

__all__ = ["SqliteDialect", "SqliteTable"]

_CREATE = """\
CREATE TABLE IF NOT EXISTS main.holdfast_fence (
    resource   TEXT    NOT NULL PRIMARY KEY,
    source     TEXT    NOT NULL DEFAULT '',
    token      INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token >= 0),
    nonce      TEXT    NOT NULL DEFAULT '',
    peers      TEXT    NOT NULL DEFAULT '',
    updated_at TEXT    NOT NULL
)"""

# "main." everywhere: a TEMP table of the same name would be taken instead, and guards nothing.
#
# An INSERT takes the write lock of the database when it starts, whether or not it changes a row, and keeps
# it to the end of the transaction: nobody can pass the guard between this check and the user's writes.
# It must begin with the word INSERT: that is how sqlite3 knows to open a transaction and to count rows.
# The row counts as changed exactly when the mark passed.
_UPSERT = """\
INSERT INTO main.holdfast_fence AS stored (resource, source, token, nonce, peers, updated_at)
VALUES (:resource, :source, :token, :nonce, :peers, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
ON CONFLICT (resource) DO UPDATE SET
    source = CASE WHEN excluded.source <> '' THEN excluded.source ELSE stored.source END,
    token  = max(excluded.token, stored.token),
    nonce  = CASE WHEN excluded.token > stored.token
                    OR (excluded.token = stored.token AND stored.nonce = '')
                  THEN excluded.nonce ELSE stored.nonce END,
    peers  = CASE WHEN excluded.token > stored.token
                    OR (excluded.token = stored.token AND stored.nonce = '' AND excluded.nonce <> '')
                  THEN excluded.peers ELSE stored.peers END,
    updated_at = excluded.updated_at
WHERE (excluded.source = '' OR stored.source = '' OR excluded.source = stored.source)
  AND CASE WHEN excluded.token > stored.token THEN 1
           WHEN excluded.token < stored.token THEN instr(stored.peers, ',' || excluded.token || ',') > 0
           ELSE excluded.nonce = '' OR stored.nonce = '' OR excluded.nonce = stored.nonce END"""

_MOVE = """\
INSERT INTO main.holdfast_fence AS stored (resource, source, token, nonce, peers, updated_at)
VALUES (:resource, :source, 0, '', '', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
ON CONFLICT (resource) DO UPDATE SET
    source = excluded.source, token = 0, nonce = '', peers = '', updated_at = excluded.updated_at
WHERE stored.source <> excluded.source"""

# The casts keep the user's text_factory and registered converters away from our columns.
_SELECT = """\
SELECT CAST(token AS INTEGER), CAST(source AS BLOB), CAST(nonce AS BLOB), CAST(peers AS BLOB)
FROM main.holdfast_fence WHERE resource = :resource"""

_ATTACHED = """\
SELECT CAST(name AS BLOB) FROM pragma_database_list WHERE name NOT IN ('main', 'temp') AND file <> ''"""


class SqliteDialect:
    """The texts. ``plans.Dialect``."""

    def upsert(self, resource: str, mark: Mark) -> Statement:
        values = {
            "resource": resource,
            "source": mark.source,
            "token": mark.token,
            "nonce": mark.nonce,
            "peers": _encode_peers(mark.peers),
        }
        return Statement(_UPSERT, values)

    def select(self, resource: str) -> Statement:
        return Statement(_SELECT, {"resource": resource})

    def mark_in(self, row: Sequence[Any]) -> Mark:
        token, source, nonce, peers = row
        return Mark(token, source.decode(), nonce.decode(), _decode_peers(peers.decode()))


@dataclass(frozen=True, slots=True)
class SqliteTable:
    """``holdfast_fence`` as seen through one connection of the user's: carries statements out."""

    connection: sqlite3.Connection
    dialect: SqliteDialect = field(default_factory=SqliteDialect)

    def execute(self, statement: Statement) -> Result:
        cursor = self._cursor().execute(statement.text, statement.values)
        rows = cursor.fetchall() if cursor.description else ()
        return Result(cursor.rowcount, rows)

    def install(self) -> None:
        self.execute(Statement(_CREATE))

    def in_transaction(self) -> bool:
        return self.connection.in_transaction

    def would_commit_at_once(self) -> bool:
        """Whether a statement run now is a transaction of its own."""
        if self.connection.in_transaction:
            return False
        # Python 3.12 added `autocommit`; where it is absent or not a bool, isolation_level rules.
        autocommit = getattr(self.connection, "autocommit", None)
        if isinstance(autocommit, bool):
            return autocommit
        return self.connection.isolation_level is None

    @property
    def is_always_in_a_transaction(self) -> bool:
        """Python 3.12: ``sqlite3.connect(autocommit=False)``."""
        return getattr(self.connection, "autocommit", None) is False

    def attached(self) -> list[str]:
        """Files beside the one that the guard is in, by the names they were attached under."""
        return [name.decode() for (name,) in self.execute(Statement(_ATTACHED)).rows]

    def roll_back(self) -> None:
        if self.is_always_in_a_transaction:
            self.connection.rollback()
        else:
            self.execute(Statement("ROLLBACK"))

    def present(self, resource: str, mark: Mark) -> bool:
        """Whether the mark passed; if it did, it is stored."""
        return self.execute(self.dialect.upsert(resource, mark)).changed == 1

    def load(self, resource: str) -> Mark | None:
        return run(load(self.dialect, resource), self.execute)

    def move(self, resource: str, source: str) -> None:
        self.execute(Statement(_MOVE, {"resource": resource, "source": source}))

    def is_not_installed(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.OperationalError) and "no such table: main.holdfast_fence" in str(
            error
        )

    def explain(self, error: Exception) -> str | None:
        """What to add to an error of the driver's, which stays the user's to handle."""
        if not isinstance(error, sqlite3.OperationalError):
            return None
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return _NOT_FIRST
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return _BUSY
        return None

    # --- a transaction of the guard's own -------------------------------------------------------

    def begin(self) -> None:
        if not self.is_always_in_a_transaction:
            self.execute(Statement("BEGIN IMMEDIATE"))

    def set_seal(self) -> None:
        """A savepoint that only the end of this very transaction removes."""
        self.execute(Statement(f"SAVEPOINT {_SEAL}"))

    def commit_sealed(self) -> bool:
        """Commit, if it is still the transaction that the seal was set in; if not, nothing is done."""
        try:
            self.execute(Statement(f"RELEASE {_SEAL}"))
        except sqlite3.OperationalError as error:
            if "no such savepoint" in str(error):
                return False
            raise
        if self.is_always_in_a_transaction:
            self.connection.commit()
        else:
            self.execute(Statement("COMMIT"))
        return True

    def _cursor(self) -> sqlite3.Cursor:
        # A cursor of our own: the caller's may be in the middle of a result, or make rows of its own kind.
        cursor = sqlite3.Connection.cursor(self.connection, sqlite3.Cursor)
        cursor.row_factory = None
        return cursor


_SEAL = "holdfast_fence_seal"

_NOT_FIRST = (
    "holdfast: this transaction read before it presented its token, and the database changed since."
    " Roll back and make fencing.enforce (or advance) its first statement."
)
_BUSY = (
    "holdfast: another transaction holds the write lock of this database; the token was not checked and"
    " nothing was written. Roll back and run the whole transaction again, or give"
    " sqlite3.connect a longer timeout."
)


def _encode_peers(peers: tuple[int, ...]) -> str:
    """``,5,6,``: a comma on both sides of each, so that looking for ``,5,`` finds no 15 or 56."""
    return f",{','.join(map(str, peers))}," if peers else ""


def _decode_peers(text: str) -> tuple[int, ...]:
    return tuple(int(peer) for peer in text.strip(",").split(",") if peer)
