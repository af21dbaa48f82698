"""Records in a SQLite file, shared by the processes of one user.

A change is decided outside any transaction and stored by one statement, which takes effect only if nothing
that it was decided on has changed since. So the writer's lock, which SQLite hands out unfairly, is held for
microseconds, and a process that is stopped rarely stops others.

Why a renewal and a take-over cannot both succeed. A renewal writes the client's row, a take-over the lock's
row. The take-over of an expired lease is stored only if the row of the client that it takes for expired still
says what the decision was made on: one statement, so one moment. If the renewal comes first, the take-over
stores nothing and decides anew. If the take-over comes first, the renewal, which reads the records *after*
writing its row, finds its lease gone and says so. A lease that had expired before the renewal, whether or not
somebody took it, is told as gone and removed: a renewal never brings back what was over.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from ...engine_api import AdapterContext, NotificationReader, Steps
from ...errors import EngineUnavailable
from ...rules import transitions
from ...rules.handoff import apply, successor_of
from ...rules.queueing import next_event_at
from ...rules.record import Record, is_idle, rebase
from ...rules.requests import (
    Absent,
    Acquire,
    Done,
    Gone,
    Inspect,
    Queued,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Snapshot,
    Wake,
)
from ...rules.transitions import Step, apply_in_order
from ...runtime.adaptive_spin import yield_processor
from ...runtime.clock import boottime, wall_us
from ..local import StoreBusyError
from . import shortcuts
from .claims import (
    QueueView,
    expiry_guards,
    holder_of,
    is_decided_without_others,
    keeps_place,
    lease_ends_at,
    watch_expires_soon,
    without_client,
)
from .clients import RecordView
from .codec import SchemaTooNew
from .connection import explain
from .database_file import DatabaseFile
from .liveness import Status
from .records import RETENTION_US, Execute, Guard, LoadedRecord
from .registration import LOCAL_CLIENTS
from .session import ClientSession
from .sockets import SendResult

if TYPE_CHECKING:
    import asyncio

__all__ = ["SqliteStore"]

ATTEMPTS_MAX: Final = 8
"""How often a change is decided anew at once; after that the caller pauses."""

HANDOFF_ATTEMPTS_MAX: Final = 3
"""How often it is tried to hand a lock over: it cannot be, to one who died. That one gets a turn."""

_DONE: Final = Done()
_NO_GUARDS: Final[Sequence[Guard]] = ()

Outcome = tuple[Reply, tuple[Wake, ...]]
"""What a request is answered, and who is to be woken."""


class _RenewalRound(NamedTuple):
    """One tending: when the client renewed now and before, and what was looked at on the way."""

    renewed_before: float
    now: float
    standings: dict[bytes, QueueView]
    wakes: list[tuple[bytes, tuple[Wake, ...]]]


class SqliteStore:
    """One client's view of the database."""

    def __init__(self, file: DatabaseFile, namespace: str, context: AdapterContext) -> None:
        self._file = file
        self._session = ClientSession(file, namespace, context)
        self._table = self._session.table
        self._client = context.client
        self._shortest_ttl = inf
        """No lease of ours has a shorter one."""
        self._yields_processor = False
        """It is a thread that calls, and no event loop waits for it."""
        self.close = self._session.close
        self.forked = self._session.forked

    @property
    def source(self) -> str:
        return self._session.source

    # --- what an adapter asks for ---------------------------------------------------------------

    def apply(self, name: str, request: Request) -> Reply:
        key, session = name.encode(), self._session
        if request.__class__ is Acquire and request.ttl < self._shortest_ttl:
            self._shortest_ttl = request.ttl  # it may be granted without another word here
        try:
            with session.database.mutex:
                execute = session.open(request.__class__ is Acquire)
                told = self._change_unread(execute, key, request) or self._change(execute, key, request)
                reply, wakes = told
        except sqlite3.Error as error:
            raise explain(self._file, error) from error
        if wakes:
            self._wake(key, wakes)
            if self._table.unpublished_handoffs:
                if self._yields_processor:
                    yield_processor()  # the heir first, where one processor has both
                with session.database.mutex:
                    self._table.publish_handoffs()
        return reply

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        session = self._session
        try:
            with session.database.mutex:
                done = self._change_several(session.open(to_acquire=True), steps, stop_when_refused)
        except sqlite3.Error as error:
            raise explain(self._file, error) from error
        for (name, _), step in zip(steps, done, strict=False):
            self._wake(name.encode(), step.wake)
        return [step.reply for step in done]

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        session = self._session
        try:
            with session.database.mutex:
                execute = session.open(to_acquire=True)
                found = self._table.load_prefix(execute, prefix.encode())
                return [(key.decode(), told) for key, told in self._snapshots(execute, found)]
        except sqlite3.Error as error:
            raise explain(self._file, error) from error

    def _snapshots(
        self, execute: Execute, found: Iterable[tuple[bytes, LoadedRecord]]
    ) -> Iterable[tuple[bytes, Snapshot]]:
        now, wall = boottime(), wall_us()
        for key, loaded in found:
            if is_idle(loaded.record) and loaded.record.value is None:
                continue
            view = self._view(execute, loaded, now)
            told = apply(view.record, Inspect(), now, wall, view.dead).reply
            if isinstance(told, Snapshot) and not (is_idle(told.record) and told.record.value is None):
                yield key, told

    # --- one change -----------------------------------------------------------------------------

    def _change(self, execute: Execute, key: bytes, request: Request) -> Outcome:
        for attempt in range(ATTEMPTS_MAX):
            loaded = self._table.load(execute, key)
            now, wall = boottime(), wall_us()
            hands_over = attempt < HANDOFF_ATTEMPTS_MAX or request.__class__ is not Release
            told = self._take_shortcut(execute, key, loaded, request, now, wall) if hands_over else None
            if told is not None:
                return told
            rule = apply if hands_over else transitions.apply
            if self._is_plain(loaded, request, now):
                record, guards = loaded.record, _NO_GUARDS
                step = rule(record, request, now, wall)
            else:
                view = self._view(execute, loaded, now, getattr(request, "nonce", ""), fresh=attempt > 0)
                record, guards = view.record, expiry_guards(view, now)
                step = rule(record, request, now, wall, view.dead)
            if not self._is_to_be_rebased(loaded, request) and _needs_no_write(step, record, request, now):
                return step.reply, ()  # perhaps it was written by another, for us
            if self._store(execute, key, loaded, step.record, wall, guards, successor_of(request, step)):
                return step.reply, step.wake
            self._session.ensure_registered(execute)
        raise StoreBusyError

    def _change_unread(self, execute: Execute, key: bytes, request: Request) -> Outcome | None:
        """Without reading first, if what we know of it is all there is to know; None: it is not."""
        recalled = self._table.recall(key)
        if recalled is None:
            return None
        now, wall = boottime(), wall_us()
        told = self._take_shortcut(execute, key, recalled, request, now, wall)
        if told is not None:
            return told
        if self._table.is_outdated(key, recalled):
            return None
        try:
            before = recalled.record
        except (ValueError, TypeError, AttributeError, SchemaTooNew):
            return None  # whoever reads it where it is stored says so
        if not self._is_plain(recalled, request, now):
            return None
        step = apply(before, request, now, wall)
        after = step.record
        if after is before:
            return None  # nothing would be stored: whether it is still so, only a look can tell
        stored = self._store(execute, key, recalled, after, wall, _NO_GUARDS, successor_of(request, step))
        return (step.reply, step.wake) if stored else None

    def _take_shortcut(
        self, execute: Execute, key: bytes, loaded: LoadedRecord, request: Request, now: float, wall: int
    ) -> Outcome | None:
        """Where others wait: joining the line and handing over, without understanding all of the record."""
        if loaded.boot != self._table.boot:
            return None
        table, forget_at = self._table, wall + RETENTION_US
        if request.__class__ is Release and not request.linger:
            handed = shortcuts.hand_over(loaded.text, request.nonce, now, wall)
            if handed is not None:
                text, successor = handed
                if table.store_text(execute, key, loaded, text, forget_at, successor=successor.client):
                    return _DONE, (successor,)
        elif request.__class__ is Acquire:
            joined = shortcuts.joined(loaded.text, request, now)
            if joined is not None and table.store_text(execute, key, loaded, joined.text, forget_at):
                return joined.reply, ()
        return None

    def _is_plain(self, loaded: LoadedRecord, request: Request, now: float) -> bool:
        """Whether the record says all there is to know, so that nobody in it needs to be looked up.

        That is where nobody is in it; and where nothing in it has run out, for giving back, for taking
        when one's turn has come, and for a place at the end of the queue: neither renewals nor deaths would
        change what is left. A dead waiter is found out when it is woken, a dead holder when it is watched.
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

    def _view(
        self, execute: Execute, loaded: LoadedRecord, now: float, nonce: str = "", fresh: bool = False
    ) -> RecordView:
        return self._session.open_registration.directory.view(
            execute, loaded.record, loaded.boot, now, nonce, fresh
        )

    def _is_to_be_rebased(self, loaded: LoadedRecord, request: Request) -> bool:
        """Times of another clock are told anew once, and kept, or they would begin again with every look."""
        return (
            loaded.boot != self._table.boot
            and not is_idle(loaded.record)
            and not isinstance(request, Inspect)
        )

    def _store(
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
            if holder.ttl < self._shortest_ttl:
                self._shortest_ttl = holder.ttl
        return True

    # --- several at once ------------------------------------------------------------------------

    def _change_several(self, execute: Execute, steps: Steps, stop_when_refused: bool) -> list[Step]:
        """Decided outside the transaction, as ever; stored in one, all or nothing."""
        for attempt in range(ATTEMPTS_MAX):
            loaded = {name: self._table.load(execute, name.encode()) for name, _ in steps}
            now, wall = boottime(), wall_us()
            views = {n: self._view(execute, one, now, fresh=attempt > 0) for n, one in loaded.items()}
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
        execute("BEGIN IMMEDIATE")
        stored = False
        self._table.is_in_transaction = True
        try:
            stored = all(self._store(execute, *change) for change in changes)
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

    # --- the keeper's batch ---------------------------------------------------------------------

    def renew_batch(self, steps: Steps) -> list[Reply]:
        """Renew the client as a whole, with one row; then see what that reached."""
        session = self._session
        try:
            with session.database.mutex:
                if session.is_replaced():
                    session.disconnect()
                    return [_database_gone(request) for _, request in steps]
                execute = session.open()
                this = _RenewalRound(session.open_registration.renewed_at, boottime(), {}, [])
                if not session.open_registration.renew(execute, this.now):
                    session.register_again(execute)
                elif this.now - this.renewed_before >= self._shortest_ttl:
                    self._remove_expired(execute, this)
                replies = self._look_after(execute, steps, this)
        except sqlite3.Error as error:
            raise explain(self._file, error) from error
        for key, due in this.wakes:
            self._wake(key, due)
        session.janitor.start_if_due()
        return replies

    def _remove_expired(self, execute: Execute, this: _RenewalRound) -> None:
        """The renewal came late. What it came too late for is in force again by our row, and must go.

        That is also what nobody here asks to renew any more, because it was given up meanwhile.
        """
        self._shortest_ttl = inf
        for key, loaded in self._table.load_of_client(execute, self._client):
            for holder in loaded.record.holders:
                if holder.client != self._client or loaded.boot != self._table.boot:
                    continue
                if lease_ends_at(holder, this.renewed_before) <= this.now:
                    self._changed(execute, key, Release(holder.nonce), this)
                else:
                    self._shortest_ttl = min(self._shortest_ttl, holder.ttl)
            for waiter in loaded.record.queue:
                if waiter.client == self._client and waiter.wants is not None:
                    self._shortest_ttl = min(self._shortest_ttl, waiter.wants.ttl)

    def _look_after(self, execute: Execute, steps: Steps, this: _RenewalRound) -> list[Reply]:
        """Reads after the row was written: what is still there now, nobody can take over as expired."""
        keys = [name.encode() for name, _ in steps]
        found = self._table.load_several(execute, list(dict.fromkeys(keys)))
        replies: list[Reply] = []
        for key, (_, request) in zip(keys, steps, strict=True):
            loaded = found.get(key) or self._table.absent(Record())
            if isinstance(request, Renew):
                reply = self._renewed(execute, key, loaded, request, this)
            elif isinstance(request, Refresh):
                reply = self._refreshed(execute, key, loaded, request, this)
            else:
                reply = self._changed(execute, key, request, this)
            replies.append(reply)
        return replies

    def _renewed(
        self, execute: Execute, key: bytes, loaded: LoadedRecord, request: Renew, this: _RenewalRound
    ) -> Reply:
        """Stored only where the client's row does not say it already."""
        holder = holder_of(loaded.record, request.nonce)
        if holder is None or loaded.boot != self._table.boot:
            return self._changed(execute, key, request, this)
        if lease_ends_at(holder, this.renewed_before) <= this.now:
            self._changed(execute, key, Release(request.nonce), this)
            return Gone("expired")
        if not holder.renews or holder.ttl != request.ttl:
            return self._changed(execute, key, request, this)
        return _DONE

    def _refreshed(
        self, execute: Execute, key: bytes, loaded: LoadedRecord, request: Refresh, this: _RenewalRound
    ) -> Reply:
        """Where one stands; the place itself is kept by the client's row."""
        if watch_expires_soon(loaded.record, request.nonce, this.now):
            return self._changed(execute, key, request, this)
        standing = this.standings.get(key)
        if standing is None:
            standing = QueueView(self._view(execute, loaded, this.now), this.now)
            this.standings[key] = standing
        return standing.of(request.nonce)

    def _changed(self, execute: Execute, key: bytes, request: Request, this: _RenewalRound) -> Reply:
        reply, wake = self._change(execute, key, request)
        if wake:
            this.wakes.append((key, wake))
        return reply

    # --- waking others --------------------------------------------------------------------------

    def _wake(self, key: bytes, wakes: Iterable[Wake]) -> None:
        """Tell those whom a change concerns. Who cannot be told may be dead: then the next one is told."""
        registration, due = self._session.registration, [*wakes]
        for wake in due:
            here = LOCAL_CLIENTS.get(wake.client)
            peer = None if here is None else here()
            if peer is not None:
                peer.tell(wake.nonce, wake.handed)
            elif registration is not None and registration.wakeup_socket.send(wake) is SendResult.REFUSED:
                # Nothing is lost if that fails: the next waiter looks by itself before long.
                with contextlib.suppress(StoreBusyError, EngineUnavailable, sqlite3.Error):
                    due += self._drop_if_dead(key, wake.client)

    def _drop_if_dead(self, key: bytes, client: str) -> tuple[Wake, ...]:
        """Take out of this record what a dead client claims; tells who is to be woken in its place."""
        with self._session.database.mutex:
            execute = self._session.open()
            directory = self._session.open_registration.directory
            row = directory.load(execute, [client])[client]
            status = directory.probe(client, None if row is None else row.identity)
            if status is Status.ALIVE or (status is Status.UNKNOWN and row is not None and not row.dead):
                return ()
            if row is not None:
                directory.mark_dead(execute, client, row)
            return self._drop(execute, key, client)

    def _drop(self, execute: Execute, key: bytes, client: str) -> tuple[Wake, ...]:
        for _ in range(ATTEMPTS_MAX):
            loaded = self._table.load(execute, key)
            now = boottime()
            record = loaded.record if loaded.boot == self._table.boot else rebase(loaded.record, now)
            after, wakes = without_client(record, client, now)
            if after is record or self._store(execute, key, loaded, after, wall_us()):
                return wakes
        raise StoreBusyError

    # --- hearing from others --------------------------------------------------------------------

    def listen_in_thread(self) -> None:
        self._yields_processor = True
        if not self._session.is_listening:
            self._listen(None)

    def listen_in_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._listen(loop)

    def _listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        try:
            with self._session.database.mutex:
                self._session.listen(loop)
        except sqlite3.Error as error:
            raise explain(self._file, error) from error

    @property
    def notification_reader(self) -> NotificationReader | None:
        registration = self._session.registration
        return None if registration is None else registration.listener.notification_reader

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        registration = self._session.registration
        if registration is None:
            return
        known = registration.directory.known_identity
        others = {client: known(client) for client in clients if client not in LOCAL_CLIENTS}
        strangers = [client for client in others if others[client] is None] if None in others.values() else ()
        if strangers:
            # Nothing is lost if that fails: they are probed now and then.
            with (
                contextlib.suppress(sqlite3.Error, StoreBusyError, EngineUnavailable),
                self._session.database.mutex,
            ):
                for client, row in registration.directory.load(self._session.open(), strangers).items():
                    others[client] = None if row is None else row.identity
        registration.listener.watch(nonce, others)

    def unlisten(self, nonce: str, name: str | None) -> None:
        """A client has one inbox, whatever it waits for."""
        if self._session.registration is not None:
            self._session.registration.listener.unwatch(nonce)


def _needs_no_write(step: Step, before: Record, request: Request, now: float) -> bool:
    """Nothing needs to be stored: nothing changed, or nothing that the client's own row does not say."""
    if step.record is before:
        return True
    if step.reply.__class__ is not Queued or not isinstance(request, Acquire):
        return False
    return keeps_place(before, step.record, request.nonce, now)


def _database_gone(request: Request) -> Reply:
    if isinstance(request, Renew):
        return Gone("expired", "the database file was deleted or replaced")
    return Absent()
