"""Lets one waiting thread read the connection that listens itself; others' messages it delivers."""

from __future__ import annotations

import contextlib

from ...runtime.exclusive_reader import EpollExclusiveReader
from ..resp.connection import HearingSocket
from .pubsub import Ears

__all__ = ["Overhearing"]


class Overhearing(EpollExclusiveReader):
    """For one waiter at a time."""

    __slots__ = ("_ears", "_line")

    def __init__(self, ears: Ears) -> None:
        super().__init__()
        self._ears = ears
        self._line: HearingSocket | None = None
        """None: it broke, and only the bell is left to hear."""

    def take(self) -> bool:
        if not super().take():
            return False
        line = self._ears.line_in_place()
        if line is self._line and line is not None:
            return True
        if isinstance(line, HearingSocket) and self._is_first_at(line):
            return True
        self._hearer.pop(None, None)
        return False

    def _is_first_at(self, line: HearingSocket) -> bool:
        """From now on it is heard here first; False: it cannot be, or is closed."""
        if not line.is_shared:
            return False
        try:
            self._listen_to(line.fileno())
            line.come_last()
        except (OSError, ValueError):
            return False
        self._line = line
        return True

    def _heard(self, fd: int) -> bool:
        line = self._line
        if line is not None and not self._ears.overhear(line):
            # The thread that listens finds out for itself, and makes it anew; then everyone is told to look.
            self._line = None
            self._leave(fd)
            with contextlib.suppress(OSError, ValueError):
                line.come_last()  # which has it look
        return False  # all of what was there was read
