"""A counter that many processes add to: by compare-and-swap on a cell, and under a lock."""

from __future__ import annotations

from functools import partial
from typing import Final, Literal

import holdfast

from ..contestant import Contestant, Handle, Place
from .group import Group
from .together import LABELS, PACKAGES, serve_each, url_of

__all__ = ["GROUP", "WAYS", "Counting", "Way"]

Way = Literal["cell", "lock"]
WAYS: Final[tuple[Way, ...]] = ("cell", "lock")

ENGINES: Final = ("sqlite", "redis", "postgresql", "etcd", "zookeeper")


class Counting(Handle):
    """Two counters: one for each way."""

    def __init__(self, engine: str, place: Place, name: str) -> None:
        self._client = holdfast.connect(url_of(engine, ENGINES, place), namespace=place.space)
        self._counter = self._client.counter(name)
        self._locked = self._client.cell(f"{name}-locked")
        self._lock = self._client.lock(name)

    def try_acquire(self) -> bool:
        """There is nothing to take. It connects."""
        self.total("cell")
        return False

    def add(self, way: Way) -> None:
        if way == "cell":
            self._counter.add()
            return
        with self._lock:
            value, version = self._locked.get()
            self._locked.set_if(version, b"%d" % (int(value or 0) + 1))

    def total(self, way: Way) -> int:
        return self._counter.get() if way == "cell" else int(self._locked.get()[0] or 0)

    def close(self) -> None:
        self._client.close()


GROUP = Group(
    "Cells: compare-and-swap and a lock",
    tuple(
        Contestant(
            f"cells-{engine}",
            LABELS[engine],
            "subject",
            partial(Counting, engine),
            distribution=PACKAGES[engine],
        )
        for engine in ENGINES
    ),
    ("updates",),
    {},
    {
        "updates": "One server of each on loopback. Redis keeps nothing; PostgreSQL does not wait for its "
        "disk."
    },
    serve_each(*ENGINES),
    locks=False,
)
