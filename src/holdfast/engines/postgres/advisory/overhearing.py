"""Lets one thread that waits in the server's queue hear of its grant itself: the way through the thread that
listens is a good part of being woken.

Who waits has a session to itself. While its own thread hears it, the thread that listens leaves it alone.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable

from ...bell import Bell
from ..link import LinkLost
from .desk import Session, Task

__all__ = ["Overhearing"]


class Overhearing:
    """For one waiter at a time."""

    __slots__ = ("_bell", "_hearer", "_here", "_listen", "_poller", "_session")

    def __init__(self, listen: Callable[[], None]) -> None:
        self._listen = listen
        """Have the other thread hear what nobody else does."""
        self._bell = Bell()
        self._hearer: dict[None, int] = {}
        """The thread that hears: set in one step, so that nothing can come in between."""
        self._here = threading.local()
        self._session: Session | None = None
        self._poller = select.poll()

    def expect(self, session: Session, task: Task) -> None:
        """This thread is about to wait for the end of the task."""
        self._here.expected = session, task

    def take(self) -> bool:
        expected: tuple[Session, Task] | None = getattr(self._here, "expected", None)
        if expected is None:
            return False  # it stands in line
        session, task = expected
        if session.dead or task.done or session.current is not task:
            return False  # it has been told already
        me = threading.get_ident()
        if self._hearer.setdefault(None, me) != me:
            self._listen()
            return False
        poller = select.poll()
        try:
            poller.register(self._bell.fileno(), select.POLLIN)
            poller.register(session.line.link.fileno, select.POLLIN)
        except (LinkLost, ValueError):
            return False  # it ended just now, or the client was closed: then we are posted to
        self._session, self._poller = session, poller
        session.line.is_heard = True
        return True

    def hear(self, seconds: float) -> bool:
        """What came on the session is not read here, but by who asks what became of it: this very thread."""
        came = False
        for fd, _ in self._poller.poll(seconds * 1000):
            if fd == self._bell.fileno():
                self._bell.clear()
            else:
                came = True
        return came

    def ring(self) -> None:
        self._bell.ring()

    def give_back(self) -> None:
        if self._hearer.get(None) == threading.get_ident():
            if self._session is not None:
                self._session.line.is_heard = False
                self._session = None
            del self._hearer[None]

    def close(self) -> None:
        self._bell.close()
