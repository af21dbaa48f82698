"""One client's presence at the database: connected when needed, moved when it moves, left in the end."""

from __future__ import annotations

import atexit
import contextlib
import os
import sqlite3
import time
import weakref
from typing import TYPE_CHECKING, Final

from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ...rules.record import rebase
from ...runtime.clock import boottime, wall_us
from ..local import StoreBusyError
from .claims import without_client
from .connection import DatabaseConnection, explain
from .database_file import DatabaseFile, SideDirectory
from .janitor import Janitor, is_due, truncate_log
from .record_cache import SharedRecordCache
from .records import Execute, LoadedRecord, RecordTable
from .registration import Registration

if TYPE_CHECKING:
    import asyncio

__all__ = ["ClientSession"]

FILE_CHECK_SECONDS: Final = 0.1
"""How often an acquire makes sure that the file is still the one that others open, its log not too long."""

UNREGISTER_TRIES: Final = 20
UNREGISTER_PAUSE_SECONDS: Final = 0.001


class ClientSession:
    """What one client has open. All but ``close`` and ``forked`` is called with ``database.mutex`` held."""

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
        """Where wake-ups are to be delivered: a loop, or (None) a thread. Empty: nowhere yet."""
        self._file_id: tuple[int, int] | None = None
        """Which file we are a client of."""
        self._checked_at = 0.0
        self._closed = False
        _all.add(self)

    @property
    def open_registration(self) -> Registration:
        if self.registration is None:
            raise self.file.unavailable("is not open", "connect again")
        return self.registration

    # --- coming ---------------------------------------------------------------------------------

    def open(self, to_acquire: bool = False) -> Execute:
        """The way to the database."""
        if os.getpid() != self._pid:
            raise self.file.unavailable(
                "was opened before this process was forked by code that Python does not see",
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
                    # What was held there excludes nobody any more; the next renewal tells.
                    return self._connect()
        return connection.execute

    def _connect(self) -> Execute:
        if self._closed:
            raise self.file.unavailable("was closed by this client", "connect again")
        if self.registration is not None and not self.is_replaced():
            # The connection was closed for a fork of this process: we are still who we were.
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
            # Open, it disturbs nobody; opened and closed at each try, it would lock out others who come.
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
        """Whether wake-ups are delivered already, by a thread."""
        registration = self.registration
        return registration is not None and registration.listener.is_running

    def listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Deliver wake-ups from now on, also when the database is another one day."""
        self._loops = [loop]
        self.open()
        self.open_registration.listen(loop)

    # --- being taken for dead -------------------------------------------------------------------

    def ensure_registered(self, execute: Execute) -> None:
        """A change was not stored. Where that is because others took us for dead, join again."""
        if not self.open_registration.is_registered(execute):
            self.register_again(execute)

    def register_again(self, execute: Execute) -> None:
        """Others took us for dead, so that all we claimed is void: take it out, then be a client anew."""
        self.table.clear_caches()
        execute("BEGIN IMMEDIATE")
        try:
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

    # --- going ----------------------------------------------------------------------------------

    def is_replaced(self) -> bool:
        """The file was deleted or replaced: what we hold there excludes nobody any more."""
        try:
            return self.registration is not None and self.file.file_id() != self._file_id
        except EngineUnavailable:
            return False  # It cannot be seen (its folder was closed to us), which is not being gone.

    def disconnect(self) -> None:
        """Let go of the database without a word."""
        self._drop_registration()
        self.database.close()

    def _drop_registration(self) -> None:
        """Be no client any more."""
        registration, self.registration = self.registration, None
        if registration is not None:
            registration.close()
        self.table.record_cache.close()
        self.table.clear_caches()

    def close(self) -> None:
        """Say goodbye and let go of everything. Safe to call again."""
        self._closed = True
        if os.getpid() != self._pid:
            self.database.forked()
            return
        registration = self.registration
        if registration is not None:
            # Before the mutex is taken: whom the listener wakes may want it.
            registration.listener.close()
        with self.database.mutex:
            if self.registration is not None and not self.is_replaced():
                self._unregister(self.registration)
                self._truncate_log()
            self.disconnect()

    def _unregister(self, registration: Registration) -> None:
        """If it does not get through: the lock on our file is let go of, and says the same."""
        for _ in range(UNREGISTER_TRIES):
            with contextlib.suppress(sqlite3.Error, StoreBusyError, EngineUnavailable):
                registration.unregister(self.database.open().execute)
                return
            time.sleep(UNREGISTER_PAUSE_SECONDS)

    def _truncate_log(self) -> None:
        """If it cannot be now: the next one who leaves does it, or the janitor."""
        connection = self.database.connection
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                truncate_log(self.file, connection.execute)

    def forked(self) -> None:
        """This is the child: let go of everything inherited without a word."""
        self._closed = True
        registration, self.registration = self.registration, None
        if registration is not None:
            registration.forked()
        self.table.record_cache.close()
        self.database.forked()

    def __del__(self) -> None:
        # Dropped without close(). A child of a fork leaves alone what is its parent's.
        if getattr(self, "_closed", True) or (self.registration is None and self.database.connection is None):
            return
        self.close()


_all: weakref.WeakSet[ClientSession] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for session in list(_all):
        session.close()
