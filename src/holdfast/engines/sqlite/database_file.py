"""The database file: where it lives, and whether locks can be trusted there. Owners, modes, file systems.

The database and all files beside it must belong to the effective user: another owner could change them at any
time. A file of another owner is refused.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from ...errors import EngineUnavailable
from .errors import OWN_DATABASE_REMEDY, remedy_of
from .side_directory import PRIVATE_FILE, PRIVATE_FOLDER, SideDirectory, make_private, user_name

__all__ = ["DatabaseFile", "NewDatabase", "find_mount"]

LINKS_MAX: Final = 40

COMPANION_SUFFIXES: Final = ("-wal", "-shm", "-journal")
"""The files that SQLite keeps beside a database."""

REMOTE_FILE_SYSTEMS: Final = (
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
"""Prefixes of the kinds of file system whose locks and shared memory may not reach every process."""


def find_mount(path: str) -> tuple[str, str]:
    """The mount point and file system of a path, from mountinfo. Both are empty if it cannot be read."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return "", ""
    found, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mount_point = _unescaped(before.split(" ")[4])
        # Of two mounts on one point, the later one covers the earlier.
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


def _has_access(path: str, what: int) -> bool:
    return os.access(path, what, effective_ids=os.access in os.supports_effective_ids)


def _make_folder(path: str) -> None:
    """Create a private folder, whatever the umask. An existing folder is left unchanged."""
    try:
        os.mkdir(path, PRIVATE_FOLDER)
    except FileExistsError:
        return
    make_private(path, PRIVATE_FOLDER)


def _make_folders(path: str) -> None:
    if not os.path.isdir(path):
        _make_folders(os.path.dirname(path))
        _make_folder(path)


class NewDatabase(NamedTuple):
    """The content of the files of a new database."""

    content: bytes
    log: bytes


class DatabaseFile:
    """One database file. Constructing this does no I/O."""

    __slots__ = ("creates_folder", "path")

    def __init__(self, path: str, creates_folder: bool) -> None:
        self.path = path
        self.creates_folder = creates_folder

    @property
    def real_path(self) -> str:
        """The path with all links resolved: all processes must use the same files beside the database.

        A link of another user is refused, not followed: it could be replaced before its owner is checked.
        """
        path = _in_real_folder(self.path)
        for _ in range(LINKS_MAX):
            try:
                found = os.lstat(path)
                if not stat.S_ISLNK(found.st_mode):
                    return path
                if found.st_uid not in (os.geteuid(), 0):
                    raise self._foreign_owner("belongs to", found)
                path = _in_real_folder(os.path.join(os.path.dirname(path), os.readlink(path)))
            except (FileNotFoundError, NotADirectoryError):
                return path
            except OSError as error:
                if isinstance(error, EngineUnavailable):
                    raise
                raise self.explain(error) from error
        raise self.unavailable("is a symbolic link that leads to itself", "remove the link")

    def unavailable(self, what: str, remedy: str) -> EngineUnavailable:
        return EngineUnavailable(f"the locks database {self.path} {what}: {remedy}")

    def prepare(self, new_database: Callable[[], NewDatabase]) -> SideDirectory:
        """Check or create the private database file and the private folder beside it. Returns the folder.

        ``new_database`` is called for the content of the files if they do not exist yet.
        """
        try:
            self._check_folder()
            # Links are followed here and nowhere below, so a link that appears later is not followed.
            real = self.real_path
            self._check_owners(real)
            side = self.open_side_directory(real)
            try:
                self._ensure_database(side, real, new_database)
            except BaseException:
                side.close()
                raise
        except EngineUnavailable:
            raise
        except OSError as error:
            raise self.explain(error) from error
        return side

    def explain(self, error: OSError) -> EngineUnavailable:
        """The exception for a failure of the file system."""
        return self.unavailable(f"cannot be used ({error.strerror or error})", remedy_of(error))

    # --- the folder -----------------------------------------------------------------------------

    def _check_folder(self) -> None:
        folder = os.path.dirname(self.path)
        if self.creates_folder:
            _make_folders(folder)
        try:
            is_folder = stat.S_ISDIR(os.stat(folder).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            is_folder = False
        if not is_folder:
            raise self.unavailable("is in a folder that does not exist", f"create {folder}")
        mount_point, kind = find_mount(self.real_path)
        if mount_point == self.real_path:
            raise self.unavailable(
                "is mounted without the files beside it",
                f"mount its folder {os.path.dirname(self.real_path)} instead",
            )
        if kind.startswith(REMOTE_FILE_SYSTEMS):
            raise self.unavailable(
                f"is on a {kind} mount, where locks do not reliably reach every process",
                "give a path on a local disk, or use a server engine (redis://, postgresql://)",
            )

    def _check_owners(self, real: str) -> None:
        """Check that only this user and root can replace the database, or the files and folders beside it."""
        for folder in dict.fromkeys((os.path.dirname(self.path), os.path.dirname(real))):
            found = os.stat(folder)
            if found.st_uid not in (os.geteuid(), 0):
                raise self._foreign_owner(f"is in a folder ({folder}) that belongs to", found)
            if found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
                raise self.unavailable(
                    f"is in a folder ({folder}) where every user can replace it",
                    f"let this user alone write the folder (chmod o-w {folder}), or give another path",
                )
            if os.geteuid() == 0:
                self._check_parents(folder)
        # Some of them may be missing. In a sticky folder another user may have created any of them.
        for path in (self.path, real, *(real + leftover for leftover in COMPANION_SUFFIXES)):
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(path)
                is_link = path == self.path != real and stat.S_ISLNK(found.st_mode)
                if found.st_uid != os.geteuid() and not (is_link and found.st_uid == 0):
                    what = "" if path in (self.path, real) else f"has a file beside it ({path}) that "
                    raise self._foreign_owner(f"{what}belongs to", found)

    def _check_parents(self, folder: str) -> None:
        """For root, who can write everywhere: the owner of a parent folder can redirect the path anywhere."""
        for above in (Path(folder), *Path(folder).parents):
            found = os.lstat(above)
            if found.st_uid != 0:
                raise self._foreign_owner(f"is below a folder ({above}) that belongs to", found)

    def _foreign_owner(self, what: str, found: os.stat_result) -> EngineUnavailable:
        return self.unavailable(
            f"{what} {user_name(found.st_uid)}, but this process runs as {user_name(os.geteuid())}",
            f"run as the owner, or {OWN_DATABASE_REMEDY}",
        )

    def check_companions(self) -> None:
        """Check the owners again after SQLite has opened the files. From then on no user can replace them."""
        try:
            self._check_owners(self.real_path)
        except OSError as error:
            raise self.explain(error) from error

    def open_side_directory(self, real: str | None = None) -> SideDirectory:
        """Open the folder beside the database, or create it. Only files of this user are in it."""
        path = (self.real_path if real is None else real) + ".clients"
        _make_folder(path)
        self._check_side_directory(path, make_private(path, PRIVATE_FOLDER))
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self._check_side_directory(path, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return SideDirectory(path, fd)

    def _check_side_directory(self, path: str, found: os.stat_result) -> None:
        if not stat.S_ISDIR(found.st_mode):
            raise self.unavailable(f"has no private folder: {path} is not a folder", f"remove {path}")
        if found.st_uid != os.geteuid():
            raise self._foreign_owner(f"has a private folder ({path}) that belongs to", found)

    # --- the file -------------------------------------------------------------------------------

    def _ensure_database(
        self, side: SideDirectory, real: str, new_database: Callable[[], NewDatabase]
    ) -> None:
        if not os.path.lexists(real):
            # Written before the lock is taken, so that no process waits for the disk of another.
            new = new_database()
            with contextlib.ExitStack() as undo:
                names = []
                for content in new:
                    names.append(side.write_new(content))
                    undo.callback(side.unlink, names[-1])
                with side.creation_lock():
                    self._create(side, real, *names)
        self._check_file(real, os.lstat(real))
        self._check_file(real, make_private(real, PRIVATE_FILE))

    def _create(self, side: SideDirectory, path: str, name: str, log_name: str) -> None:
        """Put a complete new database in place. Called with the creation lock held."""
        if os.path.lexists(path):
            return
        for leftover in COMPANION_SUFFIXES:
            # They belong to a deleted database. SQLite would take them for the files of the new one.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + leftover)
        os.rename(log_name, f"{path}-wal", src_dir_fd=side.fd)
        os.rename(name, path, src_dir_fd=side.fd)

    def _check_file(self, real: str, found: os.stat_result) -> None:
        if found.st_uid != os.geteuid():
            raise self._foreign_owner("belongs to", found)
        if not stat.S_ISREG(found.st_mode):
            raise self.unavailable("is not a file", "give the path of a file")
        if found.st_nlink > 1:
            # SQLite would keep one log for each name, and the processes would not see each other's changes.
            raise self.unavailable("has several hard links", "remove the other links")
        folder = os.path.dirname(real)
        # SQLite itself would open it read-only without an error.
        if not _has_access(real, os.R_OK | os.W_OK):
            raise self.unavailable("is read-only", "let this user write it (chmod u+rw)")
        if not _has_access(folder, os.W_OK | os.X_OK):
            raise self.unavailable("is in a read-only folder", OWN_DATABASE_REMEDY)

    def file_id(self) -> tuple[int, int] | None:
        """The id of the file; None: there is none. It is not opened: closing it would drop SQLite's locks."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self.explain(error) from error
        return found.st_dev, found.st_ino
