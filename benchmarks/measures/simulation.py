"""What a schedule in virtual time costs: how many of them a core runs and checks in a second."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..contestant import check
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team

__all__ = ["measure"]

METRICS = (
    Metric("rate", "schedules per second of CPU time", "per second"),
    Metric("cpu", "CPU time per schedule", "seconds", compared=False),
    Metric("virtual", "virtual seconds per schedule", "count", compared=False),
)

HOW = """
The shipped scripts of 4 clients in virtual time, in one process: a schedule of each scenario of the records
in turn, with whatever goes wrong in it, until all is quiet, and all checkers. A schedule of `make sim` begins
nothing new after 17 virtual seconds; in the other row clients are at work for all of {busy_seconds:g}. CPU
time is that of the process, garbage collection included.
"""

TESTS = Path(__file__).resolve().parents[2] / "tests"
"""Where the scenarios and the checkers are."""

BUSY_SECONDS = 25.0
SCENARIOS = 8

Situation = tuple[str, str, float | None]

SITUATIONS: Sequence[Situation] = (
    ("simulation", "schedules of `make sim`", None),
    ("simulation/busy", f"at work for {BUSY_SECONDS:g} virtual seconds", BUSY_SECONDS),
)
"""(key, label, when nothing new is begun any more; None: as usual)"""


def run_schedules(
    context: TaskContext, seeds: range, stop_at: float | None
) -> tuple[float, float, list[str]]:
    """Seconds of CPU time and virtual seconds for each, and what was wrong."""
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
        logging.disable(logging.CRITICAL)  # scripts log what they give up on
        gc.disable()  # a schedule is full of cycles that live until its end
    from simulation.checkers import check as check_schedule
    from simulation.schedules import STOP_AT, run_schedule

    wrong: list[str] = []
    virtual_seconds = 0.0
    began = time.process_time()
    for seed in seeds:
        run = run_schedule(seed, stop_at=STOP_AT if stop_at is None else stop_at)
        wrong += [f"{run.scenario}, seed {seed}: {checker}" for checker in check_schedule(run)]
        virtual_seconds += run.world.now
    del run
    gc.collect()
    return (time.process_time() - began) / len(seeds), virtual_seconds / len(seeds), wrong


def measure(bench: Bench) -> Result:
    (contestant,) = bench.contestants
    rows = {key: Row(key, label, "subject", "simulation") for key, label, _ in SITUATIONS}
    seeds = dict.fromkeys(rows, 0)
    with Team() as team:
        worker = team.hire(contestant, bench.place("simulation"))
        worker.call(run_schedules, range(1), None)  # imported and warm

        def one_slice(situation: Situation) -> None:
            key, _, stop_at = situation
            first = seeds[key]
            seeds[key] += SCENARIOS
            seconds, virtual, wrong = worker.call(run_schedules, range(first, first + SCENARIOS), stop_at)
            check(not wrong, f"did not keep its promises: {', '.join(wrong)}", contestant)
            rows[key].add(rate=1 / seconds, cpu=seconds, virtual=virtual)

        rounds = bench.rounds(SITUATIONS, one_slice, lambda situation: situation[1])
    return Result(
        "simulation",
        "Schedules in virtual time",
        HOW.format(busy_seconds=BUSY_SECONDS),
        METRICS,
        list(rows.values()),
        ("rate",),
        rounds=rounds,
    )
