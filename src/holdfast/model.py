"""The values a user sees: frozen, slotted, no behaviour beyond describing themselves."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

__all__ = [
    "UNSET",
    "Fence",
    "Guarantees",
    "HolderInfo",
    "Kind",
    "Leader",
    "LockInfo",
    "Mode",
    "Run",
    "RunState",
    "Unset",
    "WaitEdge",
    "WaiterInfo",
]


class Unset(enum.Enum):
    """The type of ``UNSET``: "use the lock's own setting", where None already means something."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET

Kind = Literal["lock", "rwlock", "semaphore"]
"""What a name is. ``lock`` and ``rlock`` are the same kind."""

Mode = Literal["exclusive", "read", "write", "permit"]
"""How a grant holds its name."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What a guard stores of a grant: the source of the number, the number, and which grant it was.

    Numbers of two sources do not compare; two grants of one number (after a server forgot) differ
    by their nonce.
    """

    source: str
    token: int
    nonce: str


@dataclass(frozen=True, slots=True)
class HolderInfo:
    """A holder of a name, as the engine reports it."""

    owner: str
    """``host/pid/thread-or-task``, for people."""
    client: str
    host: str
    pid: int
    thread: str
    """Name of the thread or task that acquired it."""
    mode: Mode
    token: int
    age: float
    """Seconds since the grant."""
    remaining: float
    """Seconds until it expires unless renewed."""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WaiterInfo:
    """A waiter for a name. Waiters are listed in the order in which they will be served."""

    owner: str
    client: str
    host: str
    pid: int
    thread: str
    mode: Mode
    age: float
    """Seconds since it began to wait."""


@dataclass(frozen=True, slots=True)
class LockInfo:
    """What ``client.inspect`` reports about one name."""

    name: str
    kind: Kind | None
    """None: the name was never used, or not for longer than its record is kept."""
    holders: tuple[HolderInfo, ...] = ()
    waiters: tuple[WaiterInfo, ...] = ()
    value: bytes | None = None
    limit: int | None = None
    """The current limit of a semaphore."""
    token: int = 0
    """The newest token minted for this name."""

    @property
    def locked(self) -> bool:
        return bool(self.holders)


RunState = Literal["running", "done", "failed", "crashed"]
"""How far a run of a job came. ``failed``: its body raised an error. ``crashed``: it began, and its end was
never stored: its process died, was interrupted, or lost the lock."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job, as the engine remembers it. Moments are seconds since 1970, by the engine's clock where
    it has one."""

    started: float
    ended: float | None
    """None: it runs, or crashed."""
    owner: str
    """``host/pid/thread-or-task``, for people."""
    result: Any = None
    """What it stored as its result: any JSON value."""
    error: str | None = None
    state: RunState = "running"
    token: int = 0
    """The fencing token of its lease."""
    due: float = 0.0
    """The firing that it ran for: the schedule counts from here."""
    next_due: float | None = None
    """When the next run may begin; None: at any time."""
    missed: int = 0
    """Firings at which nothing ran and that no run has made up for, until now."""
    every: float | None = None
    at_least: float = 0.0

    @property
    def duration(self) -> float | None:
        """Seconds from its start to its end."""
        return None if self.ended is None else self.ended - self.started


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """One step of a cycle of waiters: a thread or task that waits, and the grant that it waits for."""

    owner: str
    """The waiter: ``host/pid/thread-or-task``."""
    client: str
    name: str
    """The name that it waits for."""
    mode: Mode
    """How it wants to hold it."""
    held_by: str
    """The owner that holds the name, and waits itself: the ``owner`` of the next step."""
    token: int
    """The token of that grant."""
    is_victim: bool
    """This waiter gets ``Deadlock``. Where no waiter of the cycle asked for that, there is no victim."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of an election, as ``leader()`` and ``observe()`` report it."""

    value: bytes
    """What it proclaimed, for example its address."""
    token: int
    """The number of its term, and its fencing token: larger than that of every earlier term."""
    owner: str
    """``host/pid/thread-or-task``, for people."""


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What an engine promises, as data: the documents and ``holdfast guarantees`` are made from it.

    The booleans, ``scope`` and ``primitives`` are for code; the texts are for people, and no code reads them.
    """

    engine: str
    scope: Literal["process", "user", "machine", "cluster"]
    """How far the exclusion reaches."""
    fencing: str
    """Where tokens come from, and when they can regress."""
    fifo: str
    crash_release: str
    """When the lock of a dead holder is free again."""
    loss_signal: str
    """When a holder is notified that it lost the lock."""
    primitives: tuple[str, ...]
    needs: tuple[str, ...]
    """What must be true for the promises to hold."""
    faults: Mapping[str, str]
    """Each fault of the matrix → kept, fenced, refused or loss signalled, and how."""
    is_fifo: bool
    """The engine serves waiters in order of arrival, so ``fair=True`` is possible."""
    can_barge: bool
    """``fair=False`` lets a new request overtake waiters. False: the option changes nothing."""
    has_counted_queue: bool
    """The engine reports a waiter's position among all clients, so ``max_waiters`` can be enforced."""
    has_values: bool
    """``lease.set_value`` works."""
    has_cells: bool
    """``client.cell`` and ``client.counter`` work."""
    can_export: bool
    """``lease.export`` and ``client.adopt`` hand a lease to another process."""
    has_timed_tokens: bool = False
    """A token is the engine's clock in microseconds, unless that would not be larger than the last one."""
