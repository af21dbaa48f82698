"""The guard in SQLite: a table in ``main``. Texts only.

``_UPSERT`` is the table of ``rule`` written as SQL, and a differential test holds the two together. Values
are bound; triggers, in which nothing can be, have quoted names and hexadecimal digits.

How a trigger of a protected table knows the transaction that presented its token: SQLite switches the flag
``defer_foreign_keys`` off at every COMMIT and ROLLBACK, so where it is on, it was switched on in this very
transaction; and a secret in the fence is the one that a function of this connection returns. Another process
does not have the function, an earlier transaction not the flag, and where the check was rolled back to
a savepoint before it, the fence does not have the secret.
"""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from collections.abc import Callable

from ..errors import InvalidArgument, Unsupported
from .dialects import CommonDialect, CreateFunction, TableName, driver_error, encode_peers, hexadecimal
from .plans import Plan, Purpose, Result, Statement
from .rule import Mark

__all__ = ["SqliteDialect"]

_CREATE = """\
CREATE TABLE IF NOT EXISTS main.holdfast_fence (
    resource   TEXT    NOT NULL PRIMARY KEY,
    source     TEXT    NOT NULL DEFAULT '',
    token      INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token >= 0),
    nonce      TEXT    NOT NULL DEFAULT '',
    peers      TEXT    NOT NULL DEFAULT '',
    updated_at TEXT    NOT NULL,
    presented  TEXT
)"""
_COLUMNS = "SELECT count(*) FROM pragma_table_info('holdfast_fence', 'main') WHERE name = 'presented'"
_ADD_COLUMN = "ALTER TABLE main.holdfast_fence ADD COLUMN presented TEXT"

# "main." everywhere: a TEMP table of the same name would be taken instead, and guards nothing.
#
# An INSERT takes the write lock of the database when it starts, whether or not it changes a row, and keeps it
# to the end of the transaction: no other transaction can pass the guard between this check and the user's
# writes. It must begin with the word INSERT: that is how sqlite3 knows to open a transaction and to count
# rows. The row counts as changed, and is returned, exactly when the mark passed.
_UPSERT = """\
INSERT INTO main.holdfast_fence AS stored (resource, source, token, nonce, peers, updated_at, presented)
VALUES (:resource, :source, :token, :nonce, :peers, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), :presented)
ON CONFLICT (resource) DO UPDATE SET
    source = CASE WHEN excluded.source <> '' THEN excluded.source ELSE stored.source END,
    token  = max(excluded.token, stored.token),
    nonce  = CASE WHEN excluded.token > stored.token
                    OR (excluded.token = stored.token AND stored.nonce = '')
                  THEN excluded.nonce ELSE stored.nonce END,
    peers  = CASE WHEN excluded.token > stored.token
                    OR (excluded.token = stored.token AND stored.nonce = '' AND excluded.nonce <> '')
                  THEN excluded.peers ELSE stored.peers END,
    updated_at = excluded.updated_at,
    presented = coalesce(excluded.presented, stored.presented)
WHERE (excluded.source = '' OR stored.source = '' OR excluded.source = stored.source)
  AND CASE WHEN excluded.token > stored.token THEN 1
           WHEN excluded.token < stored.token THEN instr(stored.peers, ',' || excluded.token || ',') > 0
           ELSE excluded.nonce = '' OR stored.nonce = '' OR excluded.nonce = stored.nonce END"""
_RETURNING = """
RETURNING
    CAST(presented AS BLOB) AS presented,
    (SELECT CAST(group_concat(name, ', ') AS BLOB) FROM pragma_database_list
     WHERE name NOT IN ('main', 'temp') AND file <> '') AS attached,
    EXISTS (SELECT 1 FROM main.sqlite_master
            WHERE type = 'trigger' AND name GLOB 'holdfast_fence_*') AS protects"""
_UPSERT_FOR_WRITES = _UPSERT + _RETURNING

_MOVE = """\
INSERT INTO main.holdfast_fence AS stored (resource, source, token, nonce, peers, updated_at)
VALUES (:resource, :source, 0, '', '', strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
ON CONFLICT (resource) DO UPDATE SET
    source = excluded.source, token = 0, nonce = '', peers = '', updated_at = excluded.updated_at,
    presented = NULL
WHERE stored.source <> excluded.source"""

# The casts keep the user's text_factory and registered converters away from our columns.
_COLUMNS_OF_A_MARK = """\
CAST(token AS INTEGER) AS token, CAST(source AS BLOB) AS source, CAST(nonce AS BLOB) AS nonce,
CAST(peers AS BLOB) AS peers"""
_SELECT = f"""SELECT {_COLUMNS_OF_A_MARK}
FROM main.holdfast_fence WHERE resource = :resource"""  # noqa: S608 - ours
_MARKS = f"""SELECT {_COLUMNS_OF_A_MARK},
    CAST(resource AS BLOB) AS resource, CAST(updated_at AS BLOB) AS changed
FROM main.holdfast_fence ORDER BY resource"""  # noqa: S608 - ours
_PRUNE = """\
DELETE FROM main.holdfast_fence
WHERE julianday(updated_at) < julianday('now') - CAST(:seconds AS REAL) / 86400"""

_REMEMBER = "SELECT holdfast_fence_presented(:resource, :presented)"
_MARK_TRANSACTION = "PRAGMA defer_foreign_keys = ON"
_FUNCTION = "holdfast_fence_presented"

_KIND_OF_TABLE = """\
SELECT CAST(type AS BLOB), sql LIKE 'CREATE VIRTUAL%' FROM main.sqlite_master
WHERE name = :table COLLATE NOCASE AND type IN ('table', 'view')"""
_TRIGGER = """\
CREATE TRIGGER main.{trigger} BEFORE {event} ON {table}
WHEN NOT (coalesce((SELECT defer_foreign_keys FROM pragma_defer_foreign_keys), 0)
          AND EXISTS (SELECT 1 FROM holdfast_fence WHERE resource = CAST(X'{resource}' AS TEXT)
                      AND presented = holdfast_fence_presented(CAST(X'{resource}' AS TEXT), NULL)))
BEGIN
    SELECT RAISE(ABORT, {message});
END"""
_EVENTS = ("insert", "update", "delete")
_SEAL = "holdfast_fence_seal"
_REMEMBERED = 1000
"""Resources that one connection presents in one transaction; the first of more is forgotten, and refused."""


class SqliteDialect(CommonDialect):
    """The texts. ``dialects.SqlDialect``."""

    name = "SQLite"
    definitions_commit = False
    counts_matches = True
    row_lock = ""
    how_to_begin = 'execute "BEGIN IMMEDIATE"'

    def install(self) -> Plan[None]:
        yield Statement(_CREATE)
        columns: Result = yield Statement(_COLUMNS)
        if not columns.rows[0][0]:
            yield Statement(_ADD_COLUMN)  # made by an earlier version

    def upsert(self, resource: str, mark: Mark, purpose: Purpose) -> Statement:
        guards_writes = purpose is not Purpose.ADVANCE
        values = {
            "resource": resource,
            "source": mark.source,
            "token": mark.token,
            "nonce": mark.nonce,
            "peers": encode_peers(mark.peers),
            "presented": secrets.token_hex(16) if guards_writes else None,
        }
        return Statement(_UPSERT_FOR_WRITES if guards_writes else _UPSERT, values)

    def has_passed(self, result: Result) -> bool | None:
        return bool(result.rows) or result.changed == 1

    def after_enforce(self, resource: str, result: Result) -> Plan[None]:
        presented, attached, protects = result.rows[0]
        if attached:
            raise InvalidArgument(
                f"other databases are attached to this connection ({attached.decode()}): the guard in main"
                " protects the data in main alone. Roll back, and write through a connection of its own to"
                " the database that has the data, with the guard installed there"
            )
        if protects:
            yield from self._remember(
                Statement(_REMEMBER, {"resource": resource, "presented": presented.decode()})
            )
            yield Statement(_MARK_TRANSACTION)

    def _remember(self, statement: Statement) -> Plan[None]:
        try:
            yield statement
        except Exception as error:
            if f"no such function: {_FUNCTION}" not in str(driver_error(error)):
                raise
            yield CreateFunction(_FUNCTION, 2, _memory())
            yield statement

    def select(self, resource: str) -> Statement:
        return Statement(_SELECT, {"resource": resource})

    # The upsert has the write lock of the whole database.
    select_locked = select

    def marks(self) -> Statement:
        return Statement(_MARKS)

    def move(self, resource: str, source: str) -> Statement:
        return Statement(_MOVE, {"resource": resource, "source": source})

    def prune(self, older_than_seconds: float) -> Statement:
        return Statement(_PRUNE, {"seconds": older_than_seconds})

    def set_seal(self) -> Statement | None:
        """A savepoint that only the end of this very transaction removes."""
        return Statement(f"SAVEPOINT {_SEAL}")

    def check_seal(self, presented: Result) -> Statement:
        return Statement(f"RELEASE {_SEAL}")

    def protect(self, table: TableName, resource: str) -> Plan[None]:
        yield from self._check_table(table)
        # Triggers are made whatever they name; these would refuse everybody.
        exists: Result = yield Statement("SELECT presented FROM main.holdfast_fence LIMIT 0")
        del exists  # it fails where the guard is not installed
        message = (
            f"table {table.table} is protected by fencing tokens of {resource!r}, and this transaction has"
            " presented none: call fencing.enforce first, in the same transaction"
        )
        for event in _EVENTS:
            yield Statement(f"DROP TRIGGER IF EXISTS main.{self._trigger(table, event)}")
            yield Statement(
                _TRIGGER.format(
                    trigger=self._trigger(table, event),
                    event=event.upper(),
                    table=self.quote(table.table),
                    resource=hexadecimal(resource),
                    message="'" + message.replace("'", "''") + "'",
                )
            )

    def unprotect(self, table: TableName) -> Plan[None]:
        yield from self._check_table(table)
        for event in _EVENTS:
            yield Statement(f"DROP TRIGGER IF EXISTS main.{self._trigger(table, event)}")

    def _check_table(self, table: TableName) -> Plan[None]:
        if (table.schema or "main").lower() != "main":
            raise Unsupported(
                f"{str(table)!r} is in the attached database {table.schema!r}; the guard in main protects"
                " the data in main alone. Open that database by a connection of its own"
            )
        found: Result = yield Statement(_KIND_OF_TABLE, {"table": table.table})
        if not found.rows:
            raise InvalidArgument(f"there is no table {str(table)!r} in this database; nothing was changed")
        kind, is_virtual = found.rows[0]
        if kind != b"table" or is_virtual:
            raise InvalidArgument(
                f"{str(table)!r} is a view or a virtual table, whose writes fire no trigger of this kind:"
                " protect the tables behind it"
            )

    def _trigger(self, table: TableName, event: str) -> str:
        name = table.table.lower()  # as SQLite compares them
        return self.quote(f"holdfast_fence_{event}_{hashlib.sha256(name.encode()).hexdigest()[:16]}")

    def is_not_installed(self, error: BaseException) -> bool:
        inner = driver_error(error)
        if not isinstance(inner, sqlite3.OperationalError):
            return False
        said = str(inner)
        return (
            "no such table: main.holdfast_fence" in said
            or "has no column named presented" in said
            or "no such column: presented" in said
        )

    def is_seal_missing(self, error: BaseException) -> bool:
        return "no such savepoint" in str(driver_error(error))

    def is_lost_race(self, error: BaseException) -> bool:
        return getattr(driver_error(error), "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT

    def is_duplicate(self, error: BaseException) -> bool:
        return isinstance(driver_error(error), sqlite3.IntegrityError)

    def explain(self, error: BaseException) -> str | None:
        inner = driver_error(error)
        if not isinstance(inner, sqlite3.OperationalError):
            return None
        code = getattr(inner, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return _NOT_FIRST
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return _BUSY
        return None


def _memory() -> Callable[[str, str | None], str | None]:
    """The last secret that one connection presented, by resource: a call with a secret stores it, without one
    reads it."""
    remembered: dict[str, str] = {}

    def presented(resource: str, secret: str | None) -> str | None:
        if secret is None:
            return remembered.get(resource)
        remembered.pop(resource, None)
        remembered[resource] = secret
        if len(remembered) > _REMEMBERED:
            del remembered[next(iter(remembered))]
        return None

    return presented


_NOT_FIRST = (
    "holdfast: this transaction read before it presented its token, and the database changed since."
    " Roll back and make fencing.enforce (or advance) its first statement."
)
_BUSY = (
    "holdfast: another transaction holds the write lock of this database; the token was not checked and"
    " nothing was written. Roll back and run the whole transaction again, or give"
    " sqlite3.connect a longer timeout."
)
