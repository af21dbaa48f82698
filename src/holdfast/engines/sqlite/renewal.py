"""A batch of renewals: one row renews the client as a whole. The records are read afterwards.

Why a renewal and a take-over cannot both succeed. A renewal writes the client's row, a take-over the lock's
row. The take-over of an expired lease is stored only if the row of the client that it takes for expired still
says what the decision was made on: one statement, so one moment. If the renewal comes first, the take-over
stores nothing and is decided again. If the take-over comes first, the renewal, which reads the records
*after* writing its row, finds its lease gone and reports that. A lease that had expired before the renewal is
reported as gone and removed, whether or not another client took the lock: a renewal never revives an expired
lease.
"""

from __future__ import annotations

from math import inf
from typing import Final

from ...engine_api import Steps
from ...rules.record import Record
from ...rules.requests import Done, Gone, Refresh, Release, Renew, Reply, Request, Wake
from ...runtime.clock import boottime
from .clients import QueueView, holder_of, lease_ends_at, watch_expires_soon
from .records import Execute, LoadedRecord
from .session import ClientSession
from .updates import RecordUpdates

__all__ = ["BatchRenewal"]

_DONE: Final = Done()


class BatchRenewal:
    """One batch. It runs with the database mutex held; ``wakes`` are sent afterwards, without it."""

    __slots__ = ("_client", "_execute", "_now", "_queues", "_renewed_before", "_session", "_updates", "wakes")

    def __init__(self, session: ClientSession, updates: RecordUpdates, client: str) -> None:
        self._session = session
        self._updates = updates
        self._client = client
        self._execute: Execute = session.open()
        self._renewed_before = session.open_registration.renewed_at
        self._now = boottime()
        self._queues: dict[bytes, QueueView] = {}
        self.wakes: list[tuple[bytes, tuple[Wake, ...]]] = []

    def run(self, steps: Steps) -> list[Reply]:
        if not self._session.open_registration.renew(self._execute, self._now):
            self._session.register_again(self._execute)
        elif self._now - self._renewed_before >= self._updates.shortest_ttl:
            self._remove_expired()
        return self._replies(steps)

    def _remove_expired(self) -> None:
        """Remove the leases that had expired before this renewal: the client's new row revives them.

        That includes leases that this process no longer renews, because they were given up meanwhile.
        """
        updates, boot = self._updates, self._session.table.boot
        updates.shortest_ttl = inf
        for key, loaded in self._session.table.load_of_client(self._execute, self._client):
            for holder in loaded.record.holders:
                if holder.client != self._client or loaded.boot != boot:
                    continue
                if lease_ends_at(holder, self._renewed_before) <= self._now:
                    self._update(key, Release(holder.nonce))
                else:
                    updates.shortest_ttl = min(updates.shortest_ttl, holder.ttl)
            for waiter in loaded.record.queue:
                if waiter.client == self._client and waiter.wants is not None:
                    updates.shortest_ttl = min(updates.shortest_ttl, waiter.wants.ttl)

    def _replies(self, steps: Steps) -> list[Reply]:
        """Read after the client's row was written: no client can take over what is still there as expired."""
        table = self._session.table
        keys = [name.encode() for name, _ in steps]
        found = table.load_several(self._execute, list(dict.fromkeys(keys)))
        replies: list[Reply] = []
        for key, (_, request) in zip(keys, steps, strict=True):
            loaded = found.get(key) or table.absent(Record())
            if isinstance(request, Renew):
                reply = self._renew(key, loaded, request)
            elif isinstance(request, Refresh):
                reply = self._refresh(key, loaded, request)
            else:
                reply = self._update(key, request)
            replies.append(reply)
        return replies

    def _renew(self, key: bytes, loaded: LoadedRecord, request: Renew) -> Reply:
        """The record is written only if the client's row does not extend the lease by itself."""
        holder = holder_of(loaded.record, request.nonce)
        if holder is None or loaded.boot != self._session.table.boot:
            return self._update(key, request)
        if lease_ends_at(holder, self._renewed_before) <= self._now:
            self._update(key, Release(request.nonce))
            return Gone("expired")
        if not holder.renews or holder.ttl != request.ttl:
            return self._update(key, request)
        return _DONE

    def _refresh(self, key: bytes, loaded: LoadedRecord, request: Refresh) -> Reply:
        """The waiter's position. The client's row keeps its place in the queue."""
        if watch_expires_soon(loaded.record, request.nonce, self._now):
            return self._update(key, request)
        queue = self._queues.get(key)
        if queue is None:
            view = self._updates.view(self._execute, loaded, self._now)
            queue = self._queues[key] = QueueView(view, self._now)
        return queue.reply_to(request.nonce)

    def _update(self, key: bytes, request: Request) -> Reply:
        reply, wakes = self._updates.update_loaded(self._execute, key, request)
        if wakes:
            self.wakes.append((key, wakes))
        return reply
