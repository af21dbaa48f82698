"""The measurements, one file each: tasks that workers run, and a function that coordinates them.

A new measurement is a file with ``measure(bench) -> Result`` and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..contestant import Ability, Contestant
from ..interleaving import Bench
from ..results import Result
from . import (
    appends,
    contention,
    counters,
    crowd,
    deliveries,
    finished,
    handoff,
    held,
    jobs,
    moves,
    neighbour,
    pairs,
    redis_writes,
    renewal,
    simulation,
    starts,
    stopped,
    tasks,
    updates,
    waiters,
    waiting,
)

__all__ = ["MEASURES", "Measure"]

Condition = Callable[[Contestant], bool]


def anyone(contestant: Contestant) -> bool:
    return True


def able(*abilities: Ability) -> Condition:
    """Those that have one of these."""
    return lambda contestant: bool(contestant.abilities & set(abilities))


def does_not_poll(contestant: Contestant) -> bool:
    """Peers are left out: most poll, so that their hand-off has nothing to do with how many wait."""
    return "processes" in contestant.abilities and contestant.role != "peer"


def has_neighbours(contestant: Contestant) -> bool:
    """Threads only, of those that have both."""
    shares = bool(contestant.abilities & {"processes", "transactions"})
    return shares and (contestant.role != "subject" or "many" in contestant.abilities)


@dataclass(frozen=True, slots=True)
class Measure:
    run: Callable[[Bench], Result]
    seconds: float
    """For each contestant that takes part; for all of them, if they do it at the same time."""
    takes_part: Condition = anyone
    at_once: bool = False
    least_rounds: int = 3

    def those_of(self, contestants: Iterable[Contestant]) -> list[Contestant]:
        return [each for each in contestants if self.takes_part(each)]

    def seconds_for(self, contestants: int) -> float:
        return self.seconds if self.at_once else self.seconds * contestants


MEASURES: Final[Mapping[str, Measure]] = {
    "pairs": Measure(pairs.measure, 2.5),
    "redis_writes": Measure(redis_writes.measure, 4),
    "counters": Measure(counters.measure, 30),
    "jobs": Measure(jobs.measure, 10),
    "starts": Measure(starts.measure, 8),
    "finished": Measure(finished.measure, 12, able("claims")),
    "updates": Measure(updates.measure, 14),
    "moves": Measure(moves.measure, 30),
    "appends": Measure(appends.measure, 10, least_rounds=5),
    "deliveries": Measure(deliveries.measure, 8, able("subscribes")),
    "tasks": Measure(tasks.measure, 6, able("tasks")),
    "stopped": Measure(stopped.measure, 8, able("quorum")),
    "handoff": Measure(handoff.measure, 6, able("processes")),
    "waiting": Measure(waiting.measure, 15, able("processes"), at_once=True),
    # Pollers have good and bad slices, by a tenth: three rounds of them would say little.
    "contention": Measure(contention.measure, 36, able("processes")),
    "neighbour": Measure(neighbour.measure, 3, has_neighbours),
    "held": Measure(held.measure, 7, able("many")),
    "waiters": Measure(waiters.measure, 10, does_not_poll),
    "crowd": Measure(crowd.measure, 5, able("crowd"), least_rounds=1),
    "renewal": Measure(renewal.measure, 20, able("renews"), at_once=True, least_rounds=1),
    "simulation": Measure(simulation.measure, 20, able("simulated")),
}
"""What ``MEASURES=`` can name, in the order of the report."""
