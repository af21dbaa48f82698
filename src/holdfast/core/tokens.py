"""Which numbers can be fencing tokens: those that a clock can have reached."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_AHEAD_US", "is_plausible"]

MAX_AHEAD_US: Final = 86_400_000_000
"""A day in microseconds. No token is farther ahead of the clock of the engine that issued it."""


def is_plausible(token: int, now_us: int) -> bool:
    """Whether an engine whose clock shows ``now_us`` can have issued this token."""
    return 0 < token <= now_us + MAX_AHEAD_US
