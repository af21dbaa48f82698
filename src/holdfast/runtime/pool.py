"""A few connections to one server, shared by all threads of a client.

A thread that finds an idle connection takes it without any lock. Otherwise it opens one, up to the limit.
Beyond the limit it waits until a connection is handed to it. It is handed over, not merely announced:
otherwise a thread that gives its connection back would take it again before a woken thread gets to run, for
ever.

An interrupt can strike a thread between any two steps. So nothing is counted: weak references show which
connections and permits exist, and one without an owner disappears by itself.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, Protocol, TypeVar

from ..core.effects import NotApplied

__all__ = ["Pool"]


class Closable(Protocol):
    """Any kind of connection."""

    def close(self) -> None: ...


L = TypeVar("L", bound=Closable)


class _Permit:
    """The permission to open a connection."""

    __slots__ = ("__weakref__",)


class _Waiter(Generic[L]):
    """One thread that waits for a connection, or for a permit to open one."""

    __slots__ = ("_lock", "given")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.given: L | _Permit | None = None

    def give(self, what: L | _Permit) -> None:
        self.given = what
        self._lock.release()

    def wait(self, seconds: float) -> None:
        self._lock.acquire(timeout=seconds)


class Pool(ABC, Generic[L]):
    """At most ``most`` connections, opened when they are needed. A subclass opens them."""

    def __init__(self, most: int) -> None:
        self._size_max = most
        self._idle: list[L] = []
        self._waiters: deque[_Waiter[L]] = deque()
        self._taken: weakref.WeakSet[L | _Permit] = weakref.WeakSet()
        """Connections, idle or in use, and the permits of those being opened."""
        self._mutex = threading.RLock()  # A signal handler may run here while its own thread is here.
        self._closed = False

    @abstractmethod
    def _open(self, seconds: float) -> L:
        """Open a connection within this many seconds."""

    @abstractmethod
    def _exhausted(self) -> NotApplied:
        """The error if no connection became free in time."""

    # --- giving back ----------------------------------------------------------------------------

    def _give_back(self, line: L) -> None:
        self._idle.append(line)
        if self._waiters:
            self._serve()

    def _discard(self, line: L) -> None:
        """Close a connection and remove it from the pool."""
        line.close()
        with self._mutex:
            self._taken.discard(line)
        if self._waiters:
            self._serve()

    # --- waiting --------------------------------------------------------------------------------

    def _wait_for_connection(self, seconds: float) -> L:
        room = self._take_permit()
        if room is not None:
            return self._open_with(room, seconds)
        place: _Waiter[L] = _Waiter()
        self._waiters.append(place)
        self._serve()  # A connection may have become idle just before this thread queued.
        try:
            place.wait(seconds)
            given = self._leave(place)
        except BaseException:
            line = self._leave(place)
            if line is not None and not isinstance(line, _Permit):
                self._give_back(line)
            raise
        if given is None:
            raise self._exhausted()
        return self._open_with(given, seconds) if isinstance(given, _Permit) else given

    def _leave(self, place: _Waiter[L]) -> L | _Permit | None:
        """Stop waiting. Returns what was given, if anything."""
        with self._mutex:
            if place in self._waiters:
                self._waiters.remove(place)
            return place.given

    def _take_permit(self) -> _Permit | None:
        with self._mutex:
            if len(self._taken) >= self._size_max:
                return None
            room = _Permit()
            self._taken.add(room)
            return room

    def _open_with(self, room: _Permit, seconds: float) -> L:
        """Open a connection and drop the permit. If opening fails, the next waiter may try."""
        try:
            if self._closed:
                raise NotApplied("this client is closed")
            line = self._open(seconds)
            with self._mutex:
                self._taken.add(line)
        finally:
            with self._mutex:
                self._taken.discard(room)
            if self._waiters:
                self._serve()
        return line

    def _serve(self) -> None:
        """Hand idle connections, or permits, to the waiters in their order."""
        with self._mutex:
            while self._waiters:
                what: L | _Permit | None
                try:
                    what = self._idle.pop()
                except IndexError:
                    what = self._take_permit()
                if what is None:
                    return
                self._waiters.popleft().give(what)

    # --- all of them ----------------------------------------------------------------------------

    def _connections(self) -> list[L]:
        """All open connections, in use or not. Takes no mutex: after a fork it may be locked for ever."""
        while True:
            try:
                return [each for each in list(self._taken) if not isinstance(each, _Permit)]
            except RuntimeError:
                continue  # The set changed during the iteration.

    def _discard_idle(self) -> None:
        while self._idle:
            try:
                self._discard(self._idle.pop())
            except IndexError:
                return
