"""What a store asks of its database, as plans: written once, carried out blocking and awaiting. No I/O.

A plan yields statements (``fencing.plans.Statement``) and controls, and is sent their results. The plans of a
subscription also yield ``NOW`` and ``Pause``.
"""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from ..errors import Conflict, EngineUnavailable
from ..fencing.dialects import Control, TableState
from ..fencing.plans import Plan, Result, Statement
from ..sql.failures import translated
from .model import Event, Snapshot

__all__ = [
    "NOW",
    "Feed",
    "Now",
    "Pause",
    "StoreDialect",
    "Woken",
    "append",
    "checkpoint",
    "events_after_checkpoint",
    "install",
    "json_array",
    "load_snapshot",
    "next_events",
    "one",
    "order",
    "read",
    "read_all",
    "reading",
    "reading_all",
    "reset_checkpoint",
    "save_checkpoint",
    "snapshot",
]

logger = logging.getLogger("holdfast.events")

BATCH: Final = 500
"""How many events are read at once."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an append: ``version`` is the new version of the stream, or the version that was found
    instead."""

    is_appended: bool
    version: int


class StoreDialect(Protocol):
    """The tables of a store in one kind of SQL."""

    poll_first_seconds: float
    poll_most_seconds: float

    def is_installed(self) -> Plan[bool]: ...
    def install(self) -> Plan[bool]:
        """Whether anything was missing. In a transaction."""
        ...

    def append(self, stream: str, events: Sequence[str], expected: int | None) -> Plan[Appended]:
        """All of them or none. Each is a JSON object."""
        ...

    def read(self, stream: str, after: int, limit: int) -> Statement:
        """Its rows: stream, version, data, seconds since 1970, None."""
        ...

    def read_all(self, after: int, limit: int) -> Statement:
        """The same with the position in the place of None."""
        ...

    def order(self) -> Statement:
        """Give every committed event its position, and return the newest one."""
        ...

    def announce_waiting(self) -> Plan[None]:
        """From here on, writers wake this connection."""
        ...

    def end_waiting(self) -> Plan[None]: ...
    def save_snapshot(self, stream: str, version: int, data: str) -> Statement:
        """Unless there is a newer one."""
        ...

    def load_snapshot(self, stream: str) -> Statement: ...
    def lock_checkpoint(self, projection: str) -> Plan[int]:
        """The newest committed event, locked until the transaction ends."""
        ...

    def checkpoint(self, projection: str) -> Statement: ...
    def save_checkpoint(self, projection: str, position: int) -> Statement: ...


def json_array(objects: Sequence[str]) -> str:
    return f"[{','.join(objects)}]"


def one(statement: Statement) -> Plan[Result]:
    result: Result = yield statement
    return result


def install(table: TableState, dialect: StoreDialect) -> Plan[bool]:
    """Create the tables, unless they are there. Whether any were created."""
    if (yield from dialect.is_installed()):
        return False
    return (yield from translated(table, "the tables of the events were not created", _install(dialect)))


def _install(dialect: StoreDialect) -> Plan[bool]:
    yield Control.BEGIN
    try:
        made = yield from dialect.install()
    except BaseException:
        with suppress(Exception):  # the user gets the first error
            yield Control.ROLL_BACK
        raise
    yield Control.COMMIT
    return made


def append(
    table: TableState, dialect: StoreDialect, stream: str, events: Sequence[str], expected: int | None
) -> Plan[int]:
    what = f"nothing was appended to stream {stream!r}"
    yield Control.FLUSH
    done = yield from translated(table, what, dialect.append(stream, events, expected), stream)
    if done.is_appended:
        return done.version
    if expected is None:
        why = "other writers were first each time: append again"
    elif done.version == expected:
        why = (
            "another writer has appended to it, which this transaction cannot see: roll back, and run the"
            " whole transaction again"
        )
    else:
        why = f"it is at version {done.version}, not {expected}: read what is new, and decide again"
    error = Conflict(f"{what}: {why}")
    error.name, error.version = stream, done.version
    raise error


def read(dialect: StoreDialect, stream: str, after: int, limit: int = BATCH) -> Plan[list[Event]]:
    result: Result = yield dialect.read(stream, after, limit)
    return [_event(row) for row in result.rows]


def order(dialect: StoreDialect) -> Plan[int]:
    """Give every committed event its position; the newest one."""
    newest: Result = yield dialect.order()
    return int(newest.rows[0][0])


def read_all(dialect: StoreDialect, after: int, limit: int = BATCH) -> Plan[list[Event]]:
    """What is committed is put in order first, so a reader finds what was appended before it began."""
    if (yield from order(dialect)) <= after:
        return []
    return (yield from _ordered(dialect, after, limit))


def _ordered(dialect: StoreDialect, after: int, limit: int) -> Plan[list[Event]]:
    result: Result = yield dialect.read_all(after, limit)
    return [_event(row) for row in result.rows]


def _event(row: Sequence[Any]) -> Event:
    stream, version, data, seconds, position = row
    at = datetime.fromtimestamp(float(seconds), UTC)
    return Event(stream, int(version), json.loads(data), at, None if position is None else int(position))


def reading(dialect: StoreDialect, stream: str, after: int) -> Callable[[TableState], Plan[list[Event]]]:
    return lambda table: read(dialect, stream, after)


def reading_all(dialect: StoreDialect, after: int) -> Callable[[TableState], Plan[list[Event]]]:
    return lambda table: read_all(dialect, after)


# --- snapshots ----------------------------------------------------------------------------------


def snapshot(table: TableState, dialect: StoreDialect, stream: str, version: int, data: str) -> Plan[None]:
    saving = one(dialect.save_snapshot(stream, version, data))
    yield from translated(table, f"no snapshot of stream {stream!r} was stored", saving, stream)


def load_snapshot(dialect: StoreDialect, stream: str) -> Plan[Snapshot | None]:
    result: Result = yield dialect.load_snapshot(stream)
    if not result.rows:
        return None
    version, data = result.rows[0]
    return Snapshot(stream, int(version), json.loads(data))


# --- projections --------------------------------------------------------------------------------


def checkpoint(dialect: StoreDialect, projection: str) -> Plan[int]:
    result: Result = yield dialect.checkpoint(projection)
    return int(result.rows[0][0]) if result.rows else 0


def events_after_checkpoint(
    table: TableState, dialect: StoreDialect, projection: str, limit: int
) -> Plan[list[Event]]:
    """In the transaction that will also store what follows from them. Others wait for its end."""
    what = f"projection {projection!r} did not go on"
    yield Control.FLUSH
    after = yield from translated(table, what, dialect.lock_checkpoint(projection), projection)
    return (yield from _ordered(dialect, after, limit))


def save_checkpoint(table: TableState, dialect: StoreDialect, projection: str, position: int) -> Plan[None]:
    what = f"projection {projection!r} did not go on"
    yield Control.FLUSH
    saving = one(dialect.save_checkpoint(projection, position))
    yield from translated(table, what, saving, projection)


def reset_checkpoint(table: TableState, dialect: StoreDialect, projection: str, position: int) -> Plan[None]:
    what = f"projection {projection!r} was not reset"
    yield from translated(table, what, dialect.lock_checkpoint(projection), projection)
    yield from save_checkpoint(table, dialect, projection, position)


# --- subscriptions ------------------------------------------------------------------------------


class Now:
    """Read a clock that only moves forward."""


NOW: Final = Now()


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until a notification comes, the subscription is closed, or so many seconds have passed."""

    seconds: float


class Woken(enum.Enum):
    NOTIFIED = "notified"
    TIMED_OUT = "timed out"
    CLOSED = "closed"


@dataclass(slots=True)
class Feed:
    """Where a subscription stands."""

    position: int
    has_connected: bool = False


_RECONNECT_FIRST_SECONDS: Final = 0.05
_RECONNECT_MOST_SECONDS: Final = 1.0


def next_events(dialect: StoreDialect, feed: Feed, timeout: float | None) -> Plan[list[Event]]:
    """What comes after the feed's position; empty: nothing came in time, or the subscription was closed.

    A connection that breaks is opened again (by the driver, at the next statement), for as long
    as the caller waits. If it could never be opened, the caller gets the error.
    """
    started: float = yield NOW
    deadline = None if timeout is None else started + timeout
    pause = _RECONNECT_FIRST_SECONDS
    while True:
        try:
            found = yield from _wait_for_events(dialect, feed, deadline)
        except EngineUnavailable as error:
            now: float = yield NOW
            if not feed.has_connected or (deadline is not None and now >= deadline):
                raise
            logger.warning("a subscription to events lost its connection and opens another: %s", error)
        else:
            feed.has_connected = True
            if found:
                feed.position = found[-1].position or feed.position
            return found
        woken: Woken = yield Pause(pause)
        if woken is Woken.CLOSED:
            return []
        pause = min(pause * 2, _RECONNECT_MOST_SECONDS)


def _wait_for_events(dialect: StoreDialect, feed: Feed, deadline: float | None) -> Plan[list[Event]]:
    found = yield from read_all(dialect, feed.position)
    feed.has_connected = True
    if found:
        return found
    # Writers notify only while a subscriber waits. A writer that wrote before this announcement, and commits
    # after the read below, does not notify: so the first reads follow each other closely.
    yield from dialect.announce_waiting()
    found = yield from _poll(lambda: read_all(dialect, feed.position), dialect, deadline)
    yield from dialect.end_waiting()
    return found


def _poll(
    look: Callable[[], Plan[list[Event]]], dialect: StoreDialect, deadline: float | None
) -> Plan[list[Event]]:
    pause = dialect.poll_first_seconds
    while True:
        found = yield from look()
        now: float = yield NOW
        if found or (deadline is not None and now >= deadline):
            return found
        woken: Woken = yield Pause(pause if deadline is None else min(pause, deadline - now))
        if woken is Woken.CLOSED:
            return []
        pause = (
            dialect.poll_first_seconds
            if woken is Woken.NOTIFIED
            else min(pause * 2, dialect.poll_most_seconds)
        )
