"""Advisory locks of a database server: processes hold them, they stack, and each key has one queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .sessions import Connection

__all__ = ["Backend", "Locks", "SqlError", "Steps", "Want"]


class SqlError(Exception):
    """A statement failed: its writes are rolled back."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Want(NamedTuple):
    """The lock that a statement waits for."""

    key: int
    shared: bool


Steps = Generator[Want | None, None, Any]
"""A statement under way; yields None after a step."""


class Backend:
    """A process of the server, for one connection."""

    __slots__ = (
        "alive",
        "cancelled",
        "client",
        "connection",
        "idle_ms",
        "idle_since",
        "idle_since_wall",
        "inbox",
        "pid",
        "sets_idle_ms",
        "statement",
        "step",
        "taking",
        "turn",
        "untold",
        "wants",
    )

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid = pid
        self.connection = connection
        self.client = connection.client.id
        self.alive = True
        self.statement: Steps | None = None
        self.step = ""
        """The statement that it executes, as the coverage table names it."""
        self.turn = 0
        """Changes with every step, so that an event for an earlier step is ignored."""
        self.wants: Want | None = None
        """The lock for which it is in the queue."""
        self.taking: tuple[Any, ...] | None = None
        """(name, Waiter, Acquire) while the lock that it takes has no token yet."""
        self.cancelled = False
        self.inbox: deque[Any] = deque()
        self.untold: list[str] = []
        """Notifications, sent when it is idle."""
        self.idle_ms = 0
        self.sets_idle_ms: int | None = None
        self.idle_since = self.idle_since_wall = 0.0


class Lock:
    """One key."""

    __slots__ = ("granted", "queue")

    def __init__(self) -> None:
        self.granted: dict[tuple[Backend, bool], int] = {}
        """How often each process has it: locks stack."""
        self.queue: list[tuple[Backend, bool]] = []

    def is_free_for(self, backend: Backend, shared: bool) -> bool:
        """A process does not conflict with its own locks."""
        return all(other is backend or (shared and theirs) for other, theirs in self.granted)


class Locks:
    """Advisory locks of sessions, as the server queues for them."""

    def __init__(self, granted: Callable[[Backend], None]) -> None:
        self._granted = granted
        self._keys: dict[int, Lock] = {}
        self.stacked: list[str] = []
        """Processes that were granted the same lock again."""

    def _key(self, key: int) -> Lock:
        return self._keys.setdefault(key, Lock())

    def has(self, backend: Backend, key: int, shared: bool) -> bool:
        return (backend, shared) in self._key(key).granted

    def holders(self, key: int) -> list[tuple[Backend, bool]]:
        return list(self._key(key).granted)

    def waiting(self, key: int) -> list[tuple[Backend, bool]]:
        return list(self._key(key).queue)

    def take(self, backend: Backend, key: int, shared: bool, wait: bool) -> bool:
        """Whether the lock was taken; otherwise a process that waits is put in the queue."""
        lock = self._key(key)
        # No process passes a waiter, except that a holder need not wait for those that wait for it.
        is_mine = any(holder is backend for holder, _ in lock.granted)
        passes = any(not (shared and theirs) for _, theirs in lock.queue) and not (is_mine and wait)
        if lock.is_free_for(backend, shared) and not passes:
            self._grant(lock, backend, shared)
            return True
        if wait:
            lock.queue.append((backend, shared))
        return False

    def _grant(self, lock: Lock, backend: Backend, shared: bool) -> None:
        count = lock.granted[backend, shared] = lock.granted.get((backend, shared), 0) + 1
        if count > 1:
            self.stacked.append(f"{backend.client} has it {count} times on {backend.pid}")

    def give(self, backend: Backend, key: int, shared: bool) -> bool:
        lock = self._key(key)
        count = lock.granted.pop((backend, shared), 0)
        if count > 1:
            lock.granted[backend, shared] = count - 1
        elif count:
            self._wake(lock)
        return bool(count)

    def leave_queue(self, backend: Backend, key: int) -> None:
        lock = self._key(key)
        lock.queue = [entry for entry in lock.queue if entry[0] is not backend]
        self._wake(lock)

    def end(self, backend: Backend) -> list[int]:
        """Release everything that a session has; returns the keys."""
        touched = []
        for key, lock in self._keys.items():
            mine = [entry for entry in lock.granted if entry[0] is backend]
            waits = [entry for entry in lock.queue if entry[0] is backend]
            if mine or waits:
                touched.append(key)
                for entry in mine:
                    del lock.granted[entry]
                lock.queue = [entry for entry in lock.queue if entry[0] is not backend]
                self._wake(lock)
        return touched

    def _wake(self, lock: Lock) -> None:
        """Grant in order every waiter that conflicts with no holder and no earlier waiter."""
        ahead: list[bool] = []
        for backend, shared in list(lock.queue):
            if lock.is_free_for(backend, shared) and all(shared and theirs for theirs in ahead):
                lock.queue.remove((backend, shared))
                self._grant(lock, backend, shared)
                self._granted(backend)
            else:
                ahead.append(shared)

    def clear(self) -> None:
        self._keys.clear()
