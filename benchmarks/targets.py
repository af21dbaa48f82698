"""Whether a run reached the figures that are to be reached. Says so; never fails anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .results import Result, Unit

__all__ = ["Direction", "Outcome", "Read", "Target", "compare", "floor_and_ambition", "ratio", "value"]

Verdict = Literal["reached", "not reached", "not measured"]
Direction = Literal["at least", "at most", "under", "over"]
Read = Callable[[Result], float | None]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure: where it is read from, and the bound it must keep."""

    text: str
    measure: str
    read: Read
    bound: float
    direction: Direction
    unit: Unit = "factor"
    ambition: bool = False
    """Hoped for rather than asked for."""

    def kept_by(self, value: float) -> bool:
        if self.direction == "at least":
            return value >= self.bound
        if self.direction == "over":
            return value > self.bound
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
            "direction": target.direction,
            "bound": target.bound,
            "unit": target.unit,
            "value": self.value,
            "verdict": self.verdict,
            "ambition": target.ambition,
        }


def ratio(metric: str, ours: str, theirs: str) -> Read:
    """Ours over theirs; None if either was not measured."""

    def read(result: Result) -> float | None:
        row = result.row(ours)
        found = None if row is None else result.ratio(row, result.metric(metric), theirs)
        return None if found is None else found.value

    return read


def value(metric: str, key: str) -> Read:
    def read(result: Result) -> float | None:
        row = result.row(key)
        found = None if row is None else result.summary(row, result.metric(metric))
        return None if found is None else found.value

    return read


def floor_and_ambition(
    text: str, measure: str, read: Read, floor: float, ambition: float
) -> Iterator[Target]:
    """At least the one is asked for, the other hoped for."""
    yield Target(text, measure, read, floor, "at least")
    yield Target(f"{text}, ambition", measure, read, ambition, "at least", ambition=True)


def compare(targets: Iterable[Target], results: Mapping[str, Result]) -> list[Outcome]:
    return [
        Outcome(target, target.read(results[target.measure]) if target.measure in results else None)
        for target in targets
    ]
