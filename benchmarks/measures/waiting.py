"""What a process that waits costs: its CPU time over a long wait."""

from __future__ import annotations

import time

from ..contestant import check
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team, gather
from .exclusion import give_back, take

__all__ = ["measure"]

METRICS = (Metric("cpu", "CPU of the waiting process", "share of a core"),)

HOW = """
CPU time of a process, all its threads included, over a wait of {wait_seconds:g} s, as a share of one core.
All contestants wait at the same time, each for a lock of its own: the machine is idle otherwise. Lower is
better.
"""


def wait_long(context: TaskContext) -> tuple[float, float]:
    """Seconds waited, and CPU seconds used meanwhile by this process."""
    cpu, began = time.process_time(), time.monotonic()
    context.report_progress()
    context.handle.acquire()
    waited, used = time.monotonic() - began, time.process_time() - cpu
    context.handle.release()
    return waited, used


def measure(bench: Bench) -> Result:
    wait_seconds = bench.pick(5.0, 0.1)
    rows = {
        each.key: Row(each.key, each.label, each.role, bench.base("waiting", each))
        for each in bench.contestants
    }
    with Team() as team:
        holders = [team.hire(each, bench.place(each.key)) for each in bench.contestants]
        waiters = [team.hire(each, bench.place(each.key)) for each in bench.contestants]
        team.ready()

        def everyone_waits(seconds: float) -> None:
            gather([holder.start(take) for holder in holders])
            pending = [waiter.start(wait_long) for waiter in waiters]
            for each in pending:
                each.wait_for_progress()
            time.sleep(seconds)
            gather([holder.start(give_back) for holder in holders])
            for contestant, (waited, used) in zip(bench.contestants, gather(pending), strict=True):
                check(waited >= seconds, "did not wait for the holder", contestant)
                rows[contestant.key].add(cpu=used / waited)

        rounds = bench.rounds([wait_seconds], everyone_waits, lambda _: "all contestants")
    return Result(
        "waiting",
        "CPU use of a process that waits",
        HOW.format(wait_seconds=wait_seconds),
        METRICS,
        list(rows.values()),
        ("cpu",),
        rounds=rounds,
    )
