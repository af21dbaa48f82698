"""Housekeeping on a separate thread, so that no caller waits for the disk.

It copies the log back into the database, deletes idle records, and removes what dead clients left.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
from typing import Final

from ...errors import EngineUnavailable
from ...rules.record import RETENTION_SECONDS, Record, is_idle
from ...rules.requests import Inspect, Snapshot
from ...rules.transitions import apply
from ...runtime.clock import boottime, wall_us
from ..local import StoreBusyError
from .clients import ClientDirectory
from .connection import START_LOG, DatabaseConnection
from .database_file import DatabaseFile
from .liveness import Status, alive_name, identify
from .records import Execute, decode_stored
from .side_directory import NEW_SUFFIX, SideDirectory
from .sockets import socket_name

__all__ = ["Janitor", "is_due", "truncate_log"]

log = logging.getLogger("holdfast")

CHANGES_PER_CHECKPOINT: Final = 1000
"""After about this many changes by one client the log is copied back into the database."""

LONG_LOG_PAGES: Final = 8000
"""A log this long (32 MiB) is restarted even if that keeps other processes from writing for a moment."""

HUGE_LOG_PAGES: Final = 4 * LONG_LOG_PAGES
"""A log this long is truncated, too. A shorter file keeps its size: overwriting it is much cheaper than
letting it grow again."""

LOG_BYTES_KEPT: Final = 1 << 20
"""A shorter log is left as it is: reading it takes the next client a millisecond, copying it back a sync."""

RUN_INTERVAL_SECONDS: Final = 60.0
SWEEP_US: Final = 600_000_000
ROWS_PER_QUERY: Final = 200
RETENTION_US: Final = int(RETENTION_SECONDS * 1_000_000)

CLAIM_SWEEP: Final = "UPDATE meta SET value = ? WHERE key = 'swept_at' AND value = ?"
FORGET: Final = "DELETE FROM locks WHERE namespace = ? AND name = ? AND version = ?"
KEEP: Final = "UPDATE locks SET forget_at = ? WHERE namespace = ? AND name = ? AND version = ?"
RAISE_FLOOR: Final = "UPDATE meta SET value = max(value, ?) WHERE key = 'floor'"

_running: set[str] = set()
"""Paths of the databases that a janitor thread of this process is working on."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)


class Janitor:
    """Starts the housekeeping of one client's database when it is due."""

    __slots__ = ("_changes", "_checked_at", "_file")

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._changes = 0
        """The number of changes at the last start."""
        self._checked_at = boottime()

    def check_log(self, changes: int) -> None:
        """Called now and then by a client that writes, with the number of changes of its connection."""
        # Fewer changes than before: it is another connection.
        if abs(changes - self._changes) >= CHANGES_PER_CHECKPOINT:
            self._changes = changes
            self.start()

    def start_if_due(self) -> None:
        """Called with each batch of renewals."""
        if boottime() - self._checked_at >= RUN_INTERVAL_SECONDS:
            self.start()

    def start(self) -> None:
        self._checked_at = boottime()
        if self._file.path in _running:
            return
        _running.add(self._file.path)
        try:
            threading.Thread(target=self._work, name="holdfast-janitor", daemon=True).start()
        except RuntimeError:  # The interpreter is ending, or there can be no more threads.
            _running.discard(self._file.path)

    def _work(self) -> None:
        try:
            clean_up(self._file)
        except (sqlite3.Error, StoreBusyError, OSError, EngineUnavailable) as error:
            log.debug("holdfast: housekeeping of %s is postponed: %s", self._file.path, error)
        finally:
            _running.discard(self._file.path)


def clean_up(file: DatabaseFile) -> None:
    """Copy the log back. Every ten minutes, also remove idle records and dead clients."""
    database = DatabaseConnection(file)
    with database.mutex:
        try:
            execute = database.open().execute
            # No caller waits for the janitor, so it may wait for other processes: a postponed sweep is lost.
            execute("PRAGMA busy_timeout = 2000")
            _checkpoint(execute)
            if _is_time_to_sweep(execute):
                sweep(file, execute)
        finally:
            database.close()


def _checkpoint(execute: Execute) -> None:
    """Copy the log back without blocking writers. Only a log that is long nevertheless is restarted."""
    _, pages, _ = execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if pages > LONG_LOG_PAGES:
        execute("PRAGMA busy_timeout = 100")
        huge = pages > HUGE_LOG_PAGES
        execute("PRAGMA wal_checkpoint(TRUNCATE)" if huge else "PRAGMA wal_checkpoint(RESTART)").fetchone()
        execute("PRAGMA busy_timeout = 2000")


def truncate_log(file: DatabaseFile, execute: Execute) -> None:
    """Called by a client that closes: the last client truncates a long log.

    The log matters to the next client that opens the database, which reads all of it. No writer is blocked
    while this waits for the disk: either nothing is left to copy, or other clients exist and this is left to
    them.
    """
    with contextlib.suppress(OSError):
        if os.stat(f"{file.real_path}-wal").st_size < LOG_BYTES_KEPT:
            return
    if execute("SELECT count(*) FROM clients WHERE dead = 0").fetchone()[0]:
        return
    _, pages, copied = execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if pages == copied:
        execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        execute(START_LOG)  # The next client then does not wait for the disk, nor block others.


def is_due(swept_at: int, wall: int) -> bool:
    """By the wall clock. A clock that was set back must not postpone the sweep for ever."""
    return not swept_at <= wall <= swept_at + SWEEP_US


def _is_time_to_sweep(execute: Execute) -> bool:
    """Whether a sweep is due and this process claimed it: one process sweeps at a time."""
    swept_at = execute("SELECT value FROM meta WHERE key = 'swept_at'").fetchone()[0]
    wall = wall_us()
    return is_due(swept_at, wall) and execute(CLAIM_SWEEP, (wall, swept_at)).rowcount == 1


def sweep(file: DatabaseFile, execute: Execute) -> None:
    with contextlib.closing(file.open_side_directory()) as side:
        directory = ClientDirectory(side, identify(), lambda client: None)
        wall = wall_us()
        _mark_dead_clients(execute, directory)
        execute("DELETE FROM clients WHERE dead > 0 AND dead < ?", (wall - RETENTION_US,))
        _forget_records(file, execute, directory, wall)
        _remove_orphans(execute, side)


def _mark_dead_clients(execute: Execute, directory: ClientDirectory) -> None:
    clients = [row[0] for row in execute("SELECT id FROM clients WHERE dead = 0").fetchall()]
    for client, row in directory.load(execute, clients).items():
        if row is not None and directory.probe(client, row.identity) is Status.DEAD:
            directory.mark_dead(execute, client, row)


def _forget_records(file: DatabaseFile, execute: Execute, directory: ClientDirectory, wall: int) -> None:
    select = "SELECT namespace, name, version, boot, record FROM locks WHERE forget_at < ?"
    rows = execute(select, (wall,)).fetchall()
    for start in range(0, len(rows), ROWS_PER_QUERY):
        forgotten, kept = [], []
        for namespace, key, version, boot, text in rows[start : start + ROWS_PER_QUERY]:
            record = decode_stored(file, key, text)
            row = (namespace, key, version)
            if _is_forgettable(execute, directory, record, boot, wall):
                forgotten.append((record.token, row))
            else:
                kept.append((wall + RETENTION_US, *row))
        _forget(execute, forgotten, kept)


def _is_forgettable(
    execute: Execute, directory: ClientDirectory, record: Record, boot: str, wall: int
) -> bool:
    """Whether no live client holds the lock or waits for it, and it carries no value that is still kept."""
    now = boottime()
    view = directory.view(execute, record, boot, now)
    reply = apply(view.record, Inspect(), now, wall, view.dead).reply
    return isinstance(reply, Snapshot) and is_idle(reply.record) and reply.record.value is None


def _forget(
    execute: Execute,
    forgotten: list[tuple[int, tuple[str, bytes, int]]],
    kept: list[tuple[int, str, bytes, int]],
) -> None:
    """Delete records and raise the floor of later tokens in one transaction: the clock may have gone back."""
    try:
        execute("BEGIN IMMEDIATE")  # inside: an interrupt just after it ends the transaction, too
        if forgotten:
            execute(RAISE_FLOOR, (max(token for token, _ in forgotten),))
        for _, row in forgotten:
            execute(FORGET, row)
        for values in kept:
            execute(KEEP, values)
        execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            execute("ROLLBACK")
        raise


def _remove_orphans(execute: Execute, side: SideDirectory) -> None:
    """Remove the files of clients that ended before they had a row, or whose row was deleted long ago."""
    names = os.listdir(side.fd)
    for name in names:
        if name.endswith(NEW_SUFFIX) and _is_abandoned(side, name):
            side.unlink(name)
    files = {name.rpartition(".")[0] for name in names}
    rows = {row[0] for row in execute("SELECT id FROM clients").fetchall()}
    for client in files - rows:
        _remove_if_unlocked(side, client)


def _is_abandoned(side: SideDirectory, name: str) -> bool:
    """Whether the process that was creating a database with this file has died."""
    with contextlib.suppress(OSError):
        found = os.stat(name, dir_fd=side.fd, follow_symlinks=False)
        return found.st_mtime * 1_000_000 + SWEEP_US < wall_us()
    return False


def _remove_if_unlocked(side: SideDirectory, client: str) -> None:
    try:
        fd = side.open_to_read(alive_name(client))
    except OSError:
        return
    try:
        # Locked while it is removed: a client that locks it next sees that it is gone, and creates another.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        side.unlink(socket_name(client))
        side.unlink(alive_name(client))
    except BlockingIOError:
        return
    finally:
        os.close(fd)
