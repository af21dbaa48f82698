"""Holdfast: distributed locks you can trust.

    import holdfast

    locks = holdfast.connect()
    with locks.lock("invoices", ttl=30, timeout=5) as lease:
        print(lease.token)

One API over every engine people lock with; every grant carries a fencing token. For asyncio see
``holdfast.aio``; for the guards that enforce tokens where the data lives see ``holdfast.fencing``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from .errors import (
    BrokenBarrierError,
    Conflict,
    Deadlock,
    EngineUnavailable,
    HoldfastError,
    InvalidArgument,
    LockLost,
    LockTimeout,
    NotHeld,
    ReplayedError,
    StaleToken,
    Unsupported,
)

if TYPE_CHECKING:
    from .client import Client, Lease, Lock, RLock, RWLock, Semaphore, Watch, connect
    from .model import UNSET, Fence, Guarantees, HolderInfo, Leader, LockInfo, WaitEdge, WaiterInfo

__version__ = "0.1.0"

__all__ = [
    "UNSET",
    "BrokenBarrierError",
    "Client",
    "Conflict",
    "Deadlock",
    "EngineUnavailable",
    "Fence",
    "Guarantees",
    "HolderInfo",
    "HoldfastError",
    "InvalidArgument",
    "Leader",
    "Lease",
    "Lock",
    "LockInfo",
    "LockLost",
    "LockTimeout",
    "NotHeld",
    "RLock",
    "RWLock",
    "ReplayedError",
    "Semaphore",
    "StaleToken",
    "Unsupported",
    "WaitEdge",
    "WaiterInfo",
    "Watch",
    "__version__",
    "connect",
]

# Imported when first used, so that a command that takes no lock (``--version``, ``--help``) starts at once.
_HOMES: Final = {
    "client": ("Client", "Lease", "Lock", "RLock", "RWLock", "Semaphore", "Watch", "connect"),
    "model": ("UNSET", "Fence", "Guarantees", "HolderInfo", "Leader", "LockInfo", "WaitEdge", "WaiterInfo"),
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A public name when it is first used. Later uses find it in the module itself."""
        for home, names in _HOMES.items():
            if name in names:
                value = getattr(import_module(f".{home}", __name__), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
