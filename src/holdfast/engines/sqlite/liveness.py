"""Who is alive. Each client holds a lock on a file of its own while it lives; the kernel lets go of it.

Locked means alive; free means dead; missing means unknown, and then a lease lasts its ttl. A lock taken with
flock belongs to the open file and so outlives its process where a child inherited it. Children that Python
forks close theirs. For children that it does not see, the process id that the client noted decides, where it
means the same process to both: in one pid namespace, of one boot.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import socket
from pathlib import Path
from typing import NamedTuple

from ...errors import EngineUnavailable
from .database_file import SideDirectory

__all__ = ["AliveFile", "Identity", "Status", "alive_name", "boot_id", "identify", "probe"]


class Status(enum.Enum):
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Identity(NamedTuple):
    """Who a client is to the operating system."""

    boot: str
    """Times told under the same text compare."""
    pid: int
    pid_namespace: int
    """0: unknown, and then process ids say nothing."""
    started: int
    """When the process began, in the kernel's ticks: process ids are used again."""
    host: str


def boot_id() -> str:
    """Names the clock by which times are told: this boot of the kernel, seen from this time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    try:
        return f"{boot}/{os.stat('/proc/self/ns/time').st_ino}"
    except OSError:
        return boot


def identify() -> Identity:
    pid = os.getpid()
    namespace, started = 0, 0
    try:
        # A /proc of another pid namespace would tell of other processes under the same numbers.
        if os.readlink("/proc/self") == str(pid):
            namespace = os.stat("/proc/self/ns/pid").st_ino
            started = _process(pid)[1]
    except (OSError, ValueError, IndexError):
        namespace = 0
    return Identity(boot_id(), pid, namespace, started, socket.gethostname())


def alive_name(client: str) -> str:
    return f"{client}.alive"


class AliveFile:
    """The lock by which others see that this client lives."""

    __slots__ = ("_fd", "name")

    def __init__(self, side: SideDirectory, client: str) -> None:
        self.name = alive_name(client)
        self._fd = self._lock(side)

    def _lock(self, side: SideDirectory) -> int:
        while True:
            side.unlink(self.name)
            fd = side.create(self.name)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_there(side, fd):
                    return fd
            except BlockingIOError:
                pass  # Somebody sweeps up what looked forsaken: make another.
            except OSError as error:
                raise EngineUnavailable(
                    f"the file system of {side.path} has no file locks ({error.strerror}): "
                    "put the database on a local disk"
                ) from error
            os.close(fd)

    def _is_there(self, side: SideDirectory, fd: int) -> bool:
        try:
            found = os.stat(self.name, dir_fd=side.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(fd))

    def close(self) -> None:
        """In a child this leaves the parent's lock in place: only an explicit unlock would take it away."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def probe(side: SideDirectory, client: str, them: Identity | None, us: Identity) -> Status:
    """Whether a client lives. ``them``: what it noted of itself, if it is known."""
    if them is not None and _probe_process(them, us) is Status.DEAD:
        return Status.DEAD
    return _probe_lock(side, client)


def _probe_lock(side: SideDirectory, client: str) -> Status:
    try:
        fd = side.open_to_read(alive_name(client))
    except OSError:  # also where it is another user's, whose lock says nothing
        return Status.UNKNOWN
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Status.ALIVE
    except OSError:
        return Status.UNKNOWN
    else:
        return Status.DEAD
    finally:
        os.close(fd)


def _probe_process(them: Identity, us: Identity) -> Status:
    """By its process id, where that means the same process to both of us."""
    if not them.pid_namespace or them.pid_namespace != us.pid_namespace or them.boot != us.boot:
        return Status.UNKNOWN
    try:
        os.kill(them.pid, 0)
    except ProcessLookupError:
        return Status.DEAD
    except OSError:
        return Status.UNKNOWN
    try:
        ended, started = _process(them.pid)
    except (OSError, ValueError, IndexError):
        return Status.UNKNOWN  # Processes of one's own user can be hidden, too.
    return Status.DEAD if ended or started != them.started else Status.ALIVE


def _process(pid: int) -> tuple[bool, int]:
    """Whether a process has ended (a zombie without threads), and when it began."""
    # The name in parentheses may hold anything, so the fields are counted from its last parenthesis.
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    finally:
        os.close(fd)
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    return state in (b"Z", b"X") and threads <= 1, started
