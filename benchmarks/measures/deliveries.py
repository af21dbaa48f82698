"""How soon a subscriber has an event that is appended."""

from __future__ import annotations

import random
import time
from typing import cast

from ..contestant import Contestant, check
from ..engines.events import Store
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team

__all__ = ["measure"]

METRICS = (
    Metric("p50", "append → subscriber, p50", "seconds", 0.5, "delivery", compared=False),
    Metric("p90", "p90", "seconds", 0.9, "delivery", compared=False),
    Metric("p99", "p99", "seconds", 0.99, "delivery", compared=False),
)

HOW = """
One process appends events one at a time, {pause_ms} to {pause_most_ms} ms after each other; another one waits
for them in a subscription. From before the call of append until the subscriber has the event. Each arrives
once, in order.
"""

PAUSE_SECONDS = (0.02, 0.06)
WARM_UP = 3


def measure(bench: Bench) -> Result:
    count = bench.pick(100, 4) + WARM_UP
    rows = {each: Row(each.key, each.label, each.role, each.key) for each in bench.contestants}
    number = 0
    with Team() as team:
        place = bench.place("deliveries")
        pairs = {each: [team.hire(each, place) for _ in range(2)] for each in bench.contestants}
        team.ready()

        def one_slice(each: Contestant) -> None:
            nonlocal number
            number += 1
            writer, subscriber = pairs[each]
            receiving = subscriber.start(receive, f"delivery-{number}", count)
            receiving.wait_for_progress()
            began_at = writer.call(append, f"delivery-{number}", count)
            arrived_at = receiving.result()
            check(len(arrived_at) == count, f"delivered {len(arrived_at)} of {count} events", each)
            delays = [came - began for began, came in zip(began_at, arrived_at, strict=True)]
            rows[each].extend("delivery", delays[WARM_UP:])

        rounds = bench.rounds(bench.contestants, one_slice, lambda each: each.label)
    low, high = (round(seconds * 1000) for seconds in PAUSE_SECONDS)
    return Result(
        "deliveries",
        "From append to subscriber",
        HOW.format(pause_ms=low, pause_most_ms=high),
        METRICS,
        list(rows.values()),
        ("p50",),
        rounds=rounds,
    )


def append(context: TaskContext, stream: str, count: int) -> list[float]:
    return cast(Store, context.handle).append(
        stream, count, lambda: time.sleep(random.uniform(*PAUSE_SECONDS))
    )


def receive(context: TaskContext, stream: str, count: int) -> list[float]:
    return cast(Store, context.handle).receive(stream, count, context.report_progress)
