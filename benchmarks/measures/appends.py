"""How many events writers append in a second, each to a stream of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ..contestant import Contestant, check
from ..engines.events import Streams
from ..interleaving import Bench, begin_soon, wait_for
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team, gather

__all__ = ["measure"]

METRICS = (
    Metric("rate", "events per second", "per second"),
    Metric("p50", "time of an append, p50", "seconds", 0.5, "time"),
    Metric("p99", "p99", "seconds", 0.99, "time"),
)

HOW = """
Writers are processes with a connection and a stream each; in slices of {slice_seconds:g} s each appends one
event at a time, each in a transaction of its own, and names the version that it expects. The bare INSERT
writes the same row (stream, version, JSON, time) into a table with one index, its primary key. After each
slice every stream must have exactly the events that were appended. The ratio is to the bare INSERT with as
many writers.
"""

WRITERS = (1, 4, 8)


@dataclass(frozen=True, slots=True)
class Situation:
    contestant: Contestant
    writers: int

    @property
    def title(self) -> str:
        return f"{self.contestant.label}, {self.writers} writer{'s' if self.writers > 1 else ''}"


def measure(bench: Bench) -> Result:
    slice_seconds = bench.pick(0.5, 0.05)
    counts = bench.pick(WRITERS, (1, 2))
    entries = [Situation(contestant, count) for contestant in bench.contestants for count in counts]
    rows = {
        each: Row(
            f"{each.contestant.key}/{each.writers}",
            each.title,
            each.contestant.role,
            f"{bench.base('appends', each.contestant)}/{each.writers}",
            each.contestant.label,
            each.writers,
        )
        for each in entries
    }
    place = bench.place("appends")
    number = 0
    with Team() as team:
        workers = {
            each.key: [team.hire(each, place) for _ in range(max(counts))] for each in bench.contestants
        }
        team.ready()

        def one_slice(situation: Situation) -> None:
            nonlocal number
            number += 1
            chosen = workers[situation.contestant.key][: situation.writers]
            streams = [f"{number}-{writer}" for writer in range(len(chosen))]
            begins = begin_soon()
            did = gather(
                worker.start(append, stream, begins, slice_seconds)
                for worker, stream in zip(chosen, streams, strict=True)
            )
            for stream, times in zip(streams, did, strict=True):
                found = chosen[0].call(length, stream)
                check(
                    found == len(times),
                    f"appended {len(times)} events, and has {found}",
                    situation.contestant,
                )
            rows[situation].add(rate=sum(len(times) for times in did) / slice_seconds)
            rows[situation].extend("time", [seconds for times in did for seconds in times])

        rounds = bench.rounds(entries, one_slice, lambda each: each.title)
    return Result(
        "appends",
        "Events appended per second",
        HOW.format(slice_seconds=slice_seconds),
        METRICS,
        list(rows.values()),
        ("rate",),
        x_title="writers",
        rounds=rounds,
    )


def append(context: TaskContext, stream: str, begins: float, seconds: float) -> list[float]:
    wait_for(begins)
    return cast(Streams, context.handle).append_until(stream, begins + seconds)


def length(context: TaskContext, stream: str) -> int:
    return cast(Streams, context.handle).length(stream)
