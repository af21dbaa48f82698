"""What only the present claimant of a job may do, as plans: each is refused by the token. No I/O.

Every claim of a job has a larger token than the one before it, and each statement here names its token. So a
claimant that was stopped, and wakes after its job was given to another, changes nothing: it gets
``StaleToken``. A lease that has run out but was not given away is still the claimant's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ..errors import StaleToken
from ..fencing.plans import Plan, Result, Statement
from .model import JobCancelled, State
from .plans import Lane, check_transaction, in_lane
from .texts import Session

__all__ = ["ClaimedJob", "check", "extend", "extend_many", "fail", "finish", "finish_many", "release"]

ERROR_CHARACTERS_MAX: Final = 8_000


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """One claim: the job, and the token that it is known by."""

    id: int
    token: int
    kind: str
    lane: Lane | None

    @property
    def values(self) -> dict[str, Any]:
        return {"id": self.id, "token": self.token}


def finish(session: Session, job: ClaimedJob, result: str | None) -> Plan[None]:
    yield from check_transaction(session)
    yield from in_lane(session, job.lane, _end(session, job, session.texts.finish, {"result": result}))


def finish_many(session: Session, jobs: Iterable[tuple[ClaimedJob, str | None]]) -> Plan[set[int]]:
    """Finish jobs with their results. None of them is in a lane. Returns the ids of the jobs that the
    claimant still had."""
    claims = json.dumps([{**job.values, "result": result} for job, result in jobs])
    result: Result = yield Statement(session.texts.finish_many, {"claims": claims})
    return {int(row[0]) for row in result.rows}


def fail(session: Session, job: ClaimedJob, error: str, delay: float, is_final: bool) -> Plan[State]:
    """The state it is in now."""
    text = error.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    values = {"error": text[:ERROR_CHARACTERS_MAX], "delay": delay, "is_final": int(is_final)}
    return (yield from in_lane(session, job.lane, _end(session, job, session.texts.fail, values)))


def release(session: Session, job: ClaimedJob) -> Plan[State]:
    return (yield from in_lane(session, job.lane, _end(session, job, session.texts.release, {})))


def _end(session: Session, job: ClaimedJob, text: str, values: dict[str, Any]) -> Plan[State]:
    result: Result = yield Statement(text, {**job.values, **values})
    if result.rows:
        state: State = result.rows[0][0]
        return state
    return (yield from _refused(session, job, may_be_finished=text is session.texts.finish))


def extend(session: Session, job: ClaimedJob, lease: float) -> Plan[None]:
    result: Result = yield Statement(session.texts.extend, {**job.values, "lease": lease})
    if not result.rows:
        yield from _refused(session, job)
    elif result.rows[0][0]:
        raise _cancelled(job)


def extend_many(session: Session, jobs: Iterable[ClaimedJob]) -> Plan[dict[int, bool]]:
    """Id → whether its cancellation was asked for, of those that are still their claimants'. Each gets the
    lease that it was claimed with. A row that is locked at this moment is left out."""
    claims = json.dumps([job.values for job in jobs])
    result: Result = yield Statement(session.texts.extend_many, {"claims": claims})
    return {int(row[0]): bool(row[1]) for row in result.rows}


def check(session: Session, job: ClaimedJob) -> Plan[None]:
    standing: Result = yield Statement(session.texts.standing, {"id": job.id})
    row = standing.rows[0] if standing.rows else None
    if row is None or row[0] != "running" or row[1] != job.token:
        raise _stale(job, row)
    if row[2]:
        raise _cancelled(job)


def _refused(session: Session, job: ClaimedJob, may_be_finished: bool = False) -> Plan[State]:
    standing: Result = yield Statement(session.texts.standing, {"id": job.id})
    row = standing.rows[0] if standing.rows else None
    if may_be_finished and row is not None and row[0] == "finished" and row[1] == job.token:
        return "finished"  # by this claim, and the reply was lost
    raise _stale(job, row)


def _stale(job: ClaimedJob, row: Any) -> StaleToken:
    if row is None:
        what, newest = "it was removed", None
    elif row[1] != job.token:
        what, newest = f"its newest claim has token {row[1]}, and it is {row[0]}", row[1]
    else:
        what, newest = f"it is {row[0]}", row[1]
    error = StaleToken(
        f"job {job.id} of kind {job.kind!r} is no longer this claimant's (token {job.token}): {what}. Nothing"
        " was changed: drop what was done for it, or extend it in time"
    )
    error.resource, error.token, error.newest = f"job {job.id}", job.token, newest
    return error


def _cancelled(job: ClaimedJob) -> JobCancelled:
    error = JobCancelled(
        f"job {job.id} of kind {job.kind!r} was cancelled while it ran: stop; then fail() or release() ends"
        " it as cancelled"
    )
    error.job = job.id
    return error
