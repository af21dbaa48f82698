"""What actors do in the database, as plans: each is one transaction, run by both drivers. No I/O.

**The commit of a message** first locks the lanes of its own mailbox and of those it sends to, in one order,
so that two actors that write to each other do not wait for each other. Then it finishes the job, which only
the present claimant may (a zombie is refused by the job's token, and rolls back), stores the state if its
version is still the version that the handler loaded, and puts the messages. The reply is the job's result, so
no caller sees it before the rest is committed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from ..errors import Conflict
from ..events import plans as events_plans
from ..events.model import Event
from ..events.plans import StoreDialect
from ..events.postgresql import PostgresqlStore
from ..events.sqlite import SqliteStore
from ..fencing.plans import Plan, Result, Statement
from ..queue import claimant
from ..queue import plans as queue_plans
from ..queue.claimant import ClaimedJob
from ..queue.texts import SQLITE, Session
from . import tables
from .invocation import Outcome, Stored
from .messages import NewMessage
from .replies import replies_namespace

__all__ = ["Address", "commit", "events_in", "forget", "install", "load", "put", "stream_name"]


@dataclass(frozen=True, slots=True)
class Address:
    """One actor, and where its state is. ``stream`` None: it is a value."""

    kind: str
    key: str
    stream: str | None
    events_schema: str


def stream_name(namespace: str, kind: str, key: str) -> str:
    return f"{quote(namespace, safe='')}/{quote(kind, safe='')}/{key}"


def events_in(session: Session, schema: str) -> StoreDialect:
    """The store of events in the queue's database."""
    return SqliteStore() if session.texts.dialect == SQLITE else PostgresqlStore(schema)


def install(session: Session, events_schema: str | None) -> Plan[None]:
    yield from tables.install(session)
    if events_schema is not None:
        yield from events_plans.install(session.table, events_in(session, events_schema))


# --- messages


def put(session: Session, message: NewMessage) -> Plan[int]:
    """The id of its job. A message whose id was seen before is not put again: the id of the earlier job."""
    yield from queue_plans.check_transaction(session)

    def locked() -> Plan[int]:
        yield from _lock(session, [message])
        return (yield from _put_once(session, message))

    return (yield from queue_plans.atomically(session, locked()))


def _lock(
    session: Session, messages: Sequence[NewMessage], own: queue_plans.Lane | None = None
) -> Plan[None]:
    """Ids are compared under the lock of their mailbox."""
    lanes = {(message.row["kind"], message.row["key"]) for message in messages}
    for lane in sorted(lanes if own is None else lanes | {own}):
        yield from queue_plans.lock_lane(session, lane)


def _put_once(session: Session, message: NewMessage) -> Plan[int]:
    texts = tables.texts_for(session.texts)
    values = {
        "namespace": session.namespace,
        "kind": message.kind,
        "key": message.key,
        "id": message.id,
    }
    if message.id is not None:
        known: Result = yield Statement(texts.job_of_message, values)
        if known.rows:
            return int(known.rows[0][0])
    (job,) = yield from queue_plans.put(session, [message.row])
    if message.id is not None:
        yield Statement(texts.record_message, {**values, "job": job})
    return job


def forget(session: Session, older_than: float) -> Plan[int]:
    """Remove ids that are older; how many."""
    text = tables.texts_for(session.texts).forget_messages
    removed: Result = yield Statement(text, {"namespace": session.namespace, "older_than": older_than})
    return removed.changed


# --- the state


def load(session: Session, address: Address) -> Plan[Stored]:
    """The state after the last message."""
    if address.stream is not None:
        return (yield from _load_events(events_in(session, address.events_schema), address.stream))
    found: Result = yield Statement(tables.texts_for(session.texts).load, _names(session, address))
    if not found.rows:
        return Stored()
    version, text = found.rows[0]
    return Stored(int(version), decoded_state(text))


def decoded_state(text: str) -> dict[str, object]:
    state: dict[str, object] = json.loads(text)
    return state


def _load_events(dialect: StoreDialect, stream: str) -> Plan[Stored]:
    snapshot = yield from events_plans.load_snapshot(dialect, stream)
    version = 0 if snapshot is None else snapshot.version
    events: list[Event] = []
    while found := (yield from events_plans.read(dialect, stream, version)):
        events += found
        version = found[-1].version
    attributes = None if snapshot is None else snapshot.data
    return Stored(version, attributes, [event.data for event in events])


def _names(session: Session, address: Address) -> dict[str, object]:
    return {"namespace": session.namespace, "kind": address.kind, "key": address.key}


# --- the end of a message


def commit(session: Session, job: ClaimedJob, address: Address, outcome: Outcome) -> Plan[bool]:
    """Commit the outcome of a message. False: it was committed before, and the reply was lost.

    Raises StaleToken if the job was given to another worker, and Conflict if the state has another version.
    """
    return (yield from queue_plans.atomically(session, _commit(session, job, address, outcome)))


def _commit(session: Session, job: ClaimedJob, address: Address, outcome: Outcome) -> Plan[bool]:
    yield from _lock(session, outcome.messages, job.lane)
    standing: Result = yield Statement(session.texts.standing, {"id": job.id})
    if standing.rows and standing.rows[0][0] == "finished" and standing.rows[0][1] == job.token:
        return False
    yield from claimant.finish(session, job, outcome.result)
    yield from save(session, address, outcome)
    for message in outcome.messages:
        yield from _put_once(session, message)
    if outcome.result is not None and session.notifies and session.texts.wake is not None:
        channel = queue_plans.channel_of(replies_namespace(session.namespace))
        yield Statement(session.texts.wake, {"channel": channel})
    return True


def save(session: Session, address: Address, outcome: Outcome) -> Plan[None]:
    if address.stream is not None:
        yield from _save_events(session, address, address.stream, outcome)
    elif outcome.state is not None:
        yield from _save_value(session, address, outcome.state, outcome.expected_version)


def _save_value(session: Session, address: Address, state: str, expected: int) -> Plan[None]:
    texts = tables.texts_for(session.texts)
    text = texts.update_state if expected else texts.insert_state
    values = {**_names(session, address), "state": state}
    saved: Result = yield Statement(text, {**values, "version": expected} if expected else values)
    if not saved.rows:
        error = Conflict(
            f"the state of {address.kind} {address.key!r} is no longer at version {expected}, and nothing was"
            " changed: something other than its messages wrote to it"
        )
        error.name = address.key
        raise error


def _save_events(session: Session, address: Address, stream: str, outcome: Outcome) -> Plan[None]:
    if not outcome.events:
        return
    dialect = events_in(session, address.events_schema)
    version = yield from events_plans.append(
        session.table, dialect, stream, outcome.events, outcome.expected_version
    )
    if outcome.snapshot is not None:
        yield from events_plans.snapshot(session.table, dialect, stream, version, outcome.snapshot)
