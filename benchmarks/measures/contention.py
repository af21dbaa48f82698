"""Eight processes want the same lock: what they get together, how it is shared out, and who waits longest."""

from __future__ import annotations

from dataclasses import dataclass

from ..contestant import Contestant
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import Team
from .contending import contend_all

__all__ = ["measure"]

METRICS = (
    Metric("rate", "acquisitions per second", "per second"),
    Metric("longest", "longest wait", "seconds", 1.0, "slice_longest"),
    Metric("p50", "median wait", "seconds", 0.5, "wait", compared=False),
    Metric("shares", "largest share ÷ smallest", "factor", compared=False),
    Metric("cpu", "CPU of a process", "share of a core"),
    Metric("requests", "requests to the server per acquisition", "count", compared=False),
)

HOW = """
{processes} processes, one lock, a critical section of 1 ms (`time.sleep`, so that two cores do not decide
the result), slices of {slice_seconds:g} s; between two acquisitions 2 ms of other work (also `time.sleep`),
or nothing. A wait that outlasts its slice counts whole. The longest wait is that of the whole run. Nearly
all CPU time is the lock's, since the work sleeps. Requests are what the server counts, where it does: all
that the clients sent during a slice, renewals too, over all acquisitions. Where nothing is done in between, a
high total of a peer means that the releaser took the lock again itself: see the shares and the longest wait.
"""

CRITICAL_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Situation:
    key: str
    label: str
    between_seconds: float


SITUATIONS = (
    Situation("busy", "2 ms between", 0.002),
    Situation("hot", "nothing between", 0.0),
)


def measure(bench: Bench) -> Result:
    processes = bench.pick(8, 3)
    slice_seconds = bench.pick(2.0, 0.1)
    entries = [(situation, each) for situation in SITUATIONS for each in bench.contestants]
    rows = {
        (situation.key, each.key): Row(
            f"{each.key}/{situation.key}",
            f"{each.label}, {situation.label}",
            each.role,
            f"{bench.base('contention', each)}/{situation.key}",
        )
        for situation, each in entries
    }
    with Team() as team:
        workers = {
            each.key: [team.hire(each, bench.place(each.key)) for _ in range(processes)]
            for each in bench.contestants
        }
        team.ready()

        def one_slice(entry: tuple[Situation, Contestant]) -> None:
            situation, contestant = entry
            requests = bench.service.requests()
            everyone = contend_all(
                workers[contestant.key],
                bench.place(contestant.key),
                slice_seconds,
                CRITICAL_SECONDS,
                situation.between_seconds,
            )
            grants = [did.grants_in_time for did in everyone]
            waits = [wait for did in everyone for wait in did.waits]
            row = rows[situation.key, contestant.key]
            row.add(
                rate=sum(grants) / slice_seconds,
                slice_longest=max(waits),
                # Somebody who got nothing counts as one grant, so that the factor stays a number.
                shares=max(grants) / max(1, min(grants)),
                cpu=sum(did.cpu_seconds for did in everyone) / processes / slice_seconds,
            )
            row.extend("wait", waits)
            if requests is not None:
                row.add(requests=((bench.service.requests() or 0) - requests) / len(waits))

        rounds = bench.rounds(entries, one_slice, lambda entry: f"{entry[1].label}, {entry[0].label}")
    return Result(
        "contention",
        f"{processes} contending processes",
        HOW.format(processes=processes, slice_seconds=slice_seconds),
        METRICS,
        list(rows.values()),
        ("rate", "longest", "shares"),
        rounds=rounds,
    )
