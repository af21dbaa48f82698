"""How long the present request may wait for a connection, where there is none yet.

A caller that gives a lock half a second does not wait five for a server that cannot be reached. The driver
sets the limit around one request; an engine asks for it where it connects, in the same thread or task.
"""

from __future__ import annotations

from contextvars import ContextVar, Token

__all__ = ["connect_seconds", "connect_timeout"]


class connect_timeout:  # noqa: N801 - a context manager, used like a function
    """Within ``with limited(seconds)`` connecting takes at most so long. No generator: many grants come by.

    Kept by reference: a task that is started meanwhile inherits it, but only for as long.
    """

    __slots__ = ("_token", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds: float | None = seconds

    def __enter__(self) -> None:
        self._token: Token[connect_timeout | None] = _limit.set(self)

    def __exit__(self, *error: object) -> None:
        self.seconds = None
        _limit.reset(self._token)


_limit: ContextVar[connect_timeout | None] = ContextVar("holdfast_patience", default=None)


def connect_seconds(io_timeout: float) -> float:
    """How long connecting may take now: ``io_timeout``, or less where the caller has less time."""
    limit = _limit.get()
    if limit is None or limit.seconds is None:
        return io_timeout
    return min(io_timeout, limit.seconds)
