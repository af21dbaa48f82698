"""One node of a quorum stopped: what a pair costs then."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from ..contestant import Contestant
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import Team
from .pairs import run_pairs

__all__ = ["measure"]

METRICS = (
    Metric("time", "time per pair", "seconds"),
    Metric("cpu", "CPU time per pair", "seconds"),
)

HOW = """
An uncontended pair with all nodes, and with one of them stopped (SIGSTOP: it takes connections and requests,
and answers nothing), slices of {slice_seconds:g} s in turn. Ratios to the same contestant with all nodes;
lower is better.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    contestant: Contestant
    stopped: bool

    @property
    def key(self) -> str:
        return f"{self.contestant.key}/{'stopped' if self.stopped else 'all'}"

    @property
    def label(self) -> str:
        return f"{self.contestant.label}, {'one node stopped' if self.stopped else 'all nodes'}"


def measure(bench: Bench) -> Result:
    slice_seconds = bench.pick(0.25, 0.05)
    entries = [Entry(each, stopped) for each in bench.contestants for stopped in (False, True)]
    rows = {
        entry.key: Row(entry.key, entry.label, entry.contestant.role, f"{entry.contestant.key}/all")
        for entry in entries
    }
    with Team() as team:
        workers = {each.key: team.hire(each, bench.place(each.key)) for each in bench.contestants}
        team.ready()

        def one_slice(entry: Entry) -> None:
            with bench.service.one_stopped() if entry.stopped else contextlib.nullcontext():
                pairs, seconds, cpu_seconds = workers[entry.contestant.key].call(run_pairs, slice_seconds)
            rows[entry.key].add(time=seconds / pairs, cpu=cpu_seconds / pairs)

        rounds = bench.rounds(entries, one_slice, lambda entry: entry.label)
    return Result(
        "stopped",
        "One node stopped",
        HOW.format(slice_seconds=slice_seconds),
        METRICS,
        list(rows.values()),
        ("time",),
        rounds=rounds,
    )
