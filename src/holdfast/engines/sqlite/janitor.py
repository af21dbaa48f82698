"""Tidying up the log, the forgotten and the dead, on a thread of its own: no caller waits for the disk."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import threading
from typing import Final

from ...drivers.clock import boottime, wall_us
from ...errors import EngineUnavailable
from ...rules.record import RETENTION_SECONDS, Record, is_idle
from ...rules.requests import Inspect, Snapshot
from ...rules.transitions import apply
from ..local import Busy
from .census import Census
from .database import BEGIN_LOG, Database
from .liveness import Status, alive_name, identify
from .place import NEW, Place, Side
from .table import Execute, understand
from .wakeups import socket_name

__all__ = ["Janitor", "is_due", "shorten_log"]

log = logging.getLogger("holdfast")

WRITES: Final = 1000
"""After about so many changes by one client the log is copied back into the database."""

LONG_LOG_PAGES: Final = 8000
"""A log this long (32 MiB) is begun anew even if that keeps others from writing for a moment."""

HUGE_LOG_PAGES: Final = 4 * LONG_LOG_PAGES
"""A log this long is cut off, too; a shorter one stays as it is, for to write over it is much cheaper than to
make the file grow again."""

LEFT_LOG_BYTES: Final = 1 << 20
"""A log shorter than this is left behind: to read it again takes a millisecond, to copy it back a sync."""

LOOK_SECONDS: Final = 60.0
SWEEP_US: Final = 600_000_000
ROWS_AT_ONCE: Final = 200
RETENTION_US: Final = int(RETENTION_SECONDS * 1_000_000)

CLAIM_SWEEP: Final = "UPDATE meta SET value = ? WHERE key = 'swept_at' AND value = ?"
FORGET: Final = "DELETE FROM locks WHERE namespace = ? AND name = ? AND version = ?"
KEEP: Final = "UPDATE locks SET forget_at = ? WHERE namespace = ? AND name = ? AND version = ?"
RAISE_FLOOR: Final = "UPDATE meta SET value = max(value, ?) WHERE key = 'floor'"

_at_work: set[str] = set()
"""Paths of the databases that a thread of this process is tidying."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_at_work.clear)


class Janitor:
    """Knows when there is something to do for one client's database."""

    __slots__ = ("_changes", "_looked_at", "_place")

    def __init__(self, place: Place) -> None:
        self._place = place
        self._changes = 0
        """So many had been made when we last began."""
        self._looked_at = boottime()

    def look_at_log(self, changes: int) -> None:
        """Called now and then by who writes: so many changes were made through its connection by now."""
        if abs(changes - self._changes) >= WRITES:  # fewer than before: it is another connection
            self._changes = changes
            self.start()

    def look(self) -> None:
        """Called now and then by whoever holds or waits."""
        if boottime() - self._looked_at >= LOOK_SECONDS:
            self.start()

    def start(self) -> None:
        self._looked_at = boottime()
        if self._place.path in _at_work:
            return
        _at_work.add(self._place.path)
        try:
            threading.Thread(target=self._work, name="holdfast-janitor", daemon=True).start()
        except RuntimeError:  # The interpreter is ending, or there can be no more threads.
            _at_work.discard(self._place.path)

    def _work(self) -> None:
        try:
            tidy(self._place)
        except (sqlite3.Error, Busy, OSError, EngineUnavailable) as error:
            log.debug("holdfast: tidying %s is put off: %s", self._place.path, error)
        finally:
            _at_work.discard(self._place.path)


def tidy(place: Place) -> None:
    """Copy the log back; every ten minutes, also forget what is idle and dead."""
    database = Database(place)
    with database.mutex:
        try:
            execute = database.open().execute
            # Nobody waits for the janitor, so it may wait for others: put off, a sweep would be lost.
            execute("PRAGMA busy_timeout = 2000")
            _copy_log_back(execute)
            if _is_time_to_sweep(execute):
                sweep(place, execute)
        finally:
            database.close()


def _copy_log_back(execute: Execute) -> None:
    """Without keeping anyone from writing; only a log that grew long all the same is begun anew by force."""
    _, pages, _ = execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if pages > LONG_LOG_PAGES:
        execute("PRAGMA busy_timeout = 100")
        huge = pages > HUGE_LOG_PAGES
        execute("PRAGMA wal_checkpoint(TRUNCATE)" if huge else "PRAGMA wal_checkpoint(RESTART)").fetchone()
        execute("PRAGMA busy_timeout = 2000")


def shorten_log(place: Place, execute: Execute) -> None:
    """Called by a client that leaves: a log that grew long is cut off by the last one out.

    Nobody but the next to open the database reads all of it. Nobody is kept from writing while the disk
    is waited for: by then there is nothing left to copy, or others are there and it is left to them.
    """
    with contextlib.suppress(OSError):
        if os.stat(f"{place.real_path}-wal").st_size < LEFT_LOG_BYTES:
            return
    if execute("SELECT count(*) FROM clients WHERE dead = 0").fetchone()[0]:
        return
    _, pages, copied = execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    if pages == copied:
        execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        execute(BEGIN_LOG)  # The next one who comes does not wait for the disk, nor keeps others waiting.


def is_due(swept_at: int, wall: int) -> bool:
    """By the wall clock; one that was set back must not put it off for ever."""
    return not swept_at <= wall <= swept_at + SWEEP_US


def _is_time_to_sweep(execute: Execute) -> bool:
    """Only one of all processes sweeps at a time."""
    swept_at = execute("SELECT value FROM meta WHERE key = 'swept_at'").fetchone()[0]
    wall = wall_us()
    return is_due(swept_at, wall) and execute(CLAIM_SWEEP, (wall, swept_at)).rowcount == 1


def sweep(place: Place, execute: Execute) -> None:
    with contextlib.closing(place.open_side()) as side:
        census = Census(side, identify(), lambda client: None)
        wall = wall_us()
        _bury_the_dead(execute, census)
        execute("DELETE FROM clients WHERE dead > 0 AND dead < ?", (wall - RETENTION_US,))
        _forget_records(place, execute, census, wall)
        _remove_orphans(execute, side)


def _bury_the_dead(execute: Execute, census: Census) -> None:
    clients = [row[0] for row in execute("SELECT id FROM clients WHERE dead = 0").fetchall()]
    for client, row in census.load(execute, clients).items():
        if row is not None and census.probe(client, row.identity) is Status.DEAD:
            census.bury(execute, client, row)


def _forget_records(place: Place, execute: Execute, census: Census, wall: int) -> None:
    select = "SELECT namespace, name, version, boot, record FROM locks WHERE forget_at < ?"
    rows = execute(select, (wall,)).fetchall()
    for start in range(0, len(rows), ROWS_AT_ONCE):
        forgotten, kept = [], []
        for namespace, key, version, boot, text in rows[start : start + ROWS_AT_ONCE]:
            record = understand(place, key, text)
            row = (namespace, key, version)
            if _is_forgettable(execute, census, record, boot, wall):
                forgotten.append((record.token, row))
            else:
                kept.append((wall + RETENTION_US, *row))
        _forget(execute, forgotten, kept)


def _is_forgettable(execute: Execute, census: Census, record: Record, boot: str, wall: int) -> bool:
    """Nobody alive holds it or waits for it, and no value that is still of use is in it."""
    now = boottime()
    view = census.view(execute, record, boot, now)
    told = apply(view.record, Inspect(), now, wall, view.dead).reply
    return isinstance(told, Snapshot) and is_idle(told.record) and told.record.value is None


def _forget(
    execute: Execute,
    forgotten: list[tuple[int, tuple[str, bytes, int]]],
    kept: list[tuple[int, str, bytes, int]],
) -> None:
    """In one transaction with the floor under all later tokens: the wall clock may have been set back."""
    execute("BEGIN IMMEDIATE")
    try:
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


def _remove_orphans(execute: Execute, side: Side) -> None:
    """Files of clients that ended before they were in the table, or whose row is long gone."""
    names = os.listdir(side.fd)
    for name in names:
        if name.endswith(NEW) and _is_forgotten(side, name):
            side.unlink(name)
    files = {name.rpartition(".")[0] for name in names}
    rows = {row[0] for row in execute("SELECT id FROM clients").fetchall()}
    for client in files - rows:
        _remove_if_free(side, client)


def _is_forgotten(side: Side, name: str) -> bool:
    """Whoever was making a database of it has died."""
    with contextlib.suppress(OSError):
        found = os.stat(name, dir_fd=side.fd, follow_symlinks=False)
        return found.st_mtime * 1_000_000 + SWEEP_US < wall_us()
    return False


def _remove_if_free(side: Side, client: str) -> None:
    try:
        fd = side.open_to_read(alive_name(client))
    except OSError:
        return
    try:
        # Held while it is removed: who is just about to lock it sees that it is gone, and makes another.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        side.unlink(socket_name(client))
        side.unlink(alive_name(client))
    except BlockingIOError:
        return
    finally:
        os.close(fd)
