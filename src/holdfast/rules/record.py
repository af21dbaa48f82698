"""What an engine keeps about one name, and nothing about how it is kept.

Times are seconds on the engine's own clock (``now``); only what outlives a reboot, retentions, is
told in wall time. Records are tuples: cheap to make, impossible to change by accident, and they
become JSON as they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

__all__ = [
    "EMPTY",
    "MAX_TOKEN",
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
    "cover",
    "is_brief",
    "is_idle",
    "rebase",
]

TURN_SECONDS: Final = 2.0
"""How long a waiter whose turn has come may take to claim the lock before it loses its place."""

PATIENCE_SECONDS: Final = 5.0
"""How long a queue entry lives without its client saying that it still waits."""

REFRESH_SECONDS: Final = 1.0
"""How often a waiter tells the engine that it still waits, and hears where it stands."""

WAITER_METADATA_MAX: Final = 256
"""So many characters of metadata are kept with a place in the queue at most."""

RETENTION_SECONDS: Final = 86_400.0
"""How long an idle record is kept, counted from its last change."""

MAX_TOKEN: Final = 2**53
"""Tokens stay below this, so that every engine and every JSON reader has them exactly (until 2255)."""


class Holder(NamedTuple):
    """One grant."""

    nonce: str
    client: str
    """Whose life this grant hangs on; empty while it is handed over from one process to another."""
    owner: str
    """The holder, for people; the seal of its secret while it is handed over."""
    mode: str
    token: int
    since: float
    expires_at: float
    ttl: float
    renews: bool
    """Whether the client's renewals extend it."""
    until: float | None
    """No renewal extends it beyond this (``max_hold``)."""
    metadata: Mapping[str, str]


class Wants(NamedTuple):
    """What one who waits will hold, where it can be handed over."""

    ttl: float
    renews: bool
    metadata: Mapping[str, str]


def is_brief(metadata: Mapping[str, str]) -> bool:
    """Whether it may stand in the queue, which is read and written at every step, and so has to stay small.

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
    """When its turn began; None while others are before it."""
    wants: Wants | None = None
    """None: it takes the lock by itself."""


class Tombstone(NamedTuple):
    """An attempt that was ended by other means than its own release: kept so that it can be told."""

    nonce: str
    reason: str
    """``withdrawn`` or ``broken``."""
    note: str
    forget_at: float


class Watcher(NamedTuple):
    """One who wants to hear of every change."""

    nonce: str
    client: str
    expires_at: float


class StoredValue(NamedTuple):
    """The small value that a name carries; it outlives the grant that set it."""

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
    """Nobody holds it and nobody waits for it."""
    return not record.holders and not record.queue


def capped(expires_at: float, until: float | None) -> float:
    """An expiry that respects ``max_hold``."""
    return expires_at if until is None or expires_at < until else until


def cover(record: Record, renewed_at: Mapping[str, float]) -> Record:
    """The record as the clients' own renewals make it.

    An engine that renews a client as a whole (one row instead of one write for each lease) stores
    when that was; here it reaches the leases and the places in the queue of that client.
    """
    if not renewed_at:
        return record
    holders = [_covered_holder(holder, renewed_at.get(holder.client)) for holder in record.holders]
    queue = [_covered_waiter(waiter, renewed_at.get(waiter.client)) for waiter in record.queue]
    return record._replace(holders=tuple(holders), queue=tuple(queue))


def _covered_holder(holder: Holder, renewed_at: float | None) -> Holder:
    if renewed_at is None or not holder.renews:
        return holder
    expires_at = capped(renewed_at + holder.ttl, holder.until)
    return holder if expires_at <= holder.expires_at else holder._replace(expires_at=expires_at)


def _covered_waiter(waiter: Waiter, renewed_at: float | None) -> Waiter:
    if renewed_at is None or renewed_at + PATIENCE_SECONDS <= waiter.expires_at:
        return waiter
    return waiter._replace(expires_at=renewed_at + PATIENCE_SECONDS)


def rebase(record: Record, now: float) -> Record:
    """The record with its times told anew, where the stored ones belong to a clock that does not compare.

    Everyone gets the full time again: late is safe, early is not.
    """
    fields: dict[str, Any] = {
        "holders": tuple(
            h._replace(
                since=now,
                expires_at=now + h.ttl,
                until=None if h.until is None else now + (h.until - h.since),
            )
            for h in record.holders
        ),
        "queue": tuple(
            w._replace(
                since=now, expires_at=now + PATIENCE_SECONDS, turn_at=None if w.turn_at is None else now
            )
            for w in record.queue
        ),
        "ended": tuple(e._replace(forget_at=now + RETENTION_SECONDS) for e in record.ended),
        "watchers": tuple(w._replace(expires_at=now + PATIENCE_SECONDS) for w in record.watchers),
    }
    return record._replace(**fields)
