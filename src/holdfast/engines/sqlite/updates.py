"""One client's changes of records. A change is decided in one of three ways, the cheapest that is sufficient.

1. On the text of the record (``shortcuts``): joining the queue and handing the lock over.
2. On the record as it was last seen, without reading the database (``update_recalled``): where the record
   alone decides, and no other client has to be looked up.
3. On the record as it is stored, with the renewals and deaths of the clients in it (``update_loaded``).

In all three, one statement stores the change only if the record, and all else that the decision relied on, is
still the same. Otherwise nothing is stored, and the change is decided again.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from math import inf
from typing import Final

from ...engine_api import Steps
from ...rules import transitions
from ...rules.handoff import apply, successor_of
from ...rules.queueing import next_event_at
from ...rules.record import Record, is_idle
from ...rules.requests import Acquire, Done, Inspect, Queued, Release, Reply, Request, Wake
from ...rules.transitions import Step, apply_in_order
from ...runtime.clock import boottime, wall_us
from ..local import StoreBusyError
from . import shortcuts
from .clients import RecordView, expiry_guards, is_decided_without_others, keeps_place, rebase, without_client
from .codec import SchemaTooNew
from .records import RETENTION_US, Execute, Guard, LoadedRecord
from .session import ClientSession

__all__ = ["Outcome", "RecordUpdates"]

ATTEMPTS_MAX: Final = 8
"""How often a change is decided again at once. After that the caller pauses."""

HANDOFF_ATTEMPTS_MAX: Final = 3
"""How often a handoff is attempted. It fails if the successor is dead, which then gets a turn instead."""

_DONE: Final = Done()
_NO_GUARDS: Final[Sequence[Guard]] = ()

Outcome = tuple[Reply, tuple[Wake, ...]]
"""The reply to a request, and the wake-ups to send."""


class RecordUpdates:
    """Decides and stores the changes of one client. Every method is called with the database mutex held."""

    __slots__ = ("_session", "_table", "shortest_ttl")

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._table = session.table
        self.shortest_ttl = inf
        """No lease of this client has a shorter TTL."""

    # --- one change -----------------------------------------------------------------------------

    def update_recalled(self, execute: Execute, key: bytes, request: Request) -> Outcome | None:
        """Change the record as it was last seen, without a read. None: that is not sufficient."""
        recalled = self._table.recall(key)
        if recalled is None:
            return None
        now, wall = boottime(), wall_us()
        outcome = self._take_shortcut(execute, key, recalled, request, now, wall)
        if outcome is not None:
            return outcome
        if self._table.is_outdated(key, recalled):
            return None
        try:
            before = recalled.record
        except (ValueError, TypeError, AttributeError, SchemaTooNew):
            return None  # update_loaded reports a damaged record, if the stored one is damaged too
        if not self._is_plain(recalled, request, now):
            return None
        step = apply(before, request, now, wall)
        after = step.record
        if after is before:
            return (
                None  # Nothing would be stored, so nothing would confirm that the record is still the same.
            )
        stored = self.store(execute, key, recalled, after, wall, _NO_GUARDS, successor_of(request, step))
        return (step.reply, step.wake) if stored else None

    def update_loaded(self, execute: Execute, key: bytes, request: Request) -> Outcome:
        """Read the record, decide and store, again and again until nothing has changed in between."""
        for attempt in range(ATTEMPTS_MAX):
            loaded = self._table.load(execute, key)
            now, wall = boottime(), wall_us()
            hands_over = attempt < HANDOFF_ATTEMPTS_MAX or request.__class__ is not Release
            outcome = self._take_shortcut(execute, key, loaded, request, now, wall) if hands_over else None
            if outcome is not None:
                return outcome
            rule = apply if hands_over else transitions.apply
            if self._is_plain(loaded, request, now):
                record, guards = loaded.record, _NO_GUARDS
                step = rule(record, request, now, wall)
            else:
                view = self.view(execute, loaded, now, getattr(request, "nonce", ""), fresh=attempt > 0)
                record, guards = view.record, expiry_guards(view, now)
                step = rule(record, request, now, wall, view.dead)
            if not self._must_rebase(loaded, request) and _needs_no_write(step, record, request, now):
                return step.reply, ()  # Another client may have written it, and then sends the wake-ups.
            if self.store(execute, key, loaded, step.record, wall, guards, successor_of(request, step)):
                return step.reply, step.wake
            self._session.ensure_registered(execute)
        raise StoreBusyError

    def remove_client(self, execute: Execute, key: bytes, client: str) -> tuple[Wake, ...]:
        """Remove a dead client from a record. Returns the wake-ups that this causes."""
        for _ in range(ATTEMPTS_MAX):
            loaded = self._table.load(execute, key)
            now = boottime()
            record = loaded.record if loaded.boot == self._table.boot else rebase(loaded.record, now)
            after, wakes = without_client(record, client, now)
            if after is record or self.store(execute, key, loaded, after, wall_us()):
                return wakes
        raise StoreBusyError

    def _take_shortcut(
        self, execute: Execute, key: bytes, loaded: LoadedRecord, request: Request, now: float, wall: int
    ) -> Outcome | None:
        """Join the queue or hand the lock over on the text of the record. None: no shortcut applies."""
        if loaded.boot != self._table.boot:
            return None
        table, forget_at = self._table, wall + RETENTION_US
        if request.__class__ is Release and not request.linger:
            handoff = shortcuts.hand_over(loaded.text, request.nonce, now, wall)
            if handoff is not None:
                text, successor = handoff
                if table.store_text(execute, key, loaded, text, forget_at, successor=successor.client):
                    return _DONE, (successor,)
        elif request.__class__ is Acquire:
            joined = shortcuts.join_queue(loaded.text, request, now)
            if joined is not None and table.store_text(execute, key, loaded, joined.text, forget_at):
                return joined.reply, ()
        return None

    def _is_plain(self, loaded: LoadedRecord, request: Request, now: float) -> bool:
        """Whether the record alone decides, so that no other client has to be looked up.

        That is so if the lock has no holder and no waiter. It is also so if nothing in the record has expired
        and the request is a release, an acquire by the waiter whose turn it is, or a new place at the end of
        the queue: neither renewals nor deaths would change the result. A dead waiter is found when it is
        woken, a dead holder when it is watched.
        """
        record = loaded.record
        if loaded.boot != self._table.boot:
            return False
        if not record.holders and not record.queue:
            return True
        if request.__class__ is Acquire:
            if not is_decided_without_others(record, request):
                return False
        elif request.__class__ is not Release:
            return False
        at = next_event_at(record)
        return at is None or at > now

    def view(
        self, execute: Execute, loaded: LoadedRecord, now: float, nonce: str = "", fresh: bool = False
    ) -> RecordView:
        directory = self._session.open_registration.directory
        return directory.view(execute, loaded.record, loaded.boot, now, nonce, fresh)

    def _must_rebase(self, loaded: LoadedRecord, request: Request) -> bool:
        """Rebased times are stored once. Otherwise every client that reads them would rebase them again."""
        return (
            loaded.boot != self._table.boot
            and not is_idle(loaded.record)
            and not isinstance(request, Inspect)
        )

    def store(
        self,
        execute: Execute,
        key: bytes,
        loaded: LoadedRecord,
        after: Record,
        wall: int,
        guards: Sequence[Guard] = (),
        successor: str | None = None,
    ) -> bool:
        if not self._table.store(execute, key, loaded, after, wall, guards, successor):
            return False
        for holder in after.holders:
            if holder.ttl < self.shortest_ttl:
                self.shortest_ttl = holder.ttl
        return True

    # --- several changes ------------------------------------------------------------------------

    def update_several(self, execute: Execute, steps: Steps, stop_when_refused: bool) -> list[Step]:
        """Changes of several records, decided outside the transaction and stored in one: all or none."""
        for attempt in range(ATTEMPTS_MAX):
            loaded = {name: self._table.load(execute, name.encode()) for name, _ in steps}
            now, wall = boottime(), wall_us()
            views = {n: self.view(execute, one, now, fresh=attempt > 0) for n, one in loaded.items()}
            dead = frozenset[str]().union(*(view.dead for view in views.values()))
            records = {name: view.record for name, view in views.items()}
            done = apply_in_order(records, steps, now, wall, stop_when_refused, dead)
            after = {name: step.record for (name, _), step in zip(steps, done, strict=False)}
            changes = [
                (name.encode(), loaded[name], record, wall, expiry_guards(views[name], now))
                for name, record in after.items()
                if record is not records[name]
            ]
            if self._store_all(execute, changes):
                return done
            self._session.ensure_registered(execute)
        raise StoreBusyError

    def _store_all(
        self, execute: Execute, changes: list[tuple[bytes, LoadedRecord, Record, int, Sequence[Guard]]]
    ) -> bool:
        if not changes:
            return True
        stored = False
        try:
            execute("BEGIN IMMEDIATE")
            self._table.is_in_transaction = True
            stored = all(self.store(execute, *change) for change in changes)
            execute("COMMIT" if stored else "ROLLBACK")
        except BaseException:
            stored = False
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise
        finally:
            self._table.is_in_transaction = False
            if not stored:
                self._table.clear_caches()
        return stored


def _needs_no_write(step: Step, before: Record, request: Request, now: float) -> bool:
    """Whether nothing changed, or only what the client's own row says already."""
    if step.record is before:
        return True
    if step.reply.__class__ is not Queued or not isinstance(request, Acquire):
        return False
    return keeps_place(before, step.record, request.nonce, now)
