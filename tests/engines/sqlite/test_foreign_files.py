"""Root uses a database where an unprivileged process can create files, and that process does its worst."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.engines.local import StoreBusyError
from holdfast.engines.sqlite.connection import DatabaseConnection, new_database
from holdfast.engines.sqlite.database_file import DatabaseFile
from holdfast.errors import EngineUnavailable
from support import run_python

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")

EMPTY_HEADER = 65534

ATTACKER = """
    import contextlib, itertools, os, shutil, sys

    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    database, victim = sys.argv[1:]
    names = [database, database + ".clients", database + "-wal", database + "-shm", database + "-journal"]
    print("ready", flush=True)
    for turn in itertools.count():
        for name in names:
            with contextlib.suppress(OSError):
                if turn % 3 == 0:
                    os.symlink(victim, name)
                elif turn % 3 == 1:
                    os.mkdir(name, 0o777)
                    for file in ("board", "x.sock"):
                        os.symlink(victim, f"{name}/{file}")
                else:
                    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name)
            shutil.rmtree(name, ignore_errors=True)
"""

TIMES = 300


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A folder of root's where everyone may create files, as /tmp is one."""
    changed = []
    for folder in (tmp_path, *tmp_path.parents):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)
            changed.append((folder, mode))
    folder = tmp_path / "public"
    folder.mkdir()
    folder.chmod(0o1777)
    yield folder
    for folder, mode in changed:
        folder.chmod(mode)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    file = tmp_path / "victim"
    file.write_text("root's own")
    file.chmod(0o640)
    return file


def assert_untouched(victim: Path) -> None:
    found = victim.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, os.getegid(), 0o640)
    assert victim.read_text() == "root's own"


def try_it(path: Path) -> bool:
    """Open it as an acquire does; False: it is refused, or a stranger was at it this very moment."""
    database = DatabaseConnection(DatabaseFile(str(path), creates_folder=False))
    with database.mutex:
        try:
            database.create().close()
        except (EngineUnavailable, StoreBusyError, sqlite3.Error):
            return False
        finally:
            database.close()
    return True


def remove(path: Path) -> None:
    """So that the stranger has another go at all of it."""
    for end in ("-wal", "-shm"):
        with contextlib.suppress(OSError):
            path.with_name(path.name + end).unlink()
    shutil.rmtree(f"{path}.clients")
    path.unlink()


def test_nothing_of_roots_is_changed_through_what_a_stranger_puts_in_the_way(
    public: Path, victim: Path
) -> None:
    path = public / "locks.db"
    with run_python(ATTACKER, str(path), str(victim)) as attacker:
        attacker.expect("ready")
        for _ in range(TIMES):
            if try_it(path):
                # What was opened is root's, and stays: the stranger can neither remove nor replace it.
                assert [Path(each).lstat().st_uid for each in (path, f"{path}.clients")] == [0, 0]
                remove(path)
            assert_untouched(victim)
        attacker.kill()
    for file in public.rglob("*"):
        if file.lstat().st_uid == EMPTY_HEADER:
            assert not try_it(path), f"{file.name} is a stranger's"
            break
    else:
        assert try_it(path)
    assert_untouched(victim)


def test_a_link_that_appears_after_the_owners_were_checked_is_not_followed(
    public: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment that the attack above waits for."""
    path = public / "locks.db"
    check = DatabaseFile._check_owners

    def then_a_link(place: DatabaseFile, *arguments: str) -> None:
        check(place, *arguments)
        if not path.is_symlink():
            path.symlink_to(victim)
            os.chown(path, EMPTY_HEADER, EMPTY_HEADER, follow_symlinks=False)

    monkeypatch.setattr(DatabaseFile, "_check_owners", then_a_link)
    with pytest.raises(EngineUnavailable, match="belongs to user 65534"):
        DatabaseFile(str(path), creates_folder=False).prepare(new_database)
    assert_untouched(victim)


def test_a_folder_above_that_is_a_strangers_is_refused_to_root(tmp_path: Path, victim: Path) -> None:
    """Its owner could put a link to any other folder of root's in its place."""
    above = tmp_path / "theirs"
    (above / "ours").mkdir(parents=True)
    os.chown(above, EMPTY_HEADER, EMPTY_HEADER)
    with holdfast.connect(f"sqlite:///{above}/ours/locks.db") as locks:
        lock = locks.lock("x")
        with pytest.raises(EngineUnavailable, match=r"theirs\) that belongs to user 65534"):
            lock.acquire()
    assert list((above / "ours").iterdir()) == []
