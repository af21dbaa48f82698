"""asyncio: how many pairs one task, and a hundred tasks with a lock each, make in a second."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..contestant import Contestant, check
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team

__all__ = ["measure"]

METRICS = (
    Metric("rate", "pairs per second, all tasks together", "per second"),
    Metric("time", "time per pair", "seconds", compared=False),
    Metric("cpu", "CPU time per pair", "seconds"),
)

HOW = """
One process with one event loop (asyncio's own) per contestant, one client, so many tasks, each of which
acquires and releases a lock of its own, slices of {slice_seconds:g} s in turn. The time per pair is the time
over the pairs of all tasks.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    contestant: Contestant
    tasks: int

    @property
    def key(self) -> str:
        return f"{self.contestant.key}/{self.tasks}"

    @property
    def label(self) -> str:
        return f"{self.contestant.label}, {self.tasks} task{'s' * (self.tasks > 1)}"


def run_tasks(context: TaskContext, tasks: int, seconds: float) -> tuple[int, float, float, int | None]:
    """How many pairs, in how many seconds, with how much CPU time; and a token of a grant after them."""
    cpu, began = time.process_time(), time.monotonic()
    pairs = context.handle.tasks_until(tasks, began + seconds)
    took, used = time.monotonic() - began, time.process_time() - cpu
    return pairs, took, used, context.handle.token()


def measure(bench: Bench) -> Result:
    counts = bench.pick((1, 100), (1, 5))
    slice_seconds = bench.pick(0.25, 0.02)
    entries = [Entry(each, count) for count in counts for each in bench.contestants]
    rows = {
        entry.key: Row(
            entry.key,
            entry.label,
            entry.contestant.role,
            f"{bench.base('tasks', entry.contestant)}/{entry.tasks}",
        )
        for entry in entries
    }
    tokens: dict[str, int] = {}
    with Team() as team:
        workers = {each.key: team.hire(each, bench.place(each.key)) for each in bench.contestants}
        for each in bench.contestants:
            workers[each.key].call(run_tasks, max(counts), slice_seconds / 2)  # locks and connections made

        def one_slice(entry: Entry) -> None:
            contestant = entry.contestant
            pairs, seconds, cpu_seconds, token = workers[contestant.key].call(
                run_tasks, entry.tasks, slice_seconds
            )
            rows[entry.key].add(rate=pairs / seconds, time=seconds / pairs, cpu=cpu_seconds / pairs)
            if token is not None:
                check(token > tokens.get(contestant.key, 0), "gave a token that is not larger", contestant)
                tokens[contestant.key] = token

        rounds = bench.rounds(entries, one_slice, lambda entry: entry.label)
    return Result(
        "tasks",
        f"asyncio: 1 and {max(counts)} tasks, a lock each",
        HOW.format(slice_seconds=slice_seconds),
        METRICS,
        list(rows.values()),
        ("rate", "cpu"),
        rounds=rounds,
    )
