"""The guard for SQL databases, blocking: the calls users make, the same for every database and driver.

What they do is in ``sql_plans`` and ``row_plans``, the texts are in a file for each dialect, and what differs
between drivers is in ``connections``. ``aio`` has the same calls, awaited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..model import Fence
from . import row_plans, sql_plans
from .arguments import Presentable, checked_resource, checked_source, mark_of, name_of, refuse_read_lease
from .connections import Executes, FenceTable, table_of
from .dialects import TableName
from .plans import Done, Plan, run
from .row_plans import TOKEN_COLUMN, RowChange
from .sql_plans import StoredMark

__all__ = [
    "advance",
    "enforce",
    "fenced_update",
    "fenced_upsert",
    "install",
    "marks",
    "move",
    "newest",
    "protect_table",
    "prune",
    "table_of",
    "transaction",
    "unprotect_table",
]


def install(connection: Executes) -> None:
    """Create the guard's table in this database, unless it is there.

    Any number of processes may call it, at once and again. Inside an open transaction the table is part of
    it: commit. (With ``sqlite3.connect(..., autocommit=False)`` a transaction is always open.) MariaDB
    commits whatever is open when a table is created, so there an open transaction is refused.
    """
    table = table_of(connection)
    _run(table, sql_plans.install(table))


def enforce(cursor: Executes, resource: str, lease_or_token: Presentable) -> None:
    """Refuse a stale holder. The first statement of the transaction that writes.

    ``resource`` names what the lock protects, usually by the lock's own name: one guard per lock, not one per
    row. From here to the end of the transaction no other one can pass the guard of this resource (with
    SQLite: of this database), so what is checked here still holds when the transaction commits.

    Raises ``StaleToken`` (with ``resource``, ``token``, ``newest``) if a newer holder has been here: roll
    back. Raises ``InvalidArgument`` where there is no transaction (the check would commit on its own and
    guard nothing), for a read lease, where another file is attached to a SQLite connection (the guard is of
    ``main`` alone), and before ``install``; ``LockLost`` for a lease that knows it is lost. A database that
    is busy, and a race that it gave to another transaction, is the driver's error, with a note.

    What this call cannot see, and ``transaction`` can: a commit between this call and the write (with
    sqlite3, ``executescript`` commits before it runs), and a savepoint around this call that is rolled back.
    """
    resource = checked_resource(resource)
    refuse_read_lease(lease_or_token)
    mark = mark_of(lease_or_token)
    table = table_of(cursor)
    _run(table, sql_plans.enforce(table, resource, mark))


@contextmanager
def transaction(
    connection: Executes, lease_or_token: Presentable, resource: str | None = None
) -> Iterator[Any]:
    """A whole guarded transaction: begins, shuts out older holders, and commits what is written within.

        with fencing.transaction(db, lease) as cursor:
            cursor.execute("SELECT total FROM invoices")
            (total,) = cursor.fetchone()
            cursor.execute("UPDATE invoices SET total = ?", (total + 10,))

    It gives a cursor of the connection (of SQLAlchemy the connection or session itself). ``resource`` is the
    lock's own name where it is not given. An exception within rolls back, and so does ``StaleToken``, raised
    before anything within is run. A commit or rollback within is refused at the end (``HoldfastError``), for
    what was written after it was not guarded: that is rolled back.
    """
    resource = checked_resource(name_of(lease_or_token) if resource is None else resource)
    refuse_read_lease(lease_or_token)
    mark = mark_of(lease_or_token)
    table = table_of(connection)
    presented = _run(table, sql_plans.begin_guarded(table, resource, mark))
    try:
        cursor = table.users_cursor()
        try:
            yield cursor
        finally:
            if cursor is not connection and cursor is not table.connection:
                cursor.close()
        _run(table, sql_plans.commit_guarded(table, resource, mark, presented))
    except BaseException:
        _run(table, sql_plans.roll_back_guarded(table))
        raise


def advance(cursor: Executes, resource: str, lease_or_token: Presentable) -> None:
    """Tell the guard of a new grant **before the first read**, so that older holders are out from here on.

    The same rule and the same ``StaleToken`` as ``enforce``. The difference is when: right after the lock
    was granted, committed at once or as the start of the transaction that also reads. Without it, an old
    holder can still write between this holder's read and its first write, and that write is then lost.

    It guards no write by itself, so it also works in autocommit mode, and with a read lease.
    """
    resource = checked_resource(resource)
    mark = mark_of(lease_or_token)
    table = table_of(cursor)
    _run(table, sql_plans.advance(table, resource, mark))


def newest(cursor: Executes, resource: str) -> Fence | None:
    """The newest grant the guard has seen, None if none. For people and tests: reading guards nothing.

    ``source`` and ``nonce`` are empty where only a bare token was presented.
    """
    resource = checked_resource(resource)
    table = table_of(cursor)
    mark = _run(table, sql_plans.newest(table, resource))
    return None if mark is None else mark.fence


def marks(cursor: Executes) -> list[StoredMark]:
    """All fences of this database, by resource. For people."""
    table = table_of(cursor)
    return _run(table, sql_plans.marks(table))


def move(cursor: Executes, resource: str, source: str) -> None:
    """Hand the resource to another source of tokens, deliberately: ``source`` is ``lease.fence.source``.

    Fences of the old source are refused from here on. Numbers of two sources do not compare, so the guard
    starts again at zero: acquire on the new engine and ``advance`` at once. Moving to the source that has
    the resource already changes nothing. Before a move stop programs that present bare tokens: a bare number
    does not say which source it comes from.
    """
    resource, source = checked_resource(resource), checked_source(source)
    table = table_of(cursor)
    _run(table, sql_plans.move(table, resource, source))


def prune(cursor: Executes, older_than: float) -> int:
    """Remove the fences that nothing was presented to for ``older_than`` seconds; return how many.

    Nothing removes fences by itself. Once a fence is gone, the guard of that resource knows nothing: the
    first token presented is accepted, and an old one too. So it is safe exactly if no holder can still be
    alive whose lease was granted before the fence was presented to last. Choose a time that is longer than
    any process of yours can have been stopped or suspended and still go on; less than a day is refused.
    """
    table = table_of(cursor)
    return _run(table, sql_plans.prune(table, older_than))


def protect_table(connection: Executes, table: str | Sequence[str], resource: str) -> None:
    """Have the database itself refuse writers that have not presented a token of ``resource``.

    Triggers refuse every INSERT, UPDATE and DELETE (on PostgreSQL also TRUNCATE) outside a transaction in
    which ``enforce`` let a token pass, whatever program sends it. On MariaDB, which does not tell triggers of
    transactions, it is the connection that must have been the last to present one. ``table`` is ``"table"``,
    ``"schema.table"`` or a pair, spelt as in the database's catalogue. ``docs/fencing.md`` says what triggers
    cannot see. Calling it again changes the resource.
    """
    name, resource = TableName.of(table), checked_resource(resource)
    binding = table_of(connection)
    _run(binding, sql_plans.protect(binding, name, resource))


def unprotect_table(connection: Executes, table: str | Sequence[str]) -> None:
    """Remove what ``protect_table`` made. Without that it changes nothing."""
    name = TableName.of(table)
    binding = table_of(connection)
    _run(binding, sql_plans.unprotect(binding, name))


def fenced_update(
    cursor: Executes,
    table: str | Sequence[str],
    key: Mapping[str, object],
    lease_or_token: Presentable,
    changes: Mapping[str, object],
    *,
    token_column: str = TOKEN_COLUMN,
) -> bool:
    """Update one row unless it was written under a newer token; return whether there is such a row.

    The row carries its own token, in an integer column that may be NULL. ``StaleToken`` if that is newer; the
    same grant may write again. Weaker than ``enforce``: it guards row by row, does not shut older holders out
    before the first read, and compares the token as a number only. Without a transaction the row is all that
    is guarded.
    """
    refuse_read_lease(lease_or_token)
    row = RowChange.of(table, key, changes, mark_of(lease_or_token).token, token_column)
    binding = table_of(cursor)
    return _run(binding, row_plans.update(binding, row))


def fenced_upsert(
    cursor: Executes,
    table: str | Sequence[str],
    key: Mapping[str, object],
    lease_or_token: Presentable,
    changes: Mapping[str, object],
    *,
    token_column: str = TOKEN_COLUMN,
) -> None:
    """``fenced_update`` that inserts the row where there is none. ``key`` has to be a unique key of the
    table."""
    refuse_read_lease(lease_or_token)
    row = RowChange.of(table, key, changes, mark_of(lease_or_token).token, token_column)
    binding = table_of(cursor)
    _run(binding, row_plans.upsert(binding, row))


def _run(table: FenceTable, plan: Plan[Done]) -> Done:
    return run(plan, table.carry_out)
