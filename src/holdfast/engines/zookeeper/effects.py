"""The I/O that the store's coroutines await, and how they read the answers."""

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
    """Wait until the session is connected or has ended, at most this long."""

    session: Session
    timeout: float

    def __await__(self) -> Generator[AwaitConnected, None, None]:
        return (yield self)


class SendRequests(NamedTuple):
    """Send these requests in one batch and wait for all the answers. Raises RequestTimeoutError."""

    session: Session
    requests: list[Any]
    timeout: float
    """Counted from the sending."""
    urgent: bool = False
    """A keep-alive is among them."""

    def __await__(self) -> Generator[SendRequests, list[Answer], list[Answer]]:
        return (yield self)


def failed_operation(results: list[Any]) -> tuple[int, Exception] | None:
    """Which operation of a multi made all of it fail; None: the multi succeeded."""
    for index, result in enumerate(results):
        if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            if isinstance(result, ABOUT_NODES):
                return index, result
            raise classify_error(result, wrote=False)
    return None
