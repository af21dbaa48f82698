"""How long the present request may wait for a connection, where there is none yet.

A caller that gives a lock half a second does not wait five for a server that cannot be reached. The driver
sets the limit around one request; an engine asks for it where it connects, in the same thread or task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["connect_seconds", "limited"]


class _Limit:
    """Kept by reference: a task that is started meanwhile inherits it, but only for as long."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds: float | None = seconds


_limit: ContextVar[_Limit | None] = ContextVar("holdfast_patience", default=None)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Within this block, connecting takes at most so many seconds."""
    limit = _Limit(seconds)
    token = _limit.set(limit)
    try:
        yield
    finally:
        limit.seconds = None
        _limit.reset(token)


def connect_seconds(io_timeout: float) -> float:
    """How long connecting may take now: ``io_timeout``, or less where the caller has less time."""
    limit = _limit.get()
    if limit is None or limit.seconds is None:
        return io_timeout
    return min(io_timeout, limit.seconds)
