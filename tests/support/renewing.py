"""Telling a renewal by the deadline that it moves.

Not by ``remaining``: that runs down again between two looks, so a lease that was fresh when it was
first looked at may never be seen with more, however often it is renewed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

HAIR = 0.001
"""Seconds: what rounding and two clocks may differ."""


class Remaining(Protocol):
    @property
    def remaining(self) -> float: ...


class Seen:
    """What another client sees of a lease: ``look`` returns how long it still lasts."""

    def __init__(self, look: Callable[[], float]) -> None:
        self._look = look

    @property
    def remaining(self) -> float:
        return self._look()


def renewal_of(lease: Remaining) -> Callable[[], bool]:
    """What tells whether the lease was renewed since this call.

    A pause between two readings moves the first deadline up and the later ones down: never a renewal
    that was none.
    """
    remaining = lease.remaining
    before = time.monotonic() + remaining

    def is_renewed() -> bool:
        now = time.monotonic()
        return now + lease.remaining > before + HAIR

    return is_renewed
