"""What the store's scripts await, and how they read the answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from kazoo.exceptions import RolledBackError, RuntimeInconsistency

from .failures import ABOUT_NODES, sorted_failure
from .link import Answer, Link

__all__ = ["Ready", "Send", "TimedOut", "failing"]


class TimedOut(Exception):
    """No answer in time."""


class Ready(NamedTuple):
    """Wait until the link is connected, or over, or the time is."""

    link: Link
    timeout: float

    def __await__(self) -> Generator[Ready, None, None]:
        return (yield self)


class Send(NamedTuple):
    """Send these back to back and wait for all the answers. Raises TimedOut."""

    link: Link
    requests: list[Any]
    timeout: float
    """Counted from their sending."""
    urgent: bool = False
    """A sign of life is among them."""

    def __await__(self) -> Generator[Send, list[Answer], list[Answer]]:
        return (yield self)


def failing(results: list[Any]) -> tuple[int, Exception] | None:
    """Which of several changes kept all of them from being made; None: they are made."""
    for index, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            if isinstance(result, ABOUT_NODES):
                return index, result
            raise sorted_failure(result, wrote=False)
    return None
