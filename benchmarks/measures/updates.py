"""One hot counter: how often many processes add to it, by compare-and-swap and under a lock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

from ..contestant import Contestant, check
from ..engines.cells import WAYS, Counting, Way
from ..interleaving import Bench, begin_soon, wait_for
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team, gather

__all__ = ["measure"]

METRICS = (
    Metric("rate", "updates per second", "per second"),
    Metric("p50", "time of an update, p50", "seconds", 0.5, "time"),
    Metric("p99", "p99", "seconds", 0.99, "time"),
)

HOW = """
Processes with a client each add one to the same counter, over and over, in slices of {slice_seconds:g} s.
Compare-and-swap: `counter.add()`, which is `cell.update`. Under a lock: `get` and `set_if` of a cell while a
lock is held. After each slice the counter must have grown by exactly the number of updates. The ratio is to
the lock on the same engine, with as many processes.
"""

PROCESSES = (1, 8)
TITLES: dict[Way, str] = {"cell": "compare-and-swap", "lock": "lock"}


@dataclass(frozen=True, slots=True)
class Situation:
    contestant: Contestant
    way: Way
    processes: int

    def key(self, way: Way) -> str:
        return f"{self.contestant.key}/{way}/{self.processes}"

    @property
    def series(self) -> str:
        return f"{self.contestant.label}, {TITLES[self.way]}"

    @property
    def title(self) -> str:
        return f"{self.series}, {self.processes} process{'es' if self.processes > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Added:
    """What one process did in a slice."""

    seconds: list[float]
    """Of each update."""
    in_time: int
    """Without the last one, which ended after the slice."""


def measure(bench: Bench) -> Result:
    slice_seconds = bench.pick(1.0, 0.05)
    counts = bench.pick(PROCESSES, (1, 2))
    entries = [
        Situation(contestant, way, count)
        for contestant in bench.contestants
        for way in WAYS
        for count in counts
    ]
    rows = {
        each: Row(each.key(each.way), each.title, "subject", each.key("lock"), each.series, each.processes)
        for each in entries
    }
    with Team() as team:
        workers = {
            each.key: [team.hire(each, bench.place(f"updates-{each.key}")) for _ in range(max(counts))]
            for each in bench.contestants
        }
        team.ready()

        def one_slice(situation: Situation) -> None:
            chosen = workers[situation.contestant.key][: situation.processes]
            before = chosen[0].call(total, situation.way)
            begins = begin_soon()
            did = gather(worker.start(add, situation.way, begins, slice_seconds) for worker in chosen)
            made = sum(len(each.seconds) for each in did)
            grown = chosen[0].call(total, situation.way) - before
            check(
                grown == made, f"made {made} updates, and the counter grew by {grown}", situation.contestant
            )
            rows[situation].add(rate=sum(each.in_time for each in did) / slice_seconds)
            rows[situation].extend("time", [seconds for each in did for seconds in each.seconds])

        rounds = bench.rounds(entries, one_slice, lambda each: each.title)
    return Result(
        "updates",
        "One hot counter",
        HOW.format(slice_seconds=slice_seconds),
        METRICS,
        list(rows.values()),
        ("rate",),
        x_title="processes",
        rounds=rounds,
    )


def add(context: TaskContext, way: Way, begins: float, seconds: float) -> Added:
    counting, clock = cast(Counting, context.handle), time.monotonic
    times: list[float] = []
    wait_for(begins)
    ends = begins + seconds
    now = clock()
    while now < ends:
        counting.add(way)
        before, now = now, clock()
        times.append(now - before)
    return Added(times, len(times) - 1)


def total(context: TaskContext, way: Way) -> int:
    return cast(Counting, context.handle).total(way)
