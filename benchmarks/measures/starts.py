"""How soon an idle worker begins a job that is put."""

from __future__ import annotations

import random
import time
from typing import cast

from ..engines.queue import Jobs
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team

__all__ = ["measure"]

METRICS = (
    Metric("p50", "put → start, p50", "seconds", 0.5, "start"),
    Metric("p90", "p90", "seconds", 0.9, "start"),
    Metric("p99", "p99", "seconds", 0.99, "start"),
)

HOW = """
One process puts jobs one at a time, {pause_ms} to {pause_most_ms} ms after each other; another runs a
worker, which is idle before each. From before the call of put until the job's function is called.
"""

PAUSE_SECONDS = (0.02, 0.06)
WARM_UP = 3


def measure(bench: Bench) -> Result:
    number = bench.pick(40, 4)
    rows = {
        each: Row(each.key, each.label, each.role, bench.base("starts", each)) for each in bench.contestants
    }
    with Team() as team:
        pairs = {
            each: [team.hire(each, bench.place(f"starts-{each.key}")) for _ in range(2)]
            for each in bench.contestants
        }
        team.ready()

        def one_slice(each: object) -> None:
            putter, worker = pairs[each]  # type: ignore[index]  # one of the contestants
            begun = worker.start(work, number + WARM_UP)
            begun.wait_for_progress()
            put_at = putter.call(put_one_by_one, number + WARM_UP)
            ran_at = begun.result()
            delays = [ran_at[job] - moment for job, moment in enumerate(put_at)]
            rows[each].extend("start", delays[WARM_UP:])  # type: ignore[index]  # as above

        rounds = bench.rounds(bench.contestants, one_slice, lambda each: each.label)
    low, high = (round(seconds * 1000) for seconds in PAUSE_SECONDS)
    return Result(
        "starts",
        "From put to start",
        HOW.format(pause_ms=low, pause_most_ms=high),
        METRICS,
        list(rows.values()),
        ("p50",),
        rounds=rounds,
    )


def work(context: TaskContext, number: int) -> dict[int, float]:
    """When each job began."""
    ran_at: dict[int, float] = {}
    cast(Jobs, context.handle).work(ran_at.__setitem__, number, context.report_progress)
    return ran_at


def put_one_by_one(context: TaskContext, number: int) -> list[float]:
    put_at = []
    jobs = cast(Jobs, context.handle)
    for job in range(number):
        time.sleep(random.uniform(*PAUSE_SECONDS))
        put_at.append(time.monotonic())
        jobs.put([job])
    return put_at
