"""A few connections to one server, shared by all threads of a client.

A thread that finds one idle takes it without any lock. Otherwise one more is opened, up to the limit; beyond
that, a thread waits for one to be handed to it. Handed over, not merely announced: one who has just given its
connection back would otherwise take it again before anybody woken gets to run, for ever.

An interrupt can strike a thread between any two steps. So nothing is counted: what takes up room is known by
weak references, and what nobody has any more takes up none.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Generic, Protocol, TypeVar

from ..core.effects import NotApplied

__all__ = ["Pool"]


class Closable(Protocol):
    """What every kind of connection is."""

    def close(self) -> None: ...


L = TypeVar("L", bound=Closable)


class _Permit:
    """Room for a connection that is yet to be opened."""

    __slots__ = ("__weakref__",)


class _Waiter(Generic[L]):
    """One thread that waits for a connection, or for room to open one."""

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


class Pool(Generic[L]):
    """At most ``most`` connections, made when they are needed. What one is, a subclass knows."""

    def __init__(self, most: int) -> None:
        self._size_max = most
        self._idle: list[L] = []
        self._waiters: deque[_Waiter[L]] = deque()
        self._taken: weakref.WeakSet[L | _Permit] = weakref.WeakSet()
        """What takes up room: connections, idle or in use, and those being opened."""
        self._mutex = threading.RLock()  # a signal handler may come here while its own thread is here
        self._closed = False

    def _open(self, seconds: float) -> L:
        """A new connection, in so many seconds."""
        raise NotImplementedError

    def _exhausted(self) -> NotApplied:
        """None became free in time."""
        raise NotImplementedError

    # --- taking one, and giving it back ---------------------------------------------------------

    def _give_back(self, line: L) -> None:
        self._idle.append(line)
        if self._waiters:
            self._serve()

    def _discard(self, line: L) -> None:
        """It is of no use any more."""
        line.close()
        with self._mutex:
            self._taken.discard(line)
        if self._waiters:
            self._serve()

    # --- when there is none ---------------------------------------------------------------------

    def _wait_for_connection(self, seconds: float) -> L:
        room = self._take_permit()
        if room is not None:
            return self._open_with(room, seconds)
        place: _Waiter[L] = _Waiter()
        self._waiters.append(place)
        self._serve()  # one may have become idle just before we queued up
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
        """Stop waiting; what was given, if anything was."""
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
        """``room`` is given up with it; should opening fail, the next in line may try."""
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
        """Hand what is idle, or room, to those who wait, in their order."""
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
        """Those that are open, in use or not. After a fork, too: a mutex may be locked for ever there."""
        while True:
            try:
                return [each for each in list(self._taken) if not isinstance(each, _Permit)]
            except RuntimeError:
                continue  # one more, or one less, while we looked

    def _discard_idle(self) -> None:
        while self._idle:
            try:
                self._discard(self._idle.pop())
            except IndexError:
                return
