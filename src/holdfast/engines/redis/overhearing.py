"""Lets one waiting thread read the connection that listens itself. Others' messages it delivers on the way.

Which of the two reads is a matter of what the ``epoll`` of the thread that listens looks for: changing it
wakes nobody.
"""

from __future__ import annotations

from ..hearing import OneHears
from .hearing import Ears
from .sockets import HearingSocket

__all__ = ["Overhearing"]


class Overhearing(OneHears):
    """For one waiter at a time."""

    __slots__ = ("_ears", "_line")

    def __init__(self, ears: Ears) -> None:
        super().__init__()
        self._ears = ears
        self._line: HearingSocket | None = None
        """None: it broke, and only the bell is left to hear."""

    def take(self) -> bool:
        if not self._is_mine():
            return False
        line = self._ears.line_in_place()
        if not isinstance(line, HearingSocket) or not line.leave_reading(True):
            self._hearer.pop(None, None)
            return False
        if line is not self._line:
            self._line = line
            self._listen_to(line.fileno())
        return True

    def _heard(self, fd: int) -> bool:
        line = self._line
        if line is not None and not self._ears.overhear(line):
            # The thread that listens finds out for itself, and makes it anew; then everyone is told to look.
            self._line = None
            self._listen_no_more()
            line.leave_reading(False)
        return False

    def _let_go(self) -> None:
        if self._line is not None:
            self._line.leave_reading(False)
