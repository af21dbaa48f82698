"""A guarded write: how many of them a process makes in a second, beside the same write without a guard."""

from __future__ import annotations

from ..contestant import Contestant
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import Team
from .pairs import new_token, run_pairs

__all__ = ["measure"]

METRICS = (
    Metric("rate", "writes per second", "per second"),
    Metric("time", "time per write", "seconds", compared=False),
    Metric("cpu", "CPU time per write", "seconds"),
)

HOW = """
One process per contestant, slices of {slice_seconds:g} s in turn, one write after the other. The guarded
ones carry a lease that is held and renewed throughout; at the end the guard must have seen its token.
"""


def measure(bench: Bench) -> Result:
    slice_seconds = bench.pick(0.1, 0.02)
    base = bench.base
    rows = {
        each.key: Row(each.key, each.label, each.role, base("redis_writes", each))
        for each in bench.contestants
    }
    with Team() as team:
        workers = {each.key: team.hire(each, bench.place(each.key)) for each in bench.contestants}
        for worker in workers.values():
            worker.call(run_pairs, slice_seconds / 2)  # caches warm, scripts loaded

        def one_slice(contestant: Contestant) -> None:
            writes, seconds, cpu_seconds = workers[contestant.key].call(run_pairs, slice_seconds)
            rows[contestant.key].add(rate=writes / seconds, time=seconds / writes, cpu=cpu_seconds / writes)

        rounds = bench.rounds(bench.contestants, one_slice, lambda each: each.label)
        for worker in workers.values():
            worker.call(new_token)
    return Result(
        "redis_writes",
        "Writes to Redis, with and without a guard",
        HOW.format(slice_seconds=slice_seconds),
        METRICS,
        list(rows.values()),
        ("rate", "cpu"),
        rounds=rounds,
    )
