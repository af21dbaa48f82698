"""The signals that reach the wrapper: first they end its wait, later they are passed on to the command.

The two phases need different behaviour. While the wrapper waits for the lock, a signal must interrupt a
blocking call: the handler raises. While the command runs, no step may be interrupted: signals are queued on a
descriptor, in order, together with the wake-ups of other threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any

__all__ = ["PASSED_ON", "STOPS_WAITING", "Inbox", "Interrupted", "Waiting"]

STOPS_WAITING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
PASSED_ON = (*STOPS_WAITING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)
JOB_CONTROL = (signal.SIGTSTP, signal.SIGCONT)
"""Handled only while the command runs. Before that, Ctrl-Z stops the wrapper like any program."""

NUDGE = 0
"""An entry of the queue that is a wake-up by another thread."""

SWALLOWED_SECONDS = 5.0
"""Python swallows an exception that is raised inside a finaliser. After this time it is raised again."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the wait. As a KeyboardInterrupt it passes every ``except Exception``."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


class Inbox:
    """A queue of signals and wake-ups, with a descriptor that is readable while the queue is not empty."""

    def __init__(self) -> None:
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1
        self._seen: set[int] = set()
        self._raises = False
        self._raised_at = -SWALLOWED_SECONDS

    def fileno(self) -> int:
        return self._readable

    def __enter__(self) -> Inbox:
        self._wakeup_before = signal.set_wakeup_fd(self._writable, warn_on_full_buffer=False)
        self._handle_all(PASSED_ON)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            # A user who presses Ctrl-C once often does so twice. The second one must not interrupt the
            # clean-up.
            signal.signal(signum, signal.SIG_IGN if signum in self._seen else handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._readable)
        os.close(self._writable)

    def waiting(self) -> Waiting:
        """``with inbox.waiting():`` a signal raises ``Interrupted`` inside, which ends the wait."""
        return Waiting(self)

    def handle_job_control(self) -> None:
        """From now on Ctrl-Z is passed to the command, and a write from the background does not stop the
        wrapper."""
        self._handle_all(JOB_CONTROL)
        self._before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def leave_job_control(self) -> None:
        """The command has ended: from now on Ctrl-Z stops the wrapper again."""
        for signum in (*JOB_CONTROL, signal.SIGTTOU):
            if signum in self._before:
                signal.signal(signum, self._before.pop(signum))

    @property
    def seen(self) -> frozenset[int]:
        """The signals of ``STOPS_WAITING`` that came at any time so far."""
        return frozenset(self._seen)

    def nudge(self) -> None:
        """Make the descriptor readable. Any thread may call this at any time."""
        # Full: the descriptor is readable anyway. Closed: it is not read any more.
        with contextlib.suppress(OSError):
            os.write(self._writable, bytes([NUDGE]))

    def take(self) -> list[int]:
        """The signals since the last call, in order."""
        try:
            return [signum for signum in os.read(self._readable, 4096) if signum != NUDGE]
        except BlockingIOError:
            return []

    @property
    def was_stopped(self) -> bool:
        """Whether a signal came that ends a program."""
        return bool(self._seen)

    def set_raising(self, raises: bool) -> None:
        self._raises = raises

    def _handle_all(self, signums: tuple[int, ...]) -> None:
        for signum in signums:
            before = signal.getsignal(signum)
            # Signals that the caller ignores (nohup, a background job of a script) stay ignored, also in the
            # command.
            if before is not signal.SIG_IGN:
                self._before[signum] = before
                signal.signal(signum, self._on_signal)

    def _on_signal(self, signum: int, _: FrameType | None) -> None:
        if signum not in STOPS_WAITING:
            return
        self._seen.add(signum)
        if not self._raises:
            return
        # Raised once: a second one would interrupt the withdrawal that follows the first.
        if time.monotonic() - self._raised_at > SWALLOWED_SECONDS:
            self._raised_at = time.monotonic()
            raise Interrupted(signum)


class Waiting:
    """The scope in which signals raise. It is a class, because a generator could be interrupted halfway."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def __enter__(self) -> None:
        self._inbox.set_raising(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._inbox.set_raising(False)
