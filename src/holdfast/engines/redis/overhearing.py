"""Lets one waiting thread read the connection that listens itself: the way through the thread that listens
is a good part of being woken. Others' messages it delivers on the way.

Which of the two reads is a matter of what that thread's ``epoll`` looks for: changing it wakes nobody.
"""

from __future__ import annotations

import select
import threading

from ..bell import Bell
from .hearing import Ears
from .sockets import HearingSocket

__all__ = ["Overhearing"]


class Overhearing:
    """For one waiter at a time."""

    __slots__ = ("_awake", "_bell", "_ears", "_hearer", "_line", "_poller")

    def __init__(self, ears: Ears) -> None:
        self._ears = ears
        self._bell = Bell()
        self._hearer: dict[None, int] = {}
        """The thread that hears: set in one step, so that nothing can come in between."""
        self._line: HearingSocket | None = None
        """None: it broke, and only the bell is left to hear."""
        self._poller = select.poll()
        self._awake = False
        """Whoever hears is about to look at what it waits for, and needs no bell."""

    def take(self) -> bool:
        me = threading.get_ident()
        if self._hearer.setdefault(None, me) != me:
            return False
        line = self._ears.line_in_place()
        if not isinstance(line, HearingSocket) or not line.leave_reading(True):
            self._hearer.pop(None, None)
            return False
        if line is not self._line:
            self._line = line
            self._poller = select.poll()
            self._poller.register(self._bell.fileno(), select.POLLIN)
            self._poller.register(line.fileno(), select.POLLIN)
        return True

    def hear(self, seconds: float) -> None:
        news = self._poller.poll(seconds * 1000)
        self._awake = True
        try:
            for fd, _ in news:
                if fd == self._bell.fileno():
                    self._bell.clear()
                elif self._line is not None and not self._ears.overhear(self._line):
                    self._give_up(self._line, fd)
        finally:
            self._awake = False

    def _give_up(self, line: HearingSocket, fd: int) -> None:
        """The thread that listens finds out for itself, and makes it anew; then everyone is told to look."""
        self._line = None
        self._poller.unregister(fd)
        line.leave_reading(False)

    def ring(self) -> None:
        if not self._awake:
            self._bell.ring()

    def give_back(self) -> None:
        if self._hearer.get(None) == threading.get_ident():
            if self._line is not None:
                self._line.leave_reading(False)
            del self._hearer[None]

    def close(self) -> None:
        self._bell.close()
