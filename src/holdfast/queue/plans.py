"""Putting and claiming jobs, and changes that are due at a time, as plans: statements in their order. No I/O.

Each is written once, for drivers that block and drivers that await. On a connection of the queue's own a
plan of several statements is a transaction; on the user's connection it is a part of the user's.

**Lanes.** Jobs of one key that must not run together are in a *lane*. Only as many of a lane as may run are
ready; the others are blocked, and claimants do not meet them. A plan that lets jobs into or out of a lane
locks the lane first, so that no job stays blocked behind a job that has just ended. The lock lasts as long as
the transaction.

**Timed changes** (a scheduled job that becomes due, a lease that ends, a periodic job) are made by claimants:
``next_event`` reads by the database's clock when the next change is due. All of
it is written so that many may do it at once: each row is changed by one of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ..errors import Conflict, InvalidArgument
from ..fencing.dialects import Control
from ..fencing.plans import Done, Plan, Result, Statement
from ..fencing.sql_plans import commits_at_once
from .cron import parse_schedule
from .texts import JOB_COLUMNS, Session

__all__ = [
    "Lane",
    "atomically",
    "channel_of",
    "claim",
    "in_lane",
    "lane_in",
    "listen_to",
    "promote",
    "put",
    "run_events",
]

PUT_TRIES: Final = 10
CLAIM_ROUNDS: Final = 3
LEAST_PRIORITY: Final = -(2**31)
BATCH: Final = 1000

Lane = tuple[str, str]
"""A kind and a key."""


def channel_of(namespace: str) -> str:
    """Where jobs of a namespace are announced."""
    return "holdfast_queue_" + hashlib.sha256(namespace.encode()).hexdigest()[:32]


def listen_to(namespace: str) -> str:
    return f'LISTEN "{channel_of(namespace)}"'


# --- transactions -------------------------------------------------------------------------------


def atomically(session: Session, plan: Plan[Done]) -> Plan[Done]:
    """All or nothing: in a transaction of its own, or in the user's."""
    if not session.is_own or session.table.in_transaction():
        return (yield from plan)
    yield Control.BEGIN
    try:
        done = yield from plan
    except BaseException:
        with suppress(Exception):  # the caller gets the first error
            yield Control.ROLL_BACK
        raise
    yield Control.COMMIT
    return done


def check_transaction(session: Session) -> Plan[None]:
    """A connection that the user passes has to be in a transaction."""
    if not session.is_own and (yield from commits_at_once(session.table)):
        raise InvalidArgument(
            "this connection is in autocommit mode and no transaction is open, so the job would not be"
            f" committed together with your other writes: {session.table.dialect.how_to_begin} first, or"
            " leave connection= out"
        )


# --- lanes --------------------------------------------------------------------------------------


def lane_in(row: Sequence[Any]) -> Lane | None:
    """Of a row of id, kind, key, lane."""
    return (row[1], row[2]) if row[3] else None


def lock_lane(session: Session, lane: Lane) -> Plan[None]:
    """``InvalidArgument`` in a transaction that does not see which jobs are in the lane now."""
    isolation = yield from _lock_lane(session, lane)
    if isolation is not None:
        raise _blind(lane, isolation)


def _lock_lane(session: Session, lane: Lane) -> Plan[str | None]:
    """None, or the isolation level that prevents it: such a transaction sees only what was committed before
    it began, so it does not know which jobs have entered and left the lane since."""
    result: Result = yield Statement(session.texts.lock_lane, {"lane": _name(session, lane)})
    if not result.rows or result.rows[0][1] is not None:
        return None
    isolation: str = result.rows[0][0]
    return isolation


def _blind(lane: Lane, isolation: str) -> InvalidArgument:
    kind, key = lane
    return InvalidArgument(
        f"jobs of kind {kind!r} and key {key!r} run one after the other, and this transaction is"
        f" {isolation.upper()}: it does not see which of them run and wait by now. Nothing was done: make it"
        " READ COMMITTED, or leave connection= out"
    )


def _name(session: Session, lane: Lane) -> str:
    return json.dumps([session.texts.schema, session.namespace, *lane])


def try_lock_lane(session: Session, lane: Lane) -> Plan[bool]:
    """False: another transaction has it now."""
    result: Result = yield Statement(session.texts.try_lock_lane, {"lane": _name(session, lane)})
    return not result.rows or bool(result.rows[0][0])


def promote(session: Session, lane: Lane) -> Plan[None]:
    """Make the jobs of a lane ready that may run now. The caller has locked the lane."""
    values = {"namespace": session.namespace, "kind": lane[0], "key": lane[1]}
    while True:
        promoted: Result = yield Statement(session.texts.promote, values)
        if not promoted.rows or promoted.rows[0][0] != 3:
            return


def in_lane(session: Session, lane: Lane | None, plan: Plan[Done]) -> Plan[Done]:
    """Run a plan that may free a place in the lane, then let the next job take it."""
    if lane is None:
        return (yield from plan)

    def locked() -> Plan[Done]:
        yield from lock_lane(session, lane)
        done = yield from plan
        yield from promote(session, lane)
        return done

    return (yield from atomically(session, locked()))


# --- put ----------------------------------------------------------------------------------------


def put(session: Session, rows: Sequence[Mapping[str, Any]]) -> Plan[list[int]]:
    """The ids, in order. If the key of a job has its one job already, the id of that job."""
    yield from check_transaction(session)
    if len(rows) == 1 and not _needs_lane(rows[0]):
        return (yield from _put_one(session, rows[0]))
    return (yield from atomically(session, _put_all(session, rows)))


def _needs_lane(row: Mapping[str, Any]) -> bool:
    """Whether the job is in a lane, or would be by the limit of its kind."""
    return row["key"] is not None and row["uniqueness"] != 2


def _put_all(session: Session, rows: Sequence[Mapping[str, Any]]) -> Plan[list[int]]:
    # In one order, so that two batches do not wait for each other.
    for lane in sorted({(row["kind"], row["key"]) for row in rows if _needs_lane(row)}):
        isolation = yield from _lock_lane(session, lane)
        if isolation is not None and (yield from _is_in_lane(session, lane, rows)):
            raise _blind(lane, isolation)
    found: list[int] = []
    plain: list[Mapping[str, Any]] = []
    for row in rows:
        if row["key"] is None and len(plain) < BATCH:
            plain.append(row)
            continue
        found += yield from _put_plain(session, plain)
        plain = []
        if row["key"] is None:
            plain.append(row)
        else:
            found += yield from _put_one(session, row)
    found += yield from _put_plain(session, plain)
    return found


def _is_in_lane(session: Session, lane: Lane, rows: Sequence[Mapping[str, Any]]) -> Plan[bool]:
    """Whether one of the jobs takes a place in the lane, by its options or by the limit of its kind."""
    if any(row["asked_lane"] for row in rows if (row["kind"], row["key"]) == lane):
        return True
    values = {"namespace": session.namespace, "kind": lane[0]}
    limit: Result = yield Statement(session.texts.key_limit_of_kind, values)
    return bool(limit.rows) and limit.rows[0][0] is not None


def _put_plain(session: Session, rows: Sequence[Mapping[str, Any]]) -> Plan[list[int]]:
    if not rows:
        return []
    inserted = yield from _insert(session, rows)
    return sorted(inserted)


def _put_one(session: Session, row: Mapping[str, Any]) -> Plan[list[int]]:
    for _ in range(PUT_TRIES):
        inserted = yield from _insert(session, [row])
        if inserted:
            return inserted
        values = {"namespace": session.namespace, "kind": row["kind"], "key": row["key"]}
        holder: Result = yield Statement(session.texts.holder_of_key, values)
        if holder.rows:
            return [int(holder.rows[0][0])]
        # That job has ended in between, so the key is free now.
    raise Conflict(
        f"the key {row['key']!r} of kind {row['kind']!r} was taken and became free {PUT_TRIES} times in a"
        " row, and nothing was put: try again (in a transaction that sees only what was committed before it"
        " began: run the whole transaction again)"
    )


def _insert(session: Session, rows: Sequence[Mapping[str, Any]]) -> Plan[list[int]]:
    values: dict[str, Any] = {"namespace": session.namespace, "jobs": json.dumps(list(rows))}
    text = session.texts.put
    if session.notifies and session.texts.wake is not None:
        text = session.texts.put_and_wake
        values["channel"] = channel_of(session.namespace)
    result: Result = yield Statement(text, values)
    return [int(row[0]) for row in result.rows]


# --- claim --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """The parameters of a claim. ``kinds`` None: any kind."""

    kinds: Sequence[str] | None
    count: int
    lease: float
    owner: str
    checks_events: bool
    """Whether to make the timed changes first; if too few jobs are found, they are made in any case."""
    retention: float | None = None
    """Remove some of the jobs that ended more than this many seconds ago."""
    remove_more: Callable[[], None] = lambda: None
    """Called if more such jobs may be left, so that one of the next claims removes them."""


def claim(session: Session, asked: Claim) -> Plan[list[dict[str, Any]]]:
    """The best jobs that are ready, by priority, then by age; each with a new token and a lease."""
    found: list[dict[str, Any]] = []
    if asked.retention is not None:
        yield from _forget(session, asked)
    if asked.checks_events:
        yield from run_events(session)
    if asked.kinds is not None and len(asked.kinds) == 1 and session.texts.claims_at_once:
        found = yield from _claim_kind(session, asked, asked.kinds[0], asked.count)
        if len(found) >= asked.count:
            return _sorted(found)
        if not asked.checks_events:
            yield from run_events(session)
    else:
        found = yield from _claim_by_heads(session, asked, asked.count)
        if len(found) >= asked.count or asked.checks_events or not (yield from run_events(session)):
            return _sorted(found)
    found += yield from _claim_by_heads(session, asked, asked.count - len(found))
    return _sorted(found)


def _forget(session: Session, asked: Claim) -> Plan[None]:
    for state in ("finished", "cancelled"):
        values = {"namespace": session.namespace, "state": state, "older_than": asked.retention}
        found: Result = yield Statement(session.texts.has_prunable, values)
        if found.rows:
            removed: Result = yield Statement(session.texts.prune, values)
            if removed.changed >= BATCH:
                asked.remove_more()


def _sorted(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(jobs, key=lambda job: (-job["priority"], job["id"]))


def _claim_by_heads(session: Session, asked: Claim, wanted: int) -> Plan[list[dict[str, Any]]]:
    """Kind by kind, that with the best job first; down to the next one's priority."""
    found: list[dict[str, Any]] = []
    for _ in range(CLAIM_ROUNDS):
        heads = yield from _heads(session, asked.kinds)
        found_before = len(found)
        for index, (kind, _, concurrency) in enumerate(heads):
            least = heads[index + 1][1] if index + 1 < len(heads) else LEAST_PRIORITY
            count = wanted - len(found)
            if concurrency is None:
                found += yield from _claim_kind(session, asked, kind, count, least)
            else:
                plan = _claim_limited(session, asked, kind, count, least)
                found += yield from atomically(session, plan)
            if len(found) >= wanted:
                return found
        if len(found) == found_before:
            break
    return found


def _heads(session: Session, kinds: Sequence[str] | None) -> Plan[Sequence[Sequence[Any]]]:
    values: dict[str, Any] = {"namespace": session.namespace}
    if kinds is None:
        result: Result = yield Statement(session.texts.heads_of_all, values)
    else:
        values["kinds"] = json.dumps(list(kinds))
        result = yield Statement(session.texts.heads_of_given, values)
    return result.rows


def _claim_kind(
    session: Session,
    asked: Claim,
    kind: str,
    count: int,
    least_priority: int = LEAST_PRIORITY,
    may_be_limited: bool = False,
) -> Plan[list[dict[str, Any]]]:
    values = {
        "namespace": session.namespace,
        "kind": kind,
        "count": count,
        "least_priority": least_priority,
        "may_be_limited": int(may_be_limited),
        "lease": asked.lease,
        "owner": asked.owner,
    }
    result: Result = yield Statement(session.texts.claim, values)
    return [as_job(row) for row in result.rows]


def _claim_limited(
    session: Session, asked: Claim, kind: str, count: int, least_priority: int
) -> Plan[list[dict[str, Any]]]:
    """Claimants of a kind with a limit pass one after the other, so that they count each other's jobs."""
    values = {"namespace": session.namespace, "kind": kind}
    limit: Result = yield Statement(session.texts.limit_of_kind, values)
    if not limit.rows or limit.rows[0][1] is None:
        return (yield from _claim_kind(session, asked, kind, count, least_priority))
    running: Result = yield Statement(session.texts.running_of_kind, values)
    count = min(count, limit.rows[0][1] - running.rows[0][0])
    if count <= 0:
        return []
    return (yield from _claim_kind(session, asked, kind, count, least_priority, may_be_limited=True))


_COLUMNS: Final = tuple(column.strip() for column in JOB_COLUMNS.split(","))


def as_job(row: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(_COLUMNS, row, strict=True))


# --- timed changes ------------------------------------------------------------------------------


def next_event(session: Session) -> Plan[float | None]:
    """In how many seconds the next timed change is due; 0 or less: now. None: there is none."""
    result: Result = yield Statement(session.texts.next_event, {"namespace": session.namespace})
    now, *events = result.rows[0]
    times = [event for event in events if event is not None]
    return min(times) - now if times else None


def run_events(session: Session) -> Plan[bool]:
    """Make the changes that are due. Returns whether there were any."""
    wait = yield from next_event(session)
    if wait is None or wait > 0:
        return False
    values = {"namespace": session.namespace}
    yield from atomically(session, _put_periodic(session))
    expired: Result = yield Statement(session.texts.expired, values)
    if expired.rows:
        plan = _change(session, session.texts.take_back, [(row[0], lane_in(row)) for row in expired.rows])
        yield from atomically(session, plan)
    due: Result = yield Statement(session.texts.due, values)
    if due.rows:
        # An ordered job has kept its place; the others enter their lanes now.
        entering = [(row[0], None if row[3] == 2 else lane_in(row)) for row in due.rows]
        yield from atomically(session, _change(session, session.texts.make_ready, entering))
    return True


def _change(session: Session, text: str, jobs: Sequence[tuple[int, Lane | None]]) -> Plan[None]:
    """Jobs whose lane is locked by another transaction, perhaps a long one of a user's, are left for the
    next time: no claimant waits for that transaction."""
    locked: set[Lane] = set()
    for lane in sorted({lane for _, lane in jobs if lane is not None}):
        if (yield from try_lock_lane(session, lane)):
            locked.add(lane)
    ids = [id_ for id_, lane in jobs if lane is None or lane in locked]
    yield Statement(text, {"ids": json.dumps(ids)})
    for lane in sorted(locked):
        yield from promote(session, lane)


def _put_periodic(session: Session) -> Plan[None]:
    """The claimant that advances the schedule also puts its job, in one transaction: once in a whole fleet.
    One job makes up for all times that were missed."""
    due: Result = yield Statement(session.texts.due_periodic, {"namespace": session.namespace})
    for name, kind, payload, schedule, options, next_at, now in due.rows:
        values = {
            "namespace": session.namespace,
            "name": name,
            "last_at": next_at,
            "next_at": parse_schedule(schedule).next_after(now),
        }
        advanced: Result = yield Statement(session.texts.advance_periodic, values)
        if advanced.changed == 1:
            row = {**json.loads(options), "kind": kind, "payload": payload, "at": next_at, "delay": 0.0}
            if _needs_lane(row):
                yield from lock_lane(session, (kind, row["key"]))
            yield from _put_one(session, row)
