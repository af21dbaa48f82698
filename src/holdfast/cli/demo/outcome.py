"""The results of a scene: each check, with its measurement, and whether it is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Check", "DemoFailed", "Outcome"]


class DemoFailed(Exception):
    """A scene could not be played to its end. ``details`` are further lines, for example a traceback."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = f"\n{details}" if details else ""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``right`` None: shown for comparison only, because nothing is promised there."""

    what: str
    measured: str
    right: bool | None

    @property
    def verdict(self) -> str:
        return {True: "right", False: "WRONG", None: "to compare"}[self.right]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of one scene."""

    number: int
    title: str
    checks: tuple[Check, ...]
    figures: Mapping[str, object] = field(default_factory=dict)
    """The same as numbers, for programs."""

    @property
    def right(self) -> bool:
        return all(check.right is not False for check in self.checks)

    def as_json(self) -> dict[str, object]:
        return {
            "scene": self.number,
            "title": self.title,
            "right": self.right,
            "checks": [
                {"what": check.what, "measured": check.measured, "right": check.right}
                for check in self.checks
            ],
            "figures": dict(self.figures),
        }
