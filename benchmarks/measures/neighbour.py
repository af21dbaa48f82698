"""A hot process hammers one name: what a pair on another name costs beside it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ..contestant import Contestant, check
from ..counter import Counter
from ..interleaving import Bench, begin_soon, wait_for
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team

__all__ = ["measure"]

METRICS = (
    Metric("p50", "p50", "seconds", 0.5, "pair"),
    Metric("p99", "p99", "seconds", 0.99, "pair"),
    Metric("longest", "longest", "seconds", 1.0, "pair"),
    Metric("hot", "pairs per second of the hot process", "per second", compared=False),
)

HOW = """
One process makes a pair every millisecond on a name that nobody else wants; another, where there is one,
acquires and releases another name of the same engine as fast as it can. Ratios to the same pair alone; lower
is better.
"""

PAUSE_SECONDS = 0.001


def hammer(context: TaskContext, begins: float, seconds: float) -> int:
    wait_for(begins)
    return context.handle.pairs_until(begins + seconds)


def timed_pairs(context: TaskContext, counter_path: Path, begins: float, seconds: float) -> list[float]:
    acquire, release, clock, sleep = (
        context.handle.acquire,
        context.handle.release,
        time.monotonic,
        time.sleep,
    )
    times: list[float] = []
    with Counter(counter_path) as counter:
        wait_for(begins)
        while (before := clock()) < begins + seconds or not times:
            acquire()
            counter.value += 1
            release()
            times.append(clock() - before)
            sleep(PAUSE_SECONDS)
    return times


@dataclass(frozen=True, slots=True)
class Entry:
    contestant: Contestant
    beside: bool

    @property
    def key(self) -> str:
        return f"{self.contestant.key}/{'beside' if self.beside else 'alone'}"

    @property
    def label(self) -> str:
        return f"{self.contestant.label}, {'beside a hot process' if self.beside else 'alone'}"


def measure(bench: Bench) -> Result:
    slice_seconds = bench.pick(0.5, 0.05)
    entries = [Entry(each, beside) for each in bench.contestants for beside in (False, True)]
    rows = {
        entry.key: Row(entry.key, entry.label, entry.contestant.role, f"{entry.contestant.key}/alone")
        for entry in entries
    }
    with Team() as team:
        hot = {each.key: team.hire(each, bench.place(each.key), "hot") for each in bench.contestants}
        calm = {each.key: team.hire(each, bench.place(each.key), "calm") for each in bench.contestants}
        team.ready()

        def one_slice(entry: Entry) -> None:
            key, row = entry.contestant.key, rows[entry.key]
            begins = begin_soon()
            hammering = hot[key].start(hammer, begins, slice_seconds) if entry.beside else None
            times = calm[key].call(timed_pairs, bench.place(key).counter, begins, slice_seconds)
            row.extend("pair", times)
            if hammering is not None:
                row.add(hot=hammering.result() / slice_seconds)

        rounds = bench.rounds(entries, one_slice, lambda entry: entry.label)
    for each in bench.contestants:
        made = sum(len(rows[f"{each.key}/{where}"].samples["pair"]) for where in ("alone", "beside"))
        with Counter(bench.place(each.key).counter) as counter:
            check(counter.value == made, "lost increments", each)
    return Result(
        "neighbour",
        "A pair on one name beside a hot process on another",
        HOW,
        METRICS,
        list(rows.values()),
        ("p50", "p99"),
        rounds=rounds,
    )
