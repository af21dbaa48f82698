"""Locks, and operations that run once, inside the user's own transaction, on the user's own connection.

Where all that is to be kept consistent lies in one database, its own locks are the right answer: they end
with the transaction, and the transaction is what they protect.

    from holdfast import sql

    with db.transaction():
        account = sql.row_lock(db, "account", {"id": 7}, wait=2)   # LockTimeout after two seconds
        sql.transaction_lock(db, "monthly closing", shared=True)   # a name that no row stands for
        ...

The errors are the same over all drivers: ``LockTimeout``, ``Deadlock``, ``Conflict``, with the driver's
error as ``__cause__``. ``retry_transaction`` runs a transaction again after the last two.
``holdfast.sql.aio`` has the same functions, awaited. No driver is imported.
"""

from __future__ import annotations

from .blocking import (
    create_idempotency_table,
    idempotent,
    prune_idempotency_table,
    retry_transaction,
    row_lock,
    transaction_lock,
)
from .idempotency import SqlAttempt
from .retry import Backoff

__all__ = [
    "Backoff",
    "SqlAttempt",
    "create_idempotency_table",
    "idempotent",
    "prune_idempotency_table",
    "retry_transaction",
    "row_lock",
    "transaction_lock",
]
