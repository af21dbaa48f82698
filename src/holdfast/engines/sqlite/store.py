"""Records in a SQLite file, shared by the processes of one user.

``updates`` decides changes outside any transaction. One statement stores a change, and takes effect only if
nothing that the decision relied on has changed since. So SQLite's write lock, which is not fair, is held for
microseconds, and a stopped process rarely stops the others.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...engine_api import AdapterContext, NotificationReader, Steps
from ...errors import EngineUnavailable
from ...rules.handoff import apply
from ...rules.record import is_idle
from ...rules.requests import Absent, Acquire, Gone, Inspect, Renew, Reply, Request, Snapshot, Wake
from ...runtime.adaptive_spin import yield_processor
from ...runtime.clock import boottime, wall_us
from ..local import StoreBusyError
from .database_file import DatabaseFile
from .errors import explain
from .liveness import Status
from .records import Execute, LoadedRecord
from .renewal import BatchRenewal
from .session import LOCAL_CLIENTS, ClientSession
from .sockets import SendResult
from .updates import RecordUpdates

if TYPE_CHECKING:
    import asyncio

__all__ = ["SqliteStore"]


class SqliteStore:
    """One client's view of the database."""

    def __init__(self, file: DatabaseFile, namespace: str, context: AdapterContext) -> None:
        self._file = file
        self._session = ClientSession(file, namespace, context)
        self._table = self._session.table
        self._updates = RecordUpdates(self._session)
        self._client = context.client
        self._yields_processor = False
        """A thread makes the calls, and no event loop waits for them."""
        self.close = self._session.close
        self.forked = self._session.forked

    @property
    def source(self) -> str:
        return self._session.source

    # --- requests of the adapter ----------------------------------------------------------------

    def apply(self, name: str, request: Request) -> Reply:
        key, session, updates = name.encode(), self._session, self._updates
        if request.__class__ is Acquire and request.ttl < updates.shortest_ttl:
            updates.shortest_ttl = request.ttl  # A handoff may grant it without another request.
        try:
            with session.database.mutex:
                execute = session.open(request.__class__ is Acquire)
                outcome = updates.update_recalled(execute, key, request)
                reply, wakes = outcome or updates.update_loaded(execute, key, request)
        except sqlite3.Error as error:
            raise explain(self._file, error) from error
        if wakes:
            self._send_wakes(key, wakes)
            if self._table.unpublished_handoffs:
                if self._yields_processor:
                    yield_processor()  # The successor runs first, where both share one processor.
                with session.database.mutex:
                    self._table.publish_handoffs()
        return reply

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        session = self._session
        try:
            with session.database.mutex:
                execute = session.open(to_acquire=True)
                done = self._updates.update_several(execute, steps, stop_when_refused)
        except sqlite3.Error as error:
            raise explain(self._file, error) from error
        for (name, _), step in zip(steps, done, strict=False):
            self._send_wakes(name.encode(), step.wake)
        return [step.reply for step in done]

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        session = self._session
        try:
            with session.database.mutex:
                execute = session.open(to_acquire=True)
                found = self._table.load_prefix(execute, prefix.encode())
                return [(key.decode(), snapshot) for key, snapshot in self._snapshots(execute, found)]
        except sqlite3.Error as error:
            raise explain(self._file, error) from error

    def _snapshots(
        self, execute: Execute, found: Iterable[tuple[bytes, LoadedRecord]]
    ) -> Iterable[tuple[bytes, Snapshot]]:
        now, wall = boottime(), wall_us()
        for key, loaded in found:
            if is_idle(loaded.record) and loaded.record.value is None:
                continue
            view = self._updates.view(execute, loaded, now)
            reply = apply(view.record, Inspect(), now, wall, view.dead).reply
            if isinstance(reply, Snapshot) and not (is_idle(reply.record) and reply.record.value is None):
                yield key, reply

    def renew_batch(self, steps: Steps) -> list[Reply]:
        session = self._session
        try:
            with session.database.mutex:
                if session.is_replaced():
                    session.disconnect()
                    return [_database_gone(request) for _, request in steps]
                batch = BatchRenewal(session, self._updates, self._client)
                replies = batch.run(steps)
        except sqlite3.Error as error:
            raise explain(self._file, error) from error
        for key, wakes in batch.wakes:
            self._send_wakes(key, wakes)
        session.janitor.start_if_due()
        return replies

    # --- waking others --------------------------------------------------------------------------

    def _send_wakes(self, key: bytes, wakes: Iterable[Wake]) -> None:
        """Notify the waiters that a change concerns. If one is dead, remove it and wake the next one."""
        registration, due = self._session.registration, [*wakes]
        for wake in due:
            reference = LOCAL_CLIENTS.get(wake.client)
            local = None if reference is None else reference()
            if local is not None:
                local.notify(wake.nonce, wake.handed)
            elif registration is not None and registration.wakeup_socket.send(wake) is SendResult.REFUSED:
                # If the removal fails, nothing is lost: the next waiter polls before long.
                with contextlib.suppress(StoreBusyError, EngineUnavailable, sqlite3.Error):
                    due += self._remove_if_dead(key, wake.client)

    def _remove_if_dead(self, key: bytes, client: str) -> tuple[Wake, ...]:
        """Remove a dead client from this record. Returns the wake-ups that this causes."""
        with self._session.database.mutex:
            execute = self._session.open()
            directory = self._session.open_registration.directory
            row = directory.load(execute, [client])[client]
            status = directory.probe(client, None if row is None else row.identity)
            if status is Status.ALIVE or (status is Status.UNKNOWN and row is not None and not row.dead):
                return ()
            if row is not None:
                directory.mark_dead(execute, client, row)
            return self._updates.remove_client(execute, key, client)

    # --- notifications of others ----------------------------------------------------------------

    def listen_in_thread(self) -> None:
        self._yields_processor = True
        if not self._session.is_listening:
            self._listen(None)

    def listen_in_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._listen(loop)

    def _listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        try:
            with self._session.database.mutex:
                self._session.listen(loop)
        except sqlite3.Error as error:
            raise explain(self._file, error) from error

    @property
    def notification_reader(self) -> NotificationReader | None:
        registration = self._session.registration
        return None if registration is None else registration.listener.notification_reader

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        registration = self._session.registration
        if registration is None:
            return
        known = registration.directory.known_identity
        others = {client: known(client) for client in clients if client not in LOCAL_CLIENTS}
        unknown = [client for client in others if others[client] is None] if None in others.values() else ()
        if unknown:
            # If the read fails, nothing is lost: their liveness locks are probed at intervals.
            failures = (sqlite3.Error, StoreBusyError, EngineUnavailable)
            with contextlib.suppress(*failures), self._session.database.mutex:
                for client, row in registration.directory.load(self._session.open(), unknown).items():
                    others[client] = None if row is None else row.identity
        registration.listener.watch(nonce, others)

    def unlisten(self, nonce: str, name: str | None) -> None:
        """Stop watching for this waiter. The client's one socket stays, whatever locks it waits for."""
        if self._session.registration is not None:
            self._session.registration.listener.unwatch(nonce)


def _database_gone(request: Request) -> Reply:
    if isinstance(request, Renew):
        return Gone("expired", "the database file was deleted or replaced")
    return Absent()
