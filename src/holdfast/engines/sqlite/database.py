"""The database itself: its schema, its connections, and what its errors mean to a user.

No connection lives through a fork. SQLite keeps what it knows of a file's locks in memory shared by all
connections of a process; a child inherits that knowledge but not the locks, so even a connection of the
child's own would believe to hold locks that it does not. Therefore every connection is closed before a fork
and opened again when it is next needed. A fork that Python was not told of beforehand leaves open ones
behind: these are never touched again, and the child refuses to open the same file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
from typing import Final
from urllib.parse import quote

from ...drivers.clock import boottime, wall_us
from ...errors import EngineUnavailable
from ..local import Busy
from .place import EACH_THEIR_OWN, NewDatabase, Place, Side

__all__ = ["BEGIN_LOG", "SCHEMA", "Database", "connect", "explain"]

SCHEMA: Final = 1
APPLICATION: Final = 0x486F6C64
"""``Hold``: marks the file as ours (PRAGMA application_id)."""

# Records are in an ordinary table: one that two dozens wait for still fits on a page there. In a table
# without rowid, a row longer than a quarter of a page goes on on others, which are then written, too.
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

BEGIN_LOG: Final = "UPDATE meta SET value = value + 1 WHERE key = 'swept_at'"
"""Changes nothing but a microsecond: what changes nothing at all is not written. The first write to a log
waits for a sync to disk, with all others kept from writing."""

NO_CHECKPOINT_ON_CLOSE: Final = 1006
"""SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, which the module names from Python 3.12 on."""

FORK_PATIENCE_SECONDS: Final = 5.0
"""How long a fork waits for a call under way, so that no connection is open when it happens."""

_REMEDIES: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_FULL: ("cannot grow, the disk is full", "free some space; nothing was changed"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", "look at the disk; if it is full, free some space"),
    sqlite3.SQLITE_READONLY: ("is read-only", EACH_THEIR_OWN),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", EACH_THEIR_OWN),
    sqlite3.SQLITE_PERM: ("may not be opened", EACH_THEIR_OWN),
    sqlite3.SQLITE_AUTH: ("may not be opened", EACH_THEIR_OWN),
    sqlite3.SQLITE_CORRUPT: (
        "is damaged",
        "stop all that use it, delete it (with its -wal and -shm) and start them again",
    ),
    sqlite3.SQLITE_NOTADB: ("is not a database", "give the path of another file"),
    sqlite3.SQLITE_TOOBIG: ("cannot hold a record that large", "have fewer wait or hold at once"),
}


def explain(place: Place, error: sqlite3.Error) -> Exception:
    """What a failure of SQLite means: somebody else is at it (Busy), or nobody can use it."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
        return Busy()
    what, remedy = _REMEDIES.get(primary or 0, ("cannot be used", "look at the file, or give another path"))
    return place.unavailable(f"{what} ({error})", remedy)


# --- connecting ---------------------------------------------------------------------------------

opening = threading.Lock()
"""Held around everything that opens or creates the file."""

_inherited: set[tuple[int, int]] = set()
"""Files of which an unannounced fork left open connections in this process."""


def connect(place: Place) -> tuple[sqlite3.Connection, tuple[int, int]]:
    """A connection to a database that is there, with which file that is."""
    before = place.identity()
    if before in _inherited:
        raise place.unavailable(
            "was open when this process was forked, by a server that forks behind Python's back",
            "connect after the fork (uWSGI: lazy-apps), or use a server engine",
        )
    connection = sqlite3.connect(
        f"file:{quote(place.path)}?mode=rw",
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )
    try:
        _configure(place, connection)
        place.check_leftovers()
        if before is None or before != place.identity():
            raise Busy  # Somebody replaced it this very moment.
    except BaseException:
        connection.close()
        raise
    return connection, before


def _configure(place: Place, connection: sqlite3.Connection) -> None:
    _check_owner(place, connection)
    execute = connection.execute
    if execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        mode = execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise place.unavailable(
                f"is on a file system without shared memory (journal mode {mode})", "put it on a local disk"
            )
    # A power cut may lose the last commits; whoever held a lease then is dead with the machine.
    execute("PRAGMA synchronous = NORMAL")
    execute("PRAGMA busy_timeout = 0")
    # Copying the log back takes a sync to disk: the janitor does it, no caller waits for that.
    execute("PRAGMA wal_autocheckpoint = 0")
    # Nor does whoever closes last: SQLite would lock everyone out until the disk has it. See _log_keeper.
    if hasattr(connection, "setconfig"):  # Python 3.12
        connection.setconfig(NO_CHECKPOINT_ON_CLOSE, True)
    if execute("PRAGMA user_version").fetchone()[0] == 0:
        _create_tables(connection)


def _check_owner(place: Place, connection: sqlite3.Connection) -> None:
    # One moment for all three: somebody else may be creating the tables right now.
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
            raise place.unavailable(
                f"was made by a newer Holdfast (schema {version}, this one knows up to {SCHEMA})",
                "upgrade holdfast here",
            )
        return
    if application or version or tables:
        raise place.unavailable("belongs to another program", "give the locks a file of their own")


def _create_tables(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in TABLES:
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('source', ?)", (secrets.token_hex(16),))
            connection.execute("INSERT INTO meta VALUES ('floor', 0)")
            connection.execute("INSERT INTO meta VALUES ('swept_at', ?)", (wall_us(),))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def new_database() -> NewDatabase:
    """A database that nobody has used: in WAL mode from the first moment, with its tables and a log.

    To switch the journal mode and to create tables takes several syncs to disk, during which SQLite locks
    out all who open the file. The first write to a log takes one, which keeps out all who write. So all of
    it is done elsewhere, and the files appear complete. Without the log the database is as good.
    Empty where there is no room for that: whoever opens the file first creates the tables then.
    """
    import tempfile

    with contextlib.suppress(OSError, sqlite3.Error), tempfile.TemporaryDirectory("holdfast") as folder:
        path = os.path.join(folder, "new.db")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                _create_tables(connection)
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                connection.execute(BEGIN_LOG)
                return NewDatabase(_content(path), _content(f"{path}-wal"))
    return NewDatabase(b"", b"")


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _abandon(connection: sqlite3.Connection) -> None:
    """Never to be touched again, not even by the interpreter's end, which would close it."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


# --- one client's connection --------------------------------------------------------------------


class Database:
    """One connection, opened when it is needed, under a mutex for the threads that share it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.mutex = threading.Lock()
        self.connection: sqlite3.Connection | None = None
        self.identity: tuple[int, int] | None = None
        """Which file it was opened on."""

    def open(self) -> sqlite3.Connection:
        """The connection to a database that is there. Called with the mutex held."""
        if self.connection is not None:
            return self.connection
        with opening:
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        connection, self.identity = connect(self.place)
        self.connection = connection
        _open.add(self)
        return connection

    def is_of_file(self) -> bool:
        """Whether it is open, on the file that others open now. Called with the mutex held."""
        return self.connection is not None and self.place.identity() == self.identity

    def create(self) -> Side:
        """Make sure that there is a database, and open it. Called with the mutex held."""
        # Closing a file drops all locks that this process has on it: nobody may open it meanwhile.
        with opening:
            side = self.place.prepare(new_database)
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
            reader = self._log_keeper(self.connection)
            for each in (self.connection, reader):
                if each is not None:
                    with contextlib.suppress(sqlite3.Error):
                        each.close()
            # Only now: while it is being closed it is open, and a fork has to wait for it.
            self.connection = None
            _open.discard(self)

    def _log_keeper(self, connection: sqlite3.Connection) -> sqlite3.Connection | None:
        """A connection to be closed after this one, so that neither copies the log back and deletes it.

        SQLite does that when the last connection to a file is closed, unless it cannot write. This one
        cannot, and while it is open the other one is not the last.
        """
        if hasattr(connection, "setconfig"):
            return None  # It has been told not to.
        reader = None
        try:
            if self.identity is not None and self.place.identity() == self.identity:
                uri = f"file:{quote(self.place.path)}?mode=ro"
                reader = sqlite3.connect(
                    uri, timeout=0, isolation_level=None, check_same_thread=False, uri=True
                )
                reader.execute("PRAGMA user_version").fetchone()
        except (sqlite3.Error, EngineUnavailable):
            pass  # Then it is closed as SQLite sees fit.
        return reader

    def forked(self) -> None:
        """This is the child. What is still open was left by a fork that nobody announced: never touch it."""
        connection, self.connection = self.connection, None
        self.mutex = threading.Lock()
        _open.discard(self)
        if connection is not None and self.identity is not None:
            _abandon(connection)
            _inherited.add(self.identity)


# --- forks --------------------------------------------------------------------------------------

_open: set[Database] = set()
"""Changed under ``opening``, or with the mutex of the one concerned held."""

_held_for_fork: list[threading.Lock] = []


def _before_fork() -> None:
    """Close every connection, and keep everyone from opening another until the fork is over."""
    ends_at = boottime() + FORK_PATIENCE_SECONDS
    while (left := ends_at - boottime()) > 0 and opening.acquire(timeout=left):
        still_open = list(_open)
        if not still_open:
            _held_for_fork.append(opening)
            return
        # A call may be under way, and may want to open, too: let it end before anything is closed.
        opening.release()
        database = still_open[0]
        if database.mutex.acquire(timeout=max(ends_at - boottime(), 0.0)):
            _held_for_fork.append(database.mutex)
            database.close()


def _in_parent() -> None:
    while _held_for_fork:
        _held_for_fork.pop().release()


def _in_child() -> None:
    global opening
    _held_for_fork.clear()
    opening = threading.Lock()
    for database in list(_open):
        database.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
