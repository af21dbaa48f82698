"""What an engine stores about one name, independent of how it is stored.

Times are seconds on the engine's own clock (``now``). Only retentions, which outlive a reboot, are in wall
time. Records are tuples: they are cheap to create, cannot be changed by accident, and become JSON directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = [
    "EMPTY",
    "MAX_TOKEN",
    "NEVER_US",
    "PATIENCE_SECONDS",
    "REFRESH_SECONDS",
    "RETENTION_SECONDS",
    "TURN_SECONDS",
    "WAITER_METADATA_MAX",
    "Holder",
    "Record",
    "StoredValue",
    "Tombstone",
    "Waiter",
    "Wants",
    "Watcher",
    "capped",
    "is_brief",
    "is_idle",
]

TURN_SECONDS: Final = 2.0
"""How long a waiter whose turn has come may take to claim the lock before it loses its place."""

PATIENCE_SECONDS: Final = 5.0
"""How long a place in the queue lasts unless its client refreshes it."""

REFRESH_SECONDS: Final = 1.0
"""How often a waiter refreshes its place in the queue and reads its position."""

WAITER_METADATA_MAX: Final = 256
"""The most characters of metadata that are kept with a place in the queue."""

RETENTION_SECONDS: Final = 86_400.0
"""How long an idle record is kept, counted from its last change."""

MAX_TOKEN: Final = 2**53
"""Tokens stay below this, so that every engine and JSON reader represents them exactly (until 2255)."""

NEVER_US: Final = MAX_TOKEN
"""The expiry of a value that does not expire."""


class Holder(NamedTuple):
    """One grant."""

    nonce: str
    client: str
    """The client whose death ends this grant; empty while it is exported to another process."""
    owner: str
    """The holder, for people to read; the hash of the secret while the grant is exported."""
    mode: str
    token: int
    since: float
    expires_at: float
    ttl: float
    renews: bool
    """Whether the client's renewals extend it."""
    until: float | None
    """No renewal extends the lease beyond this (``max_hold``)."""
    metadata: Mapping[str, str]


class Wants(NamedTuple):
    """The lease that a waiter wants, if the lock can be handed over to it."""

    ttl: float
    renews: bool
    metadata: Mapping[str, str]


def is_brief(metadata: Mapping[str, str]) -> bool:
    """Whether metadata is short enough for the queue, which is read and written with every change.

    A waiter with longer metadata takes the lock by itself when its turn has come.
    """
    return sum(map(len, metadata)) + sum(map(len, metadata.values())) <= WAITER_METADATA_MAX


class Waiter(NamedTuple):
    """One place in the queue."""

    nonce: str
    client: str
    owner: str
    mode: str
    since: float
    expires_at: float
    turn_at: float | None
    """When its turn began; None while other waiters are before it."""
    wants: Wants | None = None
    """None: the waiter takes the lock by itself when its turn has come."""


class Tombstone(NamedTuple):
    """An attempt that ended otherwise than by its own release. It is kept so that its client learns why."""

    nonce: str
    reason: str
    """``withdrawn`` or ``broken``."""
    note: str
    forget_at: float


class Watcher(NamedTuple):
    """An observer that is notified of every change."""

    nonce: str
    client: str
    expires_at: float


class StoredValue(NamedTuple):
    """The small value of a name. It outlives the grant that set it."""

    data: bytes
    token: int
    forget_at_us: int
    """Wall time, in microseconds."""


class Record(NamedTuple):
    """Everything about one name."""

    kind: str | None = None
    token: int = 0
    holders: tuple[Holder, ...] = ()
    queue: tuple[Waiter, ...] = ()
    limit: int = 0
    declared: int = 0
    value: StoredValue | None = None
    ended: tuple[Tombstone, ...] = ()
    watchers: tuple[Watcher, ...] = ()


EMPTY: Final = Record()


def is_idle(record: Record) -> bool:
    """Whether the lock has no holder and no waiter."""
    return not record.holders and not record.queue


def capped(expires_at: float, until: float | None) -> float:
    """The expiry, limited by ``max_hold``."""
    return expires_at if until is None or expires_at < until else until
