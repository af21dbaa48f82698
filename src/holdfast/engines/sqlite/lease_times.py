"""The times in a record: extended by the renewals of the clients, and moved to another clock. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...rules.record import PATIENCE_SECONDS, RETENTION_SECONDS, Holder, Record, Waiter, capped

__all__ = ["apply_renewals", "lease_ends_at", "rebase"]


def lease_ends_at(holder: Holder, renewed_at: float) -> float:
    """When a lease ends, given when its client last renewed."""
    if not holder.renews:
        return holder.expires_at
    return max(holder.expires_at, capped(renewed_at + holder.ttl, holder.until))


def apply_renewals(record: Record, renewed_at: Mapping[str, float]) -> Record:
    """The record with the renewals of its clients applied.

    The engine renews a client as a whole: one row instead of one write for each lease. The row says when the
    client renewed, and that extends the leases and the places in the queue of the client.
    """
    if not renewed_at:
        return record
    holders = [_renewed_holder(holder, renewed_at.get(holder.client)) for holder in record.holders]
    queue = [_renewed_waiter(waiter, renewed_at.get(waiter.client)) for waiter in record.queue]
    return record._replace(holders=tuple(holders), queue=tuple(queue))


def _renewed_holder(holder: Holder, renewed_at: float | None) -> Holder:
    if renewed_at is None or not holder.renews:
        return holder
    expires_at = capped(renewed_at + holder.ttl, holder.until)
    return holder if expires_at <= holder.expires_at else holder._replace(expires_at=expires_at)


def _renewed_waiter(waiter: Waiter, renewed_at: float | None) -> Waiter:
    if renewed_at is None or renewed_at + PATIENCE_SECONDS <= waiter.expires_at:
        return waiter
    return waiter._replace(expires_at=renewed_at + PATIENCE_SECONDS)


def rebase(record: Record, now: float) -> Record:
    """The record with new times, where the stored ones are of a clock that does not compare with this one.

    Every holder and waiter gets its full time again: to expire late is safe, to expire early is not.
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
