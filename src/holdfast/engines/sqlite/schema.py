"""The schema of a locks database, and a new database with its tables."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from typing import Final

from ...runtime.clock import wall_us
from .database_file import DatabaseFile, NewDatabase

__all__ = ["SCHEMA", "START_LOG", "check_owner", "create_tables", "new_database"]

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
            connection.execute("INSERT INTO meta VALUES ('source', ?)", (secrets.token_hex(16),))
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
