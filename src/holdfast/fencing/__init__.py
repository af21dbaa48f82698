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
all of it. ``protect_table`` makes the database refuse writers that present no token. ``holdfast.fencing.aio``
has the same functions, awaited.

The holder that continued too late gets ``StaleToken`` and overwrites nothing: its transaction is rolled back.

A lease or its ``fence`` says which engine and which grant a number belongs to. So does the text that
``holdfast run`` hands to its command in ``HOLDFAST_FENCE``: pass it in the lease's place.
A bare int is accepted too, and is weaker: it is compared as a number only.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from .grant import Grant, fence_text, parse_fence

if TYPE_CHECKING:
    from .asgi import FencingMiddleware
    from .etcd import AsyncFencedEtcd, EtcdCompare, FencedEtcd, etcd_compares
    from .file import FencedFile
    from .http import fencing_headers
    from .http_clients import httpx_auth, requests_auth
    from .object_store import AsyncFencedObject, FencedObject
    from .redis import AsyncFencedRedis, FencedRedis
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
    from .wsgi import WSGIFencingMiddleware
    from .zookeeper import FencedZooKeeper, ZooKeeperCheck, zookeeper_check

__all__ = [
    "AsyncFencedEtcd",
    "AsyncFencedObject",
    "AsyncFencedRedis",
    "EtcdCompare",
    "FencedEtcd",
    "FencedFile",
    "FencedObject",
    "FencedRedis",
    "FencedZooKeeper",
    "FencingMiddleware",
    "Grant",
    "WSGIFencingMiddleware",
    "ZooKeeperCheck",
    "advance",
    "enforce",
    "etcd_compares",
    "fence_text",
    "fenced_update",
    "fenced_upsert",
    "fencing_headers",
    "httpx_auth",
    "install",
    "marks",
    "move",
    "newest",
    "parse_fence",
    "protect_table",
    "prune",
    "requests_auth",
    "transaction",
    "unprotect_table",
    "zookeeper_check",
]

_IMPORTED_WHEN_USED: Final = {
    "AsyncFencedEtcd": ".etcd",
    "AsyncFencedObject": ".object_store",
    "AsyncFencedRedis": ".redis",
    "EtcdCompare": ".etcd",
    "FencedEtcd": ".etcd",
    "FencedFile": ".file",
    "FencedObject": ".object_store",
    "FencedRedis": ".redis",
    "FencedZooKeeper": ".zookeeper",
    "FencingMiddleware": ".asgi",
    "WSGIFencingMiddleware": ".wsgi",
    "ZooKeeperCheck": ".zookeeper",
    "advance": ".sql",
    "enforce": ".sql",
    "etcd_compares": ".etcd",
    "fenced_update": ".sql",
    "fenced_upsert": ".sql",
    "fencing_headers": ".http",
    "httpx_auth": ".http_clients",
    "install": ".sql",
    "marks": ".sql",
    "move": ".sql",
    "newest": ".sql",
    "protect_table": ".sql",
    "prune": ".sql",
    "requests_auth": ".http_clients",
    "transaction": ".sql",
    "unprotect_table": ".sql",
    "zookeeper_check": ".zookeeper",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Guards are imported when they are first used: ``holdfast run`` needs only the text of a grant."""
        if name not in _IMPORTED_WHEN_USED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_IMPORTED_WHEN_USED[name], __name__), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
