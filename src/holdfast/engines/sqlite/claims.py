"""What the clients in a record claim, and what is left of the record without a client. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...rules.queueing import blockers, drop_clients, poll_after
from ...rules.record import PATIENCE_SECONDS, Holder, Record
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
    "watch_expires_soon",
    "without_client",
]


def holder_of(record: Record, nonce: str) -> Holder | None:
    for holder in record.holders:
        if holder.nonce == nonce:
            return holder
    return None


def is_decided_without_others(record: Record, ask: Acquire) -> bool:
    """Whether the reply does not depend on other clients being alive.

    That is so if the attempt was handed the lock, has its turn, or is new in the queue.
    """
    for holder in record.holders:
        if holder.nonce == ask.nonce:
            return True
    for waiter in record.queue:
        if waiter.nonce == ask.nonce:
            return waiter.turn_at is not None
    return ask.wait


def expiry_guards(view: RecordView, now: float) -> Sequence[Guard]:
    """The clients whose leases a decision at ``now`` takes for expired, with their last known renewals."""
    return [
        (holder.client, view.renewed_at[holder.client])
        for holder in view.record.holders
        if holder.expires_at <= now
        and holder.renews
        and holder.client in view.renewed_at
        and holder.client not in view.dead
    ]


def watch_expires_soon(record: Record, nonce: str, now: float) -> bool:
    """Whether a watcher has to be refreshed in the record: renewals extend only leases and queue places."""
    return any(w.nonce == nonce and w.expires_at < now + PATIENCE_SECONDS / 2 for w in record.watchers)


def keeps_place(before: Record, after: Record, nonce: str, now: float) -> bool:
    """Whether a waiting attempt would change only how long its place in the queue is kept.

    The renewals of its client extend its place anyway, so polling needs no write. In a long queue every
    waiter polls, and each would write the whole record.
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
    """The replies of the rule to all waiters of one name, decided once."""

    __slots__ = ("_now", "_places", "_record")

    def __init__(self, view: RecordView, now: float) -> None:
        reply = apply(view.record, Inspect(), now, 0, view.dead).reply
        self._record = reply.record if isinstance(reply, Snapshot) else view.record
        self._places = {waiter.nonce: place for place, waiter in enumerate(self._record.queue)}
        self._now = now

    def reply_to(self, nonce: str) -> Reply:
        place = self._places.get(nonce)
        if place is not None:
            return Queued(place, poll_after(self._record, place, self._now), blockers(self._record, place))
        watches = any(w.nonce == nonce and w.expires_at > self._now for w in self._record.watchers)
        return Done() if watches else Absent()


def without_client(record: Record, client: str, now: float) -> tuple[Record, tuple[Wake, ...]]:
    """The record without the claims of a dead client, and the wake-ups that this causes.

    Expiry is ignored: only the rows of the other clients could say whether their leases have expired.
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
