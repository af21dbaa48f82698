"""Row locks and transaction locks of PostgreSQL.

**Time limits.** A statement that fails aborts the whole transaction, the user's work so far with it. So a
lock is first tried by a statement that cannot fail for being locked (``pg_try_advisory_xact_lock``, SKIP
LOCKED): mostly the lock is free, and that is all. Only where it is not, a savepoint is set, ``lock_timeout``
within it, and the lock is asked for again, waiting; a refusal goes back to the savepoint, which also puts the
setting back. Where the lock was granted, a statement puts the setting back. It is set for the transaction
only, so a transaction that is rolled back puts it back in any case.

A try does not overtake waiters: for advisory locks, the server lets no try pass a waiter.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Final

from ..core.hashing import hash_to_int64
from ..errors import LockTimeout
from ..fencing.connections import POSTGRESQL
from ..fencing.dialects import driver_error
from ..fencing.plans import Plan, Result, Statement
from .failures import STILL_OPEN, Failure, failure_of, new_error
from .tables import Row

__all__ = ["PostgresqlLocks", "key_of_name"]

_SPACE: Final = b"holdfast.sql"
"""Numbers of their own: a name here and the same name under ``postgresql+advisory://`` are two locks."""

_SAVEPOINT: Final = "holdfast_lock"
_LIMIT: Final = """\
WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS setting)
SELECT before.setting, set_config('lock_timeout', CAST(:limit AS text), true) AS new_setting FROM before"""
_PUT_BACK: Final = "SELECT set_config('lock_timeout', CAST(:setting AS text), true) AS setting"
_LIMIT_MS_MAX: Final = 2**31 - 1

_STRENGTHS: Final = {
    "update": "FOR UPDATE",
    "no key update": "FOR NO KEY UPDATE",
    "share": "FOR SHARE",
    "key share": "FOR KEY SHARE",
}


def key_of_name(name: str) -> int:
    return hash_to_int64(name.encode(), _SPACE)


class PostgresqlLocks:
    """``locking.DatabaseLocks``."""

    def lock_name(self, name: str, timeout: float | None, shared: bool) -> Plan[bool]:
        kind = "_shared" if shared else ""
        values = {"key": key_of_name(name)}
        lock = Statement(f"SELECT pg_advisory_xact_lock{kind}(CAST(:key AS bigint))", values)
        if timeout is None:
            yield lock
            return True
        tried: Result = yield Statement(
            f"SELECT pg_try_advisory_xact_lock{kind}(CAST(:key AS bigint)) AS granted", values
        )
        if tried.rows[0][0]:
            return True
        if not timeout:
            return False
        try:
            yield from _limited(lock, timeout, "")
        except LockTimeout:
            return False
        return True

    def lock_row(self, row: Row, mode: str, wait: float | None, skip_locked: bool, what: str) -> Plan[Result]:
        text = (
            f"SELECT * FROM {row.table.quoted(POSTGRESQL.quote)} WHERE {row.condition(POSTGRESQL)}"  # noqa: S608 - quoted
            f" {_STRENGTHS[mode]}"
        )
        if wait is None and not skip_locked:
            waited: Result = yield Statement(text, row.values)
            return waited
        tried: Result = yield Statement(f"{text} SKIP LOCKED", row.values)
        if tried.rows or skip_locked:
            return tried
        # There is no such row, or it is locked: a statement that may fail finds out which.
        if wait:
            return (yield from _limited(Statement(text, row.values), wait, what))
        return (yield from _limited(Statement(f"{text} NOWAIT", row.values), None, what))


def _limited(statement: Statement, seconds: float | None, what: str) -> Plan[Result]:
    """Within a savepoint, so that ``LockTimeout`` leaves the transaction as it was."""
    yield Statement(f"SAVEPOINT {_SAVEPOINT}")
    try:
        setting = None if seconds is None else (yield from _set_limit(seconds))
        result: Result = yield statement
        if setting is not None:
            yield Statement(_PUT_BACK, {"setting": setting})
    except BaseException as error:
        failure = failure_of(error)
        # After a deadlock or a conflict the whole transaction has to be run again: it must not be committed.
        if failure in (Failure.DEADLOCK, Failure.CONFLICT):
            raise
        with suppress(Exception):  # if this fails, the connection is broken, and the first error reports it
            yield Statement(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            yield Statement(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        if failure is Failure.LOCK_TIMEOUT:
            refused = new_error(failure, what, STILL_OPEN)
            raise refused from driver_error(error)
        raise
    yield Statement(f"RELEASE SAVEPOINT {_SAVEPOINT}")
    return result


def _set_limit(seconds: float) -> Plan[str]:
    """The setting before; 0 would be no limit."""
    milliseconds = min(max(math.ceil(seconds * 1000), 1), _LIMIT_MS_MAX)
    before: Result = yield Statement(_LIMIT, {"limit": f"{milliseconds}ms"})
    setting: str = before.rows[0][0]
    return setting
