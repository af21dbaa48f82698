"""What failures of SQLite and of the file system mean to a user, and what to do about them."""

from __future__ import annotations

import errno
import os
import sqlite3
from typing import TYPE_CHECKING, Final

from ..local import StoreBusyError

if TYPE_CHECKING:
    from .database_file import DatabaseFile

__all__ = ["OWN_DATABASE_REMEDY", "explain", "remedy_of"]

OWN_DATABASE_REMEDY: Final = (
    "give each user a database of their own, in a folder that only this user writes, "
    "or use a server engine (redis://, postgresql://)"
)

_SQLITE_FAILURES: Final[dict[int, tuple[str, str]]] = {
    sqlite3.SQLITE_FULL: ("cannot grow, the disk is full", "free some space; nothing was changed"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", "check the disk; if it is full, free some space"),
    sqlite3.SQLITE_READONLY: ("is read-only", OWN_DATABASE_REMEDY),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened", OWN_DATABASE_REMEDY),
    sqlite3.SQLITE_PERM: ("cannot be opened: permission denied", OWN_DATABASE_REMEDY),
    sqlite3.SQLITE_AUTH: ("cannot be opened: permission denied", OWN_DATABASE_REMEDY),
    sqlite3.SQLITE_CORRUPT: (
        "is damaged",
        "stop all processes that use it, delete it (with its -wal and -shm) and start them again",
    ),
    sqlite3.SQLITE_NOTADB: ("is not a database", "give the path of another file"),
    sqlite3.SQLITE_TOOBIG: ("cannot hold a record that large", "let fewer clients wait for or hold one lock"),
}

_OS_REMEDIES: Final = {
    errno.ENOSPC: "free some space on its disk",
    errno.EDQUOT: "free some of the user's quota",
    errno.EROFS: "its file system is mounted read-only: mount it writable, or give another path",
    errno.EACCES: f"this user has no permission to write there: {OWN_DATABASE_REMEDY}",
    errno.EMFILE: "this process has too many open files: raise the limit (ulimit -n)",
    errno.ENFILE: "the machine has too many open files",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "there is a symbolic link in its private folder: remove it",
}


FILES_PER_CONNECTION: Final = 4
"""The database, its log, its shared memory, and the folder for a moment."""


def explain(file: DatabaseFile, error: sqlite3.Error) -> Exception:
    """The exception for a failure of SQLite: another process is writing (busy), or the file is unusable."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
        return StoreBusyError()
    what, remedy = _SQLITE_FAILURES.get(
        primary or 0, ("cannot be used", "check the file, or give another path")
    )
    if primary in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR):
        remedy = _lack_of_files() or remedy
    return file.unavailable(f"{what} ({error})", remedy)


def _lack_of_files() -> str:
    """What to do if descriptors for another connection are lacking, which SQLite does not say; else empty."""
    opened: list[int] = []
    try:
        while len(opened) < FILES_PER_CONNECTION:
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return _OS_REMEDIES.get(error.errno or 0, "")
    finally:
        for each in opened:
            os.close(each)
    return ""


def remedy_of(error: OSError) -> str:
    """What to do about a failure of the file system."""
    return _OS_REMEDIES.get(error.errno or 0, "give a path on a local disk that this user can write")
