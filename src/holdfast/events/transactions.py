"""What a store asks of a connection of the user's, before it does anything. No I/O."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from ..errors import EngineUnavailable, InvalidArgument, LockTimeout
from ..fencing.connections import POSTGRESQL, SQLITE
from ..fencing.dialects import TableState
from ..fencing.plans import Plan
from .plans import StoreDialect
from .sqlite import SqliteStore

__all__ = ["check_transaction", "checked", "explained"]


def check_transaction(table: TableState, dialect: StoreDialect, needed: bool = False) -> None:
    """``needed``: a transaction is open, or the first statement opens one."""
    expected = SQLITE if isinstance(dialect, SqliteStore) else POSTGRESQL
    if table.dialect is not expected:
        raise InvalidArgument(
            f"this connection is to {table.dialect.name}, and the store of events is in {expected.name}:"
            " pass a connection to the same database"
        )
    if needed and table.commits_at_once() is True:
        raise InvalidArgument(
            "this connection is in autocommit mode and no transaction is open, so the checkpoint would be"
            f" committed apart from the handler's writes: {expected.how_to_begin} first"
        )


def checked(table: TableState, dialect: StoreDialect, needed: bool = False) -> Plan[None]:
    """The same as a plan, for a connection that is awaited."""
    check_transaction(table, dialect, needed)
    return
    yield


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """The tables are made by another connection than the given one."""
    try:
        yield
    except (LockTimeout, EngineUnavailable) as error:
        if isinstance(error, EngineUnavailable) and not _is_locked(error.__cause__):
            raise
        raise LockTimeout(
            "the tables of the events are missing, and could not be made because a transaction keeps other"
            " writers out. If that is the transaction of this connection, roll it back, call"
            " store.install() once, and run the transaction again"
        ) from error


def _is_locked(error: BaseException | None) -> bool:
    """Whether SQLite could not even open a new file, because a transaction has it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, sqlite3.Error) and code == sqlite3.SQLITE_BUSY
