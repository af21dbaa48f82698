"""What the queue reports of its jobs, as values; and its own error, ``JobCancelled``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from ..errors import HoldfastError
from ..model import UNSET, Unset

__all__ = [
    "STATES",
    "UNFINISHED",
    "JobCancelled",
    "JobInfo",
    "KindInfo",
    "NewJob",
    "PeriodicInfo",
    "State",
    "StopReason",
    "Unique",
]

State = Literal["scheduled", "blocked", "ready", "running", "finished", "dead", "cancelled"]
"""``scheduled``: waits for its time, also for that of its next try. ``blocked``: waits for another job of its
key. ``ready``: may be claimed. ``dead``: all its tries have failed, or the last one for good."""

STATES: Final[tuple[State, ...]] = get_args(State)
UNFINISHED: Final[frozenset[State]] = frozenset({"scheduled", "blocked", "ready", "running"})

Unique = Literal["queued", "running", "both"]

StopReason = Literal["cancelled", "lost", "given back"]
"""Why a function is to stop: its job was cancelled; the job has another claimant; the worker ends."""


class JobCancelled(HoldfastError):
    """The job was cancelled while it ran. ``fail`` or ``release`` ends it as cancelled."""

    job: int = 0


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job as it was when it was looked at. Times are seconds since 1970 on the database's clock."""

    id: int
    kind: str
    key: str | None
    payload: Any
    state: State
    priority: int
    attempt: int
    max_attempts: int
    token: int
    run_at: float
    lane: int
    backoff_first: float
    backoff_maximum: float
    lease_seconds: float | None
    lease_until: float | None
    owner: str | None
    cancel_requested: bool
    result: Any
    error: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class KindInfo:
    """The settings of a kind of jobs."""

    kind: str
    paused: bool
    concurrency: int | None
    key_concurrency: int | None


@dataclass(frozen=True, slots=True)
class PeriodicInfo:
    """A periodic job: when it was put last, and when it is next."""

    name: str
    kind: str
    payload: Any
    schedule: str
    next_at: float
    last_at: float | None


@dataclass(frozen=True, slots=True)
class NewJob:
    """One job to put. Checked when it is put; ``queue.put`` has what each field means."""

    kind: str
    payload: Any = None
    run_at: Any = None
    priority: int = 0
    key: str | None = None
    unique: Unique | Unset | None = UNSET
    ordered: bool = False
    max_attempts: int | None = None
    backoff: Any = None
