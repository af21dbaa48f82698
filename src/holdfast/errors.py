"""Every error Holdfast raises, and nothing else.

    HoldfastError
    ├── LockTimeout          (also TimeoutError)      not granted in time; carries the holders seen
    ├── LockLost                                      a grant can no longer be relied on; carries the reason
    ├── NotHeld              (also RuntimeError)      released or used by a caller that does not hold it
    ├── StaleToken                                    a guard refused a fencing token
    ├── Conflict                                      another writer changed it first
    ├── Deadlock                                      waiting would never end
    ├── ReplayedError                                 a stored error, whose own class is not known here
    ├── BrokenBarrierError   (also threading's)       a party of a barrier died, gave up, or aborted it
    ├── EngineUnavailable    (also ConnectionError)   the engine cannot be reached or cannot be used
    ├── Unsupported                                   this engine cannot do that; names one that can
    └── InvalidArgument      (also ValueError)        refused before any I/O; says what to write instead

Each takes one argument, its message; what else it carries is set as attributes, so that errors
pickle and travel between processes whole.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .model import HolderInfo, WaitEdge

__all__ = [
    "BrokenBarrierError",
    "Conflict",
    "Deadlock",
    "EngineUnavailable",
    "HoldfastError",
    "InvalidArgument",
    "LockLost",
    "LockTimeout",
    "LossReason",
    "NotHeld",
    "ReplayedError",
    "StaleToken",
    "Unsupported",
]

LossReason = Literal["expired", "stolen", "unreachable", "broken", "max_hold", "forked", "together"]
"""Why a lease was lost. ``forked``: this process is a forked child; the grant is its parent's. ``together``:
another lock of the same ``all()`` was lost."""


class HoldfastError(Exception):
    """The root of every error raised by Holdfast."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else ""


class LockTimeout(HoldfastError, TimeoutError):
    """The lock was not granted in time. ``holders`` held it when last checked."""

    name: str = ""
    holders: tuple[HolderInfo, ...] = ()


class LockLost(HoldfastError):
    """The grant can no longer be relied on. Loss is final: acquire again to go on."""

    name: str = ""
    token: int | None = None
    reason: LossReason = "expired"


class NotHeld(HoldfastError, RuntimeError):
    """A caller that does not hold the lock asked for something that only the holder may do."""

    name: str = ""


class StaleToken(HoldfastError):
    """A guard has seen a newer grant than the one this token belongs to."""

    resource: str = ""
    token: int | None = None
    newest: int | None = None


class Conflict(HoldfastError):
    """Another writer changed it first; read again and decide again.

    ``version`` is the version found in the row or the cell, where one was looked for."""

    name: str = ""
    version: object = None


class Deadlock(HoldfastError):
    """Waiting would never end: several holders wait for each other, the holder of the read side of a
    reader/writer lock asks for its write side, or a database found transactions that wait for each other.

    ``cycle``: each waiter with the name that it waits for and its holder; the last holder is the first
    waiter."""

    name: str = ""
    cycle: tuple[WaitEdge, ...] = ()


class ReplayedError(HoldfastError):
    """An operation that runs once has failed before, and its error was kept to be raised again.

    It stands for that error where its class cannot be found or made. ``error_type`` is the name of the class,
    ``error_text`` what the error said."""

    error_type: str = ""
    error_text: str = ""


class BrokenBarrierError(HoldfastError, threading.BrokenBarrierError):
    """A party of the barrier died or gave up waiting, or the barrier was aborted or reset meanwhile."""

    name: str = ""


class EngineUnavailable(HoldfastError, ConnectionError):
    """The engine cannot be reached, or refuses to work. No lock is taken for held that is not."""

    nothing_was_sent: bool = False
    """The request never left this process, so nothing of it can be in the engine."""


class Unsupported(HoldfastError):
    """This engine cannot do that. The message names one that can."""


class InvalidArgument(HoldfastError, ValueError):
    """Bad input, refused before any I/O."""
