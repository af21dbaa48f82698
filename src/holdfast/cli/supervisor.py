"""The process between the wrapper and its command: starts it, passes signals on, and ends it in time.

    wrapper      holds the lock: threads, sockets, renewal
      └─ supervisor    one thread, no library code: this file
           └─ command      in a process group of its own

It is forked before the wrapper has any thread, because code run between fork and exec in a process
with threads can deadlock. And it is what makes a lock safe to wrap a command with:

- The wrapper tells it again and again how long the lease is good for. Past that moment the command
  is killed, even when the wrapper hangs or has been stopped.
- The wrapper's end closes the channel, also after ``kill -9``: the command is killed with everything
  it started, in its process group or out of it (as far as ``processes`` reaches).
- When the supervisor itself is killed, the kernel kills the command (on Linux).

Messages in:  start environment until foreground · until time · signal number · lost
Messages out: started pid · failed errno · late · stopped signal · ended status
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .channel import Channel
from .processes import adopt_orphans, clock, descendants, die_with_parent, kill_everything, signal_group
from .signals import PASSED_ON

__all__ = ["Supervisor"]


class Supervisor:
    """Runs until the wrapper is gone, which is how the wrapper dismisses it too."""

    def __init__(self, channel: Channel, command: Sequence[str]) -> None:
        self._channel = channel
        self._command = list(command)
        self._group: int | None = None
        """The command, which leads its process group; until its end is reported."""
        self._status: int | None = None
        """How the command ended, if it did."""
        self._until: float | None = None
        self._lost = False
        self._killed = False

    def run(self, mask: Iterable[int]) -> None:
        """Serve the wrapper. Signals are blocked so far; ``mask`` is what the command should start with."""
        os.setpgid(0, 0)
        adopt_orphans()
        with _child_endings(mask) as endings, selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ, self._on_message)
            selector.register(endings, selectors.EVENT_READ, lambda: self._on_wake(endings))
            while not self._channel.closed:
                for key, _ in selector.select(self._seconds_left()):
                    key.data()
                # After the messages: the newest of them may have moved the deadline.
                if self._seconds_left() == 0:
                    self._kill()
                    self._report_end()
        self._kill()

    def _on_message(self) -> None:
        for kind, *details in self._channel.receive():
            match kind:
                case "start":
                    self._start(*details)
                case "until":
                    self._until = details[0]
                case "signal":
                    self._signal(details[0])
                case "lost":
                    self._lost = True
                    self._signal(signal.SIGTERM)
                    self._signal(signal.SIGCONT)  # A stopped process gets the other one only then.

    def _start(self, environment: Mapping[str, str], until: float | None, foreground: bool) -> None:
        self._until = until
        if self._seconds_left() == 0:
            self._channel.send("late")
            return
        try:
            self._group = self._spawn(environment, foreground)
        except OSError as error:
            self._channel.send("failed", error.errno)

    def _spawn(self, environment: Mapping[str, str], foreground: bool) -> int:
        def prepare() -> None:
            """Between fork and exec: whatever happens to us from here on, the wrapper knows the group."""
            self._channel.send("started", os.getpid())
            die_with_parent(supervisor)
            if foreground:
                _come_to_the_front()

        supervisor = os.getpid()
        try:
            return spawn(self._command, environment, prepare)
        except OSError as error:
            found = shutil.which(self._command[0], path=environment.get("PATH"))
            if error.errno != errno.ENOEXEC or found is None:
                raise
            # A script without a first line that names its interpreter: as execvp does.
            return spawn(["/bin/sh", found, *self._command[1:]], environment, prepare)

    def _signal(self, signum: int) -> None:
        if self._group is not None:
            signal_group(self._group, signum)

    def _kill(self) -> None:
        self._until = None
        self._killed = True
        if self._group is not None:
            kill_everything(self._group)

    def _seconds_left(self) -> float | None:
        return None if self._until is None else max(0.0, self._until - clock())

    def _on_wake(self, endings: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(endings, 4096)
        for pid, status in _changes_of_children():
            if pid != self._group:
                continue  # An orphan of the command's, adopted and now buried.
            if os.WIFSTOPPED(status):
                self._channel.send("stopped", os.WSTOPSIG(status))
            else:
                self._status = status
        self._report_end()

    def _report_end(self) -> None:
        """Tell the wrapper that the command has ended; after a loss, only when all it started has too.

        A shell dies of the first SIGTERM; what it ran may still be tidying up, and has until the
        deadline for it. Without a loss, what the command left running is its own affair.
        """
        if self._group is None or self._status is None:
            return
        if self._lost and not self._killed:
            if descendants(os.getpid()):
                return  # The end of the last one wakes us: they are our children by then.
            signal_group(self._group, signal.SIGKILL)  # Where descendants cannot be listed.
        self._channel.send("ended", self._status)
        self._group = self._until = None


def spawn(command: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], None]) -> int:
    """Start the command in a process group of its own; return its pid. OSError: it could not be.

    Descriptors that the wrapper's caller passed on reach the command (process substitution needs
    them); our own are closed by exec.
    """
    child = subprocess.Popen(
        command,
        env=environment,
        close_fds=False,
        process_group=0,
        preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread
    )
    child.returncode = 0  # We wait for it ourselves; this one must neither wait nor complain.
    return child.pid


def _come_to_the_front() -> None:
    """Make this process group the one that the terminal listens to."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, before)


def _changes_of_children() -> Iterator[tuple[int, int]]:
    """Every child that ended or stopped since we last asked."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            yield pid, status


@contextlib.contextmanager
def _child_endings(mask: Iterable[int]) -> Iterator[int]:
    """A descriptor that becomes readable when a child changes; other signals are the wrapper's to handle."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    for signum in (*PASSED_ON, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        # Not ignored, which the command would inherit; and what was ignored already, stays so for it.
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _do_nothing)
    signal.signal(signal.SIGCHLD, _do_nothing)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield readable
    finally:
        signal.set_wakeup_fd(-1)
        os.close(readable)
        os.close(writable)


def _do_nothing(*_: Any) -> None:
    """Python runs it after the byte is in the pipe; the byte is all that is wanted."""
