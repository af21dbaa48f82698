"""How many jobs of a queue workers do in a second."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

from ..contestant import Contestant, check
from ..engines.queue import Jobs, analyse
from ..interleaving import Bench, begin_soon, wait_for
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team, gather

__all__ = ["measure"]

METRICS = (
    Metric("rate", "jobs finished per second", "per second"),
    Metric("ran", "jobs run per second", "per second"),
)

HOW = """
Workers are processes. In each slice {jobs} jobs that do nothing are put in one batch; then all workers
begin at once. Finished: until every worker has ended, when all jobs are finished in the database, which is
checked; the ends of the workers are part of the time. Run: until the last job's function was called, when
Holdfast, which finishes in batches, has more left to finish. Each job has run exactly once. The tables are
analysed after the put, as in a database that has run for a while. Workers have their defaults: Holdfast's for
threads and procrastinate's run one job at a time. Rows say where it is more.
"""

WORKERS = (1, 4, 8)
JOBS = 1000


@dataclass(frozen=True, slots=True)
class Situation:
    contestant: Contestant
    workers: int

    @property
    def title(self) -> str:
        plural = "s" if self.workers > 1 else ""
        return f"{self.contestant.label}, {self.workers} worker{plural}"


def measure(bench: Bench) -> Result:
    number = bench.pick(JOBS, 20)
    counts = bench.pick(WORKERS, (1, 2))
    entries = [Situation(contestant, count) for contestant in bench.contestants for count in counts]
    rows = {
        each: Row(
            f"{each.contestant.key}/{each.workers}",
            each.title,
            each.contestant.role,
            f"{bench.base('jobs', each.contestant)}/{each.workers}",
            each.contestant.label,
            each.workers,
        )
        for each in entries
    }
    with Team() as team:
        workers = {
            each.key: [team.hire(each, bench.place(f"jobs-{each.key}")) for _ in range(max(counts))]
            for each in bench.contestants
        }
        team.ready()

        def one_slice(situation: Situation) -> None:
            chosen = workers[situation.contestant.key][: situation.workers]
            chosen[0].call(put, number)
            begins = begin_soon()
            did = gather(worker.start(work, begins) for worker in chosen)
            ran = sorted(job for numbers, _, _ in did for job in numbers)
            check(ran == list(range(number)), f"ran {len(ran)} of {number} jobs", situation.contestant)
            left = chosen[0].call(unfinished)
            check(left == 0, f"left {left} jobs unfinished", situation.contestant)
            rows[situation].add(
                rate=number / (max(ended for _, _, ended in did) - begins),
                ran=number / (max(last for _, last, _ in did) - begins),
            )

        rounds = bench.rounds(entries, one_slice, lambda each: each.title)
    return Result(
        "jobs",
        "Jobs per second",
        HOW.format(jobs=number),
        METRICS,
        list(rows.values()),
        ("rate",),
        x_title="workers",
        rounds=rounds,
    )


def put(context: TaskContext, number: int) -> None:
    cast(Jobs, context.handle).put(range(number))
    analyse(context.place)


def unfinished(context: TaskContext) -> int:
    return cast(Jobs, context.handle).unfinished()


def work(context: TaskContext, begins: float) -> tuple[list[int], float, float]:
    """The jobs that ran here, when the last did, and when the worker had ended."""
    jobs: list[int] = []
    last = 0.0

    def ran(number: int, moment: float) -> None:
        nonlocal last
        jobs.append(number)
        last = moment

    wait_for(begins)
    cast(Jobs, context.handle).work(ran, None, lambda: None)
    return jobs, last, time.monotonic()
