"""From just before ``release()`` in one process to just after ``acquire()`` returned in a waiting one."""

from __future__ import annotations

import random
import time
from pathlib import Path

from ..contestant import Contestant, check
from ..counter import Counter
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team, Worker

__all__ = ["measure"]

METRICS = (
    Metric("p50", "p50", "seconds", 0.5, "latency"),
    Metric("p90", "p90", "seconds", 0.9, "latency"),
    Metric("p99", "p99", "seconds", 0.99, "latency"),
    Metric("longest", "longest", "seconds", 1.0, "latency"),
)

HOW = """
Two processes. One holds, the other waits; the time runs from just before `release()` in the first to just
after `acquire()` returned in the second, by the monotonic clock that both read. The wait before it is
random, between 5 ms and 5 ms plus the peer's polling interval (50 ms where there is none), so that a
release falls anywhere between two looks. Peers at their defaults. Lower is better.
"""

SHORTEST_WAIT_SECONDS = 0.005


def take_and_count(context: TaskContext, counter_path: Path) -> None:
    context.handle.acquire()
    with Counter(counter_path) as counter:
        counter.value += 1


def release_after(context: TaskContext, seconds: float) -> float:
    time.sleep(seconds)
    before = time.monotonic()
    context.handle.release()
    return before


def wait_and_count(context: TaskContext, counter_path: Path) -> float:
    """When it was granted."""
    with Counter(counter_path) as counter:
        context.report_progress()
        context.handle.acquire()
        granted = time.monotonic()
        counter.value += 1
        context.handle.release()
    return granted


def hand_over(holder: Worker, waiter: Worker, counter_path: Path, wait_seconds: float) -> float:
    """One hand-off; how long it took."""
    holder.call(take_and_count, counter_path)
    waiting = waiter.start(wait_and_count, counter_path)
    waiting.wait_for_progress()
    released = holder.call(release_after, wait_seconds)
    return waiting.result() - released


def measure(bench: Bench) -> Result:
    slice_seconds = bench.pick(0.25, 0.0)
    rows = {
        each.key: Row(each.key, each.label, each.role, bench.base("handoff", each))
        for each in bench.contestants
    }
    randomness = random.Random(1)
    with Team() as team:
        workers = {
            each.key: tuple(team.hire(each, bench.place(each.key)) for _ in range(2))
            for each in bench.contestants
        }
        team.ready()

        def one_slice(contestant: Contestant) -> None:
            holder, waiter = workers[contestant.key]
            counter_path = bench.place(contestant.key).counter
            ends = time.monotonic() + slice_seconds
            while True:
                wait_seconds = SHORTEST_WAIT_SECONDS + randomness.uniform(0, contestant.phase_seconds)
                rows[contestant.key].add(latency=hand_over(holder, waiter, counter_path, wait_seconds))
                if time.monotonic() >= ends:
                    return

        rounds = bench.rounds(bench.contestants, one_slice, lambda each: each.label)
    for each in bench.contestants:
        row = rows[each.key]
        check(min(row.samples["latency"]) > 0, "was granted before it was released", each)
        with Counter(bench.place(each.key).counter) as counter:
            check(counter.value == 2 * len(row.samples["latency"]), "lost increments", each)
    return Result(
        "handoff",
        "Release → granted in another waiting process",
        HOW,
        METRICS,
        list(rows.values()),
        ("p50", "p99"),
        rounds=rounds,
    )
