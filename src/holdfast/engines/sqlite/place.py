"""Where the database lives, and whether locks can be trusted there: paths, permissions, file systems."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...core.urls import URL
from ...errors import EngineUnavailable, InvalidArgument
from ..local import Busy

__all__ = ["Place", "Side", "default_path", "is_default", "mount_of", "path_of"]

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700

LEFTOVERS: Final = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database; without the database they belong to nothing."""

REMOTE: Final = (
    "9p",
    "acfs",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "fuse",
    "gfs",
    "gluster",
    "gpfs",
    "lustre",
    "ncp",
    "nfs",
    "ocfs",
    "orangefs",
    "prl_fs",
    "pvfs",
    "smb",
    "vboxsf",
    "virtiofs",
    "vmhgfs",
)
"""Kinds of file system (by how their names begin) whose locks and shared memory may not reach everyone."""


def default_path() -> str:
    """The user's own database. Never from the environment, on which cron and a shell do not agree."""
    uid = os.geteuid()
    try:
        home = pwd.getpwuid(uid).pw_dir
    except KeyError:
        raise EngineUnavailable(
            f"user {uid} has no entry in the passwd database, so the default locks database has no place: "
            "give a URL, for example 'sqlite:////var/lib/app/locks.db', or set HOLDFAST_URL"
        ) from None
    return os.path.join(home, ".local", "share", "holdfast", "locks.db")


def is_default(path: str) -> bool:
    """Whether a path is one that nobody chose; only then its folders are made: a mistyped one is noticed."""
    try:
        return path == default_path()
    except EngineUnavailable:
        return False


def path_of(url: URL) -> str:
    """The file a URL names, made absolute now: a later chdir does not move it."""
    if url.username is not None or url.password is not None or url.hosts:
        raise InvalidArgument(
            "sqlite:// has no host: write three slashes and a relative path (sqlite:///locks.db), "
            "or four and an absolute one (sqlite:////var/lib/app/locks.db)"
        )
    if url.path == "":
        return default_path()
    path = url.path[1:]
    if path in ("", "/") or path.endswith("/"):
        raise InvalidArgument("sqlite:/// needs the path of a file: write for example sqlite:///locks.db")
    if "\0" in path:
        raise InvalidArgument("the path of the database has a NUL in it: write a path without one")
    if path == ":memory:":
        raise InvalidArgument("sqlite:///:memory: would be shared with nobody: write memory:// instead")
    return os.path.abspath(path)


def mount_of(path: str) -> tuple[str, str]:
    """The mount that a path is on, and its kind, by mountinfo; both empty where that cannot be known."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return "", ""
    found, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mount_point = _unescaped(before.split(" ")[4])
        # Of two mounts on one point the later covers the earlier.
        if len(mount_point) >= len(found) and _is_within(path, mount_point):
            found, kind = mount_point, after.split(" ")[0]
    return found, kind


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder if folder.endswith("/") else folder + "/")


def _may(path: str, what: int) -> bool:
    return os.access(path, what, effective_ids=os.access in os.supports_effective_ids)


def _make_folder(path: str) -> None:
    """A private folder, whatever the umask; one that is there stays as it is."""
    try:
        os.mkdir(path, PRIVATE_FOLDER)
    except FileExistsError:
        return
    os.chmod(path, PRIVATE_FOLDER)


def _make_folders(path: str) -> None:
    if not os.path.isdir(path):
        _make_folders(os.path.dirname(path))
        _make_folder(path)


class Side:
    """The folder beside the database with one liveness file and one socket for each client."""

    __slots__ = ("fd", "owner", "path")

    def __init__(self, path: str, fd: int, owner: tuple[int, int] | None) -> None:
        self.path = path
        self.fd = fd
        self.owner = owner
        """Whose the files shall be, where that is not who we are (root at work on a user's database)."""

    def create(self, name: str) -> int:
        """A new private file; its descriptor does not survive exec."""
        return self._open(name, os.O_EXCL)

    def open(self, name: str) -> int:
        """A private file, new or not."""
        return self._open(name, 0)

    def _open(self, name: str, flags: int) -> int:
        flags |= os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(name, flags, PRIVATE_FILE, dir_fd=self.fd)
        os.fchmod(fd, PRIVATE_FILE)
        if self.owner is not None:
            os.fchown(fd, *self.owner)
        return fd

    def protect(self, name: str) -> None:
        os.chmod(name, PRIVATE_FILE, dir_fd=self.fd)
        if self.owner is not None:
            os.chown(name, *self.owner, dir_fd=self.fd)

    def unlink(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=self.fd)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    @contextlib.contextmanager
    def gate(self) -> Iterator[None]:
        """One process at a time, for the few steps that create a database."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy from None
        except OSError as error:
            raise EngineUnavailable(
                f"the file system of {self.path} has no file locks ({error.strerror}): "
                "put the database on a local disk"
            ) from error
        try:
            yield
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)


class Place:
    """One database file. Making one does no I/O."""

    __slots__ = ("makes_folder", "path")

    def __init__(self, path: str, makes_folder: bool) -> None:
        self.path = path
        self.makes_folder = makes_folder

    @property
    def real_path(self) -> str:
        """Whatever links lead there: what lies beside the file must be one for all who use it."""
        return os.path.realpath(self.path)

    def unavailable(self, what: str, remedy: str) -> EngineUnavailable:
        return EngineUnavailable(f"the locks database {self.path} {what}: {remedy}")

    def prepare(self) -> Side:
        """Make sure of a private database file and a private side folder on a file system that can do it."""
        try:
            self._check_folder()
            side = self.open_side()
            try:
                self._ensure_file(side)
            except BaseException:
                side.close()
                raise
        except EngineUnavailable:
            raise
        except OSError as error:
            raise self.explain(error) from error
        return side

    def explain(self, error: OSError) -> EngineUnavailable:
        """What a failure of the file system means to a user."""
        remedies = {
            errno.ENOSPC: "free some space on its disk",
            errno.EDQUOT: "free some of the user's quota",
            errno.EROFS: "its file system is mounted read-only: mount it writable, or give another path",
            errno.EACCES: "let this user write the file and its folder, or give another path",
            errno.EMFILE: "this process has too many open files: raise the limit (ulimit -n)",
            errno.ENFILE: "the machine has too many open files",
            errno.ENAMETOOLONG: "give a shorter path",
            errno.ELOOP: "it is a symbolic link in its private folder: remove it",
        }
        remedy = remedies.get(error.errno or 0, "give a path on a local disk that this user can write")
        return self.unavailable(f"cannot be used ({error.strerror or error})", remedy)

    # --- the folder -----------------------------------------------------------------------------

    def _check_folder(self) -> None:
        folder = os.path.dirname(self.path)
        if self.makes_folder:
            _make_folders(folder)
        if not os.path.isdir(folder):
            raise self.unavailable("has no folder", f"create {folder}")
        mount_point, kind = mount_of(self.real_path)
        if mount_point == self.real_path:
            raise self.unavailable(
                "is mounted alone, without what lies beside it",
                f"mount its folder {os.path.dirname(self.real_path)} instead",
            )
        if kind.startswith(REMOTE):
            raise self.unavailable(
                f"is on a {kind} mount, where locks do not reliably reach every process",
                "give a path on a local disk, or use a server engine (redis://, postgresql://)",
            )

    def open_side(self) -> Side:
        """The side folder; made if it is missing."""
        path = self.real_path + ".clients"
        _make_folder(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        return Side(path, fd, None)

    # --- the file -------------------------------------------------------------------------------

    def _ensure_file(self, side: Side) -> None:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            with side.gate():
                self._create()
            found = os.stat(self.path)
        self._check_file(found)
        self._make_private(found, side)

    def _create(self) -> None:
        """An empty private file. Others cannot be at it: they come through the same gate."""
        if os.path.exists(self.path):
            return
        path = self.real_path
        for leftover in LEFTOVERS:
            # Of a database that was deleted: SQLite would take them for the new one's.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + leftover)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            os.fchmod(fd, PRIVATE_FILE)
        finally:
            os.close(fd)

    def _check_file(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self.unavailable("is not a file", "give the path of a file")
        if found.st_nlink > 1:
            # SQLite would keep a log for each name, and neither would know of the other's.
            raise self.unavailable("has several names", "remove its other hard links")
        uid = os.geteuid()
        if uid not in (0, found.st_uid):
            raise self.unavailable(
                f"belongs to user {found.st_uid}, and this is user {uid}",
                "give each user a database of their own, or use a server engine (redis://, postgresql://)",
            )
        # SQLite itself would open it read-only without a word.
        if not _may(self.path, os.R_OK | os.W_OK):
            raise self.unavailable("is read-only", "let this user write it (chmod u+rw)")
        folder = os.path.dirname(self.path)
        if not _may(folder, os.W_OK | os.X_OK):
            raise self.unavailable("is in a read-only folder", f"let this user write {folder} (chmod u+rwx)")

    def _make_private(self, found: os.stat_result, side: Side) -> None:
        if stat.S_IMODE(found.st_mode) != PRIVATE_FILE:
            os.chmod(self.path, PRIVATE_FILE)
        beside = os.fstat(side.fd)
        if found.st_uid != os.geteuid():
            side.owner = (found.st_uid, found.st_gid)
            if beside.st_uid != found.st_uid:
                os.fchown(side.fd, *side.owner)
        if stat.S_IMODE(beside.st_mode) != PRIVATE_FOLDER:
            os.chmod(side.path, PRIVATE_FOLDER)

    def identity(self) -> tuple[int, int] | None:
        """Which file is there now; None: none. Never opens it: closing it would drop SQLite's own locks."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self.explain(error) from error
        return found.st_dev, found.st_ino
