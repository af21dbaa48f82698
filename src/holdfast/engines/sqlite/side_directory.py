"""The private folder beside the database: one liveness file and one socket for each client, and the cache.

Nothing here changes an owner, or a mode through a symbolic link: a file is opened first, its owner is read
from the descriptor, and the mode is set through the same descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import socket
import stat
from collections.abc import Iterator
from typing import Final

from ...errors import EngineUnavailable
from ..local import StoreBusyError

__all__ = ["NEW_SUFFIX", "PRIVATE_FILE", "PRIVATE_FOLDER", "SideDirectory", "make_private", "user_name"]

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700

NEW_SUFFIX: Final = ".new"
"""The suffix of a file that is renamed to become the database."""


def user_name(uid: int) -> str:
    try:
        return f"user {uid} ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return f"user {uid}"


def make_private(name: str, mode: int, dir_fd: int | None = None) -> os.stat_result:
    """Set the mode of a file that the effective user owns. Returns its status. No link is followed.

    A link, and a file of another user, are left unchanged: the caller refuses them. Where there is O_PATH,
    the owner and the mode are those of one descriptor. The descriptor is not an ordinary one on purpose:
    closing an ordinary one would drop the locks that SQLite holds on the file in this process.
    """
    if not hasattr(os, "O_PATH"):  # macOS, BSD
        found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if _must_change(found, mode):
            os.chmod(name, mode, dir_fd=dir_fd, follow_symlinks=False)
        return found
    fd = os.open(name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
    try:
        found = os.fstat(fd)
        if _must_change(found, mode):
            os.chmod(f"/proc/self/fd/{fd}", mode)
        return found
    finally:
        os.close(fd)


def _must_change(found: os.stat_result, mode: int) -> bool:
    is_own_file = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
    return is_own_file and stat.S_IMODE(found.st_mode) != mode


class SideDirectory:
    """The open folder. Files are named relative to its descriptor."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    def create(self, name: str) -> int:
        """Create a private file. Its descriptor does not survive exec."""
        return self._open(name, os.O_EXCL)

    def write_new(self, content: bytes) -> str:
        """Create a private file whose whole content is on the disk. Returns its name."""
        name = f"{os.urandom(8).hex()}{NEW_SUFFIX}"
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
        """Open or create a private file. A file of another user is refused with PermissionError."""
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
        """Open an existing private file. A file of another user is refused with PermissionError."""
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
            raise PermissionError(errno.EPERM, "not a regular file: remove it", name)
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, f"belongs to {user_name(found.st_uid)}: remove it", name)

    def bind(self, bound: socket.socket, address: str, name: str) -> None:
        """Bind a socket in this folder. No other user can connect to it at any moment."""
        with contextlib.suppress(OSError):  # Only Linux takes the mode of the new name from the descriptor.
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
    def creation_lock(self) -> Iterator[None]:
        """Let one process at a time do the few steps that create a database."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusyError from None
        except OSError as error:
            raise EngineUnavailable(
                f"the file system of {self.path} has no file locks ({error.strerror}): "
                "put the database on a local disk"
            ) from error
        try:
            yield
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)
