"""The figures to reach, and whether a run reached them. Says so; never fails anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .results import Result, Unit

__all__ = ["TARGETS", "Outcome", "Target", "compare"]

Verdict = Literal["reached", "not reached", "not measured"]

SUBJECT = "holdfast-sqlite"


@dataclass(frozen=True, slots=True)
class Target:
    """A figure: where it is read from, and the bound it must keep."""

    text: str
    measure: str
    read: Callable[[Result], float | None]
    bound: float
    direction: Literal["at least", "at most", "under"]
    unit: Unit = "factor"
    ambition: bool = False
    """Hoped for rather than asked for."""

    def kept_by(self, value: float) -> bool:
        if self.direction == "at least":
            return value >= self.bound
        return value <= self.bound if self.direction == "at most" else value < self.bound


@dataclass(frozen=True, slots=True)
class Outcome:
    target: Target
    value: float | None

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return "not measured"
        return "reached" if self.target.kept_by(self.value) else "not reached"

    def as_json(self) -> dict[str, Any]:
        target = self.target
        return {
            "text": target.text,
            "measure": target.measure,
            "wanted": f"{target.direction} {target.bound:g}",
            "unit": target.unit,
            "value": self.value,
            "verdict": self.verdict,
            "ambition": target.ambition,
        }


def ratio(metric: str, ours: str, theirs: str) -> Callable[[Result], float | None]:
    """Ours over theirs; None if either was not measured."""

    def read(result: Result) -> float | None:
        row = result.row(ours)
        found = None if row is None else result.ratio(row, result.metric(metric), theirs)
        return None if found is None else found.value

    return read


def value(metric: str, key: str) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        row = result.row(key)
        found = None if row is None else result.summary(row, result.metric(metric))
        return None if found is None else found.value

    return read


TARGETS = (
    Target(
        "A pair, as a part of the rate of two bare SQLite transactions",
        "pairs",
        ratio("rate", SUBJECT, "sqlite-bare"),
        0.35,
        "at least",
    ),
    Target(
        "The same, ambition", "pairs", ratio("rate", SUBJECT, "sqlite-bare"), 0.7, "at least", ambition=True
    ),
    Target("Rate of pairs over filelock's", "pairs", ratio("rate", SUBJECT, "filelock"), 1.0, "at least"),
    Target(
        "Rate of pairs over portalocker's, ambition",
        "pairs",
        ratio("rate", SUBJECT, "portalocker"),
        1.0,
        "at least",
        ambition=True,
    ),
    Target("Memory engine: a pair", "pairs", value("time", "holdfast-memory"), 25e-6, "under", "seconds"),
    Target("Release → granted elsewhere, p50", "handoff", value("p50", SUBJECT), 1e-3, "under", "seconds"),
    *(
        Target(f"{peer}'s hand-off over ours, p50", "handoff", ratio("p50", peer, SUBJECT), 25.0, "at least")
        for peer in ("filelock", "portalocker", "fasteners")
    ),
    Target("CPU of a waiting process", "waiting", value("cpu", SUBJECT), 0.005, "under", "share of a core"),
    Target(
        "8 processes, 2 ms between: acquisitions over filelock's",
        "contention",
        ratio("rate", f"{SUBJECT}/busy", "filelock/busy"),
        1.7,
        "at least",
    ),
    Target(
        "8 processes, 2 ms between: largest share ÷ smallest",
        "contention",
        value("shares", f"{SUBJECT}/busy"),
        1.5,
        "at most",
    ),
    Target(
        "8 processes, 2 ms between: filelock's longest wait over ours",
        "contention",
        ratio("longest", "filelock/busy", f"{SUBJECT}/busy"),
        5.0,
        "at least",
    ),
    Target(
        "A pair beside a hot process on another name, p99",
        "neighbour",
        value("p99", f"{SUBJECT}/beside"),
        0.020,
        "under",
        "seconds",
    ),
    Target(
        "10,000 leases held, ttl 30: CPU",
        "renewal",
        value("cpu_at_30", SUBJECT),
        0.05,
        "under",
        "share of a core",
    ),
    Target(
        "10,000 leases held: renewing threads", "renewal", value("renewing", SUBJECT), 1.0, "at most", "count"
    ),
)


def compare(results: Mapping[str, Result]) -> list[Outcome]:
    return [
        Outcome(target, target.read(results[target.measure]) if target.measure in results else None)
        for target in TARGETS
    ]
