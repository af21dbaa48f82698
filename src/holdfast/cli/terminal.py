"""Giving the terminal to the command, so that an editor or a shell works under a lock.

The command has its own process group, and a terminal has one foreground group. Like a shell, the wrapper
makes the group of the command the foreground group, and takes the terminal back afterwards:

- at once, if the wrapper is in the foreground and the command's input and output are the terminal;
- otherwise when the command needs the terminal (it stops with SIGTTIN or SIGTTOU), because the wrapper may be
  part of a pipeline in which another program (a pager) uses the terminal.

When the command is suspended, the wrapper suspends itself, and the shell shows its prompt.
"""

from __future__ import annotations

import contextlib
import os
import signal

__all__ = ["Terminal", "stop_ourselves"]


class Terminal:
    """The terminal that controls this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lent_to: int | None = None

    @classmethod
    def controlling(cls) -> Terminal | None:
        """The controlling terminal; None for a service, a cron job, a container without a terminal."""
        try:
            return cls(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:
            return None

    @property
    def lent(self) -> bool:
        return self._lent_to is not None

    def in_front(self) -> bool:
        """Whether the own process group is in the foreground."""
        return self._front() == os.getpgrp()

    def to_be_lent_at_once(self) -> bool:
        return self.in_front() and os.isatty(0) and os.isatty(1)

    def note_lent(self, group: int) -> None:
        """Note that the command went to the foreground when it was started."""
        self._lent_to = group

    def lend(self, group: int) -> None:
        self._lent_to = group
        self._put_in_front(group)

    def take_back(self) -> None:
        """Return to the foreground, unless another process group has the terminal meanwhile."""
        if self._lent_to is not None:
            front = self._front()
            if front == self._lent_to or not _exists(front):
                self._put_in_front(os.getpgrp())
            self._lent_to = None

    def close(self) -> None:
        os.close(self._descriptor)

    def _front(self) -> int:
        try:
            return os.tcgetpgrp(self._descriptor)
        except OSError:
            return -1

    def _put_in_front(self, group: int) -> None:
        # The group may have ended, or the terminal may be gone. Neither can be helped.
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._descriptor, group)


def stop_ourselves(signum: int) -> None:
    """Stop this job, as the signal would have done. Returns when the job is continued.

    Without a shell above it no process could continue the job, so the kernel does not stop it: this returns
    at once, and the command goes on.
    """
    before = signal.signal(signum, signal.SIG_DFL)
    os.kill(0, signum)
    signal.signal(signum, before)


def _exists(group: int) -> bool:
    if group <= 0:
        return False
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
