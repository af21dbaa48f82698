"""A few connections for the threads of one client: taken for one statement each."""

from __future__ import annotations

import select
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ...core.ops import Refused
from ...drivers.clock import boottime
from .link import READABLE, Link, Waits

__all__ = ["Pool", "run"]

T = TypeVar("T")


def run(link: Link, waits: Waits[T], ends_at: float) -> T:
    """Wait in this thread for whatever it waits for. TimeoutError at the moment ``ends_at``."""
    try:
        want = next(waits)
        while True:
            poll = link.readable if want == READABLE else None
            if poll is None:
                poll = select.poll()
                poll.register(link.fileno, want)
            left = ends_at - boottime()
            if poll.poll(left * 1000.0 if left > 0 else 0):
                want = waits.send(None)
            elif left <= 0:
                raise TimeoutError
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value that the generator returns is its T
    finally:
        waits.close()


class Pool:
    """At most ``limit`` connections, made when they are needed."""

    def __init__(self, open_link: Callable[[float], Link], limit: int) -> None:
        self._open_link = open_link
        self._limit = limit
        self._idle: deque[Link] = deque()
        self._links: set[Link] = set()
        """All there are, in use or not."""
        self._opening = 0
        self._waiting = 0
        self._changed = threading.Condition()
        self._closed = False

    def take(self, ends_at: float) -> Link:
        """One that is connected and quiet, for the caller alone. Refused, if none is to be had in time."""
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                taken = self._wait(ends_at)
                if taken is None:
                    return self._open(ends_at)
                link = taken
            if link.is_quiet():
                return link
            self.drop(link)

    def _wait(self, ends_at: float) -> Link | None:
        """None: one more may be opened."""
        with self._changed:
            self._waiting += 1
            try:
                while True:
                    if self._closed:
                        raise Refused("this client is closed")
                    if self._idle:
                        return self._idle.pop()
                    if len(self._links) + self._opening < self._limit:
                        self._opening += 1
                        return None
                    left = ends_at - boottime()
                    if left <= 0:
                        raise Refused("all connections to PostgreSQL are in use, and none answers")
                    self._changed.wait(left)
            except IndexError:  # somebody took it without asking for the mutex
                return self._wait(ends_at)
            finally:
                self._waiting -= 1

    def _open(self, ends_at: float) -> Link:
        link: Link | None = None
        try:
            link = self._open_link(ends_at)
            return link
        finally:
            with self._changed:
                self._opening -= 1
                if link is not None:
                    self._links.add(link)
                self._changed.notify()

    def give(self, link: Link) -> None:
        """Back, ready for the next statement."""
        self._idle.append(link)
        if self._waiting:
            with self._changed:
                self._changed.notify()
        if self._closed:
            self.close()

    def drop(self, link: Link) -> None:
        """It is of no use any more."""
        link.close()
        with self._changed:
            self._links.discard(link)
            self._changed.notify()

    def close(self) -> None:
        """Those in use are closed when they are given back."""
        self._closed = True
        with self._changed:
            while self._idle:
                link = self._idle.pop()
                self._links.discard(link)
                link.close()
            self._changed.notify_all()

    def forked(self) -> None:
        """In the child: let go of the sockets, without a word."""
        for link in self._links:
            link.forked()
