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

Where reading and writing are one short transaction, ``with fencing.transaction(db, lease):`` does all of it.

The one who woke up late gets ``StaleToken`` instead of overwriting, and its transaction leaves nothing.

A lease or its ``fence`` says which engine and which grant a number belongs to. So does the text that
``holdfast run`` hands to its command in ``HOLDFAST_FENCE``: pass it in the lease's place.
A bare int is accepted too, and is weaker: it is compared as a number only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .grant import Grant, fence_text, parse_fence
from .sql import advance, enforce, install, move, newest, transaction

if TYPE_CHECKING:
    from .etcd import AsyncFencedEtcd, EtcdCompare, FencedEtcd, etcd_compares
    from .redis import AsyncFencedRedis, FencedRedis
    from .zookeeper import FencedZooKeeper, ZooKeeperCheck, zookeeper_check

__all__ = [
    "AsyncFencedEtcd",
    "AsyncFencedRedis",
    "EtcdCompare",
    "FencedEtcd",
    "FencedRedis",
    "FencedZooKeeper",
    "Grant",
    "ZooKeeperCheck",
    "advance",
    "enforce",
    "etcd_compares",
    "fence_text",
    "install",
    "move",
    "newest",
    "parse_fence",
    "transaction",
    "zookeeper_check",
]

_IMPORTED_WHEN_USED = {
    "AsyncFencedEtcd": ".etcd",
    "AsyncFencedRedis": ".redis",
    "EtcdCompare": ".etcd",
    "FencedEtcd": ".etcd",
    "FencedRedis": ".redis",
    "FencedZooKeeper": ".zookeeper",
    "ZooKeeperCheck": ".zookeeper",
    "etcd_compares": ".etcd",
    "zookeeper_check": ".zookeeper",
}


def __getattr__(name: str) -> Any:
    """Guards of stores whose client libraries are extras, imported when they are first used."""
    if name in _IMPORTED_WHEN_USED:
        return getattr(import_module(_IMPORTED_WHEN_USED[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
