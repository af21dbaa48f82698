"""Optimistic and pessimistic: how often many writers change a row, over how long each takes to decide."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import cast

from ..contestant import Contestant, check
from ..engines.sql_counters import ROWS, Counters
from ..interleaving import Bench, begin_soon, wait_for
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team, gather

__all__ = ["measure"]

METRICS = (
    Metric("rate", "changes per second", "per second"),
    Metric("tries", "tries per change", "factor", compared=False),
    Metric("p99", "time of a change, p99", "seconds", 0.99, "time"),
)

HOW = """
Writers are processes with a connection each; in slices of {slice_seconds:g} s each adds one to a counter over
and over: it reads the row, computes for as long as the section takes (`time.sleep`), and writes it.
Pessimistic: `row_lock`, then an update. Optimistic: a plain read, then `compare_and_update`, and all of it
again at a `Conflict`, with the default pauses of `@optimistic`. All change one row, or each time one of
{rows}, chosen at random. After every slice the sum of all rows must have grown by exactly the number of
changes. The ratio is to pessimistic in the same situation.
"""

WRITERS = (1, 4, 16)
SECTIONS_MS = (0, 1, 10)


@dataclass(frozen=True, slots=True)
class Situation:
    contestant: Contestant
    rows: int
    section_ms: int
    writers: int

    @property
    def where(self) -> str:
        return "one row" if self.rows == 1 else f"{self.rows} rows"

    @property
    def series(self) -> str:
        return f"{self.contestant.label}, {self.where}, {self.section_ms} ms"

    @property
    def place(self) -> str:
        return f"{self.rows}/{self.section_ms}/{self.writers}"

    @property
    def title(self) -> str:
        return f"{self.series}, {self.writers} writers"


@dataclass(frozen=True, slots=True)
class Written:
    """What one writer did in a slice."""

    seconds: list[float]
    """Of each change, all its tries and pauses together."""
    tries: int


def measure(bench: Bench) -> Result:
    slice_seconds = bench.pick(0.5, 0.05)
    writers = bench.pick(WRITERS, (1, 2))
    sections = bench.pick(SECTIONS_MS, (0, 1))
    entries = [
        Situation(contestant, rows, section, count)
        for contestant in bench.contestants
        for rows in (1, ROWS)
        for section in sections
        for count in writers
    ]
    rows = {
        each: Row(
            f"{each.contestant.key}/{each.place}",
            each.title,
            each.contestant.role,
            f"{bench.base('counters', each.contestant)}/{each.place}",
            each.series,
            each.writers,
        )
        for each in entries
    }
    place = bench.place("counters")
    with Team() as team:
        workers = {
            each.key: [team.hire(each, place) for _ in range(max(writers))] for each in bench.contestants
        }
        team.ready()

        def one_slice(situation: Situation) -> None:
            team = workers[situation.contestant.key][: situation.writers]
            before = team[0].call(total)
            begins = begin_soon()
            did = gather(
                worker.start(write, begins, slice_seconds, situation.rows, situation.section_ms / 1000)
                for worker in team
            )
            made = sum(len(each.seconds) for each in did)
            grown = team[0].call(total) - before
            check(grown == made, f"made {made} changes, and the sum grew by {grown}", situation.contestant)
            row = rows[situation]
            row.add(rate=made / slice_seconds, tries=sum(each.tries for each in did) / max(1, made))
            row.extend("time", [seconds for each in did for seconds in each.seconds])

        rounds = bench.rounds(entries, one_slice, lambda each: each.title)
    return Result(
        "counters",
        "Optimistic and pessimistic counters",
        HOW.format(slice_seconds=slice_seconds, rows=ROWS),
        METRICS,
        list(rows.values()),
        ("rate", "tries"),
        x_title="writers",
        rounds=rounds,
    )


def write(context: TaskContext, begins: float, seconds: float, rows: int, section_seconds: float) -> Written:
    counters = cast(Counters, context.handle)
    choose, clock = random.Random().randint, time.monotonic
    times: list[float] = []
    tries = counters.tries
    wait_for(begins)
    counters.ends = begins + seconds
    while True:
        began = clock()
        if not counters.add_one(choose(1, rows), section_seconds):
            return Written(times, counters.tries - tries)
        times.append(clock() - began)


def total(context: TaskContext) -> int:
    return cast(Counters, context.handle).total()
