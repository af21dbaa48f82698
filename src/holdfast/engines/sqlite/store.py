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

import asyncio
import atexit
import contextlib
import os
import sqlite3
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from ...drivers.adapter import Hooks, Steps
from ...drivers.clock import boottime, wall_us
from ...errors import EngineUnavailable
from ...rules.queueing import next_event_at
from ...rules.record import PATIENCE_SECONDS, Holder, Record, capped, is_idle, rebase
from ...rules.requests import (
    Absent,
    Acquire,
    Done,
    Gone,
    Inspect,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Snapshot,
    Unwatch,
    Wake,
    Withdraw,
)
from ...rules.transitions import Step, apply, apply_in_order
from ..local import Busy
from .census import View
from .database import Database, explain
from .janitor import Janitor, is_due
from .liveness import Status
from .membership import HERE, Membership
from .place import Place, Side
from .table import Execute, Guard, Loaded, Table
from .wakeups import Sent

__all__ = ["SqliteStore"]

TRIES: Final = 8
"""How often a change is decided anew at once; after that the caller pauses."""

LOOK_AT_FILE_SECONDS: Final = 0.1
"""How often an acquire makes sure that the file is still the one that others open."""

GOODBYE_TRIES: Final = 20
GOODBYE_PAUSE_SECONDS: Final = 0.001
_DONE: Final = Done()
_NOBODY: Final[Sequence[Guard]] = ()


class SqliteStore:
    """One client's view of the database."""

    def __init__(self, place: Place, namespace: str, hooks: Hooks) -> None:
        self._place = place
        self._namespace = namespace
        self._client = hooks.client
        self._post = hooks.post
        self._pid = os.getpid()
        self._database = Database(place)
        self._table = Table(place, namespace, hooks.client)
        self._janitor = Janitor(place)
        self._membership: Membership | None = None
        self._hears_in: list[asyncio.AbstractEventLoop | None] = []
        """Where wake-ups are to be delivered: a loop, or (None) a thread. Empty: nowhere yet."""
        self._file: tuple[int, int] | None = None
        """Which file we are a client of."""
        self._looked_at = 0.0
        self._closed = False
        self.source = ""
        _stores.add(self)

    # --- what an adapter asks for ---------------------------------------------------------------

    def apply(self, name: str, request: Request) -> Reply:
        key = name.encode()
        try:
            with self._database.mutex:
                step = self._change(self._ready(request.__class__ is Acquire), key, request)
        except sqlite3.Error as error:
            raise explain(self._place, error) from error
        if step.wake:
            self._wake(key, step.wake)
        return step.reply

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        try:
            with self._database.mutex:
                done = self._change_several(self._ready(True), steps, stop_when_refused)
        except sqlite3.Error as error:
            raise explain(self._place, error) from error
        for (name, _), step in zip(steps, done, strict=False):
            self._wake(name.encode(), step.wake)
        return [step.reply for step in done]

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        try:
            with self._database.mutex:
                execute = self._ready(True)
                found = self._table.load_prefix(execute, prefix.encode())
                return [(key.decode(), told) for key, told in self._snapshots(execute, found)]
        except sqlite3.Error as error:
            raise explain(self._place, error) from error

    def _snapshots(
        self, execute: Execute, found: Iterable[tuple[bytes, Loaded]]
    ) -> Iterable[tuple[bytes, Snapshot]]:
        now, wall = boottime(), wall_us()
        for key, loaded in found:
            if is_idle(loaded.record) and loaded.record.value is None:
                continue
            view = self._view(execute, loaded, Inspect(), now)
            told = apply(view.record, Inspect(), now, wall, view.dead).reply
            if isinstance(told, Snapshot) and not (is_idle(told.record) and told.record.value is None):
                yield key, told

    # --- one change -----------------------------------------------------------------------------

    def _change(self, execute: Execute, key: bytes, request: Request) -> Step:
        recalled = self._table.recall(key)
        if recalled is not None:
            step = self._change_unread(execute, key, recalled, request)
            if step is not None:
                return step
        for attempt in range(TRIES):
            loaded = self._table.load(execute, key)
            now, wall = boottime(), wall_us()
            if self._is_plain(loaded, request, now):
                record, expired = loaded.record, _NOBODY
                step = apply(record, request, now, wall)
            else:
                view = self._view(execute, loaded, request, now, fresh=attempt > 0)
                record, expired = view.record, _expired(view, now)
                step = apply(record, request, now, wall, view.dead)
            if step.record is record and not self._is_to_be_rebased(loaded, request):
                return step
            if self._store(execute, key, loaded, step.record, wall, expired):
                return step
            self._stay_registered(execute)
        raise Busy

    def _change_unread(self, execute: Execute, key: bytes, recalled: Loaded, request: Request) -> Step | None:
        """Without reading first, if all there is to know is what we wrote there last; None: it is not."""
        now, wall = boottime(), wall_us()
        if not self._is_plain(recalled, request, now):
            return None
        step = apply(recalled.record, request, now, wall)
        if step.record is not recalled.record and self._store(execute, key, recalled, step.record, wall):
            return step
        return None

    def _is_plain(self, loaded: Loaded, request: Request, now: float) -> bool:
        """Whether the record says all there is to know, so that nobody in it needs to be looked up.

        That is where nobody is in it; and for giving back where nothing in it has run out: neither
        renewals nor deaths would change what is left (a dead waiter is found out when it is woken).
        """
        record = loaded.record
        if loaded.boot != self._table.boot:
            return False
        if not record.holders and not record.queue:
            return True
        if request.__class__ is not Release:
            return False
        at = next_event_at(record)
        return at is None or at > now

    def _view(
        self, execute: Execute, loaded: Loaded, request: Request, now: float, fresh: bool = False
    ) -> View:
        nonce = getattr(request, "nonce", "")
        return self._joined.census.view(execute, loaded.record, loaded.boot, now, nonce, fresh)

    def _is_to_be_rebased(self, loaded: Loaded, request: Request) -> bool:
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
        loaded: Loaded,
        after: Record,
        wall: int,
        expired: Sequence[Guard] = (),
    ) -> bool:
        stored = self._table.store(execute, key, loaded, after, wall, expired)
        if stored:
            self._janitor.count()
        return stored

    # --- several at once ------------------------------------------------------------------------

    def _change_several(self, execute: Execute, steps: Steps, stop_when_refused: bool) -> list[Step]:
        """Decided outside the transaction, as ever; stored in one, all or nothing."""
        for attempt in range(TRIES):
            loaded = {name: self._table.load(execute, name.encode()) for name, _ in steps}
            now, wall = boottime(), wall_us()
            views = {n: self._view(execute, one, Inspect(), now, attempt > 0) for n, one in loaded.items()}
            dead = frozenset[str]().union(*(view.dead for view in views.values()))
            records = {name: view.record for name, view in views.items()}
            done = apply_in_order(records, steps, now, wall, stop_when_refused, dead)
            after = {name: step.record for (name, _), step in zip(steps, done, strict=False)}
            changes = [
                (name.encode(), loaded[name], record, wall, _expired(views[name], now))
                for name, record in after.items()
                if record is not records[name]
            ]
            if self._store_all(execute, changes):
                return done
            self._stay_registered(execute)
        raise Busy

    def _store_all(
        self, execute: Execute, changes: list[tuple[bytes, Loaded, Record, int, Sequence[Guard]]]
    ) -> bool:
        if not changes:
            return True
        execute("BEGIN IMMEDIATE")
        try:
            stored = all(self._store(execute, *change) for change in changes)
            execute("COMMIT" if stored else "ROLLBACK")
        except BaseException:
            self._table.forget()
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise
        if not stored:
            self._table.forget()
        return stored

    # --- the keeper's batch ---------------------------------------------------------------------

    def tend(self, steps: Steps) -> list[Reply]:
        """Renew the client as a whole, with one row; then see what that reached."""
        try:
            with self._database.mutex:
                if self._has_moved():
                    self._leave()
                    return [_database_gone(request) for _, request in steps]
                execute = self._ready(False)
                renewed_before, now = self._joined.renewed_at, boottime()
                if not self._joined.renew(execute, now):
                    self._rejoin(execute)
                replies, wakes = self._look_after(execute, steps, renewed_before, now)
        except sqlite3.Error as error:
            raise explain(self._place, error) from error
        for key, due in wakes:
            self._wake(key, due)
        self._janitor.look()
        return replies

    def _look_after(
        self, execute: Execute, steps: Steps, renewed_before: float, now: float
    ) -> tuple[list[Reply], list[tuple[bytes, tuple[Wake, ...]]]]:
        """Reads after the row was written: what is still there now, nobody can take over as expired."""
        keys = [name.encode() for name, _ in steps]
        found = self._table.load_several(execute, list(dict.fromkeys(keys)))
        replies: list[Reply] = []
        wakes = []
        for key, (_, request) in zip(keys, steps, strict=True):
            loaded = found.get(key) or Loaded(-1, self._table.boot, Record())
            if isinstance(request, Renew) and self._is_renewed(loaded, request, renewed_before, now):
                replies.append(_DONE)
                continue
            step = self._tend_one(execute, key, loaded, request, renewed_before, now)
            replies.append(step.reply)
            if step.wake:
                wakes.append((key, step.wake))
        return replies, wakes

    def _is_renewed(self, loaded: Loaded, request: Renew, renewed_before: float, now: float) -> bool:
        """The lease is there, had not run out before, and lasts longer by the client's row alone."""
        holder = _holder(loaded, request)
        return (
            holder is not None
            and loaded.boot == self._table.boot
            and holder.renews
            and holder.ttl == request.ttl
            and _ends_at(holder, renewed_before) > now
        )

    def _tend_one(
        self,
        execute: Execute,
        key: bytes,
        loaded: Loaded,
        request: Request,
        renewed_before: float,
        now: float,
    ) -> Step:
        """By the rule itself; stored only where the client's row does not say it already."""
        if isinstance(request, Renew):
            holder = _holder(loaded, request) if loaded.boot == self._table.boot else None
            if holder is not None and _ends_at(holder, renewed_before) <= now:
                step = self._change(execute, key, Release(request.nonce))
                return Step(step.record, Gone("expired"), step.wake)
        elif isinstance(request, Refresh) and not _is_due_to_watch(loaded.record, request.nonce, now):
            view = self._view(execute, loaded, request, now)
            return Step(view.record, apply(view.record, request, now, wall_us(), view.dead).reply)
        return self._change(execute, key, request)

    # --- waking others --------------------------------------------------------------------------

    def _wake(self, key: bytes, wakes: Iterable[Wake]) -> None:
        """Tell those whom a change concerns. Who cannot be told may be dead: then the next one is told."""
        due = deque(wakes)
        while due:
            wake = due.popleft()
            here, membership = HERE.get(wake.client), self._membership
            if here is not None:
                here.post(wake.nonce)
            elif membership is not None and membership.inbox.send(wake.client, wake.nonce) is Sent.REFUSED:
                # Nothing is lost if that fails: the next waiter looks by itself before long.
                with contextlib.suppress(Busy, EngineUnavailable, sqlite3.Error):
                    due.extend(self._drop_if_dead(key, wake.client))

    def _drop_if_dead(self, key: bytes, client: str) -> tuple[Wake, ...]:
        """Take out of this record what a dead client claims; tells who is to be woken in its place."""
        with self._database.mutex:
            execute = self._ready(False)
            census = self._joined.census
            row = census.load(execute, [client])[client]
            status = census.probe(client, None if row is None else row.identity)
            if status is Status.ALIVE or (status is Status.UNKNOWN and row is not None and not row.dead):
                return ()
            if row is not None:
                census.bury(execute, client, row)
            return self._drop(execute, key, client)

    def _drop(self, execute: Execute, key: bytes, client: str) -> tuple[Wake, ...]:
        for _ in range(TRIES):
            loaded = self._table.load(execute, key)
            done = self._without(key, loaded, client)
            if not done or self._store(execute, key, loaded, done[-1].record, wall_us()):
                return tuple(wake for step in done for wake in step.wake if wake.client != client)
        raise Busy

    def _without(self, key: bytes, loaded: Loaded, client: str) -> list[Step]:
        """The record without a client's claims, step by step."""
        record, name = loaded.record, key.decode()
        ends: list[Request] = [Release(h.nonce) for h in record.holders if h.client == client]
        ends += [Withdraw(w.nonce) for w in record.queue if w.client == client]
        ends += [Unwatch(w.nonce) for w in record.watchers if w.client == client]
        now = boottime()
        if loaded.boot != self._table.boot:
            record = rebase(record, now)
        return apply_in_order({name: record}, [(name, end) for end in ends], now, wall_us(), False)

    # --- hearing from others --------------------------------------------------------------------

    def listen_in_thread(self) -> None:
        self._listen(None)

    def listen_in_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._listen(loop)

    def _listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._hears_in = [loop]
        try:
            with self._database.mutex:
                self._ready(False)
                self._joined.listen(loop)
        except sqlite3.Error as error:
            raise explain(self._place, error) from error

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        membership = self._membership
        if membership is not None:
            others = {client: membership.census.known(client) for client in clients if client not in HERE}
            membership.listener.watch(nonce, others)

    def unwatch_clients(self, nonce: str) -> None:
        if self._membership is not None:
            self._membership.listener.unwatch(nonce)

    # --- being here -----------------------------------------------------------------------------

    @property
    def _joined(self) -> Membership:
        if self._membership is None:
            raise self._place.unavailable("is not open", "connect again")
        return self._membership

    def _ready(self, to_acquire: bool) -> Execute:
        """The way to the database. Called with the mutex held."""
        if os.getpid() != self._pid:
            raise self._place.unavailable(
                "was opened before this process was forked by code that Python does not see",
                "connect again in the child",
            )
        connection = self._database.connection
        if connection is None or self._membership is None:
            return self._connect()
        if to_acquire:
            now = boottime()
            if now - self._looked_at > LOOK_AT_FILE_SECONDS:
                self._looked_at = now
                if self._has_moved():
                    # What was held there excludes nobody any more; the next renewal tells.
                    self._leave()
                    return self._connect()
        return connection.execute

    def _connect(self) -> Execute:
        if self._closed:
            raise self._place.unavailable("was closed by this client", "connect again")
        if self._membership is not None:
            # The connection was closed for a fork of this process: we are still who we were.
            execute = self._database.open().execute
            if self._database.identity == self._file:
                return execute
        self._leave()
        side = self._database.create()
        execute = self._database.open().execute
        try:
            self._join(execute, side)
        except BaseException:
            self._leave()
            side.close()
            raise
        return execute

    def _join(self, execute: Execute, side: Side) -> None:
        meta = dict(execute("SELECT key, value FROM meta").fetchall())
        try:
            self._membership = Membership(execute, side, self._client, self._post)
        except EngineUnavailable:
            raise
        except OSError as error:
            raise self._place.explain(error) from error
        self._table.boot = self._membership.us.boot
        self._file = self._database.identity
        self._looked_at = boottime()
        self.source = f"sqlite:{meta['source']}/{self._namespace}"
        for loop in self._hears_in:
            self._membership.listen(loop)
        if is_due(meta["swept_at"], wall_us()):
            self._janitor.start()

    def _has_moved(self) -> bool:
        """The file was deleted or replaced: what we hold there excludes nobody any more."""
        return self._membership is not None and self._place.identity() != self._file

    def _leave(self) -> None:
        """Let go of the database without a word. Called with the mutex held."""
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.close()
        self._database.close()
        self._table.forget()

    def _stay_registered(self, execute: Execute) -> None:
        """A change was not stored. Where that is because others took us for dead, join again."""
        if not self._joined.is_registered(execute):
            self._rejoin(execute)

    def _rejoin(self, execute: Execute) -> None:
        """Others took us for dead, so that all we claimed is void: take it out, then be a client anew."""
        execute("BEGIN IMMEDIATE")
        try:
            for key, loaded in self._table.load_of_client(execute, self._client):
                done = self._without(key, loaded, self._client)
                if done:
                    self._table.overwrite(execute, key, loaded, done[-1].record, wall_us())
            execute("DELETE FROM clients WHERE id = ?", (self._client,))
            execute("COMMIT")
        except BaseException:
            self._table.forget()
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise
        self._table.forget()
        self._joined.close()
        self._membership = None
        self._join(execute, self._place.open_side())

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Say goodbye and let go of everything. Safe to call again."""
        self._closed = True
        if os.getpid() != self._pid:
            return
        membership = self._membership
        if membership is not None:
            # Before the mutex is taken: whom the listener wakes may want it.
            membership.listener.close()
        with self._database.mutex:
            if self._membership is not None and not self._has_moved():
                self._say_goodbye(self._membership)
            self._leave()

    def _say_goodbye(self, membership: Membership) -> None:
        """If it does not get through: the lock on our file is let go of, and says the same."""
        for _ in range(GOODBYE_TRIES):
            with contextlib.suppress(sqlite3.Error, Busy, EngineUnavailable):
                membership.say_goodbye(self._database.open().execute)
                return
            time.sleep(GOODBYE_PAUSE_SECONDS)

    def forked(self) -> None:
        """This is the child: let go of everything inherited without a word."""
        self._closed = True
        membership, self._membership = self._membership, None
        if membership is not None:
            membership.forked()
        self._database.forked()

    def __del__(self) -> None:
        # Dropped without close(). A child of a fork leaves alone what is its parent's.
        if getattr(self, "_membership", None) is not None:
            self.close()


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _close_all() -> None:
    for store in list(_stores):
        store.close()


atexit.register(_close_all)


def _expired(view: View, now: float) -> Sequence[Guard]:
    """Whose leases this decision takes for expired: it holds only while they have not renewed."""
    return [
        (holder.client, view.renewed_at[holder.client])
        for holder in view.record.holders
        if holder.expires_at <= now
        and holder.renews
        and holder.client in view.renewed_at
        and holder.client not in view.dead
    ]


def _holder(loaded: Loaded, request: Renew) -> Holder | None:
    for holder in loaded.record.holders:
        if holder.nonce == request.nonce:
            return holder
    return None


def _ends_at(holder: Holder, renewed_at: float) -> float:
    """Until when a lease lasts, given when its client last renewed."""
    if not holder.renews:
        return holder.expires_at
    return max(holder.expires_at, capped(renewed_at + holder.ttl, holder.until))


def _is_due_to_watch(record: Record, nonce: str, now: float) -> bool:
    """Renewals reach leases and places in the queue; who watches is refreshed in the record, in good time."""
    return any(w.nonce == nonce and w.expires_at < now + PATIENCE_SECONDS / 2 for w in record.watchers)


def _database_gone(request: Request) -> Reply:
    if isinstance(request, Renew):
        return Gone("expired", "the database file was deleted or replaced")
    return Absent()
