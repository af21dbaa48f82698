"""Lending the terminal to the command, so that an editor or a shell works under a lock.

The command has a process group of its own, and a terminal listens to one group only. As a shell
does, the wrapper puts the command's group in front and takes the terminal back afterwards:

- at once when it is in front itself and both ends of the command are the terminal;
- otherwise when the command asks (it stops with SIGTTIN or SIGTTOU), because the wrapper may be part
  of a pipeline whose other members (a pager) want the terminal.

When the command is suspended the wrapper suspends itself, and the shell gets its prompt back.
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
        """The terminal we were started from; None for a service, a cron job, a container without one."""
        try:
            return cls(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
        except OSError:
            return None

    @property
    def lent(self) -> bool:
        return self._lent_to is not None

    def in_front(self) -> bool:
        """The terminal listens to our own group."""
        return self._front() == os.getpgrp()

    def to_be_lent_at_once(self) -> bool:
        return self.in_front() and os.isatty(0) and os.isatty(1)

    def note_lent(self, group: int) -> None:
        """The command has put itself in front while it was started."""
        self._lent_to = group

    def lend(self, group: int) -> None:
        self._lent_to = group
        self._put_in_front(group)

    def take_back(self) -> None:
        """Come to the front again, unless the terminal has gone to somebody else in the meantime."""
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
        # The group may have ended, the terminal may be gone: nothing to be done about either.
        with contextlib.suppress(OSError):
            os.tcsetpgrp(self._descriptor, group)


def stop_ourselves(signum: int) -> None:
    """Stop the job that we are, as this signal would have; returns when it is continued.

    Nobody could continue a job without a shell above it, so there the kernel does not stop it: this
    returns at once, and the command goes on.
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
