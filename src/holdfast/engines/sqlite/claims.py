"""What clients claim of a record: until when, and what is left of it without them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...rules.queueing import blockers, drop_clients, poll_after
from ...rules.record import PATIENCE_SECONDS, Holder, Record, capped
from ...rules.requests import Absent, Acquire, Done, Inspect, Queued, Reply, Snapshot, Wake
from ...rules.transitions import ADMITS, apply
from .clients import RecordView
from .records import Guard

__all__ = [
    "QueueView",
    "expiry_guards",
    "holder_of",
    "is_decided_without_others",
    "keeps_place",
    "lease_ends_at",
    "watch_expires_soon",
    "without_client",
]


def holder_of(record: Record, nonce: str) -> Holder | None:
    for holder in record.holders:
        if holder.nonce == nonce:
            return holder
    return None


def is_decided_without_others(record: Record, ask: Acquire) -> bool:
    """Whether what an attempt gets does not hang on others being alive: it was handed the lock, has its turn,
    or is new here."""
    for holder in record.holders:
        if holder.nonce == ask.nonce:
            return True
    for waiter in record.queue:
        if waiter.nonce == ask.nonce:
            return waiter.turn_at is not None
    return ask.wait


def lease_ends_at(holder: Holder, renewed_at: float) -> float:
    """Until when a lease lasts, given when its client last renewed."""
    if not holder.renews:
        return holder.expires_at
    return max(holder.expires_at, capped(renewed_at + holder.ttl, holder.until))


def expiry_guards(view: RecordView, now: float) -> Sequence[Guard]:
    """Whose leases a decision at ``now`` takes for expired: it holds only while they have not renewed."""
    return [
        (holder.client, view.renewed_at[holder.client])
        for holder in view.record.holders
        if holder.expires_at <= now
        and holder.renews
        and holder.client in view.renewed_at
        and holder.client not in view.dead
    ]


def watch_expires_soon(record: Record, nonce: str, now: float) -> bool:
    """Renewals reach leases and places in the queue; who watches is refreshed in the record, in good time."""
    return any(w.nonce == nonce and w.expires_at < now + PATIENCE_SECONDS / 2 for w in record.watchers)


def keeps_place(before: Record, after: Record, nonce: str, now: float) -> bool:
    """Whether an attempt that waits already would change nothing but how long its place is kept.

    That its client's renewals see to, so that looking again needs no writing: not with a long queue,
    where everybody looks now and then and each would write all of it.
    """
    if before.holders != after.holders or len(before.queue) != len(after.queue):
        return False
    for old, new in zip(before.queue, after.queue, strict=True):
        if old is not new and (
            old.nonce != nonce or new.turn_at != old.turn_at or old.expires_at < now + PATIENCE_SECONDS / 2
        ):
            return False
    return before.ended == after.ended


class QueueView:
    """Where all those stand who wait for one name: what the rule tells each, without asking it for each."""

    __slots__ = ("_now", "_places", "_record")

    def __init__(self, view: RecordView, now: float) -> None:
        told = apply(view.record, Inspect(), now, 0, view.dead).reply
        self._record = told.record if isinstance(told, Snapshot) else view.record
        self._places = {waiter.nonce: place for place, waiter in enumerate(self._record.queue)}
        self._now = now

    def of(self, nonce: str) -> Reply:
        place = self._places.get(nonce)
        if place is not None:
            return Queued(place, poll_after(self._record, place, self._now), blockers(self._record, place))
        watches = any(w.nonce == nonce and w.expires_at > self._now for w in self._record.watchers)
        return Done() if watches else Absent()


def without_client(record: Record, client: str, now: float) -> tuple[Record, tuple[Wake, ...]]:
    """The record without all that a dead client claims, and who is to be told of it.

    Time is left out of it: whether others' leases have run out only their own rows could tell.
    """
    after = drop_clients(record, {client}, now, ADMITS[record.kind])
    if after is record:
        return record, ()
    had_turn = {waiter.nonce for waiter in record.queue if waiter.turn_at is not None}
    wakes = [
        Wake(waiter.client, waiter.nonce)
        for waiter in after.queue
        if waiter.turn_at is not None and waiter.nonce not in had_turn
    ]
    return after, (*wakes, *(Wake(watcher.client, watcher.nonce) for watcher in after.watchers))
