"""``memory://``: locks within one process. Clients of one name share it; for tests and single processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...core.urls import URL
from ...engine_api import AdapterContext, AsyncioAdapter, ThreadsAdapter
from ...errors import InvalidArgument
from ...model import Guarantees
from ..clock_rates import ONE_CLOCK_FAULTS, ONE_CLOCK_NEED
from ..local import LocalThreads
from .store import MemoryStore, space

if TYPE_CHECKING:
    from ..findings import Finding

__all__ = ["open_engine"]

GUARANTEES = Guarantees(
    engine="memory",
    scope="process",
    fencing="a counter in memory, never less than the wall clock in microseconds; it ends with the process",
    fifo="yes, among all clients of the process",
    crash_release="with the process",
    loss_signal="at the deadline by the local clock; at once when the lock is broken",
    is_fifo=True,
    can_barge=True,
    has_counted_queue=True,
    has_values=True,
    has_cells=True,
    can_export=True,
    has_timed_tokens=True,
    primitives=("lock", "rlock", "rwlock", "semaphore"),
    needs=(
        "one process: another process, also a forked child, has separate locks",
        ONE_CLOCK_NEED,
    ),
    faults={
        "holder is killed": "kept: nothing outlives the process",
        "holder is paused": (
            "loss signalled when the holder runs again; fenced by the next holder's larger token"
        ),
        "wall clock jumps": "kept: only tokens read the wall clock, and they never go back",
        "waiter is killed": "kept: nothing outlives the process",
        **ONE_CLOCK_FAULTS,
    },
)


class MemoryEngine:
    """One named space of this process."""

    linger = 0.0
    session_bound = False
    guarantees = GUARANTEES

    def __init__(self, url: URL, namespace: str) -> None:
        self.url = str(url)
        self._name = url.hosts
        self._namespace = namespace

    def threads(self, context: AdapterContext) -> ThreadsAdapter:
        return LocalThreads(MemoryStore(space(self._name), self._namespace, context), context)

    def asyncio(self, context: AdapterContext) -> AsyncioAdapter:
        from ..local_asyncio import LocalAsyncio

        return LocalAsyncio(MemoryStore(space(self._name), self._namespace, context), context)

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """The findings of ``holdfast doctor``."""
        from .diagnosis import diagnose

        return diagnose()


def open_engine(url: URL, namespace: str, options: Mapping[str, Any]) -> MemoryEngine:
    url.only(())
    if options:
        raise InvalidArgument(f"memory:// has no option {next(iter(options))!r}: it has none")
    if url.path not in ("", "/"):
        raise InvalidArgument("memory:// has no path: write memory:// or memory://name")
    return MemoryEngine(url, namespace)
