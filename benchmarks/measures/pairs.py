"""Uncontended: how many acquire + release pairs a process makes in a second, and their CPU time."""

from __future__ import annotations

import time

from ..contestant import Contestant, check
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team

__all__ = ["measure", "run_pairs"]

METRICS = (
    Metric("rate", "pairs per second", "per second"),
    Metric("time", "time per pair", "seconds", compared=False),
    Metric("cpu", "CPU time per pair", "seconds"),
    Metric("one_round", "grants in one round, at least", "share", compared=False),
)

HOW = """
One process per contestant, slices of {slice_seconds:g} s in turn. Holdfast with its defaults: a token on
every grant, the keeper running. CPU time is that of the process and all its threads.
"""


def run_pairs(context: TaskContext, seconds: float) -> tuple[int, float, float]:
    """How many pairs, in how many seconds, with how much CPU time of the process and all its threads."""
    cpu, began = time.process_time(), time.monotonic()
    pairs = context.handle.pairs_until(began + seconds)
    return pairs, time.monotonic() - began, time.process_time() - cpu


def new_token(context: TaskContext) -> int | None:
    return context.handle.token()


def add_rounds(row: Row, scripts: float, least: int) -> None:
    """How many grants of the subject took one round at least: one that took two ran one script more, or
    several. What the nodes have not answered when the slice ends makes no difference worth a thought."""
    if row.role == "subject":
        row.add(one_round=max(0.0, 1 - max(0.0, scripts - least)))


def measure(bench: Bench) -> Result:
    slice_seconds = bench.pick(0.1, 0.02)
    rows = {
        each.key: Row(each.key, each.label, each.role, bench.base("pairs", each))
        for each in bench.contestants
    }
    tokens: dict[str, int] = {}
    with Team() as team:
        workers = {each.key: team.hire(each, bench.place(each.key)) for each in bench.contestants}
        for each in bench.contestants:
            workers[each.key].call(run_pairs, slice_seconds / 2)  # caches warm, files created

        def one_slice(contestant: Contestant) -> None:
            worker, row = workers[contestant.key], rows[contestant.key]
            before = bench.service.scripts()
            pairs, seconds, cpu_seconds = worker.call(run_pairs, slice_seconds)
            row.add(rate=pairs / seconds, time=seconds / pairs, cpu=cpu_seconds / pairs)
            if before is not None and bench.group.least_scripts is not None:
                add_rounds(row, ((bench.service.scripts() or 0) - before) / pairs, bench.group.least_scripts)
            token = worker.call(new_token)
            if token is not None:
                check(token > tokens.get(contestant.key, 0), "gave a token that is not larger", contestant)
                tokens[contestant.key] = token

        rounds = bench.rounds(bench.contestants, one_slice, lambda each: each.label)
    return Result(
        "pairs",
        "Uncontended: acquire + release in one process",
        HOW.format(slice_seconds=slice_seconds),
        METRICS,
        list(rows.values()),
        ("rate", "cpu"),
        rounds=rounds,
    )
