"""The memory engine, and the raw limit within one process."""

from __future__ import annotations

import threading
from functools import partial

from ..contestant import Contestant, Handle, Place
from .group import Group
from .subject import open_asyncio, open_threads

__all__ = ["GROUP"]

URL = "memory://"


class BareThreadingLock(Handle):
    """``threading.Lock``: one name, no lease, no token, no queue. Shared by all handles of the process."""

    _shared = threading.Lock()

    def __init__(self, place: Place, name: str) -> None:
        self.acquire = self._shared.acquire
        self.release = self._shared.release

    def try_acquire(self) -> bool:
        return self._shared.acquire(blocking=False)


CONTESTANTS = (
    Contestant(
        "holdfast-memory",
        "Holdfast, memory engine",
        "subject",
        partial(open_threads, URL),
        frozenset({"many", "renews", "simulated"}),
        "holdfast",
    ),
    Contestant(
        "holdfast-memory-asyncio",
        "Holdfast, memory engine, asyncio",
        "subject",
        partial(open_asyncio, URL),
        frozenset(),
        "holdfast",
    ),
    Contestant("threading-lock", "threading.Lock", "raw", BareThreadingLock),
)

GROUP = Group(
    "Memory engine",
    CONTESTANTS,
    ("pairs", "held", "renewal", "simulation"),
    {"pairs": "threading-lock"},
)
