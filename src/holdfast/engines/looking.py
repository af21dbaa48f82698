"""Looking for an answer for a moment before going to sleep for it.

Who sleeps has to be woken, and so has the processor that went idle meanwhile. That takes longer than a
server near by needs to answer: on a quiet machine a request to one on the same host took 31 µs instead of 94,
and less CPU time too, since sleeping and waking are work as well. Between two looks everybody else may run,
so on a busy machine little is won and little lost.

Where answers take longer than a moment, looking for them is soon left off, and only tried now and then.
"""

from __future__ import annotations

import os
import select
from time import monotonic
from typing import Any, Final

__all__ = ["Looks"]

LOOK_SECONDS: Final = 0.0002
"""What it may cost at most, when it was in vain."""

VAIN_LOOKS_MAX: Final = 8
TRY_AGAIN_EVERY: Final = 64
"""After so many looks in vain, only every so many-th answer is looked for."""

_let_others_run = getattr(os, "sched_yield", lambda: None)


class Looks:
    """How one connection's answers came so far."""

    __slots__ = ("_in_vain",)

    def __init__(self) -> None:
        self._in_vain = 0

    def look(self, poll: select.poll) -> list[tuple[int, int]]:
        """What the poll tells of within a moment; nothing: it is time to sleep."""
        in_vain = self._in_vain
        if in_vain < VAIN_LOOKS_MAX or not in_vain % TRY_AGAIN_EVERY:
            look: Any = poll.poll
            until = monotonic() + LOOK_SECONDS
            while monotonic() < until:
                _let_others_run()
                news: list[tuple[int, int]] = look(0)
                if news:
                    self._in_vain = 0
                    return news
        self._in_vain = in_vain + 1
        return []
