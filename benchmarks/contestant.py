"""What is measured: a contestant, and the handle that a process has on one of its locks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

__all__ = ["Ability", "Contestant", "Handle", "MeasurementInvalid", "Role", "check"]

Role = Literal["subject", "peer", "raw"]

Ability = Literal["processes", "transactions", "many", "renews"]
"""processes: excludes other processes and waits for them. transactions: works from several processes, but
does not wait for a lock that is taken. many: holds thousands at once. renews: has leases to keep alive."""

PAIRS_PER_LOOK = 10
"""Pairs between two looks at the clock: a look costs less than a hundredth of the cheapest ten."""


class MeasurementInvalid(Exception):
    """The thing measured did not do its job, so that its speed means nothing."""


def check(holds: bool, complaint: str) -> None:
    """Raise unless the contestant did what a lock must do. Never about time."""
    if not holds:
        raise MeasurementInvalid(complaint)


class Handle:
    """One lock, opened in one process.

    ``acquire`` and ``release`` are the contestant's own callables, so that a measurement calls them
    without a wrapper in between.
    """

    acquire: Callable[[], object]
    release: Callable[[], object]

    def try_acquire(self) -> bool:
        """Take it only if it is free."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of whatever the handle has open."""

    def token(self) -> int | None:
        """The fencing token of a fresh grant, given back at once; None: this contestant has none."""
        return None

    def pairs_until(self, deadline: float) -> int:
        """Acquire and release until the monotonic clock says ``deadline``; how many pairs (never 0)."""
        acquire, release, clock = self.acquire, self.release, time.monotonic
        pairs = 0
        while not pairs or clock() < deadline:
            for _ in range(PAIRS_PER_LOOK):
                acquire()
                release()
            pairs += PAIRS_PER_LOOK
        return pairs

    def hold_many(self, count: int, ttl_seconds: float) -> None:
        """Hold ``count`` other names until the handle is closed."""
        raise NotImplementedError

    def held(self) -> int:
        """How many of those are held at this moment."""
        raise NotImplementedError

    def least_remaining(self) -> float:
        """The validity in seconds of the lease among them that ends first, if nothing renews it again."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something that locks. ``open`` goes to worker processes, so it is a module's function, or a partial."""

    key: str
    label: str
    role: Role
    open: Callable[[Path, str], Handle]
    """(folder of its own, name of the lock) → handle."""
    abilities: frozenset[Ability] = frozenset()
    distribution: str | None = None
    """The package that must be installed; None: the standard library is enough."""
    phase_seconds: float = 0.05
    """The longest interval between two looks of a waiter that polls. Waits in the hand-off measurement
    vary by this much, so that a release falls anywhere between two looks."""

    @property
    def version(self) -> str | None:
        """The installed version; None: not installed, or part of Python."""
        if self.distribution is None:
            return None
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return None

    @property
    def present(self) -> bool:
        return self.distribution is None or self.version is not None
