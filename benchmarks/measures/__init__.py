"""The measurements, one file each: tasks that workers run, and a function that coordinates them.

A new measurement is a file with ``measure(bench) -> Result`` and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ..contestant import Ability
from ..interleaving import Bench
from ..results import Result
from . import contention, handoff, held, neighbour, pairs, renewal, waiters, waiting

__all__ = ["MEASURES", "Measure"]


@dataclass(frozen=True, slots=True)
class Measure:
    run: Callable[[Bench], Result]
    seconds: float
    """Its part of a full run, which should take four minutes in all."""
    needs: frozenset[Ability] = frozenset()
    """It is left out where no contestant has one of these; empty: anyone can."""
    least_rounds: int = 3


PROCESSES: Final[frozenset[Ability]] = frozenset({"processes"})

MEASURES: Final[Mapping[str, Measure]] = {
    "pairs": Measure(pairs.measure, 25),
    "handoff": Measure(handoff.measure, 40, PROCESSES),
    "waiting": Measure(waiting.measure, 15, PROCESSES),
    "contention": Measure(contention.measure, 60, PROCESSES),
    "neighbour": Measure(neighbour.measure, 20, PROCESSES),
    "held": Measure(held.measure, 20, frozenset({"many"})),
    "waiters": Measure(waiters.measure, 20, PROCESSES),
    "renewal": Measure(renewal.measure, 20, frozenset({"renews"}), least_rounds=1),
}
"""What ``MEASURES=`` can name, in the order of the report."""
