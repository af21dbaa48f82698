"""The process between the wrapper and its command: starts it, passes signals on, and ends it in time.

    wrapper      holds the lock: threads, sockets, renewal
      └─ supervisor    one thread, no library code: this file
           └─ command      in its own process group

It is forked before the wrapper has any thread, because code between fork and exec in a process with threads
can deadlock. It makes it safe to run a command under a lock:

- The wrapper repeatedly sends it the deadline of the lease. After that moment the supervisor kills the
  command, even if the wrapper hangs or is stopped.
- The end of the wrapper closes the channel, also after ``kill -9``. Then the supervisor kills the command and
  all processes that it started, also outside the process group (as far as ``processes`` can reach them).
- If the supervisor itself is killed, the kernel kills the command (on Linux).

Messages in:  start environment until foreground · until time · signal number · lost
Messages out: started pid · failed errno · late · stopped signal · ended status
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from .channel import Channel
from .processes import adopt_orphans, clock, descendants, die_with_parent, kill_everything, signal_group
from .signals import PASSED_ON

__all__ = ["Supervisor"]


class Supervisor:
    """Runs until the wrapper closes the channel or ends."""

    def __init__(self, channel: Channel, command: Sequence[str]) -> None:
        self._channel = channel
        self._command = list(command)
        self._group: int | None = None
        """The command, which leads its process group, until its end is reported."""
        self._status: int | None = None
        """The wait status of the command after it ended."""
        self._until: float | None = None
        self._lost = False
        self._killed = False

    def run(self, mask: Iterable[int]) -> None:
        """Serve the wrapper. Signals are blocked so far; ``mask`` is the signal mask of the command."""
        os.setpgid(0, 0)
        adopt_orphans()
        with _child_endings(mask) as endings, selectors.DefaultSelector() as selector:
            selector.register(self._channel, selectors.EVENT_READ, self._on_message)
            selector.register(endings, selectors.EVENT_READ, lambda: self._on_wake(endings))
            while not self._channel.closed:
                for key, _ in selector.select(self._seconds_left()):
                    key.data()
                # After the messages: the newest may have moved the deadline.
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
                    self._signal(signal.SIGCONT)  # A stopped process receives the other signal only then.

    def _start(self, environment: Mapping[str, str], until: float | None, foreground: bool) -> None:
        """Start the command, the first time or again after its end was reported."""
        self._until = until
        self._status = None
        self._lost = self._killed = False
        if self._seconds_left() == 0:
            self._channel.send("late")
            return
        try:
            self._group = self._spawn(environment, foreground)
        except OSError as error:
            self._channel.send("failed", error.errno)

    def _spawn(self, environment: Mapping[str, str], foreground: bool) -> int:
        def prepare() -> None:
            """Between fork and exec: from here on the wrapper knows the process group, whatever happens to
            this process."""
            self._channel.send("started", os.getpid())
            die_with_parent(supervisor)
            if foreground:
                _come_to_the_front()

        supervisor = os.getpid()
        try:
            return spawn(self._command, environment, prepare)
        except OSError as error:
            import shutil  # only here: it costs every run a millisecond and more

            found = shutil.which(self._command[0], path=environment.get("PATH"))
            if error.errno != errno.ENOEXEC or found is None:
                raise
            # A script without a #! line is run by a shell, as execvp does.
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
                continue  # An orphaned descendant of the command, which this process adopted.
            if os.WIFSTOPPED(status):
                self._channel.send("stopped", os.WSTOPSIG(status))
            else:
                self._status = status
        self._report_end()

    def _report_end(self) -> None:
        """Report the end of the command. After a loss, wait until all processes that it started have ended,
        too.

        A shell dies of the first SIGTERM. The processes that it started may still be cleaning up, and have
        until the deadline. Without a loss, processes that the command left running are not waited for.
        """
        if self._group is None or self._status is None:
            return
        if self._lost and not self._killed:
            if descendants(os.getpid()):
                return  # The end of the last one wakes this process: orphans are its children.
            signal_group(self._group, signal.SIGKILL)  # Where descendants cannot be listed.
        self._channel.send("ended", self._status)
        self._group = self._until = None


def spawn(command: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], None]) -> int:
    """Start the command in its own process group and return its pid. Raises OSError if that fails.

    Descriptors that the caller of the wrapper passed on reach the command (process substitution needs them).
    The descriptors of this program are closed by exec.
    """
    child = subprocess.Popen(
        command,
        env=environment,
        close_fds=False,
        process_group=0,
        preexec_fn=prepare,  # noqa: PLW1509 - this process has one thread
    )
    child.returncode = 0  # This program waits for it itself; the Popen object must neither wait nor warn.
    return child.pid


def _come_to_the_front() -> None:
    """Make this process group the foreground group of the terminal."""
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, before)


def _changes_of_children() -> Iterator[tuple[int, int]]:
    """Every child that ended or stopped since the last call."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return
            yield pid, status


@contextlib.contextmanager
def _child_endings(mask: Iterable[int]) -> Iterator[int]:
    """A descriptor that becomes readable when a child changes. The wrapper handles the other signals."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    for signum in (*PASSED_ON, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        # A handler, because the command would inherit SIG_IGN. Signals that were ignored already stay
        # ignored.
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
    """Does nothing: Python calls it after writing the byte to the pipe, and only the byte is needed."""
