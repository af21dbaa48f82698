"""Guards: fencing tokens enforced where the data lives.

A lock alone cannot protect data. A holder pauses (a long collection, a suspended laptop, a slow disk), its
lease expires, the next holder is granted the lock and writes; then the first wakes up and writes too, sure
that the lock is still its own. No lock can prevent that: only the storage sees both writes.

So every grant carries a token larger than all before, and the storage remembers the newest:

    fencing.install(db)                                     # once per database

    with locks.lock("invoices") as lease:
        with db:                                            # a new holder: shut older ones out, then read
            fencing.advance(db, "invoices", lease)
        total = db.execute("SELECT total FROM invoices").fetchone()[0]
        with db:                                            # one transaction: check and write together
            fencing.enforce(db, "invoices", lease)          # StaleToken if a newer holder has been here
            db.execute("UPDATE invoices SET total = ?", (total + 10,))

Where reading and writing are one short transaction, ``with fencing.transaction(db, lease) as cursor:`` does
all of it. ``protect_table`` has the database refuse those who present nothing. ``holdfast.fencing.aio`` has
the same functions, awaited.

The one who woke up late gets ``StaleToken`` instead of overwriting, and its transaction leaves nothing.

A lease or its ``fence`` says which engine and which grant a number belongs to. So does the text that
``holdfast run`` hands to its command in ``HOLDFAST_FENCE``: pass it in the lease's place.
A bare int is accepted too, and is weaker: it is compared as a number only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .grant import Grant, fence_text, parse_fence

if TYPE_CHECKING:
    from .sql import (
        advance,
        enforce,
        fenced_update,
        fenced_upsert,
        install,
        marks,
        move,
        newest,
        protect_table,
        prune,
        transaction,
        unprotect_table,
    )

__all__ = [
    "Grant",
    "advance",
    "enforce",
    "fence_text",
    "fenced_update",
    "fenced_upsert",
    "install",
    "marks",
    "move",
    "newest",
    "parse_fence",
    "protect_table",
    "prune",
    "transaction",
    "unprotect_table",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Guards are loaded when they are first used: ``holdfast run`` needs only the text of a grant."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import sql

        return getattr(sql, name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
