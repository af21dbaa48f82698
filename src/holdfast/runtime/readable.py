"""Whether descriptors are readable. With ``poll``: ``select`` fails for descriptors from 1024 on."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable
from typing import Final

__all__ = ["wait_readable"]


SECONDS_MAX: Final = 1_000_000.0
"""``poll`` counts milliseconds in 32 bits."""


def wait_readable(descriptors: Iterable[int], seconds: float) -> list[int]:
    """Wait until one of them is readable, or its other end is gone. Returns those; none: not in time."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    found = poll.poll(math.ceil(min(max(seconds, 0.0), SECONDS_MAX) * 1000))
    return [descriptor for descriptor, _ in found]
