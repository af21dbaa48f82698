"""Lets one thread that waits in the server's queue hear of its grant itself.

Who waits has a session to itself. While its own thread hears it, the thread that listens leaves it alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ....runtime.exclusive_reader import ExclusiveReader
from ..link import LinkLost
from .desk import Session, Task

__all__ = ["Overhearing"]


class Overhearing(ExclusiveReader):
    """For one waiter at a time."""

    __slots__ = ("_here", "_listen", "_session")

    def __init__(self, listen: Callable[[], None]) -> None:
        super().__init__()
        self._listen = listen
        """Have the other thread hear what nobody else does."""
        self._here = threading.local()
        self._session: Session | None = None

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
        if not self._is_mine():
            self._listen()
            return False
        try:
            self._listen_to(session.line.link.fileno)
        except (LinkLost, ValueError):
            return False  # it ended just now, or the client was closed: then we are posted to
        self._session = session
        session.line.is_heard = True
        return True

    def _heard(self, fd: int) -> bool:
        """Not read here, but by who asks what became of it: this very thread."""
        return True

    def _let_go(self) -> None:
        if self._session is not None:
            self._session.line.is_heard = False
            self._session = None
