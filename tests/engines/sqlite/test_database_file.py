"""Where the database may be, who may read it, and what is said where it cannot be used."""

from __future__ import annotations

import os
import pwd
import socket
import sqlite3
import stat
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import holdfast
from engines.sqlite.stores import One, query, side_files, update
from holdfast.core.urls import parse_url
from holdfast.engines.sqlite import config, database_file, default_url, open_engine
from holdfast.engines.sqlite.config import default_path, path_from_url
from holdfast.engines.sqlite.database_file import DatabaseFile, find_mount
from holdfast.errors import EngineUnavailable, InvalidArgument
from holdfast.rules.requests import Busy, Gone, Renew
from support import run_python

TRY = """
    import os, sys, holdfast.client, holdfast.engines.sqlite
    # The super-user may write everything: what permissions refuse shows to others only.
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
    try:
        with holdfast.connect(sys.argv[1], io_timeout=1) as locks, locks.lock("x"):
            print("granted")
    except holdfast.EngineUnavailable as error:
        print("refused", error)
"""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(path: Path) -> str:
    locks = holdfast.connect(f"sqlite:///{quote(str(path))}", io_timeout=1)
    with locks, pytest.raises(EngineUnavailable) as caught:
        locks.lock("x").acquire()
    assert str(path) in str(caught.value)
    return str(caught.value)


# --- the path -------------------------------------------------------------------------------------


def test_four_slashes_are_absolute_and_three_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert path_from_url(parse_url("sqlite:////var/lib/app/locks.db")) == "/var/lib/app/locks.db"
    assert path_from_url(parse_url("sqlite:///locks.db")) == str(tmp_path / "locks.db")
    assert path_from_url(parse_url("sqlite:///a%20b/%23.db")) == str(tmp_path / "a b" / "#.db")


def test_a_relative_path_stays_where_it_was_when_connecting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.connect("sqlite:///locks.db") as locks:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        with locks.lock("x"):
            assert (tmp_path / "locks.db").exists()


def test_opening_an_engine_touches_nothing(tmp_path: Path) -> None:
    engine = open_engine(parse_url(f"sqlite:///{tmp_path}/a/b.db"), "n", {})
    assert list(tmp_path.iterdir()) == []
    assert engine.url == f"sqlite:///{tmp_path}/a/b.db"


def test_the_url_of_an_engine_names_the_same_file_again(tmp_path: Path) -> None:
    path = tmp_path / "a b#?%.db"
    engine = open_engine(parse_url(f"sqlite:///{quote(str(path))}"), "n", {})
    assert path_from_url(parse_url(engine.url)) == str(path)
    with holdfast.connect(engine.url) as locks, locks.lock("x"):
        assert path.exists()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://locks.db",
        "sqlite:///",
        "sqlite:////",
        "sqlite:///folder/",
        "sqlite:///:memory:",
        "sqlite:///a%00b",
        "sqlite:///x.db?mode=ro",
        "sqlite://user:secret@/x.db",
    ],
)
def test_urls_that_make_no_sense_are_refused_before_any_io(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        holdfast.connect(url)
    assert "secret" not in str(caught.value)


def test_the_default_comes_from_the_passwd_entry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere/else")
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere/else")
    home = pwd.getpwuid(os.geteuid()).pw_dir
    assert default_path() == f"{home}/.local/share/holdfast/locks.db"
    assert path_from_url(parse_url(default_url())) == default_path()
    assert path_from_url(parse_url("sqlite://")) == default_path()


def test_the_error_for_a_user_without_a_passwd_entry_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(EngineUnavailable, match="HOLDFAST_URL"):
        default_url()
    with holdfast.connect("sqlite:////var/lib/app/locks.db"):
        pass  # A path of one's own needs no passwd entry.


def test_the_default_makes_its_folders_privately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "home" / ".local" / "share" / "holdfast" / "locks.db"
    monkeypatch.setattr(config, "default_path", lambda: str(path))
    monkeypatch.setenv("HOLDFAST_URL", "")
    before = os.umask(0)
    try:
        with holdfast.connect("sqlite://") as locks, locks.lock("x"):
            assert mode_of(path) == 0o600
            assert mode_of(path.parent) == 0o700
            assert mode_of(tmp_path / "home" / ".local") == 0o700
    finally:
        os.umask(before)


# --- permissions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_everything_is_private_whatever_the_umask(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with One(path) as one:
            one.hold("x")
            os.umask(before)
            assert mode_of(path) == 0o600
            assert mode_of(path.parent / "locks.db.clients") == 0o700
            files = list(side_files(path))
            assert {file.name for file in files} == {f"{one.id}.alive", f"{one.id}.sock", "board"}
            assert {mode_of(file) for file in files} == {0o600}
            assert {mode_of(file) for file in path.parent.glob("locks.db-*")} == {0o600}
    finally:
        os.umask(before)


def test_a_database_that_others_could_read_is_made_private(path: Path) -> None:
    path.touch()
    path.chmod(0o666)
    with One(path) as one:
        one.hold("x")
        assert mode_of(path) == 0o600


def test_a_client_that_closed_leaves_nothing_behind(path: Path) -> None:
    with One(path) as one:
        attempt, _ = one.hold("x")
        one.release("x", attempt)
    assert [file.name for file in side_files(path)] == ["board"], "which all clients share"
    assert query(path, "SELECT count(*) FROM clients") == [(0,)]
    assert not list(path.parent.glob("locks.db-*"))


def foreign(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """These belong to another user: really where the tests may do that, otherwise simulated."""
    if os.geteuid() == 0:
        for path in paths:
            os.chown(path, 65534, 65534, follow_symlinks=False)
        return
    numbers = {os.lstat(path).st_ino for path in paths}
    for name in ("stat", "lstat", "fstat"):
        monkeypatch.setattr(os, name, partial(_as_foreign, getattr(os, name), numbers))


def _as_foreign(real: Any, numbers: set[int], *args: Any, **options: Any) -> os.stat_result:
    found: os.stat_result = real(*args, **options)
    if found.st_ino not in numbers:
        return found
    return os.stat_result((*found[:4], 65534, *found[5:]))


def owned(path: Path) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_uid, found.st_mode


def test_the_database_of_another_user_is_refused_and_left_as_it_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by root, who could change its owner."""
    path.touch(mode=0o644)
    foreign(monkeypatch, path)
    before = owned(path)
    told = refusal(path)
    assert "belongs to user 65534" in told
    assert "a database of their own" in told
    assert "chmod" not in told
    assert owned(path) == before


def test_a_side_folder_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Path(f"{path}.clients")
    side.mkdir(mode=0o777)
    foreign(monkeypatch, side)
    before = owned(side)
    assert "has a private folder" in refusal(path)
    assert owned(side) == before


def test_a_folder_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign(monkeypatch, path.parent)
    assert f"is in a folder ({path.parent}) that belongs to user 65534" in refusal(path)
    assert not path.exists()


@pytest.mark.parametrize("beside", ["-wal", "-shm", "-journal"])
def test_a_log_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch, beside: str) -> None:
    Path(f"{path}{beside}").touch()
    foreign(monkeypatch, Path(f"{path}{beside}"))
    assert "has a file beside it" in refusal(path)


def test_a_folder_where_every_user_can_replace_it_is_refused(path: Path) -> None:
    path.parent.chmod(0o777)
    assert "every user can replace it" in refusal(path)
    path.parent.chmod(0o1777)
    with One(path) as one:
        one.hold("x")


def test_a_link_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path.parent / "real.db").touch(mode=0o644)
    path.symlink_to("real.db")
    foreign(monkeypatch, path)
    assert "belongs to user 65534" in refusal(path)
    assert mode_of(path.parent / "real.db") == 0o644


def test_a_link_in_place_of_the_side_folder_is_refused(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(mode=0o755)
    Path(f"{path}.clients").symlink_to("elsewhere")
    assert "is not a folder" in refusal(path)
    assert mode_of(path.parent / "elsewhere") == 0o755


def test_no_mode_is_changed_through_a_link_that_takes_the_place_of_a_socket(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = path.parent / "target"
    target.touch(mode=0o644)
    bind = socket.socket.bind

    def swapped(self: socket.socket, address: str) -> None:
        bind(self, address)
        name = Path(f"{path}.clients", os.path.basename(address))
        assert mode_of(name) & 0o077 == 0, "it was private when it appeared"
        name.unlink()
        name.symlink_to(target)

    monkeypatch.setattr(socket.socket, "bind", swapped)
    with One(path) as one:
        one.hold("x")
    assert mode_of(target) == 0o644


# --- refusals -------------------------------------------------------------------------------------


def test_a_missing_folder(tmp_path: Path) -> None:
    assert f"create {tmp_path}/no" in refusal(tmp_path / "no" / "locks.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "locks.db").mkdir()
    assert "is not a file" in refusal(tmp_path / "locks.db")


def test_a_name_that_is_too_long(tmp_path: Path) -> None:
    assert "shorter path" in refusal(tmp_path / ("x" * 250))


def test_not_a_database(path: Path) -> None:
    path.write_bytes(b"This is a letter to my aunt. " * 100)
    assert "is not a database" in refusal(path)
    assert path.read_bytes().startswith(b"This is a letter")


def test_a_damaged_database(path: Path) -> None:
    with One(path) as one:
        for number in range(200):
            one.hold(f"name-{number}")
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    assert "is damaged" in refusal(path)


def test_a_damaged_record(path: Path) -> None:
    with One(path) as one:
        attempt, _ = one.hold("x")
        one.release("x", attempt)
    update(path, "UPDATE locks SET record = '[1, 2'")
    assert "damaged record of 'x'" in refusal(path)


def test_a_record_of_a_newer_holdfast(path: Path) -> None:
    with One(path) as one:
        attempt, _ = one.hold("x")
        one.release("x", attempt)
    update(path, "UPDATE locks SET record = '[99, []]'")
    assert "upgrade holdfast" in refusal(path)


def test_a_newer_schema(path: Path) -> None:
    with One(path) as one:
        one.hold("x")
    update(path, "PRAGMA user_version = 99")
    assert "created by a newer Holdfast" in refusal(path)


def test_the_database_of_another_program(path: Path) -> None:
    update(path, "CREATE TABLE invoices (number INTEGER)")
    assert "belongs to another program" in refusal(path)
    assert query(path, "PRAGMA journal_mode") == [("delete",)]


def test_a_read_only_file(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "locks.db").touch()
    (folder / "locks.db").chmod(0o400)
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        os.chown(folder / "locks.db", 65534, 65534)
        _let_through(tmp_path)
    with run_python(TRY, f"sqlite:///{folder}/locks.db") as child:
        assert "is read-only: let this user write it" in child.expect("refused")


def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o555)
    _let_through(tmp_path)
    with run_python(TRY, f"sqlite:///{folder}/locks.db") as child:
        assert "a database of their own" in child.expect("refused")


def _let_through(folder: Path) -> None:
    """The temporary folders of pytest are private to the user who runs it; the child is another user."""
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path(parent.anchor):
            parent.chmod(parent.stat().st_mode | 0o011)


def test_a_full_disk_changes_nothing_and_says_so(url: str, path: Path) -> None:
    code = """
        import resource, signal, sys, holdfast
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        locks = holdfast.connect(sys.argv[1], io_timeout=1)
        held = locks.lock("held").acquire()
        # No file may grow beyond this any more, which is what a full disk is like.
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
        try:
            for number in range(100):
                locks.lock(f"name-{number}").acquire()
        except holdfast.EngineUnavailable as error:
            print("refused", error)
        print("number", number)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    """
    with run_python(code, url) as child:
        assert "full" in child.expect("refused")
        number = int(child.expect("number"))
        child.succeed()
    locks = holdfast.connect(url)
    with locks, locks.lock(f"name-{number}", timeout=0), locks.lock("held", timeout=0):
        pass


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "9p",
        "fuse",
        "fuse.sshfs",
        "fuseblk",
        "virtiofs",
        "afs",
        "ceph",
        "lustre",
    ],
)
def test_mounts_where_locks_cannot_be_trusted(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(database_file, "find_mount", lambda path: ("/", kind))
    told = refusal(path)
    assert f"is on a {kind} mount" in told
    assert "local disk" in told
    assert not path.exists()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", ""])
def test_mounts_where_they_can(path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(database_file, "find_mount", lambda path: ("/", kind))
    with One(path) as one:
        one.hold("x")


MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /srv rw,relatime - nfs4 server:/srv rw
31 30 0:41 / /srv/local\040disk rw,relatime - xfs /dev/vdb rw
32 27 0:42 / /mnt rw - ext4 /dev/vdc rw
33 32 0:43 / /mnt rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/app", "nfs4"),
        ("/srv2", "ext4"),
        ("/srv/local disk/app", "xfs"),
        ("/mnt/app", "fuse.sshfs"),
    ],
)
def test_the_mount_of_a_path_is_the_last_of_the_longest(
    monkeypatch: pytest.MonkeyPatch, folder: str, kind: str
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: MOUNTS.strip())
    assert find_mount(folder)[1] == kind


def test_a_file_that_is_mounted_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As containers do it: the log beside it would be another in each."""
    monkeypatch.setattr(database_file, "find_mount", lambda path: (path, "ext4"))
    assert f"mount its folder {path.parent}" in refusal(path)


def test_a_file_with_two_names(path: Path) -> None:
    with One(path) as one:
        one.hold("x")
    os.link(path, path.parent / "other.db")
    assert "has several hard links" in refusal(path)


def test_all_links_lead_to_the_same_locks(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "link.db").symlink_to("real/locks.db")
    paths = [tmp_path / "link.db", tmp_path / "real" / "locks.db", tmp_path / "link" / "locks.db"]
    with One(paths[0]) as first, One(paths[1]) as second, One(paths[2]) as third:
        first.hold("x")
        for other in (second, third):
            assert isinstance(other.ask("x", other.attempt()), Busy)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link", "link.db", "real"]
    files = {"locks.db", "locks.db-shm", "locks.db-wal", "locks.db.clients"}
    assert {file.name for file in (tmp_path / "real").iterdir()} == files


def test_a_link_that_is_turned_elsewhere_leads_there(tmp_path: Path) -> None:
    link = tmp_path / "locks.db"
    link.symlink_to("old.db")
    with One(link) as one:
        attempt, _ = one.hold("x")
        link.unlink()
        link.symlink_to("new.db")
        assert isinstance(one.renew_batch(("x", Renew(attempt.nonce, 30.0)))[0], Gone)
        one.hold("x")
        assert (tmp_path / "new.db").exists()


def test_a_file_system_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert "has no file locks" in refusal(path)


# --- side by side ---------------------------------------------------------------------------------


def test_a_path_longer_than_a_socket_may_have_is_woken_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120) / ("b" * 120)
    folder.mkdir(parents=True)
    with One(folder / "locks.db") as one:
        one.hold("x")
        files = {file.name for file in side_files(folder / "locks.db")}
        assert files == {f"{one.id}.alive", f"{one.id}.sock", "board"}


def test_leftovers_of_a_deleted_database_do_not_harm_the_next(path: Path) -> None:
    with One(path) as old:
        old.hold("x")
        path.unlink()
        with One(path) as new:
            new.hold("x")
            assert query(path, "PRAGMA integrity_check") == [("ok",)]
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_namespaces_do_not_meet(path: Path) -> None:
    with One(path, "one") as one, One(path, "two") as two:
        one.hold("x")
        two.hold("x")
        assert one.store.source != two.store.source
        assert [name for name, _ in one.store.list_names("")] == ["x"]


def test_the_place_does_no_io(tmp_path: Path) -> None:
    DatabaseFile(str(tmp_path / "no" / "locks.db"), True)
    assert list(tmp_path.iterdir()) == []
