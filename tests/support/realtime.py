"""Which tests depend on real time or on a loaded machine (``realtime``), and the proof that no other does.

A test is ``realtime`` if its folder or file is in ``PLACES``. A module, a class or a test says otherwise by a
mark: ``realtime`` outside these places, ``timeless`` inside them (there one test of a ``timeless`` module may
be ``realtime`` again). ``tools/run_tests.py`` runs the two kinds
apart, and runs a failed ``realtime`` test once more; a test of the other kind has to pass the first time.

So a test that is not ``realtime`` fails as soon as it sleeps, starts a thread or a process, or opens a socket
(every event loop does): Python's audit events tell. What its fixtures do counts as well.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.outcomes import Failed

__all__ = [
    "PLACES",
    "REFUSED",
    "UsedRealTime",
    "mark_realtime",
    "refusing",
    "time_refused",
    "watch_audit_events",
]

TESTS: Final = Path(__file__).resolve().parent.parent

PLACES: Final = frozenset(
    {
        "actors",
        "api",
        "benchmarks_tests",
        "cli",
        "contract",
        "engines",
        "events",
        "faults",
        "fencing/test_processes.py",
        "lab",
        "optimistic",
        "queue_tests",
        "sql",
        "support_tests",
    }
)
"""Folders and files, below ``tests``, whose tests are ``realtime``."""

REFUSED: Final[Mapping[str, str]] = {
    "time.sleep": "slept",
    "_thread.start_new_thread": "started a thread",
    "_thread.start_joinable_thread": "started a thread",  # Python 3.13 and later
    "subprocess.Popen": "started a process",
    "os.fork": "forked",
    "os.forkpty": "forked",
    "os.posix_spawn": "started a process",
    "socket.__new__": "opened a socket (an event loop does)",
    "socket.connect": "connected a socket",
    "support.server": "used a server",  # ours: what a library in C does with it, Python does not see
}
"""Audit event → what a test did that raised it."""


class UsedRealTime(Failed):
    """A test that is not ``realtime`` used what depends on real time or on a loaded machine.

    No ``Exception``: code that catches those does not hide it."""


class _Watch:
    """The thread that runs a test that is not ``realtime``, and what the test did that is refused."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.seen: list[str] = []

    def hear(self, event: str, arguments: tuple[object, ...]) -> None:
        # Other threads are not the test's, which cannot start one: earlier tests and pytest-xdist did.
        if self.thread is None or event not in REFUSED or threading.get_ident() != self.thread:
            return
        detail = f" ({arguments[0]!r})" if event in {"subprocess.Popen", "time.sleep"} else ""
        self.seen.append(REFUSED[event] + detail)
        raise UsedRealTime(_advice(self.seen[-1]), pytrace=True)


_watch: Final = _Watch()
_is_watching = False


def watch_audit_events() -> None:
    """From now on; an audit hook cannot be taken away."""
    global _is_watching
    if _is_watching:
        return
    _is_watching = True
    sys.addaudithook(_watch.hear)
    if sys.version_info < (3, 12):
        _audit(threading, "_start_new_thread", "_thread.start_new_thread")  # what Thread.start calls
    if sys.version_info < (3, 13):
        _audit(time, "sleep", "time.sleep")


def _audit(module: Any, name: str, event: str) -> None:
    """Raise the event that a later Python raises by itself."""
    shipped = getattr(module, name)

    def audited(*arguments: Any) -> Any:
        sys.audit(event, *arguments)
        return shipped(*arguments)

    setattr(module, name, audited)


@contextmanager
def refusing() -> Iterator[None]:
    """The calling thread may not use real time inside. What caught ``UsedRealTime`` changes nothing: it is
    raised at the end."""
    before, _watch.thread, _watch.seen = (_watch.thread, _watch.seen), threading.get_ident(), []
    try:
        yield
        if _watch.seen:
            raise UsedRealTime(_advice(_watch.seen[0]), pytrace=False)
    finally:
        _watch.thread, _watch.seen = before


def time_refused(item: pytest.Item) -> AbstractContextManager[None]:
    """For each hook that runs a part of a test."""
    return nullcontext() if item.get_closest_marker("realtime") else refusing()


def _advice(did: str) -> str:
    return (
        f"this test {did}, but is not marked `realtime`: tell it in virtual time (tests/protocols/driver.py, "
        "simulator), or mark it with `pytest.mark.realtime`; tests/support/realtime.py has "
        "the folders that are realtime"
    )


def mark_realtime(items: list[pytest.Item]) -> None:
    """For ``pytest_collection_modifyitems``, before ``-m`` chooses."""
    for item in items:
        marks = [mark.name for mark in item.iter_markers() if mark.name in {"realtime", "timeless"}]
        if marks[:1] == ["timeless"] and "realtime" in marks:
            raise pytest.UsageError(f"{item.nodeid}: `timeless` cannot take back the `realtime` around it")
        if not marks and _lies_in_places(item.path):
            item.add_marker("realtime")


def _lies_in_places(path: Path) -> bool:
    if not path.is_relative_to(TESTS):
        return False
    relative = path.relative_to(TESTS)
    return any(place.as_posix() in PLACES for place in (relative, *relative.parents))
