"""Where the database lives, and whether locks can be trusted there: paths, owners, modes, file systems.

The database and all that lies beside it belong to the effective user, or they are refused: another owner
could change them at any time. Nothing here changes an owner, or a mode through a symbolic link: a file is
opened first, its owner is read from the descriptor, and the mode is set through the same descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import secrets
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ...core.urls import URL
from ...errors import EngineUnavailable, InvalidArgument
from ..local import Busy

__all__ = [
    "EACH_THEIR_OWN",
    "NEW",
    "NewDatabase",
    "Place",
    "Side",
    "default_path",
    "is_default",
    "mount_of",
    "path_of",
]

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700

NEW: Final = ".new"
"""The end of a side file's name that is to become the database."""

MOST_LINKS: Final = 40

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


EACH_THEIR_OWN: Final = (
    "give each user a database of their own, in a folder that only this user writes, "
    "or use a server engine (redis://, postgresql://)"
)


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


def _in_real_folder(path: str) -> str:
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def _may(path: str, what: int) -> bool:
    return os.access(path, what, effective_ids=os.access in os.supports_effective_ids)


def _make_folder(path: str) -> None:
    """A private folder, whatever the umask; one that is there stays as it is."""
    try:
        os.mkdir(path, PRIVATE_FOLDER)
    except FileExistsError:
        return
    make_private(path, PRIVATE_FOLDER)


def _make_folders(path: str) -> None:
    if not os.path.isdir(path):
        _make_folders(os.path.dirname(path))
        _make_folder(path)


def make_private(name: str, mode: int, dir_fd: int | None = None) -> os.stat_result:
    """Set the mode of what the effective user owns; tells what the name is. No link is followed.

    What belongs to another user, and a link, is left as it is: the caller refuses it. Where there is O_PATH
    the owner and the mode are those of one descriptor. It is no ordinary descriptor on purpose: to close one
    of those would drop the locks that SQLite holds on the file in this process.
    """
    if not hasattr(os, "O_PATH"):  # macOS, BSD
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if _is_to_be_changed(found, mode):
            os.chmod(name, mode, dir_fd=dir_fd, follow_symlinks=False)
        return found
    fd = os.open(name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
    try:
        found = os.fstat(fd)
        if _is_to_be_changed(found, mode):
            os.chmod(f"/proc/self/fd/{fd}", mode)
        return found
    finally:
        os.close(fd)


def _is_to_be_changed(found: os.stat_result, mode: int) -> bool:
    is_ours = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
    return is_ours and stat.S_IMODE(found.st_mode) != mode


def _user(uid: int) -> str:
    try:
        return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"user {uid}"


class NewDatabase(NamedTuple):
    """The content of a database's files before anybody has opened them."""

    content: bytes
    log: bytes


class Side:
    """The folder beside the database with one liveness file and one socket for each client."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    def create(self, name: str) -> int:
        """A new private file; its descriptor does not survive exec."""
        return self._open(name, os.O_EXCL)

    def write_new(self, content: bytes) -> str:
        """A new private file that is on the disk with all its content; tells its name."""
        name = f"{secrets.token_hex(8)}{NEW}"
        with open(self.create(name), "wb") as file:
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                self.unlink(name)
                raise
        return name

    def open(self, name: str) -> int:
        """A private file, new or not. One of another user is refused, with PermissionError."""
        return self._open(name, 0)

    def _open(self, name: str, flags: int) -> int:
        flags |= os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(name, flags, PRIVATE_FILE, dir_fd=self.fd)
        try:
            self._check_owner(name, fd)
            os.fchmod(fd, PRIVATE_FILE)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_to_read(self, name: str) -> int:
        """A private file that is there. One of another user is refused, with PermissionError."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(name, flags, dir_fd=self.fd)
        try:
            self._check_owner(name, fd)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_owner(self, name: str, fd: int) -> None:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(errno.EPERM, "it is not a file: remove it", name)
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"it belongs to {_user(found.st_uid)}: remove it", name)

    def bind(self, bound: socket.socket, address: str, name: str) -> None:
        """Give a socket its name here. Nobody else can reach it, not even for a moment."""
        with contextlib.suppress(OSError):  # Linux alone takes the mode of a new name from the descriptor
            os.fchmod(bound.fileno(), PRIVATE_FILE)
        bound.bind(address)
        make_private(name, PRIVATE_FILE, self.fd)

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
        """Whatever links lead there: what lies beside the file must be one for all who use it.

        A link of another user is refused, not followed: it could be gone again before its owner is looked at.
        """
        path = _in_real_folder(self.path)
        for _ in range(MOST_LINKS):
            try:
                found = os.lstat(path)
                if not stat.S_ISLNK(found.st_mode):
                    return path
                if found.st_uid not in (os.geteuid(), 0):
                    raise self._foreign("belongs to", found)
                path = _in_real_folder(os.path.join(os.path.dirname(path), os.readlink(path)))
            except (FileNotFoundError, NotADirectoryError):
                return path
            except OSError as error:
                if isinstance(error, EngineUnavailable):
                    raise
                raise self.explain(error) from error
        raise self.unavailable("is a link that leads to itself", "remove the link")

    def unavailable(self, what: str, remedy: str) -> EngineUnavailable:
        return EngineUnavailable(f"the locks database {self.path} {what}: {remedy}")

    def prepare(self, new_database: Callable[[], NewDatabase]) -> Side:
        """Make sure of a private database file and a private side folder on a file system that can do it.

        ``new_database`` is called for the content of the files where there are none yet.
        """
        try:
            self._check_folder()
            # Links are followed here and nowhere below: one that appears later is what it is, a link.
            real = self.real_path
            self._check_owners(real)
            side = self.open_side(real)
            try:
                self._ensure_file(side, real, new_database)
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
            errno.EACCES: f"this user may not write there: {EACH_THEIR_OWN}",
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
        try:
            is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_folder = False
        if not is_folder:
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

    def _check_owners(self, real: str) -> None:
        """Nobody but this user (and root) can put another file, folder or link under our names."""
        for folder in dict.fromkeys((os.path.dirname(self.path), os.path.dirname(real))):
            found = os.stat(folder)
            if found.st_uid not in (os.geteuid(), 0):
                raise self._foreign(f"is in a folder ({folder}) that belongs to", found)
            if found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
                raise self.unavailable(
                    f"is in a folder ({folder}) where every user can replace it",
                    f"let this user alone write the folder (chmod o-w {folder}), or give another path",
                )
            if os.geteuid() == 0:
                self._check_above(folder)
        # Some of them may be missing. In a sticky folder another user may have made any of them.
        for path in (self.path, real, *(real + leftover for leftover in LEFTOVERS)):
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(path)
                is_link = path == self.path != real and stat.S_ISLNK(found.st_mode)
                if found.st_uid != os.geteuid() and not (is_link and found.st_uid == 0):
                    what = "" if path in (self.path, real) else f"has a file beside it ({path}) that "
                    raise self._foreign(f"{what}belongs to", found)

    def _check_above(self, folder: str) -> None:
        """For root, who can write everywhere: whoever owns a folder above can lead the path anywhere."""
        for above in (Path(folder), *Path(folder).parents):
            found = os.lstat(above)
            if found.st_uid != 0:
                raise self._foreign(f"is below a folder ({above}) that belongs to", found)

    def _foreign(self, what: str, found: os.stat_result) -> EngineUnavailable:
        return self.unavailable(
            f"{what} {_user(found.st_uid)}, and this is {_user(os.geteuid())}",
            f"run as that user, or {EACH_THEIR_OWN}",
        )

    def check_leftovers(self) -> None:
        """Again, when SQLite has opened what lies beside the database: from now on nobody can replace it."""
        try:
            self._check_owners(self.real_path)
        except OSError as error:
            raise self.explain(error) from error

    def open_side(self, real: str | None = None) -> Side:
        """The side folder; made if it is missing. Files of this user alone are in it."""
        path = (self.real_path if real is None else real) + ".clients"
        _make_folder(path)
        self._check_side(path, make_private(path, PRIVATE_FOLDER))
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._check_side(path, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return Side(path, fd)

    def _check_side(self, path: str, found: os.stat_result) -> None:
        if not stat.S_ISDIR(found.st_mode):
            raise self.unavailable(f"has no private folder, {path} is something else", f"remove {path}")
        if found.st_uid != os.geteuid():
            raise self._foreign(f"has a private folder ({path}) that belongs to", found)

    # --- the file -------------------------------------------------------------------------------

    def _ensure_file(self, side: Side, real: str, new_database: Callable[[], NewDatabase]) -> None:
        if not os.path.lexists(real):
            # Written before the gate is closed: nobody waits for another's disk.
            new = new_database()
            with contextlib.ExitStack() as undo:
                names = []
                for content in new:
                    names.append(side.write_new(content))
                    undo.callback(side.unlink, names[-1])
                with side.gate():
                    self._create(side, real, *names)
        self._check_file(real, os.lstat(real))
        self._check_file(real, make_private(real, PRIVATE_FILE))

    def _create(self, side: Side, path: str, name: str, log_name: str) -> None:
        """A new database, complete when it appears. Others cannot be at it: they come through this gate."""
        if os.path.lexists(path):
            return
        for leftover in LEFTOVERS:
            # Of a database that was deleted: SQLite would take them for the new one's.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + leftover)
        os.rename(log_name, f"{path}-wal", src_dir_fd=side.fd)
        os.rename(name, path, src_dir_fd=side.fd)

    def _check_file(self, real: str, found: os.stat_result) -> None:
        if found.st_uid != os.geteuid():
            raise self._foreign("belongs to", found)
        if not stat.S_ISREG(found.st_mode):
            raise self.unavailable("is not a file", "give the path of a file")
        if found.st_nlink > 1:
            # SQLite would keep a log for each name, and neither would know of the other's.
            raise self.unavailable("has several names", "remove its other hard links")
        folder = os.path.dirname(real)
        # SQLite itself would open it read-only without a word.
        if not _may(real, os.R_OK | os.W_OK):
            raise self.unavailable("is read-only", "let this user write it (chmod u+rw)")
        if not _may(folder, os.W_OK | os.X_OK):
            raise self.unavailable("is in a read-only folder", EACH_THEIR_OWN)

    def identity(self) -> tuple[int, int] | None:
        """Which file is there now; None: none. Never opens it: closing it would drop SQLite's own locks."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self.explain(error) from error
        return found.st_dev, found.st_ino
