"""Advisory locks as a database server has them: of processes, stacking, with one queue for each key."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .sessions import Connection

__all__ = ["Backend", "Locks", "SqlError", "Steps", "Want"]


class SqlError(Exception):
    """A statement failed: what it wrote is undone."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Want(NamedTuple):
    """What a statement waits for."""

    key: int
    shared: bool


Steps = Generator[Want | None, None, Any]
"""A statement under way; None: a step is over."""


class Backend:
    """A process of the server, for one connection."""

    __slots__ = (
        "alive",
        "asking",
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
        """What it runs, as the coverage table names it."""
        self.turn = 0
        """Changes with every step: what was meant for an earlier one no longer reaches it."""
        self.wants: Want | None = None
        """It stands in the queue for this."""
        self.asking: tuple[Any, ...] | None = None
        """(name, Waiter, Acquire) of one who has or wants a lock that has no token yet."""
        self.cancelled = False
        self.inbox: deque[Any] = deque()
        self.untold: list[str] = []
        """Notifications: told when it has nothing else to do."""
        self.idle_ms = 0
        self.sets_idle_ms: int | None = None
        self.idle_since = self.idle_since_wall = 0.0


class Lock:
    """One key."""

    __slots__ = ("granted", "queue")

    def __init__(self) -> None:
        self.granted: dict[tuple[Backend, bool], int] = {}
        """How often each has it: they stack."""
        self.queue: list[tuple[Backend, bool]] = []

    def is_free_for(self, backend: Backend, shared: bool) -> bool:
        """One's own locks are in nobody's own way."""
        return all(other is backend or (shared and theirs) for other, theirs in self.granted)


class Locks:
    """Advisory locks of sessions, as the server queues for them."""

    def __init__(self, granted: Callable[[Backend], None]) -> None:
        self._granted = granted
        self._keys: dict[int, Lock] = {}
        self.stacked: list[str] = []
        """Who was granted the same again."""

    def _key(self, key: int) -> Lock:
        return self._keys.setdefault(key, Lock())

    def has(self, backend: Backend, key: int, shared: bool) -> bool:
        return (backend, shared) in self._key(key).granted

    def holders(self, key: int) -> list[tuple[Backend, bool]]:
        return list(self._key(key).granted)

    def waiting(self, key: int) -> list[tuple[Backend, bool]]:
        return list(self._key(key).queue)

    def take(self, backend: Backend, key: int, shared: bool, wait: bool) -> bool:
        """Whether it is there; else one who waits stands in the queue."""
        lock = self._key(key)
        # Nobody passes one who waits for it; but who has it need not wait for those who wait for us.
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
        """Everything that a session had; which keys it was."""
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
        """In their order, all whom neither a holder nor one before them is in the way of."""
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
