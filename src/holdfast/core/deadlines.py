"""How long a holder may rely on a grant, and how long to pause between attempts."""

from __future__ import annotations

from typing import Final

__all__ = [
    "CONNECT_SECONDS_MIN",
    "DRIFT",
    "MARGIN_SECONDS",
    "RENEW_AFTER",
    "connect_seconds_for",
    "lease_deadline",
    "pause_seconds",
]

DRIFT: Final = 0.01
"""How much faster than ours the engine's clock may run."""

MARGIN_SECONDS: Final = 0.001

CONNECT_SECONDS_MIN: Final = 0.5
"""The time for a first connection of a caller that has less time, or none (``timeout=0``)."""

RENEW_AFTER: Final = 1 / 3
"""A lease is renewed when this fraction of its ttl has passed."""


def lease_deadline(sent: float, ttl: float) -> float:
    """The deadline of a lease: counted from before the request was sent, never from the reply."""
    return sent + ttl * (1.0 - DRIFT) - MARGIN_SECONDS


def connect_seconds_for(left: float | None) -> float | None:
    """How long a caller that has ``left`` seconds (None: no limit) waits for a connection."""
    return None if left is None else max(left, CONNECT_SECONDS_MIN)


def pause_seconds(attempt: int) -> float:
    """The pause before the next attempt after a failure: doubling, at most half a second."""
    return float(min(0.01 * 2 ** min(attempt, 10), 0.5))
