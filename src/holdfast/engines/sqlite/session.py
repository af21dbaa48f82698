"""One client's session with the database: opened when needed, moved to a new file, closed in the end."""

from __future__ import annotations

import atexit
import contextlib
import os
import sqlite3
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final

from ...engine_api import AdapterContext, Notifier
from ...errors import EngineUnavailable
from ...runtime.clock import boottime, wall_us
from ..local import StoreBusyError
from .cache import SharedRecordCache
from .clients import ClientDirectory, rebase, without_client
from .connection import DatabaseConnection
from .database_file import DatabaseFile
from .errors import explain
from .janitor import Janitor, is_due, truncate_log
from .liveness import AliveFile, identify
from .notifications import NotificationListener
from .records import Execute, LoadedRecord, RecordTable
from .side_directory import SideDirectory
from .sockets import WakeupSocket

if TYPE_CHECKING:
    import asyncio

__all__ = ["LOCAL_CLIENTS", "ClientSession", "Registration"]

INSERT: Final = "INSERT OR REPLACE INTO clients VALUES (?, ?, ?, 0, ?, ?, ?, ?, ?)"
RENEW: Final = "UPDATE clients SET renewed_at = ? WHERE id = ? AND dead = 0"
DELETE: Final = "DELETE FROM clients WHERE id = ?"

LOCAL_CLIENTS: dict[str, weakref.ref[Registration]] = {}
"""The clients of this process. They need no probe, and are notified without a message."""

FILE_CHECK_SECONDS: Final = 0.1
"""How often an acquire checks that the file was not replaced and that its log is not too long."""

UNREGISTER_TRIES: Final = 20

UNREGISTER_PAUSE_SECONDS: Final = 0.001


def _unregister_local(client: str, here: weakref.ref[Registration]) -> None:
    """Called when a registration is garbage-collected without having been closed."""
    if LOCAL_CLIENTS.get(client) is here:
        del LOCAL_CLIENTS[client]


def _local_renewal(client: str) -> float | None:
    here = LOCAL_CLIENTS.get(client)
    registration = None if here is None else here()
    return None if registration is None else registration.renewed_at


class Registration:
    """What makes this client known to the others: its liveness lock, its wake-up socket and its row.

    They are taken in this order.
    """

    def __init__(
        self,
        execute: Execute,
        side: SideDirectory,
        client: str,
        post: Notifier,
    ) -> None:
        self.client = client
        self.notify = post
        """Notifies a nonce of this client, as a message from another process would."""
        self.side = side
        self.us = identify()
        with contextlib.ExitStack() as undo:
            self._alive = AliveFile(side, client)
            undo.callback(side.unlink, self._alive.name)
            undo.callback(self._alive.close)
            self.wakeup_socket = WakeupSocket(side, client)
            undo.callback(side.unlink, self.wakeup_socket.name)
            undo.callback(self.wakeup_socket.close)
            self.renewed_at = boottime()
            self._register(execute)
            undo.pop_all()
        self.directory = ClientDirectory(side, self.us, _local_renewal)
        self.listener = NotificationListener(self.wakeup_socket, self.us, post, self.directory.probe)
        LOCAL_CLIENTS[client] = weakref.ref(self, partial(_unregister_local, client))

    def _register(self, execute: Execute) -> None:
        boot, *process = self.us
        execute(INSERT, (self.client, boot, self.renewed_at, wall_us(), *process))

    def renew(self, execute: Execute, now: float) -> bool:
        """Renew all leases and queue places of this client. False: another client has marked it dead."""
        if execute(RENEW, (now, self.client)).rowcount != 1:
            return False
        self.renewed_at = now
        return True

    def is_registered(self, execute: Execute) -> bool:
        row = execute("SELECT dead FROM clients WHERE id = ?", (self.client,)).fetchone()
        return row is not None and not row[0]

    def unregister(self, execute: Execute) -> None:
        """Delete the row, so that the client claims nothing. Then remove its files."""
        execute(DELETE, (self.client,))
        self.side.unlink(self.wakeup_socket.name)
        self.side.unlink(self._alive.name)

    def listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        if loop is None:
            self.listener.start_thread()
        else:
            self.listener.join_loop(loop)

    def close(self) -> None:
        LOCAL_CLIENTS.pop(self.client, None)
        self.listener.close()
        self._close_files()

    def forked(self) -> None:
        """In the child: close what was inherited, and write nothing."""
        LOCAL_CLIENTS.pop(self.client, None)
        self.listener.forked()
        self._close_files()

    def _close_files(self) -> None:
        self.wakeup_socket.close()
        self._alive.close()
        self.side.close()


class ClientSession:
    """What one client has open. All methods but ``close`` and ``forked`` need ``database.mutex`` held."""

    def __init__(self, file: DatabaseFile, namespace: str, context: AdapterContext) -> None:
        self.file = file
        self.database = DatabaseConnection(file)
        self.table = RecordTable(file, namespace, context.client)
        self.janitor = Janitor(file)
        self.registration: Registration | None = None
        self.source = ""
        self._namespace = namespace
        self._client = context.client
        self._post = context.post
        self._pid = os.getpid()
        self._loops: list[asyncio.AbstractEventLoop | None] = []
        """Where wake-ups are delivered: in a loop, or (None) by a thread. Empty: nowhere yet."""
        self._file_id: tuple[int, int] | None = None
        """The file in which this client is registered."""
        self._checked_at = 0.0
        self._closed = False
        _all.add(self)

    @property
    def open_registration(self) -> Registration:
        if self.registration is None:
            raise self.file.unavailable("is not open", "connect again")
        return self.registration

    # --- opening --------------------------------------------------------------------------------

    def open(self, to_acquire: bool = False) -> Execute:
        """Open the session if needed. Returns the function that executes statements."""
        if os.getpid() != self._pid:
            raise self.file.unavailable(
                "was opened before this process was forked without Python noticing",
                "connect again in the child",
            )
        connection = self.database.connection
        if connection is None or self.registration is None:
            return self._connect()
        if to_acquire:
            now = boottime()
            if now - self._checked_at > FILE_CHECK_SECONDS:
                self._checked_at = now
                self.janitor.check_log(connection.total_changes)
                if self.is_replaced():
                    # Locks in the old file exclude no client any more; the next renewal reports the loss.
                    return self._connect()
        return connection.execute

    def _connect(self) -> Execute:
        if self._closed:
            raise self.file.unavailable("was closed by this client", "connect again")
        if self.registration is not None and not self.is_replaced():
            # The connection was closed for a fork of this process. The registration is still valid.
            execute = self.database.open().execute
            if self.database.file_id == self._file_id:
                return execute
        self._drop_registration()
        try:
            if not self.database.is_current():
                self.database.close()
            return self._open()
        except EngineUnavailable as error:
            error.nothing_was_sent = True
            raise

    def _open(self) -> Execute:
        side = self.database.create()
        try:
            execute = self.database.open().execute
            self._register_client(execute, side)
        except BaseException as error:
            self._drop_registration()
            # If the database is busy the connection stays open: opening and closing it at each attempt would
            # lock out other processes that connect.
            if not self._is_busy(error):
                self.database.close()
            side.close()
            raise
        return execute

    def _is_busy(self, error: BaseException) -> bool:
        return isinstance(
            explain(self.file, error) if isinstance(error, sqlite3.Error) else error, StoreBusyError
        )

    def _register_client(self, execute: Execute, side: SideDirectory) -> None:
        meta = dict(execute("SELECT key, value FROM meta").fetchall())
        try:
            self.registration = Registration(execute, side, self._client, self._post)
        except EngineUnavailable:
            raise
        except OSError as error:
            raise self.file.explain(error) from error
        self.table.boot = self.registration.us.boot
        self.table.record_cache = SharedRecordCache(side, self._namespace)
        self.source = f"sqlite:{meta['source']}/{self._namespace}"
        self._file_id = self.database.file_id
        self._checked_at = boottime()
        for loop in self._loops:
            self.registration.listen(loop)
        if is_due(meta["swept_at"], wall_us()):
            self.janitor.start()

    @property
    def is_listening(self) -> bool:
        """Whether a thread delivers wake-ups already."""
        registration = self.registration
        return registration is not None and registration.listener.is_running

    def listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Deliver wake-ups from now on, also after the database file was replaced."""
        self._loops = [loop]
        self.open()
        self.open_registration.listen(loop)

    # --- registered again after being marked dead ------------------------------------------------

    def ensure_registered(self, execute: Execute) -> None:
        """A change was not stored. If others have marked this client dead, register it again."""
        if not self.open_registration.is_registered(execute):
            self.register_again(execute)

    def register_again(self, execute: Execute) -> None:
        """Others have marked this client dead, so its claims are void: remove them, then register again."""
        self.table.clear_caches()
        try:
            execute("BEGIN IMMEDIATE")  # inside: an interrupt just after it ends the transaction, too
            for key, loaded in self.table.load_of_client(execute, self._client):
                self._remove_claims(execute, key, loaded)
            execute("DELETE FROM clients WHERE id = ?", (self._client,))
            execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise
        self.open_registration.close()
        self.table.record_cache.close()
        self.registration = None
        self._register_client(execute, self.file.open_side_directory())

    def _remove_claims(self, execute: Execute, key: bytes, loaded: LoadedRecord) -> None:
        now = boottime()
        record = loaded.record if loaded.boot == self.table.boot else rebase(loaded.record, now)
        after, _ = without_client(record, self._client, now)
        self.table.overwrite(execute, key, loaded, after, wall_us())

    # --- closing --------------------------------------------------------------------------------

    def is_replaced(self) -> bool:
        """Whether the file was deleted or replaced: locks in it exclude no client any more."""
        try:
            return self.registration is not None and self.file.file_id() != self._file_id
        except EngineUnavailable:
            return False  # A file in a folder that cannot be read is not known to be gone.

    def disconnect(self) -> None:
        """Close the connection, without unregistering."""
        self._drop_registration()
        self.database.close()

    def _drop_registration(self) -> None:
        """Drop the registration, without unregistering."""
        registration, self.registration = self.registration, None
        if registration is not None:
            registration.close()
        self.table.record_cache.close()
        self.table.clear_caches()

    def close(self) -> None:
        """Unregister and close everything. It may be called again."""
        self._closed = True
        if os.getpid() != self._pid:
            self.database.forked()
            return
        registration = self.registration
        if registration is not None:
            # Before the mutex is taken: a waiter that the listener wakes may need the mutex.
            registration.listener.close()
        with self.database.mutex:
            if self.registration is not None and not self.is_replaced():
                self._unregister(self.registration)
                self._truncate_log()
            self.disconnect()

    def _unregister(self, registration: Registration) -> None:
        """If this fails, the released liveness lock still shows that the client is gone."""
        for _ in range(UNREGISTER_TRIES):
            with contextlib.suppress(sqlite3.Error, StoreBusyError, EngineUnavailable):
                registration.unregister(self.database.open().execute)
                return
            time.sleep(UNREGISTER_PAUSE_SECONDS)

    def _truncate_log(self) -> None:
        """If this fails, the next client that closes does it, or the janitor."""
        connection = self.database.connection
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                truncate_log(self.file, connection.execute)

    def forked(self) -> None:
        """In the child: close everything inherited, and write nothing."""
        self._closed = True
        registration, self.registration = self.registration, None
        if registration is not None:
            registration.forked()
        self.table.record_cache.close()
        self.database.forked()

    def __del__(self) -> None:
        # Dropped without close(). A forked child leaves what its parent has.
        if getattr(self, "_closed", True) or (self.registration is None and self.database.connection is None):
            return
        self.close()


_all: weakref.WeakSet[ClientSession] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for session in list(_all):
        session.close()
