"""What the queues for threads and for asyncio share: every call as a plan to run, and the fields of a job.

Arguments are checked here, before any I/O.
"""

from __future__ import annotations

import itertools
import random
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from ..core.lock_options import Duration
from ..errors import InvalidArgument
from ..runtime.identity import owner_prefix
from ..sql.retry import Backoff
from . import admin, claimant, plans
from .arguments import (
    LEASE_SECONDS,
    check_count,
    check_id,
    check_kind,
    check_kinds,
    check_lease,
    check_limit,
    check_older_than,
    check_retry_in,
    check_schedule,
    check_state,
    decoded,
    encoded,
    job_row,
)
from .claimant import ClaimedJob
from .model import STATES, JobInfo, KindInfo, NewJob, PeriodicInfo, State, StopReason
from .store import Call, EventClock
from .texts import Session

__all__ = [
    "BaseJob",
    "BaseQueue",
    "cancel_call",
    "claim_call",
    "counts_call",
    "counts_in",
    "info_in",
    "jobs_call",
    "kind_in",
    "limit_call",
    "pause_call",
    "periodic_in",
    "prune_call",
    "put_call",
    "retry_call",
    "schedule_call",
]

_PRUNED: Final[tuple[State, ...]] = ("finished", "cancelled")
_ENDED: Final[tuple[State, ...]] = (*_PRUNED, "dead")
_numbers = itertools.count(1)


def new_owner() -> str:
    """The name of this claimant, for people."""
    return f"{owner_prefix()}{next(_numbers)}"


class Clocks(Protocol):
    """What a store is to do from time to time."""

    @property
    def events(self) -> EventClock: ...
    @property
    def removals(self) -> EventClock: ...


class BaseQueue:
    """Jobs of one namespace in one database, as far as no I/O is needed."""

    def __init__(self, clocks: Clocks, retention: float | None) -> None:
        self.clocks = clocks
        self.owner = new_owner()
        """The name of the claimant, for people."""
        self.retention = retention
        """How many seconds finished and cancelled jobs are kept; None: for ever."""


# --- jobs of any claimant


def put_call(jobs: Iterable[NewJob]) -> Call[list[int]]:
    rows = [job_row(job) for job in jobs]
    return lambda session: plans.put(session, rows)


def claim_call(
    kinds: str | Iterable[str] | None,
    limit: int,
    lease: Duration,
    claimant_of: BaseQueue,
) -> Call[list[dict[str, Any]]]:
    clocks = claimant_of.clocks
    checked = check_kinds(kinds), check_count(limit, "limit", 1000), check_lease(lease)
    retention = claimant_of.retention if clocks.removals.is_due() else None
    remove_more = clocks.removals.make_due
    asked = plans.Claim(*checked, claimant_of.owner, clocks.events.is_due(), retention, remove_more)
    return lambda session: plans.claim(session, asked)


def cancel_call(job: int) -> Call[str | None]:
    id_ = check_id(job)
    return lambda session: admin.cancel(session, id_)


def retry_call(job: int) -> Call[bool]:
    id_ = check_id(job)
    return lambda session: admin.retry(session, id_)


def get_call(job: int) -> Call[dict[str, Any] | None]:
    id_ = check_id(job)
    return lambda session: admin.job(session, id_)


def pause_call(kind: str, paused: bool) -> Call[None]:
    check_kind(kind)
    return lambda session: admin.set_kind(session, kind, paused=paused)


def limit_call(kind: str, concurrency: int | None, key_concurrency: int | None) -> Call[None]:
    check_kind(kind)
    limits = check_limit(concurrency, "concurrency"), check_limit(key_concurrency, "key_concurrency")
    return lambda session: admin.set_kind(session, kind, limits=limits)


def counts_call(kind: str | None) -> Call[dict[str, int]]:
    if kind is not None:
        check_kind(kind)
    return lambda session: admin.counts(session, kind)


def jobs_call(state: str | None, kind: str | None, limit: int, after: int) -> Call[list[dict[str, Any]]]:
    checked = check_state(state)
    if kind is not None:
        check_kind(kind)
    if after != 0:
        check_id(after)
    check_count(limit, "limit")
    return lambda session: admin.jobs(session, checked, kind, limit, after)


def prune_call(older_than: Duration, states: Iterable[str]) -> Call[int]:
    seconds = check_older_than(older_than)
    chosen = [states] if isinstance(states, str) else list(states)
    for state in chosen:
        if state not in _ENDED:
            raise InvalidArgument(
                f"only jobs that are over can be pruned ({', '.join(_ENDED)}), not {state!r}"
            )
    return lambda session: admin.prune(session, seconds, chosen)


def schedule_call(
    name: str,
    kind: str,
    payload: Any,
    cron: str | None,
    every: Duration | None,
    options: Mapping[str, Any],
) -> Call[None]:
    check_kind(name)
    schedule = check_schedule(cron, every)
    if options.get("run_at") is not None:
        raise InvalidArgument(
            f"the schedule {name!r} says when its jobs run, so it cannot have a run_at: leave it out, or"
            " put a single job with run_at"
        )
    row = dict(job_row(NewJob(kind, payload, **options)))
    text = row.pop("payload")
    stored = encoded({key: row[key] for key in row if key not in ("kind", "at", "delay")}, "options")
    return lambda session: admin.set_periodic(session, name, kind, text, schedule, stored)


def unschedule_call(name: str) -> Call[bool]:
    check_kind(name)
    return lambda session: admin.remove_periodic(session, name)


def counts_in(found: Mapping[str, int]) -> dict[State, int]:
    return {state: found.get(state, 0) for state in STATES}


def info_in(row: Mapping[str, Any]) -> JobInfo:
    return JobInfo(
        **{
            **row,
            "payload": decoded(row["payload"]),
            "result": decoded(row["result"]),
            "cancel_requested": bool(row["cancel_requested"]),
        }
    )


def kind_in(row: tuple[Any, ...]) -> KindInfo:
    return KindInfo(row[0], bool(row[1]), row[2], row[3])


def periodic_in(row: tuple[Any, ...]) -> PeriodicInfo:
    return PeriodicInfo(row[0], row[1], decoded(row[2]), row[3], row[4], row[5])


# --- the claimant's job


class BaseJob:
    """One claim of a job, as far as no I/O is needed."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.id: int = row["id"]
        self.kind: str = row["kind"]
        self.key: str | None = row["key"]
        self.payload: Any = decoded(row["payload"])
        self.attempt: int = row["attempt"]
        """1 at the first try."""
        self.max_attempts: int = row["max_attempts"]
        self.priority: int = row["priority"]
        self.token: int = row["token"]
        """The fencing token: each claim of this job has a larger one."""
        self.lease: float = row["lease_seconds"] or LEASE_SECONDS
        """In seconds; the lease ends so long after the claim, or after the last ``extend``."""
        self._backoff = Backoff(row["backoff_first"], row["backoff_maximum"])
        lane = plans.lane_in((self.id, self.kind, self.key, row["lane"]))
        self.claim = ClaimedJob(self.id, self.token, self.kind, lane)
        self.is_ended = False
        """Whether ``finish``, ``fail``, ``release`` or ``transaction`` has ended this claim here."""
        self.is_ending = False
        """Whether such a call is running, or the worker is about to make it: then a claim that is gone has
        ended, and was not lost."""
        self.stop_reason: StopReason | None = None
        """Why the function of this job is to stop; None: the worker has learned of no reason."""

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Around a call that ends this claim."""
        before, self.is_ending = self.is_ending, True
        try:
            yield
            self.is_ended = True
        finally:
            self.is_ending = before

    @property
    def should_stop(self) -> bool:
        """Whether the worker has learned that this job was cancelled or given to another claimant, or no
        longer waits for its end. Does no I/O, so that a long loop can check it in every iteration."""
        return self.stop_reason is not None

    def __repr__(self) -> str:
        return f"<job {self.id} {self.kind!r} attempt={self.attempt} token={self.token}>"

    def finish_call(self, result: Any) -> Call[None]:
        return self.finish_text_call(None if result is None else encoded(result, "result"))

    def finish_text_call(self, text: str | None) -> Call[None]:
        return lambda session: claimant.finish(session, self.claim, text)

    def fail_call(self, error: object, retry_in: Duration | None, final: bool) -> Call[State]:
        delay = check_retry_in(retry_in)
        if delay is None:
            delay = self._backoff.pause_seconds(self.attempt, random.random())
        text = _text_of(error)
        return lambda session: claimant.fail(session, self.claim, text, delay, final)

    def extend_call(self, lease: Duration | None) -> Call[None]:
        seconds = self.lease if lease is None else check_lease(lease)
        return lambda session: claimant.extend(session, self.claim, seconds)

    def release_call(self) -> Call[str]:
        return lambda session: claimant.release(session, self.claim)

    def check_call(self) -> Call[None]:
        return lambda session: claimant.check(session, self.claim)


def extend_many_call(jobs: Iterable[BaseJob]) -> Call[dict[int, bool]]:
    claims = [job.claim for job in jobs]

    def extend(session: Session) -> Any:
        return claimant.extend_many(session, claims)

    return extend


def finish_many_call(jobs: Iterable[tuple[BaseJob, Any]]) -> Call[set[int]]:
    """Jobs and their results, which ``encoded`` has made texts of."""
    ended = [(job.claim, result) for job, result in jobs]
    return lambda session: claimant.finish_many(session, ended)


def _text_of(error: object) -> str:
    if isinstance(error, BaseException):
        return "".join(traceback.format_exception(error)).strip()
    return str(error)
