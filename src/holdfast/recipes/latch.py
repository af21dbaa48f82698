"""Latches: a count that goes down to zero once, and waiters for it. The count is in a cell."""

from __future__ import annotations

from typing import Final

from ..core import arguments
from ..core.effects import Now, Pause
from ..errors import EngineUnavailable, InvalidArgument
from ..protocols import records
from ..protocols.client_state import ClientState
from . import cell, names
from .jitter import poll_pause

__all__ = ["Latch", "count_down", "remaining", "wait"]

POLL_SECONDS_MIN: Final = 0.005
POLL_SECONDS_MAX: Final = 0.25
"""A waiter reads the count this often: each pause is up to twice as long as the one before."""


class Latch:
    """What this client knows of one latch."""

    __slots__ = ("cell", "count")

    def __init__(self, client_state: ClientState, name: str, count: int) -> None:
        self.count = arguments.check_limit(count, "count")
        self.cell = cell.Cell(client_state, name, names.latch(name))

    @property
    def name(self) -> str:
        return self.cell.name


def _left(latch: Latch, value: bytes | None) -> int:
    """What is left of the count. The cell stores it behind the count that the latch began with."""
    if value is None:
        return latch.count
    count, left = map(int, value.split())
    if count != latch.count:
        raise InvalidArgument(
            f"the latch {latch.name!r} counts down from {count}, not from {latch.count}: give every user of "
            "the name the same count, and each use of a latch a name of its own"
        )
    return left


async def count_down(latch: Latch, n: int) -> int:
    """Exactly once, also where the reply to a write was lost. Returns what is left."""

    def change(value: bytes | None) -> bytes:
        return b"%d %d" % (latch.count, max(_left(latch, value) - n, 0))

    return _left(latch, await cell.update(latch.cell, change))


async def remaining(latch: Latch) -> int:
    return _left(latch, (await cell.read(latch.cell)).data)


async def wait(latch: Latch, timeout: float | None) -> bool:
    """Until the count is zero. False: it was not in time.

    As with a lock that is waited for: once the engine has answered, an outage is waited out.
    """
    ends_at = None if timeout is None else await Now() + timeout
    tries = 0
    has_answered = False
    while True:
        try:
            if await remaining(latch) == 0:
                return True
            has_answered = True
        except EngineUnavailable:
            if not has_answered or (ends_at is not None and await Now() >= ends_at):
                raise
        pause = await poll_pause(tries, POLL_SECONDS_MIN, POLL_SECONDS_MAX)
        now = await Now()
        if ends_at is not None:
            if now >= ends_at:
                return False
            pause = min(pause, ends_at - now)
        await Pause(pause)
        if latch.cell.client_state.closed:
            raise records.closed_error()
        tries += 1
