"""Locks of the user's own database, awaited: the functions of ``holdfast.sql``, the same names.

For psycopg's ``AsyncConnection`` and ``AsyncCursor``, SQLAlchemy's ``AsyncConnection`` and ``AsyncSession``,
and aiosqlite. What a function does and raises is described at the function of the same name in
``holdfast.sql``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ..core.canonical import Key
from ..core.lock_options import Duration
from ..fencing.connections import Executes
from ..fencing.connections_asyncio import runner_of
from ..fencing.plans import run_async
from . import idempotency, locking, retry
from .idempotency import SqlAttempt, SqlOperation
from .locking import Mode, RowLock, Wait
from .retry import RETRIES, Backoff, Policy

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

T = TypeVar("T")


async def transaction_lock(
    connection: Executes, name: str, timeout: Duration | None = None, shared: bool = False
) -> None:
    """Lock a name until the transaction of this connection ends. PostgreSQL alone."""
    seconds = locking.check_transaction_lock(name, timeout, shared)
    await runner_of(connection).run(lambda table: locking.lock_transaction(table, name, seconds, shared))


async def row_lock(
    connection: Executes,
    table: object,
    key: Mapping[str, object],
    wait: Wait = True,
    skip_locked: bool = False,
    mode: Mode = "update",
) -> Mapping[str, Any] | None:
    """Lock one row until the transaction ends, and return it by its columns; None if there is no such row."""
    lock = RowLock.of(table, key, wait, skip_locked, mode)
    return await runner_of(connection).run(lambda binding: locking.lock_row(binding, lock))


@asynccontextmanager
async def idempotent(
    connection: Executes,
    key: Key,
    *,
    fingerprint: object = None,
    scope: Key = "",
    keep: Duration = 86_400.0,
) -> AsyncIterator[SqlAttempt]:
    """An operation that runs once, within the transaction of this connection. SQLite and PostgreSQL."""
    operation = SqlOperation.of(key, fingerprint, scope, keep)
    runner = runner_of(connection)
    attempt: SqlAttempt = await runner.run(lambda table: idempotency.begin(table, operation))
    try:
        yield attempt
    except BaseException:
        await runner.run(lambda table: idempotency.withdraw(table, attempt))
        raise
    await runner.run(lambda table: idempotency.finish(table, attempt))


async def create_idempotency_table(connection: Executes) -> None:
    """Create the table in which ``idempotent`` stores results; nothing happens where it is there already."""
    await runner_of(connection).run(idempotency.create_table)


async def prune_idempotency_table(connection: Executes) -> int:
    """Delete the results that are no longer kept, in the transaction of this connection; returns how many."""
    return await runner_of(connection).run(idempotency.prune)


async def retry_transaction(
    function: Callable[..., Awaitable[T]],
    connection: Executes | None = None,
    *,
    retries: int = RETRIES,
    backoff: Backoff | float | None = None,
) -> T:
    """Run a whole transaction, again after ``Deadlock`` and ``Conflict``, whatever driver says so."""
    policy = Policy.of(retries, backoff)
    retry.check_function(function)

    async def carry_out(step: object) -> Any:
        if isinstance(step, retry.Sleep):
            return await asyncio.sleep(step.seconds)
        return await (function() if connection is None else _run_within(function, connection))

    state = "It was rolled back" if connection is not None else "It is the function's to roll back"
    done: T = await run_async(retry.run_again(policy, "the transaction", state, random.random), carry_out)
    return done


async def _run_within(function: Callable[..., Awaitable[T]], connection: Executes) -> T:
    runner = runner_of(connection)
    await runner.run(retry.begin)
    try:
        done = await function(connection)
        await runner.run(retry.commit)
    except BaseException:
        await runner.run(retry.roll_back)
        raise
    return done
