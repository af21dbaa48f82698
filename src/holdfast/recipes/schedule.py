"""When a job runs: the rule, as a pure function of its last run, the time and the terms.

A schedule is a row of firings, ``every`` seconds apart. The first run sets their phase: it is a firing, and
the next one is ``every`` later, however long a run took or how late it began. Each firing has a window, from
a tenth of a period before it to a tenth of a period before the next one, and runs once, at the first request
in its window, but not within half a period of the run before it. So servers whose clocks differ by less than
half a period never run a firing twice, and a request that comes a little early is not lost.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

from ..model import Run

__all__ = ["EARLY", "OnCrash", "Skip", "SkipReason", "Start", "Terms", "decide", "missed_by"]

EARLY: Final = 0.1
"""The part of a period by which a request may come before its firing: neither cron nor clocks are exact."""

APART: Final = 0.5
"""The part of a period that lies between two runs. Clocks may differ by less than this."""

OnCrash = Literal["rerun", "skip"]
SkipReason = Literal["running", "not due", "too soon"]


class Terms(NamedTuple):
    """When a job may run."""

    every: float | None = None
    at_least: float = 0.0
    on_crash: OnCrash = "rerun"
    catch_up: bool = False


class Start(NamedTuple):
    """The job runs now."""

    due: float
    """The firing that it runs for."""
    missed: int = 0
    """Firings that were missed until now."""
    settles: bool = False
    """This run makes up for them."""
    reruns: bool = False
    """The run before it crashed, and is repeated."""


class Skip(NamedTuple):
    """The job does not run now."""

    reason: SkipReason
    detail: str
    until: float | None = None
    """When it may run next; None: when the present run has ended."""


def decide(last: Run | None, now: float, terms: Terms) -> Start | Skip:
    """For a caller that holds the job's lock: so a last run that has not ended has crashed."""
    every, at_least, on_crash, catch_up = terms
    if last is None:
        return Start(now)
    if last.started > now + max(every or 0.0, at_least):
        # No tolerated clock can have written that. A job must not stand still until that moment has come.
        return Start(now, last.missed)
    firing = _firing(last.due, now, every)
    if last.state in ("running", "crashed") and on_crash == "rerun":
        missed = last.missed + max(firing - 1, 0)
        return Start(_due(last, now, every, firing), missed, catch_up and missed > 0, reruns=True)
    if now < last.started + at_least:
        return Skip("too soon", "at_least has not passed since its last start", last.started + at_least)
    if every is None:
        return Start(now)
    if firing > 0:
        if now < last.started + APART * every:
            return Skip("too soon", "its last start was within half a period", last.started + APART * every)
        missed = last.missed + firing - 1
        return Start(_due(last, now, every, firing), missed, catch_up and missed > 0)
    if catch_up and last.missed > 0:
        return Start(last.due, last.missed, settles=True)
    ran = "began and crashed" if last.state in ("running", "crashed") else "has run"
    return Skip("not due", f"it {ran} for this period", last.due + every)


def missed_by(last: Run, now: float) -> int:
    """The firings that were missed until ``now``: one is missed when the window of the next one begins."""
    return last.missed + max(_firing(last.due, now, last.every) - 1, 0)


def _firing(due: float, now: float, every: float | None) -> int:
    """In whose window ``now`` is: how many firings after that of the last run."""
    return 0 if every is None else math.floor((now - due) / every + EARLY)


def _due(last: Run, now: float, every: float | None, firing: int) -> float:
    if every is None:
        return now
    return last.due + max(firing, 0) * every
