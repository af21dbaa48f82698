"""The worker processes as the director, the main process, controls them: start, orders, reports, signals,
end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from ..channel import Channel
from ..processes import clock
from ..signals import PASSED_ON
from .outcome import DemoFailed
from .worker import Worker

__all__ = ["Report", "Troupe"]

PATIENCE_SECONDS = 40.0
"""The longest wait for one report, for a busy machine."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker did, and when, on the clock that all processes share."""

    worker: int
    kind: str
    moment: float
    details: dict[str, Any]


class Member:
    """One worker process."""

    def __init__(self, number: int, pid: int, channel: Channel) -> None:
        self.number = number
        self.pid = pid
        self.channel = channel
        self.killed = False


class Troupe:
    """All worker processes. However the demo ends, ``with`` ensures that none is left."""

    def __init__(self, folder: Path, listener: Callable[[Report], None]) -> None:
        self._folder = folder
        self._listener = listener
        self._members: dict[int, Member] = {}
        self._selector = selectors.DefaultSelector()
        self._reports: deque[Report] = deque()

    def __enter__(self) -> Troupe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._members.values():
            # SIGKILL also ends a stopped worker.
            os.kill(member.pid, signal.SIGKILL)
        for member in self._members.values():
            member.channel.close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(member.pid, 0)
        self._selector.close()

    def start(self, size: int) -> None:
        """Fork the workers, and wait until all are ready. Called while this process has one thread."""
        for number in range(1, size + 1):
            self._start_one(number)
        self.gather("ready", range(1, size + 1))

    def pid(self, worker: int) -> int:
        return self._members[worker].pid

    def order(self, worker: int, *order: Any) -> None:
        self._members[worker].channel.send(*order)

    # Reports

    def gather(self, kind: str, workers: Collection[int]) -> dict[int, Report]:
        """Wait for one report of this kind from each of these workers."""
        found: dict[int, Report] = {}
        while len(found) < len(workers):
            report = self.next(kind, set(workers) - set(found))
            found[report.worker] = report
        return found

    def next(self, kind: str, workers: Collection[int]) -> Report:
        """The next report of this kind from one of these workers. Other reports are kept."""
        ends_at = clock() + PATIENCE_SECONDS
        while True:
            for report in self._reports:
                if report.kind == kind and report.worker in workers:
                    self._reports.remove(report)
                    return report
            left = ends_at - clock()
            if left <= 0:
                raise DemoFailed(
                    f"no worker of {sorted(workers)} reported {kind!r} in {PATIENCE_SECONDS:g} s"
                )
            self.listen(left)

    def listen(self, seconds: float) -> None:
        """Receive reports. Waits for them at most this long."""
        for key, _ in self._selector.select(seconds):
            self._receive(key.data)

    def _receive(self, member: Member) -> None:
        for kind, moment, details in member.channel.receive():
            report = Report(member.number, kind, moment, details)
            if kind == "failed":
                raise DemoFailed(f"worker {member.number} failed", details["traceback"])
            self._reports.append(report)
            self._listener(report)
        if member.channel.closed:
            self._selector.unregister(member.channel)
            if not member.killed:
                raise DemoFailed(f"worker {member.number} (process {member.pid}) ended unexpectedly")

    def forget(self) -> None:
        """Discard the remaining reports between two scenes."""
        self._reports.clear()

    # Signals

    def stop(self, worker: int) -> float:
        """Send SIGSTOP. Returns the moment at which the worker was seen stopped."""
        pid = self._members[worker].pid
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        return clock()

    def resume(self, worker: int) -> float:
        """Send SIGCONT. Returns the moment."""
        moment = clock()
        os.kill(self._members[worker].pid, signal.SIGCONT)
        return moment

    def kill(self, worker: int) -> float:
        """Send SIGKILL. Returns the moment."""
        member = self._members[worker]
        member.killed = True
        moment = clock()
        os.kill(member.pid, signal.SIGKILL)
        return moment

    def _start_one(self, number: int) -> None:
        ours, theirs = Channel.pair()
        director = os.getpid()
        # No signal may reach the worker while it has the handlers of the director.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker(number, ours, theirs, director)
            self._members[number] = Member(number, pid, ours)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            theirs.close()
        self._selector.register(ours, selectors.EVENT_READ, self._members[number])

    def _become_worker(self, number: int, ours: Channel, theirs: Channel, director: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            # The director's ends: a worker notices the end of the director when all copies are closed.
            for channel in (ours, *(member.channel for member in self._members.values())):
                channel.close()
            Worker(number, self._folder, theirs).run(director)
        finally:
            # Never return into the caller's frames, nor run its clean-up.
            os._exit(0)
