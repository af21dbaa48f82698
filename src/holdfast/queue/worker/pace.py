"""How many jobs a worker claims at once, and how long it pauses while the database is away. No I/O."""

from __future__ import annotations

import logging
import random
from typing import Final

from ...errors import InvalidArgument, Unsupported
from ...sql.retry import Backoff

__all__ = ["Pace", "pause_after"]

log = logging.getLogger("holdfast")

OUTAGE: Final = Backoff(first=0.1, maximum=5.0)

AHEAD_SECONDS: Final = 0.02
"""So much work is claimed ahead of what can begin at once: one round trip then serves many short jobs, and no
short job waits for long behind others while another worker is idle."""
AHEAD_MAX: Final = 200
STARTING_SECONDS: Final = 0.005
"""The assumed duration of a job before any has ended."""
MEMORY: Final = 0.2
"""The weight of the newest job in the mean of their times. A long one counts fully at once."""


class Pace:
    """How many jobs to claim, by how long the last ones took."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._mean_seconds = STARTING_SECONDS

    def record(self, seconds: float) -> None:
        mean = self._mean_seconds
        self._mean_seconds = max(seconds, 1e-5) if seconds > 10 * mean else mean + MEMORY * (seconds - mean)

    def stalled(self, seconds: float) -> None:
        """No job that waited here could begin for so many seconds."""
        self._mean_seconds = max(2 * self._mean_seconds, seconds)

    def ahead(self) -> int:
        """How many claimed jobs may wait here for running jobs."""
        each = max(self._mean_seconds, 1e-5)
        return min(AHEAD_MAX, int(AHEAD_SECONDS * self.concurrency / each))

    def wanted(self, claimed: int) -> int:
        """How many jobs to claim if ``claimed`` jobs run or wait here. Does not claim a few at a time."""
        ahead = self.ahead()
        if claimed >= self.concurrency + ahead / 2:
            return 0
        return self.concurrency + ahead - claimed


def pause_after(error: Exception, failures: int) -> float:
    """How long to pause before the next attempt at the database, after so many failures before this one. An
    error that no later attempt can avoid is raised."""
    if isinstance(error, InvalidArgument | Unsupported):
        raise error
    pause = OUTAGE.pause_seconds(failures + 1, random.random())
    log.warning("the worker asks its database again in %.1f s: %s", pause, error)
    return pause
