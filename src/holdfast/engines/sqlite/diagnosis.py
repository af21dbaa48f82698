"""``holdfast doctor`` for a locks database: its path, its owner, its file."""

from __future__ import annotations

import contextlib
import os
import pwd
import sqlite3
import stat

from ..findings import Finding, fail, ok, unknown
from .connection import new_database
from .database_file import DatabaseFile, find_mount

__all__ = ["diagnose"]


def diagnose(file: DatabaseFile, io_timeout: float) -> list[Finding]:
    """The findings. What makes the database unusable is raised, as an acquire raises it."""
    file.prepare(new_database).close()
    path = file.real_path
    found = os.stat(path)
    return [
        ok("connection", "none: the file is read and written by this process"),
        ok("path", path if path == file.path else f"{file.path}, which is {path}"),
        _file_system(path),
        ok("owner", f"{_name(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o}; others have no access"),
        ok("clock", "one machine, one clock"),
        *_database(path, io_timeout),
    ]


def _file_system(path: str) -> Finding:
    mount_point, kind = find_mount(path)
    if not kind:
        return unknown("file system", "unknown on this system: a network mount cannot be used")
    if kind in ("tmpfs", "ramfs"):
        return ok(
            "file system",
            f"{kind} ({mount_point}): a restart deletes all locks; tokens continue with the wall clock",
        )
    return ok("file system", f"{kind} ({mount_point}), local")


def _database(path: str, io_timeout: float) -> list[Finding]:
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=io_timeout)) as database:
            journal = database.execute("PRAGMA journal_mode").fetchone()[0]
            damage = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        return [fail("database", f"SQLite cannot read it ({error}): delete it while nothing uses it")]
    is_new = os.path.getsize(path) == 0
    if journal == "wal" or is_new:
        state = "new: the first lock initialises it" if is_new else "write-ahead log, as required"
        journaling = ok("database", f"{state}; SQLite {sqlite3.sqlite_version}")
    else:
        journaling = fail(
            "database", f"journal mode {journal}: not a locks database of Holdfast, or it was changed"
        )
    if damage != "ok":
        return [journaling, fail("integrity", f"damaged ({damage}): delete it while nothing uses it")]
    return [journaling, ok("integrity", "SQLite finds no damage")]


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
