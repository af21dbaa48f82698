"""Growth: how long a hand-off takes when 1, 10 or 100 processes wait."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ..contestant import Contestant
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import Team
from .contending import Contended, contend_all

__all__ = ["handoffs", "measure"]

METRICS = (
    Metric("p50", "hand-off p50", "seconds", 0.5, "latency"),
    Metric("p99", "hand-off p99", "seconds", 0.99, "latency"),
    Metric("rate", "acquisitions per second", "per second", compared=False),
    Metric("others", "grants to a waiting process", "share", compared=False),
)

HOW = """
One process more than the waiters; each takes the lock, counts, gives it back and wants it again at once, so
that this many always wait. The time runs from just before a `release()` to just after the next `acquire()`
returned, where that was in another process that already waited; the share of such grants is in the last
column (where it is small, the releaser took the lock again itself). The first 5 ms per waiter of a slice,
in which the queue forms, do not count. Ratios to the same contestant with one waiter; lower is better.
"""

LEAD_IN_SECONDS_PER_WAITER = 0.005
"""Before a slice counts: everybody begins at once, and the queue has yet to form."""


@dataclass(frozen=True, slots=True)
class Entry:
    contestant: Contestant
    waiters: int

    @property
    def key(self) -> str:
        return f"{self.contestant.key}/{self.waiters}"

    @property
    def label(self) -> str:
        return f"{self.contestant.label}, {self.waiters} waiting"


def handoffs(everyone: Sequence[Contended], counted_seconds: float) -> tuple[list[float], int]:
    """The times from a release to the next grant where that went to a process that waited, and all grants.

    Only the last ``counted_seconds`` of the slice count.
    """
    grants = sorted(
        (granted, released, wanted, who)
        for who, did in enumerate(everyone)
        for wanted, granted, released in zip(did.wanted, did.granted, did.released, strict=True)
        if did.ends - counted_seconds <= granted < did.ends
    )
    latencies = [
        granted - released
        for (_, released, _, before), (granted, _, wanted, who) in itertools.pairwise(grants)
        if who != before and wanted < released
    ]
    return latencies, len(grants)


def measure(bench: Bench) -> Result:
    counts = bench.pick((1, 10, 100), (1, 3))
    slice_seconds = bench.pick(0.5, 0.05)
    entries = [Entry(each, count) for each in bench.contestants for count in counts]
    rows = {
        entry.key: Row(
            entry.key,
            entry.label,
            entry.contestant.role,
            f"{entry.contestant.key}/{counts[0]}",
            entry.contestant.label,
            entry.waiters,
        )
        for entry in entries
    }
    with Team() as team:
        bench.report(0.0, "starting processes")
        workers = {
            entry.key: [team.hire(entry.contestant, bench.place(entry.key)) for _ in range(entry.waiters + 1)]
            for entry in entries
        }
        team.ready()

        def one_slice(entry: Entry) -> None:
            lead_in_seconds = entry.waiters * LEAD_IN_SECONDS_PER_WAITER
            everyone = contend_all(
                workers[entry.key], bench.place(entry.key), lead_in_seconds + slice_seconds
            )
            latencies, grants = handoffs(everyone, slice_seconds)
            row = rows[entry.key]
            row.extend("latency", latencies)
            row.add(rate=grants / slice_seconds, others=len(latencies) / max(1, grants - 1))

        rounds = bench.rounds(entries, one_slice, lambda entry: entry.label)
    return Result(
        "waiters",
        "Growth with processes waiting",
        HOW,
        METRICS,
        list(rows.values()),
        ("p50",),
        "processes waiting",
        rounds,
    )
