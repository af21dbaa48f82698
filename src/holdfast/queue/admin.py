"""What concerns jobs of others, as plans: cancel, retry, pause, limits, counts, lists, prune. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import Conflict
from ..fencing.plans import Plan, Result, Statement
from .cron import Schedule
from .plans import Lane, as_job, atomically, channel_of, in_lane, lane_in, lock_lane, promote
from .texts import Session

__all__ = [
    "cancel",
    "counts",
    "job",
    "jobs",
    "kinds",
    "periodic",
    "prune",
    "remove_periodic",
    "retry",
    "set_kind",
    "set_periodic",
]


def cancel(session: Session, id_: int) -> Plan[str | None]:
    """The state it is in now; None: it was over, or there is none."""
    lane = yield from _lane(session, id_)
    return (yield from in_lane(session, lane, _cancel(session, id_)))


def _cancel(session: Session, id_: int) -> Plan[str | None]:
    result: Result = yield Statement(session.texts.cancel, {"namespace": session.namespace, "id": id_})
    return result.rows[0][0] if result.rows else None


def _lane(session: Session, id_: int) -> Plan[Lane | None]:
    result: Result = yield Statement(session.texts.lane_of, {"namespace": session.namespace, "id": id_})
    return lane_in((id_, *result.rows[0])) if result.rows else None


def retry(session: Session, id_: int) -> Plan[bool]:
    lane = yield from _lane(session, id_)
    return (yield from in_lane(session, lane, _retry(session, id_)))


def _retry(session: Session, id_: int) -> Plan[bool]:
    try:
        result: Result = yield Statement(session.texts.retry, {"namespace": session.namespace, "id": id_})
    except Exception as error:
        if session.table.dialect.is_duplicate(error):
            raise Conflict(
                f"job {id_} cannot be tried again: another job of its key has taken its place. Cancel the"
                " other job, or leave this one as it is"
            ) from error
        raise
    if result.rows:
        yield from _wake(session)
    return bool(result.rows)


def _wake(session: Session) -> Plan[None]:
    if session.notifies and session.texts.wake is not None:
        yield Statement(session.texts.wake, {"channel": channel_of(session.namespace)})


def set_kind(
    session: Session,
    kind: str,
    paused: bool | None = None,
    limits: tuple[int | None, int | None] | None = None,
) -> Plan[None]:
    """None: as it was."""
    concurrency, key_concurrency = limits or (None, None)
    values = {
        "namespace": session.namespace,
        "kind": kind,
        "paused": None if paused is None else int(paused),
        "concurrency": concurrency,
        "key_concurrency": key_concurrency,
        "sets_limits": int(limits is not None),
    }
    yield Statement(session.texts.set_kind, values)
    if limits is not None:
        # More may be let in now than before.
        blocked: Result = yield Statement(
            session.texts.blocked_lanes_of_kind, {"namespace": session.namespace, "kind": kind}
        )
        for (key,) in blocked.rows:
            yield from atomically(session, _promote_locked(session, (kind, key)))
    yield from _wake(session)


def _promote_locked(session: Session, lane: Lane) -> Plan[None]:
    yield from lock_lane(session, lane)
    yield from promote(session, lane)


def counts(session: Session, kind: str | None) -> Plan[dict[str, int]]:
    result: Result = yield Statement(session.texts.counts, {"namespace": session.namespace, "kind": kind})
    return {state: int(count) for state, count in result.rows}


def jobs(
    session: Session, state: str | None, kind: str | None, limit: int, after: int
) -> Plan[list[dict[str, Any]]]:
    values = {"namespace": session.namespace, "state": state, "kind": kind, "count": limit, "after": after}
    result: Result = yield Statement(session.texts.jobs, values)
    return [as_job(row) for row in result.rows]


def job(session: Session, id_: int) -> Plan[dict[str, Any] | None]:
    result: Result = yield Statement(session.texts.job, {"namespace": session.namespace, "id": id_})
    return as_job(result.rows[0]) if result.rows else None


def kinds(session: Session) -> Plan[list[tuple[Any, ...]]]:
    result: Result = yield Statement(session.texts.kinds, {"namespace": session.namespace})
    return [tuple(row) for row in result.rows]


def prune(session: Session, older_than: float, states: Iterable[str]) -> Plan[int]:
    """At most a thousand jobs in one statement, so that no other writer waits for long."""
    removed = 0
    for state in states:
        values = {"namespace": session.namespace, "state": state, "older_than": older_than}
        while True:
            result: Result = yield Statement(session.texts.prune, values)
            removed += max(result.changed, 0)
            if result.changed < 1000:
                break
    return removed


def set_periodic(
    session: Session, name: str, kind: str, payload: str, schedule: Schedule, options: str
) -> Plan[None]:
    """A schedule that is the same as before keeps its next time: every process of a fleet may declare it."""
    now: Result = yield Statement(session.texts.now)
    values = {
        "namespace": session.namespace,
        "name": name,
        "kind": kind,
        "payload": payload,
        "schedule": schedule.text,
        "options": options,
        "next_at": schedule.next_after(now.rows[0][0]),
    }
    yield Statement(session.texts.set_periodic, values)


def periodic(session: Session) -> Plan[list[tuple[Any, ...]]]:
    result: Result = yield Statement(session.texts.periodic, {"namespace": session.namespace})
    return [tuple(row) for row in result.rows]


def remove_periodic(session: Session, name: str) -> Plan[bool]:
    values = {"namespace": session.namespace, "name": name}
    result: Result = yield Statement(session.texts.remove_periodic, values)
    return result.changed > 0
