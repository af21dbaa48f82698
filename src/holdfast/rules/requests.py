"""The requests to a record and the replies.

Every request is a value. Every reply says which of a few things happened. Nothing here has an effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .record import REFRESH_SECONDS, Holder, Record

__all__ = [
    "Absent",
    "Acquire",
    "Adopt",
    "Break",
    "Broken",
    "Busy",
    "CellState",
    "Done",
    "Downgrade",
    "Exhausted",
    "Export",
    "Gone",
    "Granted",
    "Handoff",
    "Inspect",
    "Mismatch",
    "Queued",
    "ReadCell",
    "Refresh",
    "Release",
    "Renew",
    "Reply",
    "Request",
    "Resize",
    "SetValue",
    "Snapshot",
    "Stop",
    "SwapCell",
    "Unwatch",
    "Wake",
    "Watch",
    "Withdraw",
    "Withdrawn",
]


# --- requests -----------------------------------------------------------------------------------


class Acquire(NamedTuple):
    """Acquire the lock. A request with the same nonce is the same attempt, whatever its first reply."""

    nonce: str
    client: str
    owner: str
    kind: str
    mode: str
    ttl: float
    wait: bool
    """Queue if it is not granted now."""
    fair: bool = True
    """False: take the lock whenever it is free, ahead of the queue."""
    renews: bool = True
    max_hold: float | None = None
    limit: int = 0
    """The declared limit of a semaphore."""
    metadata: Mapping[str, str] = {}


class Release(NamedTuple):
    """Release the grant. ``linger``: how long a late copy of the attempt is refused."""

    nonce: str
    linger: float = 0.0


class Withdraw(NamedTuple):
    """End an attempt, whether it was granted, is queued, or has yet to arrive."""

    nonce: str
    linger: float = 0.0


class Renew(NamedTuple):
    """Extend the lease to ``ttl`` from now."""

    nonce: str
    ttl: float


class Refresh(NamedTuple):
    """Extend a place in the queue or a watch, and read the position."""

    nonce: str


class Stop(NamedTuple):
    """Let the lease expire: the client's renewals no longer extend it."""

    nonce: str


class Export(NamedTuple):
    """Keep the grant for one ttl without a client, for another process to adopt."""

    nonce: str
    seal: str
    """A hash of the secret that the adopter has to know. It replaces the owner meanwhile."""


class Adopt(NamedTuple):
    """Take over an exported grant, with its token."""

    nonce: str
    client: str
    owner: str
    seal: str
    """The hash with which the grant was last exported."""
    renews: bool = True


class Downgrade(NamedTuple):
    """Turn a write grant into a read grant with a new token."""

    nonce: str
    reader_nonce: str


class Break(NamedTuple):
    """Take the lock from its holders, or only from the grant ``token``, if given."""

    token: int | None
    reason: str


class SetValue(NamedTuple):
    """Store the value of the name. Only a current holder may."""

    nonce: str
    data: bytes
    retention: float


class ReadCell(NamedTuple):
    """Read a cell: a value that needs no holder, and changes by compare-and-swap alone."""


class SwapCell(NamedTuple):
    """Store these bytes in a cell if its version is still the expected one."""

    expected: int
    """0: the cell was never set."""
    data: bytes


class Resize(NamedTuple):
    """Change a semaphore's current limit."""

    declared: int
    limit: int


class Watch(NamedTuple):
    """Notify this client of every change."""

    nonce: str
    client: str


class Unwatch(NamedTuple):
    """End the notifications of ``Watch``."""

    nonce: str


class Inspect(NamedTuple):
    """Read the record."""


Request = (
    Acquire
    | Release
    | Withdraw
    | Renew
    | Refresh
    | Stop
    | Export
    | Adopt
    | Downgrade
    | Break
    | SetValue
    | ReadCell
    | SwapCell
    | Resize
    | Watch
    | Unwatch
    | Inspect
)


# --- replies ------------------------------------------------------------------------------------


class Granted(NamedTuple):
    token: int
    peers: tuple[int, ...]
    """The tokens of the shared grants held at the same time."""
    kind: str
    mode: str
    ttl: float
    lasts: float | None
    """Seconds until ``max_hold`` ends the lease despite renewals; None: no limit."""
    metadata: Mapping[str, str]
    age: float = 0.0
    """The ttl counts from this many seconds before the request: a session that carries it existed before."""


class Busy(NamedTuple):
    """Not granted, and nothing of the attempt is stored."""

    holders: tuple[Holder, ...]
    now: float


class Queued(NamedTuple):
    """Not granted yet; the attempt has a place in the queue."""

    position: int
    """0: the attempt gets the next turn."""
    poll_after: float
    """Seconds after which to poll at the latest."""
    blockers: tuple[str, ...]
    """The clients whose death would unblock the attempt."""
    refresh_in: float = REFRESH_SECONDS
    """Seconds after which to refresh the place at the latest."""


class Withdrawn(NamedTuple):
    """The attempt has ended and nothing of it remains."""

    holders: tuple[Holder, ...]
    now: float


class Gone(NamedTuple):
    """The grant does not exist any more."""

    reason: str
    """``expired``, ``stolen``, ``broken`` or ``withdrawn``."""
    note: str = ""


class Absent(NamedTuple):
    """There is no such place in the queue."""


class Broken(NamedTuple):
    """The grants that were broken, and the token that fences them (None: there were none)."""

    token: int | None
    victims: tuple[Holder, ...]


class Mismatch(NamedTuple):
    """The name is used for another kind of lock, or with another limit."""

    kind: str
    limit: int


class Exhausted(NamedTuple):
    """No larger token is left."""


class Done(NamedTuple):
    """The request was carried out."""

    age: float = 0.0
    """Of a renewal: the ttl counts from this many seconds before the request, as for ``Granted``."""


class CellState(NamedTuple):
    """A cell after the request."""

    version: int
    """Grows with every change; 0: the cell was never set."""
    data: bytes | None
    """None: the cell was never set, or it has just been set to what the request said."""
    swapped: bool = False
    """The request changed the cell. Otherwise its version was another one."""


class Snapshot(NamedTuple):
    """The record at ``now``."""

    record: Record
    now: float


Reply = (
    Granted
    | Busy
    | Queued
    | Withdrawn
    | Gone
    | Absent
    | Broken
    | Mismatch
    | Exhausted
    | Done
    | CellState
    | Snapshot
)


class Handoff(NamedTuple):
    """A grant that comes with a wake-up: the waiter holds the lock already."""

    token: int
    age: float
    """How long the waiter had its place in the queue at that moment."""


class Wake(NamedTuple):
    """A wake-up to send after the change is stored, with the lock if it was handed over."""

    client: str
    nonce: str
    handed: Handoff | None = None
