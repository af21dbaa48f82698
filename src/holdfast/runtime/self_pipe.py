"""A pipe that any thread can make readable, to wake a thread that waits for descriptors."""

from __future__ import annotations

import contextlib
import os

__all__ = ["SelfPipe"]


class SelfPipe:
    """``wake`` may be called from any thread and never blocks."""

    __slots__ = ("_fds",)

    def __init__(self) -> None:
        self._fds = os.pipe()
        for fd in self._fds:
            os.set_blocking(fd, False)

    def fileno(self) -> int:
        return self._fds[0]

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._fds[1], b"\0")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self._fds[0], 4096)

    def close(self) -> None:
        """A later ``wake`` must not write to another file that has got the same descriptor."""
        fds, self._fds = self._fds, (-1, -1)
        for fd in fds:
            if fd >= 0:
                os.close(fd)
