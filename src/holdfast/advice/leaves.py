"""The ways. A new one is one entry here, and an answer in ``questions`` if nothing leads to it yet.

Code in a database uses one table: ``stock (item, quantity, version)``, with a row for ``lamp``.
"""

from __future__ import annotations

from typing import Final

from .tree import Leaf

__all__ = ["LEAVES"]

ENGINES: Final = ("sqlite", "redis", "postgresql", "etcd", "zookeeper")
DATABASES: Final = ("sqlite", "postgresql")
FENCING: Final = ("import holdfast", "from holdfast import fencing")
PAUSED: Final = (
    "A holder that is paused past its lease goes on when it wakes up, until it looks: check() before "
    "each step."
)


LEAVES: Final = (
    Leaf(
        "unique-key",
        "A key that is unique in the database",
        ({"problem": ("request",)},),
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
            "Keys need an end: delete those that no request can repeat any more.",
        ),
        "sql.md",
        imports=(),
        uses_locks=False,
        uses_database=True,
        instead=True,
    ),
    Leaf(
        "cell",
        "Compare-and-swap on a cell",
        ({"problem": ("value",)},),
        "A write names the version that it replaces, and is refused if another one came first. "
        "Nobody waits, and a paused writer delays nobody.",
        ENGINES,
        """
cell = locks.cell("settings")
cell.update(lambda value: (value or b"") + b"x")  # reads, changes, writes, again if another was first

hits = locks.counter("hits")
print(cell.get(), hits.add())
""",
        (
            "The function of update() runs again after a conflict: it must do nothing but compute.",
            "A value has 64 KiB at most, and many writers of one hot value try often.",
            "An engine that forgets its data forgets the value.",
        ),
        "cells.md",
        instead=True,
    ),
    Leaf(
        "single-statement",
        "One statement that decides and writes",
        ({"problem": ("rows",), "statement": ("yes",)},),
        "The database makes the condition and the change one step. There is nothing to lock, to "
        "retry or to lose.",
        DATABASES,
        """
sold = optimistic.decrement_if_available(db, "stock", {"item": "lamp"}, "quantity")
db.commit()
print("sold" if sold else "sold out")
""",
        (
            "It is the transaction that counts: until it is committed, others wait for the row.",
            "A request that is sent twice is two decrements: see a unique key.",
        ),
        "sql.md",
        imports=("from holdfast import optimistic",),
        uses_locks=False,
        uses_database=True,
        instead=True,
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
            "It excludes those who take the same name, in this database, and nobody else.",
            "A long transaction keeps PostgreSQL from cleaning up, and a connection of the pool.",
        ),
        "sql.md",
        imports=("from holdfast import sql",),
        uses_locks=False,
        uses_database=True,
        instead=True,
    ),
    Leaf(
        "optimistic",
        "Optimistic: write only if nobody wrote meanwhile",
        ({"problem": ("rows",), "statement": ("no",), "row": ("yes",), "contention": ("seldom",)},),
        "Nothing is locked while one decides, however long that takes. Who comes second reads and "
        "decides again.",
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
            "Every writer has to go this way: an UPDATE that leaves the version alone is not noticed.",
            "The more of them meet, the more is decided for nothing: see the measured curve.",
            "End the transaction before the pause after a conflict, or its locks stop the others.",
        ),
        "sql.md",
        imports=("from holdfast import optimistic",),
        uses_locks=False,
        uses_database=True,
        instead=True,
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
        "The others wait, and nothing is decided for nothing. The lock ends with the transaction, "
        "also when the client dies.",
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
            "No call to another service inside: all others wait for it, too.",
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
    ),
    Leaf(
        "partitions",
        "Partitions, each worked on by one owner",
        ({"problem": ("items",)},),
        "Items are divided by a hash of their key, and a worker keeps whole partitions for as long "
        "as it lives. Within one there is nothing left to lock, and the load of the locks does not "
        "grow with the items.",
        ENGINES,
        """
PARTITIONS = 8
mine = {}
for number in range(PARTITIONS):
    lease = locks.lock(f"orders/{number}", ttl=30).acquire(blocking=False)
    if lease is not None:
        mine[number] = lease

for number, lease in mine.items():
    lease.check()  # before each step: still ours?
    print("working on partition", number, "with token", lease.token)
    lease.release()
""",
        (
            "The first worker takes all: let each take its share, and look for free partitions now and then.",
            "An owner that is paused past its lease is not alone: give its token to what it writes to.",
            "Another number of partitions is another division: change it while nobody works.",
        ),
        "guide.md",
    ),
    Leaf(
        "lock",
        "A lock with a lease",
        ({"problem": ("section",), "stakes": ("efficiency",), "holders": ("one",)},),
        "One at a time, in order, and a crash does not keep it for ever. Whatever is left over is "
        "work done twice.",
        (*ENGINES, "redlock"),
        """
with locks.lock("report", ttl=30, timeout=5) as lease:
    print("alone, with token", lease.token)
    lease.check()  # before a long step: still ours?
""",
        (PAUSED, "A ttl bounds the delay after a crash, not the work: renewal is automatic."),
        "guide.md",
    ),
    Leaf(
        "rwlock",
        "A reader/writer lock",
        ({"problem": ("section",), "stakes": ("efficiency",), "holders": ("readers",)},),
        "Readers share, a writer is alone, and a stream of readers does not keep writers out.",
        ENGINES,
        """
catalogue = locks.rwlock("catalogue", ttl=30, timeout=5)
with catalogue.read() as lease:
    print("reading, with token", lease.token)
with catalogue.write() as lease:
    print("writing, with token", lease.token)
""",
        (PAUSED, "A read lease cannot become a write lease: release it first."),
        "guide.md",
    ),
    Leaf(
        "semaphore",
        "A semaphore",
        ({"problem": ("section",), "stakes": ("efficiency",), "holders": ("several",)},),
        "So many at once; the permit of one that crashed comes back.",
        ENGINES,
        """
with locks.semaphore("transcoding", 3, ttl=30, timeout=5) as lease:
    print("one of three, with token", lease.token)
""",
        (PAUSED, "All have to declare the same limit; resize() changes it for all."),
        "guide.md",
    ),
    Leaf(
        "lock-and-sql-guard",
        "A lock, and a guard in the database",
        (
            {"problem": ("section",), "stakes": ("correctness",), "checks": ("sql",)},
            {
                "problem": ("rows",),
                "statement": ("no",),
                "row": ("yes",),
                "contention": ("often",),
                "length": ("long",),
            },
        ),
        "The lock is held while a person or another service decides, and no transaction is. The "
        "database refuses the write of a holder that lost the lock without noticing.",
        ENGINES,
        """
fencing.install(db)
db.commit()
with locks.lock("stock/lamp", ttl=30, timeout=5) as lease:
    fencing.advance(db, "stock/lamp", lease)  # shuts older holders out, before anything is read
    db.commit()
    # ... decide, for as long as it takes ...
    with fencing.transaction(db, lease, "stock/lamp") as cursor:  # StaleToken if a newer holder came
        cursor.execute("UPDATE stock SET quantity = quantity - 1 WHERE item = 'lamp'")
""",
        (
            (
                "A writer that presents no token is not stopped: fencing.protect_table has the database "
                "refuse it."
            ),
            "Effects outside the database are not covered.",
        ),
        "fencing.md",
        imports=FENCING,
        uses_database=True,
    ),
    Leaf(
        "lock-and-redis-guard",
        "A lock, and a guard in Redis",
        ({"problem": ("section",), "stakes": ("correctness",), "checks": ("redis",)},),
        "Check and write are one script in Redis, which refuses the token of an older grant.",
        ENGINES,
        """
totals = fencing.FencedRedis(redis.Redis.from_url("redis://localhost:6379/0"), "totals")
with locks.lock("totals", ttl=30, timeout=5) as lease:
    totals.advance(lease)  # shuts older holders out, before anything is read
    totals.set("total", 110, lease)  # StaleToken if a newer holder came
""",
        (
            "A failover that loses writes loses the guard's mark with them.",
            "A writer that does not go through the guard is not stopped.",
        ),
        "fencing-key-value.md",
        imports=(*FENCING, "import redis"),
    ),
    Leaf(
        "lock-and-etcd-guard",
        "A lock in etcd, checked in the same transaction",
        ({"problem": ("section",), "stakes": ("correctness",), "checks": ("etcd",)},),
        "The condition is the holder's own ticket: a grant that is over fails the transaction, in "
        "the same majority.",
        ("etcd",),
        """
def call(path: str, message: dict) -> dict:
    request = urllib.request.Request(f"http://localhost:2379{path}", json.dumps(message).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


totals = fencing.FencedEtcd(call, "totals")
with locks.lock("totals", ttl=30, timeout=5) as lease:
    totals.advance(lease)  # shuts older holders out, before anything is read
    totals.put("total", "110", lease)  # StaleToken if a newer holder came
""",
        (
            "A writer that does not go through the guard is not stopped.",
            "Without a majority nothing is written.",
        ),
        "fencing-key-value.md",
        imports=(*FENCING, "import json", "import urllib.request"),
    ),
    Leaf(
        "lock-and-zookeeper-guard",
        "A lock in ZooKeeper, checked in the same transaction",
        ({"problem": ("section",), "stakes": ("correctness",), "checks": ("zookeeper",)},),
        "The mark of the newest holder is checked in the multi that writes.",
        ("zookeeper",),
        """
client = KazooClient("localhost:2181")
client.start()
client.ensure_path("/total")
totals = fencing.FencedZooKeeper(client, "totals")
with locks.lock("totals", timeout=5) as lease:
    totals.advance(lease)  # shuts older holders out, before anything is read
    totals.set("/total", b"110", lease)  # StaleToken if a newer holder came
client.stop()
client.close()
""",
        (
            "A writer that does not go through the guard is not stopped.",
            "Without a majority nothing is written.",
        ),
        "fencing-key-value.md",
        imports=(*FENCING, "from kazoo.client import KazooClient"),
    ),
    Leaf(
        "lock-and-file-guard",
        "A lock, and a guarded file",
        ({"problem": ("section",), "stakes": ("correctness",), "checks": ("file",)},),
        "The file is replaced in one step by the newest holder only; a writer killed at any step "
        "leaves the old or the new content.",
        ENGINES,
        """
prices = fencing.FencedFile("prices.json")
with locks.lock("prices", ttl=30, timeout=5) as lease:
    prices.advance(lease)  # shuts older holders out, before anything is read
    prices.write(b'{"tea": 3}', lease)  # StaleToken if a newer holder came
""",
        (
            "All writers have to share the folder, on a file system whose flock works between them.",
            "A writer that opens the file itself is not stopped.",
        ),
        "fencing-files-and-http.md",
        imports=FENCING,
    ),
    Leaf(
        "lock-and-http-guard",
        "A lock, and a service that checks the token",
        ({"problem": ("section",), "stakes": ("correctness",), "checks": ("http",)},),
        "The client sends the token of its grant; a middleware of the service compares it in the "
        "transaction that writes, and answers 409.",
        ENGINES,
        """
with locks.lock("orders", ttl=30, timeout=5) as lease:
    headers = fencing.fencing_headers(lease, "orders")
    print(headers)  # send them with each request; FencingMiddleware checks them at the other side
""",
        (
            "The check is worth what the service does with it: in the same transaction as the write.",
            "Answers get lost: the request has to be one that may arrive twice.",
        ),
        "fencing-files-and-http.md",
        imports=FENCING,
    ),
    Leaf(
        "lock-and-idempotent-effect",
        "A lock that ends before its lease, and an effect that may come twice",
        ({"problem": ("section",), "stakes": ("correctness",), "checks": ("nothing",)},),
        "No lock can do it alone where nothing checks: a pause between the last look and the effect "
        "is always possible. The lock makes that rare; make the effect one that may come twice, or "
        "put what can check before it.",
        ENGINES,
        """
with locks.lock("valve", ttl=30, timeout=5, max_hold=300) as lease:
    lease.check()  # right before the effect: the shorter the rest, the rarer the accident
    print("open the valve, request", lease.token)  # the token is unique: use it as the request's key
""",
        (
            "Two effects at once remain possible, though rare: " + PAUSED,
            "A process that hangs keeps the lock until max_hold, and its effect may still come afterwards.",
        ),
        "fencing.md",
    ),
)
