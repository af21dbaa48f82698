"""The guard for SQL databases: the calls users make, the same for every dialect.

What differs between databases is behind ``FenceTable``, one file per dialect; ``table_of`` alone knows
which dialect a connection or cursor speaks. SQLite is here; a further dialect is one file and one line.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..errors import HoldfastError, InvalidArgument
from ..model import Fence
from .arguments import Presentable, checked_resource, checked_source, mark_of, refuse_read_lease
from .plans import Dialect, Result, Statement, present, run
from .rule import Mark
from .sqlite import SqliteTable

__all__ = [
    "Executes",
    "FenceTable",
    "advance",
    "enforce",
    "install",
    "move",
    "newest",
    "table_of",
    "transaction",
]


class Executes(Protocol):
    """A DB-API connection or cursor, as far as its type can be told without importing its driver."""

    @property
    def execute(self) -> Callable[..., object]: ...


class FenceTable(Protocol):
    """``holdfast_fence`` in one dialect, through one connection of the user's."""

    @property
    def dialect(self) -> Dialect: ...
    def execute(self, statement: Statement) -> Result: ...
    def install(self) -> None: ...
    def in_transaction(self) -> bool: ...
    def would_commit_at_once(self) -> bool: ...
    @property
    def is_always_in_a_transaction(self) -> bool: ...
    def attached(self) -> list[str]: ...
    def roll_back(self) -> None: ...
    def present(self, resource: str, mark: Mark) -> bool: ...
    def load(self, resource: str) -> Mark | None: ...
    def move(self, resource: str, source: str) -> None: ...
    def is_not_installed(self, error: Exception) -> bool: ...
    def explain(self, error: Exception) -> str | None: ...
    def begin(self) -> None: ...
    def set_seal(self) -> None: ...
    def commit_sealed(self) -> bool: ...


def install(connection: Executes) -> None:
    """Create the guard's table ``holdfast_fence`` in this database, unless it is there.

    Any number of processes may call it, at once and again. Inside an open transaction the table is part
    of it: commit. (With ``sqlite3.connect(..., autocommit=False)`` a transaction is always open.)
    """
    table = table_of(connection)
    with _explained(table):
        table.install()


def enforce(cursor: Executes, resource: str, lease_or_token: Presentable) -> None:
    """Refuse a stale holder. The first statement of the transaction that writes.

    ``resource`` names what the lock protects, usually by the lock's own name: one guard per lock, not one
    per row. From here to the end of the transaction nobody else can pass a guard of this database, so
    what is checked here still holds when the transaction commits.

    Raises ``StaleToken`` (with ``resource``, ``token``, ``newest``) if a newer holder has been here: roll
    back. Raises ``InvalidArgument`` where there is no transaction (the check would commit on its own and
    guard nothing), for a read lease, where another database file is attached (the guard is of ``main``
    alone), and before ``install``. A database that is busy is the driver's error, with a note.

    What this call cannot see, and ``transaction`` can: a commit between this call and the write (with
    sqlite3, ``executescript`` commits before it runs), and a savepoint around this call that is rolled back.
    """
    resource = checked_resource(resource)
    refuse_read_lease(lease_or_token)
    mark = mark_of(lease_or_token)
    table = table_of(cursor)
    if table.would_commit_at_once():
        raise InvalidArgument(
            "this connection is in autocommit mode and no transaction is open: the check would guard nothing;"
            ' execute "BEGIN IMMEDIATE" first, then enforce, then write, then COMMIT'
        )
    _present(table, resource, mark, guards_writes=True)


@contextmanager
def transaction(
    connection: Executes, lease_or_token: Presentable, resource: str | None = None
) -> Iterator[None]:
    """A whole guarded transaction: begins, shuts out older holders, and commits what is written within.

        with fencing.transaction(db, lease):
            (total,) = db.execute("SELECT total FROM invoices").fetchone()
            db.execute("UPDATE invoices SET total = ?", (total + 10,))

    ``resource`` is the lock's own name where it is not given. An exception within rolls back, and so does
    ``StaleToken``, raised before anything within is run. A commit or rollback within is refused at the end
    (``HoldfastError``), for what was written after it was not guarded: that is rolled back.
    """
    resource = checked_resource(_name_of(lease_or_token) if resource is None else resource)
    refuse_read_lease(lease_or_token)
    mark = mark_of(lease_or_token)
    table = table_of(connection)
    if table.in_transaction() and not table.is_always_in_a_transaction:
        raise InvalidArgument(
            "a transaction is open on this connection: commit it or roll it back, then begin this one"
        )
    try:
        with _explained(table):
            table.begin()
        _present(table, resource, mark, guards_writes=True)
        table.set_seal()
        yield
        with _explained(table):
            is_committed = table.commit_sealed()
        if not is_committed:
            raise HoldfastError(
                f"the guarded transaction on {resource!r} was committed or rolled back within: what was"
                " written after that was not guarded, and is rolled back now. Leave the commit to"
                " fencing.transaction"
            )
    except BaseException:
        if table.in_transaction():
            table.roll_back()
        raise


def _name_of(lease: object) -> str:
    name = getattr(lease, "name", None)
    if not isinstance(name, str):
        raise InvalidArgument(f"{type(lease).__name__} does not say what the lock protects: pass resource=")
    return name


def advance(cursor: Executes, resource: str, lease_or_token: Presentable) -> None:
    """Tell the guard of a new grant **before the first read**, so that older holders are out from here on.

    The same rule and the same ``StaleToken`` as ``enforce``. The difference is when: right after the lock
    was granted, committed at once or as the start of the transaction that also reads. Without it, an old
    holder can still write between this holder's read and its first write, and that write is then lost.

    It guards no write by itself, so it also works in autocommit mode, and with a read lease.
    """
    resource = checked_resource(resource)
    mark = mark_of(lease_or_token)
    _present(table_of(cursor), resource, mark)


def newest(cursor: Executes, resource: str) -> Fence | None:
    """The newest grant the guard has seen, None if none. For people and tests: reading guards nothing.

    ``source`` and ``nonce`` are empty where only a bare token was presented.
    """
    resource = checked_resource(resource)
    table = table_of(cursor)
    with _explained(table):
        mark = table.load(resource)
    return None if mark is None else mark.fence


def move(cursor: Executes, resource: str, source: str) -> None:
    """Hand the resource to another source of tokens, deliberately: ``source`` is ``lease.fence.source``.

    Fences of the old source are refused from here on. Numbers of two sources do not compare, so the guard
    starts again at zero: acquire on the new engine and ``advance`` at once. Moving to the source that has
    the resource already changes nothing. Before a move stop whoever presents bare tokens: a bare number
    does not say which source it comes from.
    """
    resource, source = checked_resource(resource), checked_source(source)
    table = table_of(cursor)
    with _explained(table):
        table.move(resource, source)


def table_of(target: Executes) -> FenceTable:
    """The one place that knows dialects. A cursor, also a wrapped one, leads to its connection."""
    for candidate in (target, getattr(target, "connection", None)):
        if isinstance(candidate, sqlite3.Connection):
            return SqliteTable(candidate)
    raise InvalidArgument(
        f"{type(target).__module__}.{type(target).__qualname__} is not a connection or cursor this guard"
        " knows: pass one of sqlite3"
    )


def _present(table: FenceTable, resource: str, mark: Mark, guards_writes: bool = False) -> None:
    with _explained(table), _transaction_as_found(table):
        run(present(table.dialect, resource, mark), table.execute)
        if guards_writes:
            _refuse_attached(table)


def _refuse_attached(table: FenceTable) -> None:
    attached = table.attached()
    if attached:
        raise InvalidArgument(
            f"other databases are attached to this connection ({', '.join(attached)}): the guard in main"
            " protects the data in main alone. Roll back, and write through a connection of its own to the"
            " database that has the data, with the guard installed there"
        )


@contextmanager
def _transaction_as_found(table: FenceTable) -> Iterator[None]:
    """If our statement opened the transaction and failed, end it: it would keep everybody else out."""
    found_open = table.in_transaction()
    try:
        yield
    except BaseException:
        if not found_open and table.in_transaction():
            table.roll_back()
        raise


@contextmanager
def _explained(table: FenceTable) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if table.is_not_installed(error):
            raise InvalidArgument(
                "this database has no guard yet: call fencing.install(connection) once, before the first"
                " enforce or advance; nothing was written"
            ) from error
        note = table.explain(error)
        if note is not None:
            error.add_note(note)
        raise
