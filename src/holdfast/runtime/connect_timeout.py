"""How long the current request may wait for a new connection.

A caller that waits half a second for a lock does not wait five seconds for a server that cannot be reached.
The driver sets the limit around one request. The engine reads it where it connects, in the same thread or
task.
"""

from __future__ import annotations

from contextvars import ContextVar, Token

__all__ = ["connect_seconds", "connect_timeout"]


class connect_timeout:  # noqa: N801 - a context manager, used like a function
    """Within ``with connect_timeout(seconds)`` connecting takes at most that long.

    It is not a generator, because every grant passes here. The context keeps a reference to it: a task that
    is started meanwhile inherits the limit, but only until the ``with`` ends.
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
    """How long connecting may take now: ``io_timeout``, or less if the caller has less time."""
    limit = _limit.get()
    if limit is None or limit.seconds is None:
        return io_timeout
    return min(io_timeout, limit.seconds)
