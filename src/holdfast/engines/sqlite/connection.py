"""The connection of one client to its database, and what happens to connections when the process forks.

No connection survives a fork. SQLite keeps what it knows of a file's locks in memory shared by all
connections of a process. A child inherits that knowledge but not the locks, so even a connection that the
child opened itself would count on locks that it does not have. Therefore every connection is closed before a
fork and opened again when it is next needed. A fork that Python does not announce leaves connections open:
these are never used again, and the child refuses to open the same file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from typing import Final
from urllib.parse import quote

from ...errors import EngineUnavailable
from ...runtime.clock import boottime, wall_us
from ..local import StoreBusyError
from .database_file import DatabaseFile, NewDatabase
from .side_directory import SideDirectory

__all__ = [
    "SCHEMA",
    "START_LOG",
    "DatabaseConnection",
    "check_owner",
    "connect",
    "create_tables",
    "new_database",
]

SCHEMA: Final = 1
APPLICATION: Final = 0x486F6C64
"""``Hold``: marks the file as a locks database (PRAGMA application_id)."""

# Records are in an ordinary table: a record with two dozen waiters still fits on one page there. In a table
# without rowid, a row longer than a quarter of a page spills to other pages, which are then written, too.
TABLES: Final = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
    """CREATE TABLE locks (
        namespace TEXT, name BLOB, version INTEGER, boot TEXT, record TEXT, forget_at INTEGER,
        PRIMARY KEY (namespace, name)
    )""",
    """CREATE TABLE clients (
        id TEXT PRIMARY KEY, boot TEXT, renewed_at REAL, dead INTEGER, joined INTEGER,
        pid INTEGER, pid_namespace INTEGER, started INTEGER, host TEXT
    ) WITHOUT ROWID""",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {SCHEMA}",
)

START_LOG: Final = "UPDATE meta SET value = value + 1 WHERE key = 'swept_at'"
"""The first write to a new log, which waits for a sync to disk while no other process can write.

It changes one microsecond, since SQLite does not write an update that changes nothing."""

NO_CHECKPOINT_ON_CLOSE: Final = 1006
"""SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, which the module names from Python 3.12 on."""

FORK_WAIT_SECONDS: Final = 5.0
"""How long a fork waits for a running call, so that no connection is open when the fork happens."""

open_mutex = threading.Lock()
"""Held while a database file is opened or created."""

_inherited_files: set[tuple[int, int]] = set()
"""Files with connections in this process that an unannounced fork left open."""

_held_for_fork: list[threading.Lock] = []


def check_owner(file: DatabaseFile, connection: sqlite3.Connection) -> None:
    # One transaction for all three: another process may be creating the tables at this moment.
    connection.execute("BEGIN")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if application == APPLICATION:
        if version > SCHEMA:
            raise file.unavailable(
                f"was created by a newer Holdfast (schema {version}; this version reads up to {SCHEMA})",
                "upgrade holdfast here",
            )
        return
    if application or version or tables:
        raise file.unavailable("belongs to another program", "give the locks a file of their own")


def create_tables(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in TABLES:
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('source', ?)", (os.urandom(16).hex(),))
            connection.execute("INSERT INTO meta VALUES ('floor', 0)")
            connection.execute("INSERT INTO meta VALUES ('swept_at', ?)", (wall_us(),))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def new_database() -> NewDatabase:
    """The files of a new database: in WAL mode, with its tables and a log.

    Switching the journal mode and creating tables takes several syncs to disk, during which SQLite locks out
    every process that opens the file. The first write to a log takes one sync, during which no other process
    can write. So all of it is done in a temporary folder, and the files appear complete. The database also
    works without the log. Both are empty if there is no room for a temporary file: the process that opens the
    database first creates the tables then.
    """
    import tempfile

    with contextlib.suppress(OSError, sqlite3.Error), tempfile.TemporaryDirectory("holdfast") as folder:
        path = os.path.join(folder, "new.db")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                create_tables(connection)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                connection.execute(START_LOG)
                return NewDatabase(_content(path), _content(f"{path}-wal"))
    return NewDatabase(b"", b"")


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# --- connecting ---------------------------------------------------------------------------------


def connect(file: DatabaseFile) -> tuple[sqlite3.Connection, tuple[int, int]]:
    """Open a connection to an existing database. Returns it with the id of the file."""
    before = file.file_id()
    if before in _inherited_files:
        raise file.unavailable(
            "was open when this process was forked by a server that forks without Python noticing",
            "connect after the fork (uWSGI: lazy-apps), or use a server engine",
        )
    connection = sqlite3.connect(
        f"file:{quote(file.path)}?mode=rw",
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )
    try:
        _configure(file, connection)
        file.check_companions()
        if before is None or before != file.file_id():
            raise StoreBusyError  # Another process has just replaced it.
    except BaseException:
        connection.close()
        raise
    return connection, before


def _configure(file: DatabaseFile, connection: sqlite3.Connection) -> None:
    check_owner(file, connection)
    execute = connection.execute
    if execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        mode = execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise file.unavailable(
                f"is on a file system without shared memory (journal mode {mode})", "put it on a local disk"
            )
    # A power cut may lose the last commits, but the holders of those leases died with the machine.
    execute("PRAGMA synchronous = NORMAL")
    execute("PRAGMA busy_timeout = 0")
    # A checkpoint takes a sync to disk: the janitor makes it, so that no caller waits for it.
    execute("PRAGMA wal_autocheckpoint = 0")
    # The last close makes no checkpoint either: SQLite would lock out every process. See _open_log_keeper.
    if hasattr(connection, "setconfig"):  # Python 3.12
        connection.setconfig(NO_CHECKPOINT_ON_CLOSE, True)
    if execute("PRAGMA user_version").fetchone()[0] == 0:
        create_tables(connection)


def _leak(connection: sqlite3.Connection) -> None:
    """Keep it from ever being closed, even when the interpreter ends."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


# --- one client's connection --------------------------------------------------------------------


class DatabaseConnection:
    """One connection, opened when it is needed. The mutex serialises the threads that share it."""

    def __init__(self, file: DatabaseFile) -> None:
        self.file = file
        self.mutex = threading.Lock()
        self.connection: sqlite3.Connection | None = None
        self.file_id: tuple[int, int] | None = None
        """The file that the connection was opened on."""

    def open(self) -> sqlite3.Connection:
        """The connection to an existing database. Called with the mutex held."""
        if self.connection is not None:
            return self.connection
        with open_mutex:
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection, self.file_id = connect(self.file)
        self.connection = connection
        _open.add(self)
        return connection

    def is_current(self) -> bool:
        """Whether it is open on the file that the path names now. Called with the mutex held."""
        return self.connection is not None and self.file.file_id() == self.file_id

    def create(self) -> SideDirectory:
        """Create the database if it is missing, and open it. Called with the mutex held."""
        # Closing a file drops all locks of this process on it: no thread may open it meanwhile.
        with open_mutex:
            side = self.file.prepare(new_database)
            try:
                if self.connection is None:
                    self._connect()
            except BaseException:
                side.close()
                raise
        return side

    def close(self) -> None:
        """Called with the mutex held. SQLite leaves the log alone if the file has moved."""
        if self.connection is not None:
            reader = self._open_log_keeper(self.connection)
            for each in (self.connection, reader):
                if each is not None:
                    with contextlib.suppress(sqlite3.Error):
                        each.close()
            # Only now: until it is closed, a fork has to wait for it.
            self.connection = None
            _open.discard(self)

    def _open_log_keeper(self, connection: sqlite3.Connection) -> sqlite3.Connection | None:
        """A read-only connection to close after this one, so that neither copies the log back and deletes it.

        SQLite does that when the last connection to a file is closed, unless that connection cannot write.
        """
        if hasattr(connection, "setconfig"):
            return None  # NO_CHECKPOINT_ON_CLOSE is set.
        reader = None
        try:
            if self.file_id is not None and self.file.file_id() == self.file_id:
                uri = f"file:{quote(self.file.path)}?mode=ro"
                reader = sqlite3.connect(
                    uri, timeout=0, isolation_level=None, check_same_thread=False, uri=True
                )
                reader.execute("PRAGMA user_version").fetchone()
        except (sqlite3.Error, EngineUnavailable):
            pass  # Then SQLite makes its checkpoint.
        return reader

    def forked(self) -> None:
        """In the child. A connection that is still open was left by an unannounced fork: never use it."""
        connection, self.connection = self.connection, None
        self.mutex = threading.Lock()
        _open.discard(self)
        if connection is not None and self.file_id is not None:
            _leak(connection)
            _inherited_files.add(self.file_id)


# --- forks --------------------------------------------------------------------------------------

_open: set[DatabaseConnection] = set()
"""Open connections. Changed with ``open_mutex`` or the mutex of the connection held."""


def _before_fork() -> None:
    """Close every connection, and keep every thread from opening another until the fork is over."""
    lease_ends_at = boottime() + FORK_WAIT_SECONDS
    while (left := lease_ends_at - boottime()) > 0 and open_mutex.acquire(timeout=left):
        still_open = list(_open)
        if not still_open:
            _held_for_fork.append(open_mutex)
            return
        # A running call may want to open one, too: let it end before its connection is closed.
        open_mutex.release()
        database = still_open[0]
        if database.mutex.acquire(timeout=max(lease_ends_at - boottime(), 0.0)):
            _held_for_fork.append(database.mutex)
            database.close()


def _in_parent() -> None:
    while _held_for_fork:
        _held_for_fork.pop().release()


def _in_child() -> None:
    global open_mutex
    _held_for_fork.clear()
    open_mutex = threading.Lock()
    for database in list(_open):
        database.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
