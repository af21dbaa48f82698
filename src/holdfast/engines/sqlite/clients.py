"""The directory of clients: which clients in a record are dead, and when the others last renewed.

A client's renewal is one row, not one write for each lease. So the expiry times in a record are completed
here from the rows of the clients in it. A dead client is marked in its row before its files are removed, so
that its claims stay void.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from ...rules.record import Record
from ...runtime.clock import wall_us
from .lease_times import apply_renewals, rebase
from .liveness import Identity, Status, alive_name, probe
from .records import Execute
from .side_directory import SideDirectory
from .sockets import socket_name

__all__ = ["Client", "ClientDirectory", "RecordView"]

ROWS_PER_QUERY: Final = 500
KNOWN_MAX: Final = 10_000


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
