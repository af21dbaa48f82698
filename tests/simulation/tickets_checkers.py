"""What must hold of every schedule of the tickets family: what holds of the records, and what is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from holdfast.drivers.simulation import Began
from simulation import checkers
from simulation.checkers import HAND_OFF_SECONDS, Evidence
from simulation.schedules import Run

__all__ = ["TICKETS_CHECKERS", "check"]

TICKETS_CHECKERS: Final[dict[str, Callable[[Evidence], Iterator[str]]]] = {
    name: checker
    for name, checker in checkers.CHECKERS.items()
    if name not in ("prompt hand off", "wake ups")  # turns are nowhere written here
}


def check(run: Run) -> dict[str, list[str]]:
    """Everything that is wrong, by checker; nothing: all is well."""
    seen = Evidence(run)
    found = {name: list(checker(seen)) for name, checker in TICKETS_CHECKERS.items()}
    return {name: wrong for name, wrong in found.items() if wrong}
