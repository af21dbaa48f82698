"""Optimistic locking, awaited: the functions of ``holdfast.optimistic``, the same names.

What a function does and raises is described at the function of the same name there.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from decimal import Decimal
from typing import Any, ParamSpec, TypeVar

from ..fencing.connections import Executes
from ..fencing.connections_asyncio import runner_of
from ..sql.aio import retry_transaction
from ..sql.retry import RETRIES, Backoff, Policy
from . import updates
from .rerun import check_rerunnable
from .updates import ConditionalChange, Increment, VersionedChange, Where

__all__ = [
    "Backoff",
    "Increment",
    "compare_and_update",
    "decrement_if_available",
    "optimistic",
    "update_where",
]

P = ParamSpec("P")
T = TypeVar("T")


async def compare_and_update(
    connection: Executes,
    table: object,
    key: Mapping[str, object],
    expected_version: Any,
    changes: Mapping[str, object],
    *,
    version_column: str | None = None,
) -> Any:
    """Change a row if it still has the version that was read; return the new version."""
    change = VersionedChange.of(table, key, expected_version, changes, version_column)
    return await runner_of(connection).run(lambda binding: updates.compare_and_update(binding, change))


async def update_where(
    connection: Executes,
    table: object,
    key: Mapping[str, object],
    changes: Mapping[str, object],
    where: Where,
) -> bool:
    """Change a row if these conditions hold for it now; return whether they did."""
    change = ConditionalChange.of(table, key, changes, where)
    return await runner_of(connection).run(lambda binding: updates.update_where(binding, change))


async def decrement_if_available(
    connection: Executes,
    table: object,
    key: Mapping[str, object],
    column: str,
    amount: int | float | Decimal = 1,
) -> bool:
    """Take ``amount`` away from a column that has as much; return whether it had."""
    change = updates.decrement(table, key, column, amount)
    return await runner_of(connection).run(lambda binding: updates.update_where(binding, change))


def optimistic(
    *, retries: int = RETRIES, backoff: Backoff | float | None = None
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
    """Run the function again where another writer was first: at ``Conflict`` and ``Deadlock``."""
    Policy.of(retries, backoff)

    def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        check_rerunnable(function, "async")

        @functools.wraps(function)
        async def run_optimistically(*args: P.args, **kwargs: P.kwargs) -> T:
            return await retry_transaction(
                lambda: function(*args, **kwargs), retries=retries, backoff=backoff
            )

        return run_optimistically

    return decorate
