"""Connections to PostgreSQL for the threads of a client, one for each statement: see ``runtime/pool.py``."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import TypeVar

from ...core.effects import NotApplied
from ...runtime import pool
from ...runtime.adaptive_spin import AdaptiveSpin
from ...runtime.clock import boottime
from .link import READABLE, Link, Waits

__all__ = ["Pool", "run", "wait_for"]

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
            elif link.looks.spin_poll(poll):
                want = waits.send(None)
                continue
            left = ends_at - boottime()
            if poll.poll(left * 1000.0 if left > 0 else 0):
                want = waits.send(None)
            elif left <= 0:
                raise TimeoutError
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value that the generator returns is its T
    finally:
        waits.close()


def wait_for(link: Link, want: int, ends_at: float, looks: AdaptiveSpin | None) -> bool:
    """Wait in this thread until the connection is ready; False: it was not in time.

    ``looks``: it may be soon, so that sleeping is not worth it at first.
    """
    poll = link.readable if want == READABLE else None
    if poll is None:
        poll = select.poll()
        poll.register(link.fileno, want)
    elif looks is not None and looks.spin_poll(poll):
        return True
    return bool(poll.poll(max(ends_at - boottime(), 0.0) * 1000.0))


class Pool(pool.Pool[Link]):
    """At most ``most`` connections, made when they are needed."""

    def __init__(self, open_link: Callable[[float], Link], most: int) -> None:
        super().__init__(most)
        self._open_link = open_link

    def take(self, ends_at: float) -> Link:
        """One that is connected and quiet, for the caller alone. Refused, if none is to be had in time."""
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                link = self._wait_for_connection(max(ends_at - boottime(), 0.0))
            try:
                if link.is_quiet():
                    return link
            except BaseException:
                self._discard(link)
                raise
            self._discard(link)

    def give(self, link: Link) -> None:
        """Back, ready for the next statement."""
        if self._closed:
            self._discard(link)
        else:
            self._give_back(link)

    def drop(self, link: Link) -> None:
        """It is of no use any more."""
        self._discard(link)

    def _open(self, seconds: float) -> Link:
        return self._open_link(boottime() + seconds)

    def _all_busy(self) -> NotApplied:
        return NotApplied("all connections to PostgreSQL are in use, and none answers")

    def close(self) -> None:
        """Those in use are closed when they are given back."""
        self._closed = True
        self._discard_idle()

    def forked(self) -> None:
        """In the child: let go of the sockets, without a word."""
        for link in self._connections():
            link.forked()
