"""What is measured: a contestant, where its locks are, and the handle that a process has on one of them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

__all__ = [
    "Ability",
    "Contestant",
    "Handle",
    "MeasurementInvalid",
    "Moments",
    "Place",
    "Role",
    "check",
    "pairs_per_look",
]

Role = Literal["subject", "peer", "raw"]

Ability = Literal[
    "processes",
    "transactions",
    "many",
    "renews",
    "tasks",
    "crowd",
    "quorum",
    "simulated",
    "claims",
    "subscribes",
]
"""processes: excludes other processes and waits for them. transactions: works from several processes, but
does not wait for a lock that is taken. many: holds thousands at once. renews: has leases to keep alive.
tasks: many tasks of one event loop at once. crowd: many waiters in one process. quorum: goes on while a
majority of the servers answers. simulated: its rules are those that the simulation runs. claims: jobs can be
claimed without a worker. subscribes: what is appended can be waited for."""

Moments = Sequence[tuple[float, Callable[[], None]]]

PAIRS_PER_LOOK = 10
"""Pairs between two looks at the clock: a look costs less than a hundredth of the cheapest ten."""

SLOW_SECONDS = 0.002
"""After each pair that takes longer there is a look: ten of them would outlast a slice."""


class MeasurementInvalid(Exception):
    """The thing measured did not do its job, so that its speed means nothing."""

    def __init__(self, complaint: str, who: Contestant | None = None) -> None:
        super().__init__(complaint)
        self.who = who
        """Whose fault it was, where one can tell."""


def check(holds: bool, complaint: str, who: Contestant) -> None:
    """Raise unless the contestant did what a lock must do. Never about time."""
    if not holds:
        raise MeasurementInvalid(f"{who.label} {complaint}", who)


def pairs_per_look(pair_seconds: float) -> int:
    return 1 if pair_seconds > SLOW_SECONDS else PAIRS_PER_LOOK


@dataclass(frozen=True, slots=True)
class Place:
    """Where the locks of a contestant are during a measurement. All that use the same meet there."""

    folder: Path
    """Its own."""
    space: str
    """A word of its own: what it writes to a server begins with it, or is in the namespace of this name."""
    addresses: tuple[str, ...] = ()
    """``host:port`` of the servers, where there are any."""

    @property
    def counter(self) -> Path:
        return self.folder / "counter"


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
        began = clock()
        acquire()
        release()
        pairs, at_once = 1, pairs_per_look(clock() - began)
        while clock() < deadline:
            for _ in range(at_once):
                acquire()
                release()
            pairs += at_once
        return pairs

    def tasks_until(self, tasks: int, deadline: float) -> int:
        """The same in so many tasks at once, each with a lock of its own; how many pairs in all."""
        raise NotImplementedError

    def hold_many(self, count: int, ttl_seconds: float) -> None:
        """Hold ``count`` other names until the handle is closed."""
        raise NotImplementedError

    def held(self) -> int:
        """How many of those are held at this moment."""
        raise NotImplementedError

    def least_remaining(self) -> float:
        """The validity in seconds of the lease among them that ends first, if nothing renews it again."""
        raise NotImplementedError

    def crowd(self, count: int, inside: Callable[[], None], moments: Moments) -> None:
        """``count`` waiters at once. Meanwhile the calls of ``moments`` are made, each after its seconds;
        the last makes whoever holds the lock release it. Then each takes it and goes ``inside`` once."""

        errors: list[Exception] = []

        def wait_for_turn() -> None:
            try:
                self.acquire()
                inside()
                self.release()
            except Exception as error:  # noqa: BLE001 - it is raised below
                errors.append(error)

        waiters = [threading.Thread(target=wait_for_turn, name="waiter", daemon=True) for _ in range(count)]
        for each in waiters:
            each.start()
        for seconds, act in moments:
            time.sleep(seconds)
            act()
        for each in waiters:
            each.join()
        if errors:
            raise errors[0]

    def waiting(self) -> int | None:
        """How many wait for the lock, in all processes; None: this contestant cannot tell."""
        return None


@dataclass(frozen=True, slots=True)
class Contestant:
    """Something that locks. ``open`` goes to worker processes, so it is a module's function, or a partial."""

    key: str
    label: str
    role: Role
    open: Callable[[Place, str], Handle]
    """(place, name of the lock) → handle."""
    abilities: frozenset[Ability] = frozenset()
    distribution: str | None = None
    """The package that must be installed; None: the standard library is enough."""
    apart: str | None = None
    """The folder in the environment where it is installed, if not with all others."""
    phase_seconds: float = 0.05
    """The longest interval between two looks of a waiter that polls. Waits in the hand-off measurement
    vary by this much, so that a release falls anywhere between two looks."""

    @property
    def version(self) -> str | None:
        """The installed version; None: not installed, or part of Python."""
        if self.distribution is None:
            return None
        where = sys.path if self.apart is None else [f"{sys.prefix}/{self.apart}"]
        found = metadata.distributions(name=self.distribution, path=where)
        return next((each.version for each in found), None)

    @property
    def present(self) -> bool:
        return self.distribution is None or self.version is not None
