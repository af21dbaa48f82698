"""Row locks of SQLite: the write lock of the whole database, which is all it has.

A statement that would change the row but finds nothing to change takes it; then the row is read. That is more
than was asked for, so it is safe: no other connection writes anything until the transaction ends.
"""

from __future__ import annotations

import math
from contextlib import suppress

from ..errors import Unsupported
from ..fencing.connections import SQLITE
from ..fencing.plans import Plan, Result, Statement
from .tables import Row

__all__ = ["SqliteLocks"]

_LIMIT_MS_MAX = 2**31 - 1


class SqliteLocks:
    """``locking.DatabaseLocks``."""

    def lock_name(self, name: str, timeout: float | None, shared: bool) -> Plan[bool]:
        raise Unsupported(
            "SQLite has one lock, for all that writes to a database: BEGIN IMMEDIATE takes it for the whole"
            " transaction, under whatever name. For locks by name use holdfast.connect('sqlite:///…'), or"
            " transaction_lock on PostgreSQL"
        )
        yield

    def lock_row(self, row: Row, mode: str, wait: float | None, skip_locked: bool, what: str) -> Plan[Result]:
        if mode != "update":
            raise Unsupported(
                f"SQLite has no lock of mode {mode!r}: it locks the whole database against all other writers"
                " (mode='update'), and readers need no lock. PostgreSQL has this mode"
            )
        if skip_locked:
            raise Unsupported(
                "SQLite cannot skip locked rows: it locks the whole database, so there is no other row to"
                " take. PostgreSQL and MariaDB can"
            )
        table, condition = row.table.quoted(SQLITE.quote), row.condition(SQLITE)
        column = SQLITE.quote(next(iter(row.key)))
        writing = Statement(f"UPDATE {table} SET {column} = {column} WHERE 0")  # noqa: S608 - quoted
        yield from _limited(writing, wait)
        result: Result = yield Statement(f"SELECT * FROM {table} WHERE {condition}", row.values)  # noqa: S608 - quoted
        return result


def _limited(statement: Statement, wait: float | None) -> Plan[None]:
    """The connection's own ``busy_timeout`` is put back at once, also where the lock was refused."""
    if wait is None:
        yield statement
        return
    before: Result = yield Statement("PRAGMA busy_timeout")
    milliseconds = min(math.ceil(wait * 1000), _LIMIT_MS_MAX)
    yield Statement(f"PRAGMA busy_timeout = {milliseconds:d}")
    try:
        yield statement
    except BaseException:
        with suppress(Exception):  # a connection that cannot is closed
            yield _put_back(before)
        raise
    yield _put_back(before)


def _put_back(before: Result) -> Statement:
    return Statement(f"PRAGMA busy_timeout = {int(before.rows[0][0]):d}")
