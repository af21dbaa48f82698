"""What clients claim of a record: until when, and what is left of it without them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...rules.record import PATIENCE_SECONDS, Holder, Record, capped
from ...rules.requests import Release, Request, Unwatch, Withdraw
from ...rules.transitions import Step, apply_in_order
from .census import View
from .table import Guard

__all__ = ["ends_at", "expired", "holder_of", "watches_not_much_longer", "without"]


def holder_of(record: Record, nonce: str) -> Holder | None:
    for holder in record.holders:
        if holder.nonce == nonce:
            return holder
    return None


def ends_at(holder: Holder, renewed_at: float) -> float:
    """Until when a lease lasts, given when its client last renewed."""
    if not holder.renews:
        return holder.expires_at
    return max(holder.expires_at, capped(renewed_at + holder.ttl, holder.until))


def expired(view: View, now: float) -> Sequence[Guard]:
    """Whose leases a decision at ``now`` takes for expired: it holds only while they have not renewed."""
    return [
        (holder.client, view.renewed_at[holder.client])
        for holder in view.record.holders
        if holder.expires_at <= now
        and holder.renews
        and holder.client in view.renewed_at
        and holder.client not in view.dead
    ]


def watches_not_much_longer(record: Record, nonce: str, now: float) -> bool:
    """Renewals reach leases and places in the queue; who watches is refreshed in the record, in good time."""
    return any(w.nonce == nonce and w.expires_at < now + PATIENCE_SECONDS / 2 for w in record.watchers)


def without(record: Record, client: str, now: float, wall: int) -> list[Step]:
    """The steps that take out of a record all that a client claims; none: it claims nothing."""
    ends: list[Request] = [Release(h.nonce) for h in record.holders if h.client == client]
    ends += [Withdraw(w.nonce) for w in record.queue if w.client == client]
    ends += [Unwatch(w.nonce) for w in record.watchers if w.client == client]
    return apply_in_order({"": record}, [("", end) for end in ends], now, wall, False)
