"""What a claim costs beside many jobs that are over."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

from ..contestant import Contestant, check
from ..engines.queue import KIND, Queue
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team

__all__ = ["measure"]

METRICS = (
    Metric("p50", "a claim, p50", "seconds", 0.5, "claim"),
    Metric("p99", "p99", "seconds", 0.99, "claim"),
)

HOW = """
A table with so many finished jobs, and {ready} ready ones, which one process claims and finishes one at a
time. Only the claims are timed. The ratio is to the smaller table.
"""

SIZES = (1_000, 1_000_000)
READY = 300


@dataclass(frozen=True, slots=True)
class Situation:
    contestant: Contestant
    finished: int

    @property
    def title(self) -> str:
        return f"{self.contestant.label}, {self.finished:,} finished jobs"


def measure(bench: Bench) -> Result:
    sizes = bench.pick(SIZES, (10, 100))
    ready = bench.pick(READY, 5)
    entries = [Situation(contestant, size) for contestant in bench.contestants for size in sizes]
    rows = {
        each: Row(
            f"{each.contestant.key}/{each.finished}",
            each.title,
            each.contestant.role,
            f"{each.contestant.key}/{sizes[0]}",
            each.contestant.label,
            each.finished,
        )
        for each in entries
    }
    with Team() as team:
        # A table each: the smaller one must be small.
        place = bench.place("finished")
        workers = {each: team.hire(each.contestant, place, f"finished_{each.finished}") for each in entries}
        team.ready()
        for each in entries:
            workers[each].call(fill, each.finished)

        def one_slice(situation: Situation) -> None:
            seconds = workers[situation].call(claim, ready)
            check(len(seconds) == ready, f"claimed {len(seconds)} of {ready} jobs", situation.contestant)
            rows[situation].extend("claim", seconds)

        rounds = bench.rounds(entries, one_slice, lambda each: each.title)
    return Result(
        "finished",
        "A claim beside finished jobs",
        HOW.format(ready=ready),
        METRICS,
        list(rows.values()),
        ("p50",),
        x_title="finished jobs",
        rounds=rounds,
    )


def fill(context: TaskContext, finished: int) -> None:
    cast(Queue, context.handle).fill(context.place, finished)


def claim(context: TaskContext, number: int) -> list[float]:
    jobs = cast(Queue, context.handle)
    jobs.put(range(number))
    seconds: list[float] = []
    while True:
        began = time.monotonic()
        found = jobs.queue.claim(KIND)
        if not found:
            return seconds
        seconds.append(time.monotonic() - began)
        found[0].finish()
