"""Ten thousand leases held in one process: what renewing them costs, and how many threads do it."""

from __future__ import annotations

import threading
import time

from ..connections import ports_to
from ..contestant import check
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team, Worker, gather
from .held import count_held, hold_many

__all__ = ["measure"]

METRICS = (
    Metric("cpu", "CPU", "share of a core", compared=False),
    Metric("cpu_at_30", "CPU at ttl 30", "share of a core", compared=False),
    Metric("renewing", "renewing threads", "count", compared=False),
    Metric("threads", "threads in all, the main one among them", "count", compared=False),
    Metric("connections", "connections", "count", compared=False),
    Metric("listening", "of these, listening", "count", compared=False),
    Metric("asking", "of these, for requests", "count", compared=False),
)

HOW = """
CPU time of the process over {window_seconds:g} s in which its main thread sleeps, leases of ttl
{ttl_seconds:g} s, renewed every third of it: {renewals} renewals fall into the time ({exact}). All
contestants at the same time. At the end every lease must still be held. A connection that listens, where the
server tells one apart, is there for word of what others break, and for those who wait.
"""

WANTED_TTL_SECONDS = 30.0
RENEWALS_PER_TTL = 3
SHORTEST_WINDOW_SECONDS = 2.0
RENEWALS = 2
"""Within the time measured."""

KEEPER = "keeper"
"""In the name of a thread that renews."""


def idle(context: TaskContext, seconds: float) -> tuple[float, list[str], list[int]]:
    """CPU seconds that this process used while its main thread slept, the names of its threads, and the ports
    of its connections to servers."""
    cpu = time.process_time()
    time.sleep(seconds)
    used = time.process_time() - cpu
    return used, [each.name for each in threading.enumerate()], ports_to(context.place.addresses)


def connections(bench: Bench, ports: list[int]) -> dict[str, float]:
    """How many there are of which kind, where there is a server that tells them apart."""
    if not ports:
        return {}
    listening = bench.service.listening(ports)
    if listening is None:
        return {"connections": len(ports)}
    return {"connections": len(ports), "listening": listening, "asking": len(ports) - listening}


def least_remaining(context: TaskContext) -> float:
    return context.handle.least_remaining()


def measure(bench: Bench) -> Result:
    count = bench.pick(10_000, 20)
    possible_seconds = max(bench.seconds, SHORTEST_WINDOW_SECONDS) / RENEWALS * RENEWALS_PER_TTL
    ttl_seconds = bench.pick(min(WANTED_TTL_SECONDS, possible_seconds), WANTED_TTL_SECONDS)
    window_seconds = bench.pick(ttl_seconds / RENEWALS_PER_TTL * RENEWALS, 0.05)
    rows = {
        each.key: Row(each.key, f"{each.label}, {count:,} held", each.role, each.key)
        for each in bench.contestants
    }
    with Team() as team:
        bench.report(0.0, "taking the leases")
        workers = {each.key: team.hire(each, bench.place(each.key)) for each in bench.contestants}
        gather([workers[each.key].start(hold_many, count, ttl_seconds) for each in bench.contestants])

        def everyone_renews(crew: dict[str, Worker]) -> None:
            pending = {key: worker.start(idle, window_seconds) for key, worker in crew.items()}
            for key, each in pending.items():
                used, names, ports = each.result()
                share = used / window_seconds
                rows[key].add(
                    cpu=share,
                    cpu_at_30=share * ttl_seconds / WANTED_TTL_SECONDS,
                    renewing=sum(KEEPER in name for name in names),
                    threads=len(names),
                    **connections(bench, ports),
                )
                rows[key].details = {"threads": sorted(names), "ttl_seconds": ttl_seconds}

        rounds = bench.rounds([workers], everyone_renews, lambda _: "all contestants")
        for each in bench.contestants:
            lost = count - workers[each.key].call(count_held)
            check(lost == 0, f"lost {lost} leases", each)
            renewed = workers[each.key].call(least_remaining) > ttl_seconds - window_seconds
            check(renewed or bench.smoke, "never renewed a lease", each)
    exact = "no scaling" if ttl_seconds == WANTED_TTL_SECONDS else "the second column is scaled by ttl ÷ 30"
    return Result(
        "renewal",
        f"{count:,} leases held in one process",
        HOW.format(renewals=RENEWALS, exact=exact, ttl_seconds=ttl_seconds, window_seconds=window_seconds),
        METRICS,
        list(rows.values()),
        ("cpu_at_30",),
        rounds=rounds,
    )
