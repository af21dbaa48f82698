"""Which fencing tokens can be genuine. Pure.

A token of a wall-clock engine is the server's clock in microseconds, or one more than the token before.
A counter (ZooKeeper, etcd) stays far below that. So no genuine token is far ahead of the clock; a forged or
mistyped one can be. It matters because tokens only ever rise: a fence that is set far ahead by mistake
refuses every genuine grant after it, until the clock gets there.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_AHEAD_US", "is_plausible"]

MAX_AHEAD_US: Final = 86_400_000_000
"""One day: maintained clocks never differ by more, and a larger mistake is over by itself tomorrow."""


def is_plausible(token: int, now_us: int) -> bool:
    return 0 < token <= now_us + MAX_AHEAD_US
