"""Optimistic locking: read, decide, and write only if no other writer was first. No lock is held while
deciding.

    from holdfast import optimistic

    version = optimistic.compare_and_update(db, "invoice", {"id": 7}, row.version, {"total": 110})
    if version is None: ...                     # there is no such row; Conflict: another writer was first

    if not optimistic.decrement_if_available(db, "stock", {"item": "lamp"}, "quantity"):
        ...                                     # sold out

``@optimistic(retries=5)`` runs a function again after a ``Conflict``. ``holdfast.optimistic.aio`` has the
same functions, awaited. No driver is imported.
"""

from __future__ import annotations

from ..sql.retry import Backoff
from .blocking import compare_and_update, decrement_if_available, optimistic, update_where
from .updates import Increment

__all__ = [
    "Backoff",
    "Increment",
    "compare_and_update",
    "decrement_if_available",
    "optimistic",
    "update_where",
]
