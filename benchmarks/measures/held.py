"""Growth: what a pair costs in a process that holds 0 to 10,000 other leases."""

from __future__ import annotations

from dataclasses import dataclass

from ..contestant import Contestant, check
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team, gather
from .pairs import run_pairs

__all__ = ["count_held", "hold_many", "measure"]

METRICS = (
    Metric("time", "time per pair", "seconds"),
    Metric("cpu", "CPU time per pair", "seconds"),
)

HOW = """
An uncontended pair in a process that already holds this many other names of the same engine (ttl 30 s,
renewed throughout), each process with a database or namespace of its own, slices of {slice_seconds:g} s in
turn. At the end every lease must still be held. Ratios to the same contestant with none held; lower is
better.
"""

TTL_SECONDS = 30.0


def hold_many(context: TaskContext, count: int, ttl_seconds: float) -> None:
    context.handle.hold_many(count, ttl_seconds)


def count_held(context: TaskContext) -> int:
    return context.handle.held()


@dataclass(frozen=True, slots=True)
class Entry:
    contestant: Contestant
    count: int

    @property
    def key(self) -> str:
        return f"{self.contestant.key}/{self.count}"

    @property
    def label(self) -> str:
        return f"{self.contestant.label}, {self.count:,} held"


def measure(bench: Bench) -> Result:
    counts = bench.pick((0, 10, 100, 1000, 10_000), (0, 5))
    slice_seconds = bench.pick(0.1, 0.02)
    entries = [Entry(each, count) for each in bench.contestants for count in counts]
    rows = {
        entry.key: Row(
            entry.key,
            entry.label,
            entry.contestant.role,
            f"{entry.contestant.key}/0",
            entry.contestant.label,
            entry.count,
        )
        for entry in entries
    }
    with Team() as team:
        bench.report(0.0, "taking the leases")
        workers = {entry.key: team.hire(entry.contestant, bench.place(entry.key)) for entry in entries}
        gather([workers[entry.key].start(hold_many, entry.count, TTL_SECONDS) for entry in entries])

        def one_slice(entry: Entry) -> None:
            pairs, seconds, cpu_seconds = workers[entry.key].call(run_pairs, slice_seconds)
            rows[entry.key].add(time=seconds / pairs, cpu=cpu_seconds / pairs)

        rounds = bench.rounds(entries, one_slice, lambda entry: entry.label)
        for entry in entries:
            held = workers[entry.key].call(count_held)
            check(held == entry.count, f"lost {entry.count - held} of {entry.count}", entry.contestant)
    return Result(
        "held",
        "Growth with leases held",
        HOW.format(slice_seconds=slice_seconds),
        METRICS,
        list(rows.values()),
        ("time",),
        "leases held",
        rounds,
    )
