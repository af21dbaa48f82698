"""The directory of clients: which clients in a record are dead, and when the others last renewed.

A client's renewal is one row, not one write for each lease. So the expiry times in a record are completed
here from the rows of the clients in it. A dead client is marked in its row before its files are removed, so
that its claims stay void.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from ...rules.queueing import blockers, drop_clients, poll_after
from ...rules.record import PATIENCE_SECONDS, RETENTION_SECONDS, Holder, Record, Waiter, capped
from ...rules.requests import Absent, Acquire, Done, Inspect, Queued, Reply, Snapshot, Wake
from ...rules.transitions import ADMITS, apply
from ...runtime.clock import wall_us
from .liveness import Identity, Status, alive_name, probe
from .records import Execute, Guard
from .side_directory import SideDirectory
from .sockets import socket_name

__all__ = [
    "Client",
    "ClientDirectory",
    "QueueView",
    "RecordView",
    "apply_renewals",
    "expiry_guards",
    "holder_of",
    "is_decided_without_others",
    "keeps_place",
    "lease_ends_at",
    "rebase",
    "watch_expires_soon",
    "without_client",
]

ROWS_PER_QUERY: Final = 500

KNOWN_MAX: Final = 10_000


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


class Client(NamedTuple):
    """A row of the clients table."""

    renewed_at: float
    dead: int
    joined: int
    identity: Identity


class RecordView(NamedTuple):
    """A record as it is now, with its clients' renewals and deaths."""

    record: Record
    dead: frozenset[str]
    renewed_at: Mapping[str, float]
    """The renewals as stored. A change that takes a client for expired is void if its row has changed."""


@cache
def _select(count: int) -> str:
    marks = ",".join("?" * count)
    return (
        "SELECT id, renewed_at, dead, joined, boot, pid, pid_namespace, started, host "  # noqa: S608 - marks only
        f"FROM clients WHERE id IN ({marks})"
    )


class ClientDirectory:
    """What one client knows about the other clients."""

    def __init__(
        self, side: SideDirectory, us: Identity, renewed_here: Callable[[str], float | None]
    ) -> None:
        self._side = side
        self._us = us
        self._local_renewal = renewed_here
        """When a client of this process last renewed; None: it belongs to another process."""
        self._known: dict[str, Client] = {}
        self._first_seen: dict[str, tuple[float, float]] = {}

    def known_identity(self, client: str) -> Identity | None:
        """The identity in a client's row when it was last read."""
        row = self._known.get(client)
        return None if row is None else row.identity

    # --- looking --------------------------------------------------------------------------------

    def view(
        self, execute: Execute, record: Record, boot: str, now: float, nonce: str = "", fresh: bool = False
    ) -> RecordView:
        """The record with its clients' renewals applied, and its dead clients.

        ``nonce``: the attempt that asks. Only the clients that block it are probed. ``fresh``: read every
        row, also those of clients in this process.
        """
        same_clock = boot == self._us.boot
        clients = _clients_of(record)
        rows = self._rows(execute, clients, fresh)
        dead = self._dead(execute, rows, _blocking(record, nonce) if same_clock else clients)
        renewed = {client: row.renewed_at for client, row in rows.items() if row is not None}
        if not same_clock:
            record = rebase(record, now)
        return RecordView(apply_renewals(record, self._comparable(rows, now)), dead, renewed)

    def _rows(self, execute: Execute, clients: Iterable[str], fresh: bool) -> dict[str, Client | None]:
        rows: dict[str, Client | None] = {}
        strangers = []
        for client in clients:
            renewed_at = None if fresh else self._local_renewal(client)
            if renewed_at is None:
                strangers.append(client)
            else:
                rows[client] = Client(renewed_at, 0, 0, self._us)
        if strangers:
            rows |= self.load(execute, strangers)
        return rows

    def load(self, execute: Execute, clients: list[str]) -> dict[str, Client | None]:
        rows: dict[str, Client | None] = dict.fromkeys(clients)
        for start in range(0, len(clients), ROWS_PER_QUERY):
            some = clients[start : start + ROWS_PER_QUERY]
            for row in execute(_select(len(some)), some):
                rows[row[0]] = _client(row)
        if len(self._known) > KNOWN_MAX:
            self._known.clear()
        self._known.update((client, row) for client, row in rows.items() if row is not None)
        return rows

    def _comparable(self, rows: Mapping[str, Client | None], now: float) -> dict[str, float]:
        """The renewals on this client's clock.

        A renewal on another clock (in another container) counts from when it was first seen: late is safe.
        """
        times = {}
        for client, row in rows.items():
            if row is None:
                continue
            if row.identity.boot == self._us.boot:
                times[client] = row.renewed_at
                continue
            stored, seen_at = self._first_seen.get(client, (None, now))
            if stored != row.renewed_at:
                if len(self._first_seen) > KNOWN_MAX:
                    self._first_seen.clear()
                seen_at = now
                self._first_seen[client] = (row.renewed_at, now)
            times[client] = seen_at
        return times

    # --- the dead -------------------------------------------------------------------------------

    def _dead(
        self, execute: Execute, rows: Mapping[str, Client | None], suspects: Iterable[str]
    ) -> frozenset[str]:
        dead = {client for client, row in rows.items() if row is not None and row.dead}
        for client in suspects:
            if client in dead or self._local_renewal(client) is not None:
                continue
            row = rows.get(client)
            status = self.probe(client, None if row is None else row.identity)
            # No row: the client unregistered, or died long ago. Every claim was made by a registered client.
            if status is Status.DEAD or (row is None and status is Status.UNKNOWN):
                dead.add(client)
                if row is not None:
                    self.mark_dead(execute, client, row)
        return frozenset(dead)

    def probe(self, client: str, them: Identity | None) -> Status:
        return probe(self._side, client, them, self._us)

    def mark_dead(self, execute: Execute, client: str, row: Client) -> None:
        """Mark a client dead, then remove its files. Their absence alone would mean "unknown"."""
        try:
            noted = execute(
                "UPDATE clients SET dead = ? WHERE id = ? AND joined = ? AND dead = 0",
                (wall_us(), client, row.joined),
            )
        except sqlite3.OperationalError:
            return  # Another process is writing. The next client that probes it finds the same.
        if noted.rowcount:
            self._side.unlink(alive_name(client))
            self._side.unlink(socket_name(client))


def _client(row: tuple[Any, ...]) -> Client:
    _, renewed_at, dead, joined, boot, pid, pid_namespace, started, host = row
    return Client(renewed_at, dead, joined, Identity(boot, pid, pid_namespace, started, host))


def _clients_of(record: Record) -> list[str]:
    clients = {holder.client: None for holder in record.holders}
    for waiter in record.queue:
        clients[waiter.client] = None
    clients.pop("", None)
    return list(clients)


def _blocking(record: Record, nonce: str) -> list[str]:
    """The clients whose death would unblock the attempt: holders, waiters with a turn, the one before it."""
    clients = {holder.client: None for holder in record.holders}
    before = ""
    for waiter in record.queue:
        if waiter.nonce == nonce:
            clients[before] = None
            break
        before = waiter.client
        if waiter.turn_at is not None:
            clients[before] = None
    else:
        clients[before] = None
    clients.pop("", None)
    return list(clients)


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
