"""``sqlite:///path.db``: locks among the processes of one user on one machine. The embedded engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from ...errors import InvalidArgument
from ...model import Guarantees
from ..clock_rates import ONE_CLOCK_FAULTS, ONE_CLOCK_NEED
from ..local import LocalThreads
from .database_file import DatabaseFile, default_path, is_default, path_from_url
from .store import SqliteStore

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["default_url", "open_engine"]

GUARANTEES = Guarantees(
    engine="sqlite",
    scope="user",
    fencing=(
        "a counter in the record, never behind the wall clock in microseconds; it can regress only if the "
        "file is deleted and the wall clock was set back"
    ),
    fifo="yes, among all processes that share the file",
    crash_release=(
        "at once: the kernel lets go of the holder's liveness lock; after its ttl only where a child that "
        "was forked behind Python's back keeps that lock, and who waits is in another pid namespace"
    ),
    loss_signal="at the deadline by the local clock; at once when broken",
    primitives=("lock", "rlock", "rwlock", "semaphore"),
    needs=(
        "one user, one machine, one file; containers must share its whole folder",
        "a local file system (network, FUSE, 9p and virtiofs mounts are refused)",
        ONE_CLOCK_NEED,
    ),
    faults={
        "holder is killed": "kept: released at once, also when it had forked",
        "holder is paused": "loss signalled when it runs again; fenced by the next holder's larger token",
        "wall clock jumps": "kept: only tokens and retention look at it, and tokens never go back",
        "waiter is killed": "kept: its place is given to the next at once",
        "waiter is paused": (
            "kept: it costs those behind it one turn (two seconds); its ttl, if it had come less than a "
            "tenth of a second before the lock was free"
        ),
        "machine restarts": "kept: nobody holds the old liveness locks, so what was held is free",
        "process is paused in the middle of a write": "refused until it runs again, after io_timeout",
        "disk is full": "refused; what is held is lost at its deadline, and signalled",
        "file is deleted": "loss signalled at the next renewal; fenced by the next holder's larger token",
        "file is damaged": "refused",
        **ONE_CLOCK_FAULTS,
    },
)


class SqliteEngine:
    """One database file and one namespace in it."""

    linger = 0.0
    """A call that has returned or failed is over: nothing is under way anywhere."""
    session_bound = False
    guarantees = GUARANTEES

    def __init__(self, path: str, namespace: str, creates_folder: bool) -> None:
        self.url = url_of(path)
        self._file = DatabaseFile(path, creates_folder)
        self._namespace = namespace

    def threads(self, context: AdapterContext) -> ThreadsAdapter:
        return LocalThreads(SqliteStore(self._file, self._namespace, context), context)

    def asyncio(self, context: AdapterContext) -> AsyncioAdapter:
        from ..local_asyncio import LocalAsyncio

        return LocalAsyncio(SqliteStore(self._file, self._namespace, context), context)

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """How this very server stands."""
        from .diagnosis import diagnose

        return diagnose(self._file, io_timeout)


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> SqliteEngine:
    """``sqlite://`` alone is the user's default database."""
    url.only(())
    if options:
        raise InvalidArgument(f"sqlite:// has no option {next(iter(options))!r}: it has none")
    path = path_from_url(url)
    return SqliteEngine(path, namespace, creates_folder=is_default(path))


def default_url() -> str:
    """The database that all processes of this user share unless they say otherwise."""
    return url_of(default_path())


def url_of(path: str) -> str:
    return f"sqlite:///{quote(path)}"
