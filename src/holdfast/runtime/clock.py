"""The two clocks of a real machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

__all__ = ["boottime", "wall_seconds", "wall_us"]

boottime: Final[Callable[[], float]] = partial(
    time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
)
"""Seconds that also pass while the machine is suspended, on a clock that cannot be set."""


def wall_us() -> int:
    """Wall time in microseconds. It is used only as a floor for tokens and to measure retention."""
    return time.time_ns() // 1000


wall_seconds: Final = time.time
