"""Row locks and transaction locks as plans: written once, carried out blocking or awaiting. No I/O.

What a database can do and how it says so is in its own file: ``postgresql``, ``mariadb``, ``sqlite``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

from ..core.arguments import check_name, check_timeout
from ..core.lock_options import Duration
from ..errors import InvalidArgument
from ..fencing.dialects import Control, TableState
from ..fencing.plans import Done, Plan, Result
from ..fencing.sql_plans import commits_at_once
from .failures import STILL_OPEN, Failure, new_error, translated
from .mariadb import MariadbLocks
from .postgresql import PostgresqlLocks
from .sqlite import SqliteLocks
from .tables import Row

__all__ = ["Mode", "RowLock", "Wait", "lock_row", "lock_transaction"]

Mode = Literal["update", "no key update", "share", "key share"]
"""What a row's lock keeps others from, in PostgreSQL's words."""

Wait = bool | Duration
"""True: as long as the connection itself would wait. False: not at all. A number: so many seconds."""


class DatabaseLocks(Protocol):
    """The locks of one kind of database."""

    def lock_name(self, name: str, timeout: float | None, shared: bool) -> Plan[bool]:
        """Whether the lock was granted; a refusal leaves the transaction as it was."""
        ...

    def lock_row(self, row: Row, mode: str, wait: float | None, skip_locked: bool, what: str) -> Plan[Result]:
        """``wait``: None as long as the connection itself would, 0 not at all."""
        ...


_LOCKS: Final[Mapping[str, DatabaseLocks]] = {
    "PostgreSQL": PostgresqlLocks(),
    "MariaDB": MariadbLocks(),
    "SQLite": SqliteLocks(),
}
"""By the name of the connection's dialect."""


@dataclass(frozen=True, slots=True)
class RowLock:
    """What ``row_lock`` was asked for, checked."""

    row: Row
    mode: Mode
    wait: float | None
    skip_locked: bool

    @classmethod
    def of(
        cls, table: object, key: Mapping[str, object], wait: Wait, skip_locked: bool, mode: Mode
    ) -> RowLock:
        if mode not in get_args(Mode):
            raise InvalidArgument(f"mode is one of {', '.join(map(repr, get_args(Mode)))}; it is {mode!r}")
        if not isinstance(skip_locked, bool):
            raise InvalidArgument(f"skip_locked is True or False; it is {skip_locked!r}")
        if skip_locked and not isinstance(wait, bool):
            raise InvalidArgument(
                "skip_locked=True never waits: leave out wait=, or leave out skip_locked=True"
            )
        if wait is None:
            raise InvalidArgument("wait is True, False or a number of seconds: write wait=True to wait")
        seconds = (None if wait else 0.0) if isinstance(wait, bool) else check_timeout(wait)
        return cls(Row.of(table, key), mode, seconds, skip_locked)


def lock_row(table: TableState, lock: RowLock) -> Plan[Mapping[str, Any] | None]:
    what = f"row {lock.row} was not locked"
    plan = translated(table, what, _flush_and_lock(table, lock, what), str(lock.row))
    return lock.row.only((yield from _within_transaction(table, plan)))


def _flush_and_lock(table: TableState, lock: RowLock, what: str) -> Plan[Result]:
    """The row is returned with what a session has changed in it and not sent yet."""
    yield Control.FLUSH
    locks = _LOCKS[table.dialect.name]
    return (yield from locks.lock_row(lock.row, lock.mode, lock.wait, lock.skip_locked, what))


def lock_transaction(table: TableState, name: str, timeout: float | None, shared: bool) -> Plan[None]:
    what = f"lock {name!r} of the transaction was not granted"
    plan = _LOCKS[table.dialect.name].lock_name(name, timeout, shared)
    if not (yield from _within_transaction(table, translated(table, what, plan, name))):
        raise new_error(Failure.LOCK_TIMEOUT, what, STILL_OPEN, name)


def check_transaction_lock(name: str, timeout: Duration | None, shared: bool) -> float | None:
    check_name(name)
    if not isinstance(shared, bool):
        raise InvalidArgument(f"shared is True or False; it is {shared!r}")
    return check_timeout(timeout)


def _within_transaction(table: TableState, plan: Plan[Done]) -> Plan[Done]:
    """A lock that ends with its own statement protects nothing. Some connections tell only afterwards."""
    if (yield from commits_at_once(table)):
        raise _no_transaction(table)
    done = yield from plan
    if (yield from commits_at_once(table)):
        raise _no_transaction(table)
    return done


def _no_transaction(table: TableState) -> InvalidArgument:
    return InvalidArgument(
        "this connection is in autocommit mode and no transaction is open, so the lock would end with its own"
        f" statement: {table.dialect.how_to_begin} first, then lock, then write, then COMMIT"
    )
