"""Tells lock time-outs, deadlocks and conflicts apart, over all drivers. No I/O.

An error is known by the package its class comes from and by the database's own code, never by its text.
Each becomes an error of Holdfast's, whose message says what became of the transaction; the driver's own
error is its cause.
"""

from __future__ import annotations

import enum
import sqlite3
from contextlib import suppress
from typing import Final

from ..errors import Conflict, Deadlock, HoldfastError, LockTimeout
from ..fencing.dialects import TableState, driver_error, error_number, sqlstate
from ..fencing.plans import Done, Plan, Result, Statement

__all__ = ["STILL_OPEN", "Failure", "failure_of", "new_error", "translated"]


class Failure(enum.Enum):
    """What stands in the way of a statement or a commit; each is worth a class of its own."""

    LOCK_TIMEOUT = "lock time-out"
    DEADLOCK = "deadlock"
    CONFLICT = "conflict"


STILL_OPEN: Final = "The transaction is open, and as it was before this call"

_POSTGRESQL: Final = {
    "55P03": Failure.LOCK_TIMEOUT,  # lock_not_available
    "40P01": Failure.DEADLOCK,  # deadlock_detected
    "40001": Failure.CONFLICT,  # serialization_failure
}
_MARIADB: Final = {
    1205: Failure.LOCK_TIMEOUT,  # ER_LOCK_WAIT_TIMEOUT; of NOWAIT too
    3572: Failure.LOCK_TIMEOUT,  # MySQL's ER_LOCK_NOWAIT
    1213: Failure.DEADLOCK,  # ER_LOCK_DEADLOCK
    1614: Failure.DEADLOCK,  # ER_XA_RBDEADLOCK
    1020: Failure.CONFLICT,  # ER_CHECKREAD, under innodb_snapshot_isolation
}
_MARIADB_PACKAGES: Final = {"pymysql", "MySQLdb", "mysql", "mariadb", "aiomysql", "asyncmy"}


def failure_of(error: BaseException) -> Failure | None:
    """What an error of a driver, of SQLAlchemy or of Django says. None: something else."""
    for kind, failure in ((LockTimeout, Failure.LOCK_TIMEOUT), (Deadlock, Failure.DEADLOCK)):
        if isinstance(error, kind):
            return failure
    if isinstance(error, Conflict) or _is_stale_data(error):
        return Failure.CONFLICT
    inner = driver_error(error)
    if isinstance(inner, sqlite3.Error):
        return _of_sqlite(getattr(inner, "sqlite_errorcode", 0))
    if not _MARIADB_PACKAGES.isdisjoint(_packages_of(inner)):
        return _MARIADB.get(error_number(inner))
    return _POSTGRESQL.get(sqlstate(inner))


def _of_sqlite(code: int) -> Failure | None:
    if code == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return Failure.CONFLICT
    return Failure.LOCK_TIMEOUT if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) else None


def _packages_of(error: BaseException) -> set[str]:
    return {cls.__module__.partition(".")[0] for cls in type(error).__mro__}


def _is_stale_data(error: BaseException) -> bool:
    """SQLAlchemy's version counter found another version than the object had."""
    return any(
        cls.__name__ == "StaleDataError" and cls.__module__.startswith("sqlalchemy.")
        for cls in type(error).__mro__
    )


def new_error(failure: Failure, what: str, state: str, name: str = "") -> HoldfastError:
    """``what`` failed, ``state`` is the transaction's now, ``name`` what was to be locked."""
    if failure is Failure.LOCK_TIMEOUT:
        error: HoldfastError = LockTimeout(
            f"{what}: another transaction holds the lock, and did not release it in time. {state}"
        )
    elif failure is Failure.DEADLOCK:
        error = Deadlock(f"{what}: transactions wait for each other, and this one was chosen to end. {state}")
    else:
        error = Conflict(f"{what}: another transaction changed what this one relies on. {state}")
    _set_name(error, name)
    return error


def _set_name(error: HoldfastError, name: str) -> None:
    if isinstance(error, LockTimeout | Deadlock) and not error.name:
        error.name = name


def translated(table: TableState, what: str, plan: Plan[Done], name: str = "") -> Plan[Done]:
    """The plan; where the database refuses for one of the three reasons, the error says which."""
    try:
        return (yield from plan)
    except HoldfastError as error:
        _set_name(error, name)
        raise
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        state = yield from _state_after(table, failure)
        raise new_error(failure, what, state, name) from driver_error(error)


def _state_after(table: TableState, failure: Failure) -> Plan[str]:
    database = table.dialect.name
    if database == "MariaDB":
        return (yield from _state_in_mariadb(failure))
    if not table.in_transaction():
        return "Nothing was written, and no transaction is open: run it again"
    if database == "PostgreSQL":
        return "PostgreSQL has aborted the transaction: roll it back, and run all of it again"
    if failure is Failure.LOCK_TIMEOUT:
        return STILL_OPEN
    return (
        "The transaction is open and can write no more, for it has read what is old by now: roll it back,"
        " and run all of it again"
    )


def _state_in_mariadb(failure: Failure) -> Plan[str]:
    if failure is Failure.DEADLOCK:
        return (
            "MariaDB has rolled the whole transaction back, and what follows would be another one: roll"
            " back here too, and run all of it again"
        )
    if failure is Failure.CONFLICT:
        return "Roll the transaction back, and run all of it again"
    with suppress(Exception):  # the user gets the first error
        setting: Result = yield Statement("SELECT @@innodb_rollback_on_timeout")
        if setting.rows[0][0]:
            return (
                "MariaDB has rolled the whole transaction back (innodb_rollback_on_timeout): roll back here"
                " too, and run all of it again"
            )
    return STILL_OPEN
