"""The guard in MariaDB and MySQL: a table in the connection's own database. Texts only.

``_UPSERT`` is the table of ``rule`` written as SQL; a differential test holds the two together.

- Assignments are made from left to right, and later ones see what earlier ones made. In their order each
  condition reads only what is still as it was, so they mean the same where ``sql_mode`` has
  SIMULTANEOUS_ASSIGNMENT.
- The primary key is bytes, compared as bytes: text would be compared by its collation, which takes ``a`` and
  ``A ``, for example, to be the same. It is the only key, so a duplicate locks that one row and no gap.
- ``presentations`` makes every accepted statement change its row: then MariaDB counts 2. It counts 1 for
  a new row, and 1 or 0 (as the client wants it) for a row left as it was.
- A statement that writes reads what is newest, not the transaction's snapshot; so does a locking read.
- MariaDB tells a trigger nothing about its transaction. What it can tell is who presented last: a connection
  draws a secret into a variable of its own, and leaves it in the fence. See ``protect``.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from ..errors import InvalidArgument, Unsupported
from .dialects import CommonDialect, TableName, as_text, encode_peers, error_number, hexadecimal
from .plans import Plan, Purpose, Result, Statement
from .rule import Mark

__all__ = ["MariadbDialect"]

_CREATE = """\
CREATE TABLE IF NOT EXISTS holdfast_fence (
    resource      VARBINARY(512)  NOT NULL PRIMARY KEY,
    source        VARBINARY(2048) NOT NULL DEFAULT '',
    token         BIGINT          NOT NULL,
    nonce         VARBINARY(2048) NOT NULL DEFAULT '',
    peers         LONGBLOB        NOT NULL,
    updated_at    DATETIME(6)     NOT NULL,
    presentations BIGINT          NOT NULL DEFAULT 1,
    presented_by  VARBINARY(64)
) ENGINE = InnoDB"""

_SOURCE_PASSES = "(VALUES(source) = '' OR source = '' OR source = VALUES(source))"
_TAKES = "(VALUES(token) > token OR (VALUES(token) = token AND nonce = '' AND VALUES(nonce) <> ''))"
_PASSES = f"""\
({_SOURCE_PASSES} AND CASE
        WHEN VALUES(token) > token THEN 1
        WHEN VALUES(token) < token THEN LOCATE(CONCAT(',', VALUES(token), ','), peers) > 0
        ELSE VALUES(nonce) = '' OR nonce = '' OR nonce = VALUES(nonce) END)"""

_UPSERT = f"""\
INSERT INTO holdfast_fence (resource, source, token, nonce, peers, updated_at, presented_by)
VALUES (:resource, :source, :token, :nonce, :peers, UTC_TIMESTAMP(6), :presented_by)
ON DUPLICATE KEY UPDATE
    presentations = IF({_PASSES}, presentations + 1, presentations),
    updated_at = IF({_PASSES}, VALUES(updated_at), updated_at),
    presented_by = IF({_PASSES},
        IF(VALUES(presented_by) IS NULL AND {_TAKES}, NULL, COALESCE(VALUES(presented_by), presented_by)),
        presented_by),
    source = IF({_PASSES} AND VALUES(source) <> '', VALUES(source), source),
    peers = IF({_SOURCE_PASSES} AND {_TAKES}, VALUES(peers), peers),
    nonce = IF({_SOURCE_PASSES} AND {_TAKES}, VALUES(nonce), nonce),
    token = IF({_SOURCE_PASSES} AND VALUES(token) > token, VALUES(token), token)"""  # noqa: S608 - our own texts
_UPSERT_FOR_WRITES = _UPSERT.replace(
    ":presented_by", "(@holdfast_fence := COALESCE(@holdfast_fence, :presented_by))", 1
)

_MOVE = """\
INSERT INTO holdfast_fence (resource, source, token, peers, updated_at)
VALUES (:resource, :source, 0, '', UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE
    token = IF(source = VALUES(source), token, 0),
    nonce = IF(source = VALUES(source), nonce, ''),
    peers = IF(source = VALUES(source), peers, ''),
    presented_by = IF(source = VALUES(source), presented_by, NULL),
    updated_at = IF(source = VALUES(source), updated_at, VALUES(updated_at)),
    source = VALUES(source)"""

_SELECT = "SELECT token, source, nonce, peers FROM holdfast_fence WHERE resource = :resource"
_MARKS = """\
SELECT token, source, nonce, peers, resource, DATE_FORMAT(updated_at, '%Y-%m-%dT%TZ')
FROM holdfast_fence ORDER BY resource"""
_PRUNE = "DELETE FROM holdfast_fence WHERE updated_at < UTC_TIMESTAMP(6) - INTERVAL :seconds SECOND"

_KIND_OF_TABLE = """\
SELECT TABLE_TYPE, ENGINE, DATABASE() FROM information_schema.TABLES
WHERE TABLE_SCHEMA = COALESCE(:schema, DATABASE()) AND TABLE_NAME = :table"""
_CASCADES = """\
SELECT CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = COALESCE(:schema, DATABASE()) AND TABLE_NAME = :table
  AND (DELETE_RULE NOT IN ('RESTRICT', 'NO ACTION') OR UPDATE_RULE NOT IN ('RESTRICT', 'NO ACTION'))"""

# A connection without a secret has presented nothing. It is refused without a read of the fence, which
# another transaction may keep locked. The locking read sees the newest row, and keeps a newer holder out
# until this transaction ends.
_TRIGGER = """\
CREATE TRIGGER {trigger} BEFORE {event} ON {table} FOR EACH ROW
BEGIN
    DECLARE presented VARBINARY(64) DEFAULT NULL;
    DECLARE message VARCHAR(128) CHARACTER SET utf8mb4 DEFAULT LEFT(CONCAT(
        'protected by fencing tokens: call fencing.enforce first, in the same transaction, for ',
        CONVERT(X'{resource}' USING utf8mb4)), 128);
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET presented = NULL;
    IF @holdfast_fence IS NOT NULL THEN
        SELECT presented_by INTO presented FROM {fence} WHERE resource = X'{resource}' LOCK IN SHARE MODE;
    END IF;
    IF presented IS NULL OR presented <> CAST(@holdfast_fence AS BINARY) THEN
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = message;
    END IF;
END"""

MAX_BYTES = 2048
"""Of a source or a nonce."""

_EVENTS = ("insert", "update", "delete")
_SEAL = "holdfast_fence_seal"


class MariadbDialect(CommonDialect):
    """The texts. ``dialects.SqlDialect``."""

    name = "MariaDB"
    definitions_commit = True
    counts_matches = False
    quotation_mark = "`"
    row_lock = " FOR UPDATE"
    how_to_begin = 'execute "START TRANSACTION" (or leave autocommit mode)'
    ask_whether_it_commits_at_once: Statement | None = Statement("SELECT @@autocommit")

    def install(self) -> Plan[None]:
        yield Statement(_CREATE)

    def upsert(self, resource: str, mark: Mark, purpose: Purpose) -> Statement:
        guards_writes = purpose is not Purpose.ADVANCE
        values = {
            "resource": resource.encode(),
            "source": _short(mark.source),
            "token": mark.token,
            "nonce": _short(mark.nonce),
            "peers": encode_peers(mark.peers).encode(),
            "presented_by": secrets.token_hex(16) if guards_writes else None,
        }
        return Statement(_UPSERT_FOR_WRITES if guards_writes else _UPSERT, values)

    def has_passed(self, result: Result) -> bool | None:
        return {2: True, 0: False}.get(result.changed)

    def select(self, resource: str) -> Statement:
        return Statement(_SELECT, {"resource": resource.encode()})

    def select_locked(self, resource: str) -> Statement:
        return Statement(f"{_SELECT} FOR UPDATE", {"resource": resource.encode()})

    def marks(self) -> Statement:
        return Statement(_MARKS)

    def move(self, resource: str, source: str) -> Statement:
        return Statement(_MOVE, {"resource": resource.encode(), "source": _short(source)})

    def prune(self, older_than_seconds: float) -> Statement:
        return Statement(_PRUNE, {"seconds": older_than_seconds})

    def set_seal(self) -> Statement | None:
        """A savepoint that only the end of this very transaction removes."""
        return Statement(f"SAVEPOINT {_SEAL}")

    def check_seal(self, presented: Result) -> Statement:
        return Statement(f"RELEASE SAVEPOINT {_SEAL}")

    def end_of_transaction(self) -> Plan[None]:
        # The next transaction of this connection has to present its own token.
        yield Statement("SET @holdfast_fence = NULL")

    def protect(self, table: TableName, resource: str) -> Plan[None]:
        names = {"schema": table.schema, "table": table.table}
        found: Result = yield Statement(_KIND_OF_TABLE, names)
        if not found.rows:
            raise InvalidArgument(f"there is no table {str(table)!r} in this database; nothing was changed")
        kind, engine, database = (None if value is None else as_text(value) for value in found.rows[0])
        if kind != "BASE TABLE":
            raise InvalidArgument(f"{str(table)!r} is {kind}, not a table: protect the tables behind it")
        if engine != "InnoDB":
            raise Unsupported(
                f"{str(table)!r} is a table of {engine}, which has no transactions: a write that was let"
                " through could not be undone. ALTER TABLE … ENGINE = InnoDB, then protect it"
            )
        cascades: Result = yield Statement(_CASCADES, names)
        if cascades.rows:
            named = ", ".join(as_text(name) for (name,) in cascades.rows)
            raise Unsupported(
                f"{str(table)!r} is changed by foreign keys of its own that cascade ({named}), and such"
                " changes fire no trigger. Make them RESTRICT, or guard its writers by fencing.enforce"
            )
        fence = TableName("holdfast_fence", database).quoted(self.quote)
        exists: Result = yield Statement(f"SELECT 1 FROM {fence} LIMIT 1")  # noqa: S608 - quoted
        del exists  # it fails where the guard is not installed
        yield from self.unprotect(table)
        for event in _EVENTS:
            yield Statement(
                _TRIGGER.format(
                    trigger=self._trigger(table, event),
                    event=event.upper(),
                    table=table.quoted(self.quote),
                    resource=hexadecimal(resource),
                    fence=fence,
                )
            )

    def unprotect(self, table: TableName) -> Plan[None]:
        found: Result = yield Statement(_KIND_OF_TABLE, {"schema": table.schema, "table": table.table})
        if not found.rows:
            raise InvalidArgument(f"there is no table {str(table)!r} in this database; nothing was changed")
        for event in _EVENTS:
            yield Statement(f"DROP TRIGGER IF EXISTS {self._trigger(table, event)}")

    def _trigger(self, table: TableName, event: str) -> str:
        # Names of triggers end at 64 characters, and are of the whole schema.
        name = f"holdfast_fence_{event}_{hashlib.sha256(table.table.encode()).hexdigest()[:16]}"
        return TableName(name, table.schema).quoted(self.quote)

    def upsert_row(self, table: str, key: Sequence[str], changes: Sequence[str], token: str) -> str | None:
        # ON DUPLICATE KEY UPDATE would change the row of *any* unique key that is in the way.
        return None

    def is_not_installed(self, error: BaseException) -> bool:
        return error_number(error) in {1146, 1054} and "holdfast_fence" in str(error)

    def is_seal_missing(self, error: BaseException) -> bool:
        return error_number(error) == 1305

    def is_lost_race(self, error: BaseException) -> bool:
        return error_number(error) == 1020

    def is_duplicate(self, error: BaseException) -> bool:
        return error_number(error) == 1062

    def explain(self, error: BaseException) -> str | None:
        return _NOTES.get(error_number(error))


def _short(text: str) -> bytes:
    """Not in every mode does the database refuse what is too long for a column: it may cut it."""
    written = text.encode()
    if len(written) > MAX_BYTES:
        raise InvalidArgument(
            f"{text[:40]!r}… is {len(written)} bytes of UTF-8, at most {MAX_BYTES} are allowed"
        )
    return written


_LOST = (
    "holdfast: another transaction changed what this one relies on, and the database refused this one. Roll"
    " back and run the whole transaction again: if a newer holder has presented its token meanwhile, that"
    " is answered by StaleToken."
)
_RIGHTS = (
    "holdfast: this user may not use the guard. Its owner grants it: GRANT SELECT, INSERT, UPDATE ON"
    " holdfast_fence TO the user. (The user who installs it needs CREATE, and TRIGGER to protect tables.)"
)
_NOTES = {
    1020: _LOST,
    1213: (
        "holdfast: a deadlock, and the database has rolled this transaction back as a whole: what follows"
        " would be another one, without a guard. Run all of it again."
    ),
    1205: (
        "holdfast: another transaction holds the guard of this resource, for longer than"
        " innodb_lock_wait_timeout; the token was not checked. Roll back and run the whole transaction again."
    ),
    1044: _RIGHTS,
    1142: _RIGHTS,
    1143: _RIGHTS,
    1046: (
        "holdfast: no database is chosen on this connection: the guard is a table of the connection's own"
        " database. Connect with the name of the database, or execute USE first."
    ),
    1792: "holdfast: this transaction is read-only; the guard has to write its row.",
}
