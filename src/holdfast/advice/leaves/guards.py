"""Locks with a guard: where a mistake would be wrong, what is written to checks the token."""

from __future__ import annotations

from typing import Final

from ..tree import Leaf
from .common import ENGINES, FENCING, PAUSED

__all__ = ["GUARDS"]

GUARDS: Final = (
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
        "The lock is held while a person or another service decides, and no transaction is open. The "
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
        others="wait in order",
        crash="a lock until its lease ends, and no late write",
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
        others="wait in order",
        crash="a lock until its lease ends, and no late write",
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
        others="wait in order",
        crash="a lock until its lease ends, and no late write",
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
        others="wait in order",
        crash="a lock until its session ends, and no late write",
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
        others="wait in order",
        crash="a lock until its lease ends, and a whole file",
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
            "The check is only safe in the same transaction as the write.",
            "Replies get lost, so it must be safe if the request arrives twice.",
        ),
        "fencing-files-and-http.md",
        imports=FENCING,
        others="wait in order",
        crash="a lock until its lease ends; a late request is refused",
    ),
    Leaf(
        "lock-and-idempotent-effect",
        "A lock that ends before its lease, and an effect that may come twice",
        ({"problem": ("section",), "stakes": ("correctness",), "checks": ("nothing",)},),
        "No lock is enough if nothing checks its token: a pause between the last check and the effect is "
        "always possible. The lock makes two effects rare. Make the effect repeatable, or put a service "
        "that checks tokens in front of it.",
        ENGINES,
        """
with locks.lock("valve", ttl=30, timeout=5, max_hold=300) as lease:
    lease.check()  # right before the effect: the shorter the rest, the rarer the accident
    print("open the valve, request", lease.token)  # the token is unique: use it as the request's key
""",
        (
            "Two effects at once remain possible, though rare: " + PAUSED,
            "A process that hangs holds the lock until max_hold, and its effect may still come afterwards.",
        ),
        "fencing.md",
        others="wait in order",
        crash="a lock until its lease ends, and an effect that may come late",
    ),
)
