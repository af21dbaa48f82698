"""What the store's scripts await, and how they read the answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from kazoo.exceptions import RolledBackError, RuntimeInconsistency

from .errors import ABOUT_NODES, classify_error
from .session import Answer, Session

__all__ = ["AwaitConnected", "RequestTimeoutError", "SendRequests", "failed_operation"]


class RequestTimeoutError(Exception):
    """No answer in time."""


class AwaitConnected(NamedTuple):
    """Wait until the link is connected, or over, or the time is."""

    link: Session
    timeout: float

    def __await__(self) -> Generator[AwaitConnected, None, None]:
        return (yield self)


class SendRequests(NamedTuple):
    """Send these back to back and wait for all the answers. Raises TimedOut."""

    link: Session
    requests: list[Any]
    timeout: float
    """Counted from their sending."""
    urgent: bool = False
    """A sign of life is among them."""

    def __await__(self) -> Generator[SendRequests, list[Answer], list[Answer]]:
        return (yield self)


def failed_operation(results: list[Any]) -> tuple[int, Exception] | None:
    """Which of several changes kept all of them from being made; None: they are made."""
    for index, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            if isinstance(result, ABOUT_NODES):
                return index, result
            raise classify_error(result, wrote=False)
    return None
