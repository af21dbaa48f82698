"""Which clients are alive. Each client holds a lock on its own file while it lives; the kernel releases it.

A locked file means alive, an unlocked one dead, a missing one unknown; then a lease lasts its ttl. A lock
taken with flock belongs to the open file, so it outlives its process if a child inherited the file. Children
that Python forks close the file. For other children the process id in the client's row decides, if it names
the same process to both clients: in one pid namespace, during one boot.
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
from .side_directory import SideDirectory

__all__ = ["AliveFile", "Identity", "Status", "alive_name", "boot_id", "identify", "probe"]


class Status(enum.Enum):
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


class Identity(NamedTuple):
    """The process of a client, as the operating system names it."""

    boot: str
    """Names the clock: times on the same clock compare."""
    pid: int
    pid_namespace: int
    """0: unknown. Then process ids do not compare."""
    started: int
    """When the process started, in the kernel's ticks. It tells apart processes that had the same id."""
    host: str


def boot_id() -> str:
    """Names the clock of this process: this boot of the kernel, in this time namespace."""
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
        # The /proc of another pid namespace shows other processes under the same ids.
        if os.readlink("/proc/self") == str(pid):
            namespace = os.stat("/proc/self/ns/pid").st_ino
            started = _process(pid)[1]
    except (OSError, ValueError, IndexError):
        namespace = 0
    return Identity(boot_id(), pid, namespace, started, socket.gethostname())


def alive_name(client: str) -> str:
    return f"{client}.alive"


class AliveFile:
    """The lock that shows other clients that this one is alive."""

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
                pass  # The janitor of another process is removing the file: create another.
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
        """In a child this keeps the parent's lock: only an explicit unlock would release it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


def probe(side: SideDirectory, client: str, them: Identity | None, us: Identity) -> Status:
    """Whether a client is alive. ``them``: the identity in its row, if it is known."""
    if them is not None and _probe_process(them, us) is Status.DEAD:
        return Status.DEAD
    return _probe_lock(side, client)


def _probe_lock(side: SideDirectory, client: str) -> Status:
    try:
        fd = side.open_to_read(alive_name(client))
    except OSError:  # Also for a file of another user, whose lock proves nothing.
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
    """Probe the process id, if it names the same process to both clients."""
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
        return Status.UNKNOWN  # Processes of the same user can be hidden, too.
    return Status.DEAD if ended or started != them.started else Status.ALIVE


def _process(pid: int) -> tuple[bool, int]:
    """Whether a process has ended (a zombie without threads), and when it started."""
    # The name in parentheses may hold anything, so the fields are counted from its last parenthesis.
    fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    finally:
        os.close(fd)
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    return state in (b"Z", b"X") and threads <= 1, started
