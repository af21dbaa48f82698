"""Opening and closing keep nobody out: nothing waits for a disk while SQLite locks the file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from engines.sqlite.stores import One, query, side_files, update
from holdfast.core.effects import NotApplied
from holdfast.engines import local
from holdfast.engines.sqlite import connection, janitor
from holdfast.engines.sqlite.database_file import DatabaseFile, NewDatabase
from support import run_python

COMES_AND_GOES = """
    import sys, holdfast

    print("ready")
    input()
    for _ in range(15):
        with holdfast.connect(sys.argv[1]) as locks, locks.lock(sys.argv[2], timeout=0):
            pass
    print("done")
"""


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def begin_of_log(path: Path) -> bytes:
    """The header: written anew, with another salt, whenever the log is begun."""
    header = log_of(path).read_bytes()[:32]
    assert len(header) == 32
    return header


def test_processes_that_come_and_go_at_once_get_no_error(url: str) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(run_python(COMES_AND_GOES, url, f"n{n}")) for n in range(6)]
        for child in children:
            child.expect("ready")
        for child in children:
            child.send()
        for child in children:
            assert "done" in child.succeed(timeout=90)
            assert child.stderr == ""


def test_a_new_database_is_complete_when_it_appears(path: Path) -> None:
    side = DatabaseFile(str(path), creates_folder=False).prepare(connection.new_database)
    try:
        header = path.read_bytes()[:20]
        assert header[18:] == b"\2\2", "it is in WAL mode, which nobody has to switch"
        assert query(path, "PRAGMA user_version") == [(connection.SCHEMA,)]
        assert {name for (name,) in query(path, "SELECT name FROM sqlite_master")} >= {"locks", "clients"}
        assert query(path, "PRAGMA integrity_check") == [("ok",)]
        assert path.stat().st_mode & 0o777 == 0o600
        assert list(side_files(path)) == []
    finally:
        side.close()


def test_the_first_write_to_a_new_database_does_not_begin_its_log(url: str, path: Path) -> None:
    """SQLite syncs a log when it begins it, and keeps everyone from writing until the disk has it."""
    DatabaseFile(str(path), creates_folder=False).prepare(connection.new_database).close()
    began = begin_of_log(path)
    with holdfast.connect(url) as locks, locks.lock("x"):
        assert begin_of_log(path) == began


def test_without_its_first_log_a_new_database_is_as_good(url: str, path: Path) -> None:
    """After a power cut, perhaps, that came between the two."""
    DatabaseFile(str(path), creates_folder=False).prepare(connection.new_database).close()
    log_of(path).unlink()
    with holdfast.connect(url) as locks, locks.lock("x"):
        assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_each_new_database_has_a_source_of_its_own(path: Path) -> None:
    sources = set()
    for _ in range(2):
        side = DatabaseFile(str(path), creates_folder=False).prepare(connection.new_database)
        side.close()
        sources |= set(query(path, "SELECT value FROM meta WHERE key = 'source'"))
        path.unlink()
    assert len(sources) == 2


def test_a_client_that_comes_while_another_writes_opens_the_database_once(
    path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each opening and closing holds locks of SQLite's for a moment, which others who come find."""
    first = client()
    first.hold("x")
    opened: list[DatabaseFile] = []
    connect = connection.connect

    def count(place: DatabaseFile) -> tuple[sqlite3.Connection, tuple[int, int]]:
        opened.append(place)
        return connect(place)

    monkeypatch.setattr(connection, "connect", count)
    comer = client()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            with pytest.raises(local.StoreBusyError):
                comer.store.apply("y", comer.attempt())
        writer.execute("ROLLBACK")
    comer.hold("y")
    assert len(opened) == 1
    alive = [file for file in side_files(path) if file.suffix == ".alive"]
    assert len(alive) == 2, "what the vain tries made is gone"


def test_where_no_database_can_be_made_in_memory_it_is_made_in_its_place(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SQLite without ``serialize``."""
    monkeypatch.setattr(connection, "new_database", lambda: NewDatabase(b"", b""))
    with holdfast.connect(url) as locks, locks.lock("x"):
        assert query(path, "PRAGMA journal_mode") == [("wal",)]


def test_closing_the_last_connection_copies_nothing_while_others_are_locked_out(url: str, path: Path) -> None:
    with holdfast.connect(url) as locks, locks.lock("x") as first:
        pass
    # SQLite deletes the log when it has been copied back, with the whole file locked until the disk has it.
    assert log_of(path).stat().st_size > 0
    with holdfast.connect(url) as locks, locks.lock("x") as second:
        pass
    assert second.token > first.token
    assert second.fence.source == first.fence.source
    assert query(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_connection_is_closed_even_if_the_database_is_gone(path: Path) -> None:
    one = connection.DatabaseConnection(DatabaseFile(str(path), creates_folder=False))
    with one.mutex:
        one.create().close()
        opened = one.connection
        assert opened is not None
        path.unlink()
        one.close()
    with pytest.raises(sqlite3.ProgrammingError):
        opened.execute("SELECT 1")


def test_nor_does_closing_for_a_fork(url: str, path: Path) -> None:
    with holdfast.connect(url) as locks, locks.lock("x"):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        assert log_of(path).stat().st_size > 0


def test_the_last_to_leave_cuts_off_a_log_that_grew_long(
    url: str, path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "LOG_BYTES_KEPT", 1)
    other = client()
    other.hold("y")
    with holdfast.connect(url) as locks, locks.lock("x"):
        pass
    assert log_of(path).stat().st_size > 0, "another is there, which does it when it leaves"
    long = log_of(path).stat().st_size
    other.store.close()
    began = begin_of_log(path)
    assert log_of(path).stat().st_size < long
    client().hold("z")
    assert begin_of_log(path) == began, "it is begun by the one who leaves, whom nobody waits for"
    assert query(path, "SELECT count(*) FROM locks") == [(3,)]


def test_a_log_is_not_truncated_under_a_reader(url: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor, "LOG_BYTES_KEPT", 1)
    with holdfast.connect(url) as locks, locks.lock("x"):
        pass
    with holdfast.connect(url) as locks, locks.lock("x"):
        reader = reading(path)
    with contextlib.closing(reader):
        assert reader.execute("SELECT count(*) FROM locks").fetchone() == (1,)


def reading(path: Path) -> sqlite3.Connection:
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM locks").fetchone()
    return reader


def test_what_a_dead_process_was_making_a_database_of_is_removed(
    path: Path, client: Callable[[], One]
) -> None:
    one = client()
    one.hold("x")
    folder = path.parent / f"{path.name}.clients"
    old, young = folder / "dead.new", folder / "alive.new"
    for file in (old, young):
        file.touch()
    long_ago = time.time() - 2 * janitor.SWEEP_US / 1_000_000
    os.utime(old, (long_ago, long_ago))
    update(path, "UPDATE meta SET value = 0 WHERE key = 'swept_at'")
    janitor.clean_up(DatabaseFile(str(path), creates_folder=False))
    assert not old.exists()
    assert young.exists()


def test_a_machine_that_is_paused_does_not_make_a_busy_database_an_unavailable_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half a second can pass before a process gets to its second try."""
    readings = iter(range(1, 10_000))
    monkeypatch.setattr(local, "boottime", lambda: float(next(readings)))
    pauses = local._Backoff(local.BUSY_SECONDS)
    for _ in range(local.BUSY_ATTEMPTS_MIN - 1):
        pauses.next()
    with pytest.raises(NotApplied):
        pauses.next()


WITH_FEW_DESCRIPTORS = """
    import os, resource, sys, holdfast

    with holdfast.connect(sys.argv[1]) as locks:
        locks.lock("x").locked()  # everything is imported
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    for free in range(9):
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for each in taken[:free]:
            os.close(each)
        try:
            with holdfast.connect(sys.argv[1]) as locks:
                locks.lock("x").locked()
            print(free, "done")
        except holdfast.EngineUnavailable as error:
            print(free, error)
        for each in taken[free:]:
            os.close(each)
"""


def test_a_lack_of_descriptors_is_the_reported_cause(url: str) -> None:
    with run_python(WITH_FEW_DESCRIPTORS, url) as child:
        lines = child.succeed().splitlines()
    failed = [line for line in lines if "done" not in line]
    assert len(lines) == 9
    assert any("unable to open database file" in line for line in failed), "SQLite ran out of them, too"
    assert [line for line in failed if "raise the limit (ulimit -n)" not in line] == []
