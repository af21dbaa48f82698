"""A thousand waiters in one process: how many connections they share, what they cost while they wait, and how
fast they are served."""

from __future__ import annotations

import time

from ..connections import connections_to
from ..contestant import Contestant, check
from ..counter import Counter
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team, Worker
from .exclusion import give_back, take

__all__ = ["measure"]

METRICS = (
    Metric("connections", "connections of the process", "count", compared=False),
    Metric("cpu", "CPU while they wait", "share of a core", compared=False),
    Metric("rate", "served per second", "per second", compared=False),
)

HOW = """
One process with {count:,} waiters (threads, or tasks of one event loop) for one lock that another process
holds. Connections and CPU time are those of the process in the {window_seconds:g} s that begin
{settle_seconds:g} s later. Then the holder releases, and each of them takes the lock, counts, and gives it
back.
"""

QUEUE_SECONDS = 30.0
"""Time for all of them to be in the queue; after that something is wrong."""


def wait_in_crowd(
    context: TaskContext, count: int, settle_seconds: float, window_seconds: float
) -> tuple[int, float, float]:
    """Connections, CPU seconds in the window, and the moment at which the last one was served."""
    times: list[float] = []

    def begin() -> None:
        times.append(time.process_time())

    def end() -> None:
        times.extend((time.process_time(), connections_to(context.place.addresses)))
        context.report_progress()

    with Counter(context.place.counter) as counter:

        def inside() -> None:
            value = counter.value
            counter.value = value + 1

        context.handle.crowd(count, inside, ((settle_seconds, begin), (window_seconds, end)))
    cpu_before, cpu_after, connections = times
    return int(connections), cpu_after - cpu_before, time.monotonic()


def count_waiting(context: TaskContext) -> int | None:
    return context.handle.waiting()


def until_all_wait(holder: Worker, count: int) -> None:
    """On a machine that is slow today the last of them may not be in the queue yet."""
    ends = time.monotonic() + QUEUE_SECONDS
    while (queued := holder.call(count_waiting)) is not None and queued != count:
        check(time.monotonic() < ends, f"had {queued} of {count} in its queue", holder.contestant)
        time.sleep(0.05)


def measure(bench: Bench) -> Result:
    count = bench.pick(1000, 20)
    settle_seconds, window_seconds = bench.pick((1.5, 2.0), (0.1, 0.1))
    rows = {each.key: Row(each.key, each.label, each.role, each.key) for each in bench.contestants}

    def one_slice(contestant: Contestant) -> None:
        place = bench.place(contestant.key)
        # Hired for this alone: a connection is counted if this crowd needed it.
        with Team() as team:
            holder, waiters = team.hire(contestant, place), team.hire(contestant, place)
            team.ready()
            holder.call(take)
            waiting = waiters.start(wait_in_crowd, count, settle_seconds, window_seconds)
            waiting.wait_for_progress()
            until_all_wait(holder, count)
            released = time.monotonic()
            holder.call(give_back)
            connections, used, served = waiting.result()
        rows[contestant.key].add(
            connections=connections, cpu=used / window_seconds, rate=count / (served - released)
        )

    rounds = bench.rounds(bench.contestants, one_slice, lambda each: each.label)
    for each in bench.contestants:
        with Counter(bench.place(each.key).counter) as counter:
            check(counter.value == count * rounds, "lost increments", each)
    return Result(
        "crowd",
        f"{count:,} waiters in one process",
        HOW.format(count=count, settle_seconds=settle_seconds, window_seconds=window_seconds),
        METRICS,
        list(rows.values()),
        ("cpu", "rate"),
        rounds=rounds,
    )
