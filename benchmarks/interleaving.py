"""Taking turns: every round gives each entry one slice, in an order shuffled anew, until the time is up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from .contestant import Contestant, Place
from .engines import Group
from .service import Service

__all__ = ["Bench", "Reporter", "begin_soon", "wait_for"]

T = TypeVar("T")

HEAD_START_SECONDS = 0.02
"""Between the order to several workers to start and the moment at which they all do."""


class Reporter(Protocol):
    """Whoever shows how far the work has come."""

    def __call__(self, done_seconds: float, doing: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Bench:
    """What a measurement is given."""

    group: Group
    contestants: list[Contestant]
    """Those of the group that take part."""
    folder: Path
    """Empty, its own; on a disk of the machine, since that is what locks are used on."""
    service: Service
    seconds: float
    """How long to measure; at least ``least_rounds`` rounds are made whatever they take."""
    least_rounds: int
    smoke: bool
    """Only to see that everything works: the smallest sizes, the shortest slices."""
    report: Reporter

    def base(self, measure: str, contestant: Contestant) -> str:
        """The key of the contestant that this one's ratios refer to; its own, if there is none."""
        return self.group.bases.get(measure, contestant.key)

    def place(self, key: str) -> Place:
        """A place in this measurement for the locks of a contestant, perhaps in one of several situations."""
        word = key.replace("/", "-")
        return Place(self.folder / word, f"{self.folder.name}-{word}", self.service.addresses)

    def pick(self, full: T, smoke: T) -> T:
        return smoke if self.smoke else full

    def rounds(self, entries: Sequence[T], one_slice: Callable[[T], None], title: Callable[[T], str]) -> int:
        """Interleave; how many rounds it were. A round is never begun that would end long after the time."""
        order = list(entries)
        if not order:
            return 0
        shuffle = random.Random(len(order)).shuffle
        started = time.monotonic()
        rounds = 0
        while True:
            shuffle(order)
            for entry in order:
                self.report(time.monotonic() - started, title(entry))
                one_slice(entry)
            rounds += 1
            elapsed = time.monotonic() - started
            if rounds >= self.least_rounds and elapsed + elapsed / rounds / 2 > self.seconds:
                return rounds


def begin_soon() -> float:
    """A moment of the monotonic clock, which all processes share, for several workers to begin at."""
    return time.monotonic() + HEAD_START_SECONDS


def wait_for(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
