"""Child processes that do not outlive this process, and their descendants.

The kernel kills them when their parent dies (PR_SET_PDEATHSIG, set by ``setpriv``), however it dies. "Parent"
means the thread that started them, so one thread, which lasts as long as the process, starts them all.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Final, NamedTuple

from .waiting import until

__all__ = ["Member", "family", "launch", "signal_all", "stand_still", "wait_until_gone"]

PATIENCE_SECONDS: Final = 20.0


class _Starter:
    """The one thread that starts processes."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._orders: queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], _Start]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="holdfast-lab-starter", daemon=True).start()

    def start(self, how: _Start) -> subprocess.Popen[bytes]:
        future: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((future, how))
        return future.result()

    def _work(self) -> None:
        while True:
            future, how = self._orders.get()
            try:
                future.set_result(how())
            except BaseException as error:  # noqa: BLE001 - it is raised in the calling thread
                future.set_exception(error)


_Start = Callable[[], "subprocess.Popen[bytes]"]

_guard = threading.Lock()
_starter: _Starter | None = None


def launch(
    command: Sequence[str],
    *,
    log: IO[bytes],
    folder: Path,
    environment: Mapping[str, str],
    user: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that ends with this process. Ctrl-C at the terminal does not reach it."""
    setpriv = shutil.which("setpriv")
    prefix = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
        )

    global _starter
    with _guard:
        if _starter is None or _starter.pid != os.getpid():
            _starter = _Starter()  # after a fork the thread does not exist
    return _starter.start(start)


class Member(NamedTuple):
    """A process, distinguished from a later one with the same id."""

    pid: int
    started_at: int
    """In ticks since the machine started."""


class _Stat(NamedTuple):
    """Fields of /proc/<pid>/stat."""

    state: str
    """The state letter. ``T``: stopped, ``Z``: dead and not yet reaped."""
    parent: int
    started_at: int


def family(pid: int) -> list[Member]:
    """A process and all its descendants, itself first."""
    children: dict[int, list[Member]] = {}
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or (stat := _stat(int(entry))) is None:
            continue
        member = Member(int(entry), stat.started_at)
        children.setdefault(stat.parent, []).append(member)
        if member.pid == pid:
            found.append(member)
    for each in found:
        found += children.get(each.pid, [])
    return found


def signal_all(members: Sequence[Member], number: signal.Signals) -> None:
    """Signal those of them that are alive."""
    for member in members:
        with contextlib.suppress(ProcessLookupError):
            if _state_of(member) is not None:
                os.kill(member.pid, number)


def stand_still(pid: int) -> list[Member]:
    """Stop a process and all its descendants, and wait until all of them are stopped."""
    os.kill(pid, signal.SIGSTOP)  # the process first, so that it starts no others
    members = family(pid)
    signal_all(members, signal.SIGSTOP)
    until(
        lambda: all(_state_of(each) in (None, "T", "Z") for each in members),
        f"process {pid} did not stop",
        PATIENCE_SECONDS,
    )
    return members


def wait_until_gone(members: Sequence[Member]) -> None:
    """Wait until all have ended: a killed process (-9) may still be releasing its memory and files."""
    until(
        lambda: all(_state_of(each) in (None, "Z") for each in members),
        f"of the processes {members} some did not end",
        PATIENCE_SECONDS,
    )


def _state_of(member: Member) -> str | None:
    stat = _stat(member.pid)
    return stat.state if stat is not None and stat.started_at == member.started_at else None


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may contain any character, so fields are counted from the last parenthesis.
    fields = text.rpartition(")")[2].split()
    return _Stat(fields[0], int(fields[1]), int(fields[19]))
