"""Optimistic locking, blocking: the calls users make, the same for every database and driver.

What they do is in ``updates``. ``aio`` has the same calls, awaited.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, ParamSpec, TypeVar

from ..fencing.connections import Executes, table_of
from ..fencing.plans import run
from ..sql import retry_transaction
from ..sql.retry import RETRIES, Backoff, Policy
from . import updates
from .rerun import check_rerunnable
from .updates import ConditionalChange, VersionedChange, Where

__all__ = ["compare_and_update", "decrement_if_available", "optimistic", "update_where"]

P = ParamSpec("P")
T = TypeVar("T")


def compare_and_update(
    connection: Executes,
    table: object,
    key: Mapping[str, object],
    expected_version: Any,
    changes: Mapping[str, object],
    *,
    version_column: str | None = None,
) -> Any:
    """Change a row if it still has the version that was read; return the new version.

    ``Conflict`` (its ``version`` is the one found): another writer was first. None: there is no such row.

    The column ``version`` counts, by one for each change, unless ``version_column`` names another. Of a
    mapped class of SQLAlchemy's it is the class's own version counter. An UPDATE that knows nothing of
    versions is not noticed: let every writer go this way.

    One statement, in the transaction that is open, which stays the user's to commit; or in none.
    """
    change = VersionedChange.of(table, key, expected_version, changes, version_column)
    binding = table_of(connection)
    return run(updates.compare_and_update(binding, change), binding.carry_out)


def update_where(
    connection: Executes,
    table: object,
    key: Mapping[str, object],
    changes: Mapping[str, object],
    where: Where,
) -> bool:
    """Change a row if these conditions hold for it now; return whether they did.

    ``where`` is ``{"state": "open"}``, or ``[("quantity", ">=", 2), ("state", "=", "open")]``. Among the
    ``changes``, ``Increment(-2)`` computes in the database. False also where there is no such row.
    """
    change = ConditionalChange.of(table, key, changes, where)
    binding = table_of(connection)
    return run(updates.update_where(binding, change), binding.carry_out)


def decrement_if_available(
    connection: Executes,
    table: object,
    key: Mapping[str, object],
    column: str,
    amount: int | float | Decimal = 1,
) -> bool:
    """Take ``amount`` away from a column that has as much; return whether it had.

    ``UPDATE … SET quantity = quantity - 1 WHERE … AND quantity >= 1``: never below zero, without any lock.
    """
    change = updates.decrement(table, key, column, amount)
    binding = table_of(connection)
    return run(updates.update_where(binding, change), binding.carry_out)


def optimistic(
    *, retries: int = RETRIES, backoff: Backoff | float | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Run the function again where another writer was first: at ``Conflict`` and ``Deadlock``.

    Whatever says so: ``compare_and_update``, SQLAlchemy's version counter (``StaleDataError``), the
    serialization failure of a database. The function reads, decides and writes in a transaction of its own,
    which it has ended when it returns or raises. It may run several times, with pauses by chance between.
    """
    Policy.of(retries, backoff)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        check_rerunnable(function, "plain")

        @functools.wraps(function)
        def run_optimistically(*args: P.args, **kwargs: P.kwargs) -> T:
            return retry_transaction(lambda: function(*args, **kwargs), retries=retries, backoff=backoff)

        return run_optimistically

    return decorate
