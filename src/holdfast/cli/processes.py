"""The means of the operating system to end a command in time: process groups, trees, parent-death signals.

Linux has all of them. Other systems only have process groups, and a process that left its group cannot be
reached.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["adopt_orphans", "clock", "descendants", "die_with_parent", "kill_everything", "signal_group"]

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_ROUND_SECONDS = 0.005
KILL_ROUNDS = 400
"""Two seconds. A process that still exists then is blocked in the kernel, and dies when it returns."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clock() -> float:
    """Seconds on a clock that runs on while the machine is suspended, the same in every process."""
    return time.clock_gettime(_CLOCK)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies. Called between fork and exec."""
    if (prctl := _prctl()) is not None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        # The parent died before prctl was called.
        os._exit(128 + signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant, so that all of them can be found."""
    if (prctl := _prctl()) is not None:
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_group(group: int, signum: int) -> None:
    """Signal a process group. It is no error if the group has ended or belongs to another user."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def kill_everything(group: int) -> None:
    """Kill a process group and, on Linux, every descendant of this process, also outside the group."""
    signal_group(group, signal.SIGKILL)
    for _ in range(KILL_ROUNDS):
        alive = descendants(os.getpid())
        if not alive:
            return
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(KILL_ROUND_SECONDS)


def descendants(root: int) -> list[int]:
    """The living descendants of a process, from /proc. Without /proc, none."""
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid = int(entry.parent.name)
            # The name in parentheses may contain any character; the fields begin after the last parenthesis.
            state, parent = entry.read_bytes().rpartition(b")")[2].split()[:2]
            children.setdefault(int(parent), []).append(pid)
            if state in b"ZX":
                dead.add(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        waiting += below
        found += [pid for pid in below if pid not in dead]
    return found


@cache
def _prctl() -> Callable[..., Any] | None:
    """The system call, on Linux. It is loaded by the supervisor, so the wrapper does not wait for that."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl: Callable[..., Any] = ctypes.CDLL(None, use_errno=True).prctl
    return prctl
