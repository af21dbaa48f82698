"""Requests, values, rows and histories: where a lock is most often not what is needed."""

from __future__ import annotations

from typing import Final

from ..tree import Leaf
from .common import DATABASES, ENGINES

__all__ = ["DATA"]

DATA: Final = (
    Leaf(
        "unique-key",
        "A key that is unique in the database",
        ({"problem": ("request",), "effect": ("database",), "second": ("nothing",)},),
        "The request brings a key. Its row and its effect are written in one transaction, so the "
        "second arrival finds the row. No lock is held, and a crash leaves both or neither.",
        DATABASES,
        """
db.execute("CREATE TABLE IF NOT EXISTS done (request VARCHAR(100) PRIMARY KEY)")  # once
db.commit()

inserted = db.execute("INSERT INTO done VALUES ('order-4711') ON CONFLICT DO NOTHING").rowcount
if inserted:
    db.execute("UPDATE stock SET quantity = quantity - 1 WHERE item = 'lamp'")
db.commit()  # both or neither
print("done now" if inserted else "was done before")
""",
        (
            (
                "Effects outside the database (a mail, a payment) are not in the transaction: pass the "
                "key on to them."
            ),
            "Keys accumulate: delete those that no request can repeat any more.",
        ),
        "sql.md",
        imports=(),
        uses_locks=False,
        uses_database=True,
        instead=True,
        others="wait for one statement",
        crash="the key and its effect, or neither",
    ),
    Leaf(
        "idempotent-transaction",
        "An idempotency key in the transaction",
        ({"problem": ("request",), "effect": ("database",), "second": ("result",)},),
        "The key, the effect and the result are committed together, or none of them is. A repeated request "
        "gets the first result; another payload under the same key is a Conflict.",
        DATABASES,
        """
sql.create_idempotency_table(db)  # once, as a migration
db.commit()

with sql.idempotent(db, ("sell", 4711), fingerprint="one lamp") as attempt:
    if not attempt.done:
        db.execute("UPDATE stock SET quantity = quantity - 1 WHERE item = 'lamp'")
        attempt.set_result({"sold": "lamp"})
db.commit()  # the key, the effect and the result
print(attempt.result)
""",
        (
            "Effects outside the database are not in the transaction: pass the key on to them.",
            "A result is kept for a limited time (keep, by default a day); after that the key is new again.",
        ),
        "idempotency.md",
        imports=("from holdfast import sql",),
        uses_locks=False,
        uses_database=True,
        instead=True,
        others="wait for the transaction, and get its result",
        crash="nothing: the transaction is undone",
    ),
    Leaf(
        "idempotent",
        "An idempotency key with a lease",
        ({"problem": ("request",), "effect": ("elsewhere",)},),
        "The first caller does the work. A second one waits meanwhile, and every later one gets the stored "
        "result in one round trip. If the first caller dies, the next one takes over.",
        ENGINES,
        """
@locks.idempotent(key=lambda order, amount: ("charge", order), fingerprint=lambda order, amount: amount)
def charge(order: int, amount: int) -> dict:
    print("charging")  # pass the key on, if what is called here takes one
    return {"order": order, "charged": amount}


print(charge(4711, 10))
print(charge(4711, 10))  # the same result, and nothing is charged
""",
        (
            (
                "If a process dies or pauses after its effect and before its result is stored, it leaves "
                "an effect that the next one repeats: pass the key on to a system that can refuse a "
                "repetition."
            ),
            "An engine that forgets its data forgets the results.",
        ),
        "idempotency.md",
        others="wait, and get the first result",
        crash="a key that the next one takes over when its lease ends",
    ),
    Leaf(
        "cell",
        "Compare-and-swap on a cell",
        ({"problem": ("value",)},),
        "A write names the version that it replaces, and is refused if another write came first. No writer "
        "waits, and a paused writer delays no other one.",
        ENGINES,
        """
cell = locks.cell("settings")
cell.update(lambda value: (value or b"") + b"x")  # reads, changes, writes, again if another was first

hits = locks.counter("hits")
print(cell.get(), hits.add())
""",
        (
            "The function of update() runs again after a conflict: it must do nothing but compute.",
            "A value has 64 KiB at most, and many writers of one busy value need many tries.",
            "An engine that forgets its data forgets the value.",
        ),
        "cells.md",
        instead=True,
        others="try again",
        crash="the old value or the new one",
    ),
    Leaf(
        "single-statement",
        "One statement that decides and writes",
        ({"problem": ("rows",), "statement": ("yes",)},),
        "The database makes the condition and the change one step. Nothing has to be locked or retried, "
        "and no update is lost.",
        DATABASES,
        """
sold = optimistic.decrement_if_available(db, "stock", {"item": "lamp"}, "quantity")
db.commit()
print("sold" if sold else "sold out")
""",
        (
            "The transaction decides: until it is committed, other writers wait for the row.",
            "A request that is sent twice decrements twice: see a unique key.",
        ),
        "sql.md",
        imports=("from holdfast import optimistic",),
        uses_locks=False,
        uses_database=True,
        instead=True,
        others="wait for one statement",
        crash="the row as it was, or changed",
    ),
    Leaf(
        "transaction-lock",
        "A lock on a name that ends with the transaction",
        ({"problem": ("rows",), "statement": ("no",), "row": ("no",)},),
        "PostgreSQL keeps it until the transaction ends, also behind a proxy that pools by "
        "transaction. Nothing has to be released, and nothing can be left behind.",
        ("postgresql",),
        """
with db.transaction():
    sql.transaction_lock(db, "monthly closing", timeout=5)
    db.execute("UPDATE stock SET version = version + 1")
""",
        (
            "It excludes only clients that take the same name in this database.",
            "A long transaction keeps PostgreSQL from vacuuming, and occupies a connection of the pool.",
        ),
        "sql.md",
        imports=("from holdfast import sql",),
        uses_locks=False,
        uses_database=True,
        instead=True,
        others="wait for the transaction",
        crash="nothing: the transaction is undone",
    ),
    Leaf(
        "optimistic",
        "Optimistic: write only if no other writer was first",
        ({"problem": ("rows",), "statement": ("no",), "row": ("yes",), "contention": ("seldom",)},),
        "No lock is held during the decision, however long it takes. The writer that comes second reads "
        "and decides again.",
        DATABASES,
        """
@optimistic.optimistic(retries=5)
def sell() -> None:
    try:
        quantity, version = db.execute("SELECT quantity, version FROM stock WHERE item = 'lamp'").fetchone()
        db.rollback()  # nothing is locked while we decide
        optimistic.compare_and_update(db, "stock", {"item": "lamp"}, version, {"quantity": quantity - 1})
        db.commit()
    finally:
        db.rollback()


sell()
""",
        (
            "Every writer has to use it: an UPDATE that does not change the version is not noticed.",
            "The more writers meet, the more decisions are wasted: see the measured curve.",
            "End the transaction before the pause after a conflict, or its locks stop the others.",
        ),
        "sql.md",
        imports=("from holdfast import optimistic",),
        uses_locks=False,
        uses_database=True,
        instead=True,
        others="decide again",
        crash="nothing: the transaction is undone",
    ),
    Leaf(
        "row-lock",
        "A row lock in a short transaction",
        (
            {
                "problem": ("rows",),
                "statement": ("no",),
                "row": ("yes",),
                "contention": ("often",),
                "length": ("short",),
            },
        ),
        "Other writers wait, and no decision is wasted. The lock ends with the transaction, also when the "
        "client dies.",
        DATABASES,
        """
def sell(db) -> None:
    row = sql.row_lock(db, "stock", {"item": "lamp"}, wait=5)
    if row is not None and row["quantity"] > 0:
        db.execute("UPDATE stock SET quantity = quantity - 1 WHERE item = 'lamp'")


sql.retry_transaction(sell, db)
""",
        (
            "Several rows: lock them in one order everywhere, or transactions wait for each other.",
            "Do not call another service inside: all other writers wait for it, too.",
            (
                "A client that hangs keeps the row until the server notices: "
                "idle_in_transaction_session_timeout."
            ),
        ),
        "sql.md",
        imports=("from holdfast import sql",),
        uses_locks=False,
        uses_database=True,
        instead=True,
        others="wait for the transaction",
        crash="nothing: the transaction is undone",
    ),
    Leaf(
        "events",
        "A stream of events",
        ({"problem": ("history",)},),
        "Each decision is appended at the version that it was based on, and refused if another one came "
        "first. No writer waits for a lock, and the history shows how the state came about.",
        DATABASES,
        """
while True:
    amount, version = 0, 0
    for event in store.read("account-7"):
        amount, version = amount + event.data["amount"], event.version
    if amount >= 1000:
        break  # this rule holds even if others append at the same moment
    try:
        store.append("account-7", [{"type": "deposited", "amount": 600}], expected_version=version)
    except Conflict:
        continue  # another one was first: read what is new, and decide again
print("balance", amount)
""",
        (
            "A rule over several streams is not protected by the version of one of them.",
            "Many writers of one busy stream have to decide again and again.",
            "An effect of an event outside the database may happen twice: make it repeatable.",
        ),
        "events.md",
        imports=("from holdfast import Conflict, events",),
        uses_locks=False,
        opens='store = events.connect("{url}")',
        instead=True,
        others="read what is new, and decide again",
        crash="all events of an append, or none",
    ),
)
