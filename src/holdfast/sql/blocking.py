"""Locks of the user's own database, blocking: the calls users make, the same for every database and driver.

What they do is in ``locking`` and ``retry``. ``aio`` has the same calls, awaited.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ..core.canonical import Key
from ..core.lock_options import Duration
from ..fencing.connections import Executes, table_of
from ..fencing.plans import run
from . import idempotency, locking, retry
from .idempotency import SqlAttempt, SqlOperation
from .locking import Mode, RowLock, Wait
from .retry import RETRIES, Backoff, Policy

__all__ = [
    "create_idempotency_table",
    "idempotent",
    "prune_idempotency_table",
    "retry_transaction",
    "row_lock",
    "transaction_lock",
]

T = TypeVar("T")


def transaction_lock(
    connection: Executes, name: str, timeout: Duration | None = None, shared: bool = False
) -> None:
    """Lock a name until the transaction of this connection ends. PostgreSQL alone.

    Nothing releases it before, and nothing needs to: commit and rollback do, and so does the end of the
    connection. ``timeout`` None waits as long as the connection's own ``lock_timeout`` lets it (PostgreSQL's
    default: for ever), 0 tries once. ``shared`` locks keep out those that are not shared.

    ``LockTimeout``: not granted in time; the transaction is open, and as it was before (without a
    ``timeout`` PostgreSQL has aborted it). ``Deadlock``: roll back, and run the whole transaction again.
    ``Unsupported`` on MariaDB and SQLite.
    """
    seconds = locking.check_transaction_lock(name, timeout, shared)
    table = table_of(connection)
    run(locking.lock_transaction(table, name, seconds, shared), table.carry_out)


def row_lock(
    connection: Executes,
    table: object,
    key: Mapping[str, object],
    wait: Wait = True,
    skip_locked: bool = False,
    mode: Mode = "update",
) -> Mapping[str, Any] | None:
    """Lock one row until the transaction ends, and return it by its columns; None if there is no such row.

    ``table`` is ``"table"``, ``"schema.table"`` or a pair, or a mapped class or ``Table`` of SQLAlchemy's;
    ``key`` has the columns of its key. ``wait``: True as long as the connection itself lets it, False not at
    all, a number so many seconds. ``skip_locked``: a row that is locked is taken to be none.

    ``LockTimeout``: the transaction is open, and as it was before (with ``wait=True`` PostgreSQL has aborted
    it). ``Deadlock`` and ``Conflict``: roll back, and run the whole transaction again.

    MariaDB knows the modes ``update`` and ``share``, and whole seconds (rounded up). SQLite locks the whole
    database against other writers, and knows ``update`` alone.
    """
    lock = RowLock.of(table, key, wait, skip_locked, mode)
    binding = table_of(connection)
    return run(locking.lock_row(binding, lock), binding.carry_out)


@contextmanager
def idempotent(
    connection: Executes,
    key: Key,
    *,
    fingerprint: object = None,
    scope: Key = "",
    keep: Duration = 86_400.0,
) -> Iterator[SqlAttempt]:
    """An operation that runs once, within the transaction of this connection. SQLite and PostgreSQL.

        with db:                                             # or whatever begins and commits a transaction
            with sql.idempotent(db, ("payment", 7), fingerprint=amount) as attempt:
                if not attempt.done:
                    db.execute("UPDATE account …")
                    attempt.set_result({"charged": amount})

    The result commits together with what the body has written, or neither does. A second transaction with
    the same key waits for the first one; then ``attempt.done`` is true, or, after a rollback, it runs itself.
    ``key``, ``scope``, ``fingerprint`` and ``keep`` are those of ``client.idempotent``.

    ``Conflict``: the key was used for another payload; or run the whole transaction again, as the message
    says. ``InvalidArgument`` in autocommit mode, and before ``create_idempotency_table``.
    """
    operation = SqlOperation.of(key, fingerprint, scope, keep)
    table = table_of(connection)
    attempt = run(idempotency.begin(table, operation), table.carry_out)
    try:
        yield attempt
    except BaseException:
        run(idempotency.withdraw(table, attempt), table.carry_out)
        raise
    run(idempotency.finish(table, attempt), table.carry_out)


def create_idempotency_table(connection: Executes) -> None:
    """Create the table in which ``idempotent`` stores results; nothing happens where it is there already.

    In the transaction that is open, else in one of its own.
    """
    table = table_of(connection)
    run(idempotency.create_table(table), table.carry_out)


def prune_idempotency_table(connection: Executes) -> int:
    """Delete the results that are no longer kept, in the transaction of this connection; returns how many."""
    table = table_of(connection)
    return run(idempotency.prune(table), table.carry_out)


def retry_transaction(
    function: Callable[..., T],
    connection: Executes | None = None,
    *,
    retries: int = RETRIES,
    backoff: Backoff | float | None = None,
) -> T:
    """Run a whole transaction, again after ``Deadlock`` and ``Conflict``, whatever driver says so.

    With a ``connection``, the transaction is begun on it, ``function(connection)`` is run in it, and it is
    committed; an exception rolls it back. Without one, ``function()`` opens and ends its own transaction.

    ``function`` may run several times: it reads afresh each time, and does nothing that a rollback does not
    undo. Between the tries lies a pause by chance (``Backoff``). After ``retries`` more tries the last error
    is raised, as ``Deadlock`` or ``Conflict``. Nothing else is tried again, least of all a commit whose
    outcome is unknown because the connection broke.
    """
    policy = Policy.of(retries, backoff)
    retry.check_function(function)

    def attempt() -> T:
        return function() if connection is None else _run_within(function, connection)

    state = "It was rolled back" if connection is not None else "It is the function's to roll back"
    done: T = run(
        retry.run_again(policy, "the transaction", state, random.random),
        lambda step: _carry_out(step, attempt),
    )
    return done


def _carry_out(step: object, attempt: Callable[[], Any]) -> Any:
    return time.sleep(step.seconds) if isinstance(step, retry.Sleep) else attempt()


def _run_within(function: Callable[..., T], connection: Executes) -> T:
    table = table_of(connection)
    run(retry.begin(table), table.carry_out)
    try:
        done = function(connection)
        run(retry.commit(table), table.carry_out)
    except BaseException:
        run(retry.roll_back(table), table.carry_out)
        raise
    return done
