"""Peers of the embedded engine: locks on a file, at their defaults, and the bare flock underneath.

Only time limits are changed (to none), since a peer that gives up after its default five seconds would
leave the measurement. Packages are imported when a handle is opened: what is not installed is left out.
"""

from __future__ import annotations

import fcntl
import os
from functools import partial
from typing import Any

from ..contestant import Ability, Contestant, Handle, Place

__all__ = ["CONTESTANTS"]

NEVER_SECONDS = 1e6


def lock_file(place: Place, name: str) -> str:
    return str(place.folder / f"{name}.lock")


class BareFlock(Handle):
    """The kernel's own blocking lock on an open file: no lease, no token, no order promised."""

    def __init__(self, place: Place, name: str) -> None:
        self._descriptor = os.open(lock_file(place, name), os.O_RDWR | os.O_CREAT, 0o600)
        self.acquire = partial(fcntl.flock, self._descriptor, fcntl.LOCK_EX)
        self.release = partial(fcntl.flock, self._descriptor, fcntl.LOCK_UN)

    def try_acquire(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self._descriptor)


class Filelock(Handle):
    """``filelock.FileLock``: looks every 50 ms."""

    def __init__(self, place: Place, name: str) -> None:
        import filelock

        self._timeout: type[Exception] = filelock.Timeout
        self._lock: Any = filelock.FileLock(lock_file(place, name))
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        try:
            self._lock.acquire(blocking=False)
        except self._timeout:
            return False
        return True


class Portalocker(Handle):
    """``portalocker.Lock``: looks every 250 ms."""

    def __init__(self, place: Place, name: str) -> None:
        import portalocker

        self._refused: type[Exception] = portalocker.LockException
        self._lock: Any = portalocker.Lock(lock_file(place, name), timeout=NEVER_SECONDS)
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        try:
            self._lock.acquire(timeout=0, fail_when_locked=True)
        except self._refused:
            return False
        return True


class Fasteners(Handle):
    """``fasteners.InterProcessLock``: looks at intervals that grow from 10 to 100 ms."""

    def __init__(self, place: Place, name: str) -> None:
        import fasteners

        self._lock: Any = fasteners.InterProcessLock(lock_file(place, name))
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(blocking=False))


PROCESSES: frozenset[Ability] = frozenset({"processes"})

CONTESTANTS = (
    Contestant("filelock", "filelock", "peer", Filelock, PROCESSES, "filelock", phase_seconds=0.05),
    Contestant(
        "portalocker", "portalocker", "peer", Portalocker, PROCESSES, "portalocker", phase_seconds=0.25
    ),
    Contestant("fasteners", "fasteners", "peer", Fasteners, PROCESSES, "fasteners", phase_seconds=0.25),
    Contestant("flock", "bare flock", "raw", BareFlock, PROCESSES),
)
