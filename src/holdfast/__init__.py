"""Holdfast: distributed locks you can trust.

    import holdfast

    locks = holdfast.connect()
    with locks.lock("invoices", ttl=30, timeout=5) as lease:
        print(lease.token)

One API over every engine people lock with; every grant carries a fencing token. For asyncio see
``holdfast.aio``; for the guards that enforce tokens where the data lives see ``holdfast.fencing``.
"""

from __future__ import annotations

from .client import Client, Lease, Lock, RLock, RWLock, Semaphore, Watch, connect
from .errors import (
    Conflict,
    Deadlock,
    EngineUnavailable,
    HoldfastError,
    InvalidArgument,
    LockLost,
    LockTimeout,
    NotHeld,
    StaleToken,
    Unsupported,
)
from .model import UNSET, Fence, Guarantees, HolderInfo, LockInfo, WaitEdge, WaiterInfo

__version__ = "0.1.0"

__all__ = [
    "UNSET",
    "Client",
    "Conflict",
    "Deadlock",
    "EngineUnavailable",
    "Fence",
    "Guarantees",
    "HolderInfo",
    "HoldfastError",
    "InvalidArgument",
    "Lease",
    "Lock",
    "LockInfo",
    "LockLost",
    "LockTimeout",
    "NotHeld",
    "RLock",
    "RWLock",
    "Semaphore",
    "StaleToken",
    "Unsupported",
    "WaitEdge",
    "WaiterInfo",
    "Watch",
    "__version__",
    "connect",
]
