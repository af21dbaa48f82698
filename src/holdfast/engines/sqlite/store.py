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
from ..local import Busy
from . import shortcuts
from .census import View
from .claims import (
    Standing,
    ends_at,
    expired,
    holder_of,
    is_same_place,
    is_told_without_a_look,
    watches_not_much_longer,
    without,
)
from .codec import SchemaTooNew
from .database import explain
from .liveness import Status
from .membership import HERE
from .place import Place
from .presence import Presence
from .table import RETENTION_US, Execute, Guard, Loaded
from .wakeups import Sent

if TYPE_CHECKING:
    import asyncio

__all__ = ["SqliteStore"]

TRIES: Final = 8
"""How often a change is decided anew at once; after that the caller pauses."""

HANDING_TRIES: Final = 3
"""How often it is tried to hand a lock over: it cannot be, to one who died. That one gets a turn."""

_DONE: Final = Done()
_NOBODY: Final[Sequence[Guard]] = ()

Told = tuple[Reply, tuple[Wake, ...]]
"""What a request is answered, and who is to be woken."""


class _Round(NamedTuple):
    """One tending: when the client renewed now and before, and what was looked at on the way."""

    renewed_before: float
    now: float
    standings: dict[bytes, Standing]
    wakes: list[tuple[bytes, tuple[Wake, ...]]]


class SqliteStore:
    """One client's view of the database."""

    def __init__(self, place: Place, namespace: str, hooks: AdapterContext) -> None:
        self._place = place
        self._presence = Presence(place, namespace, hooks)
        self._table = self._presence.table
        self._client = hooks.client
        self._shortest_ttl = inf
        """No lease of ours has a shorter one."""
        self._lets_others_run = False
        """It is a thread that calls, and no event loop waits for it."""
        self.close = self._presence.close
        self.forked = self._presence.forked

    @property
    def source(self) -> str:
        return self._presence.source

    # --- what an adapter asks for ---------------------------------------------------------------

    def apply(self, name: str, request: Request) -> Reply:
        key, presence = name.encode(), self._presence
        if request.__class__ is Acquire and request.ttl < self._shortest_ttl:
            self._shortest_ttl = request.ttl  # it may be granted without another word here
        try:
            with presence.database.mutex:
                execute = presence.ready(request.__class__ is Acquire)
                told = self._change_unread(execute, key, request) or self._change(execute, key, request)
                reply, wakes = told
        except sqlite3.Error as error:
            raise explain(self._place, error) from error
        if wakes:
            self._wake(key, wakes)
            if self._table.unshown:
                if self._lets_others_run:
                    yield_processor()  # the heir first, where one processor has both
                with presence.database.mutex:
                    self._table.show()
        return reply

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        presence = self._presence
        try:
            with presence.database.mutex:
                done = self._change_several(presence.ready(to_acquire=True), steps, stop_when_refused)
        except sqlite3.Error as error:
            raise explain(self._place, error) from error
        for (name, _), step in zip(steps, done, strict=False):
            self._wake(name.encode(), step.wake)
        return [step.reply for step in done]

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        presence = self._presence
        try:
            with presence.database.mutex:
                execute = presence.ready(to_acquire=True)
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
            view = self._view(execute, loaded, now)
            told = apply(view.record, Inspect(), now, wall, view.dead).reply
            if isinstance(told, Snapshot) and not (is_idle(told.record) and told.record.value is None):
                yield key, told

    # --- one change -----------------------------------------------------------------------------

    def _change(self, execute: Execute, key: bytes, request: Request) -> Told:
        for attempt in range(TRIES):
            loaded = self._table.load(execute, key)
            now, wall = boottime(), wall_us()
            hands_over = attempt < HANDING_TRIES or request.__class__ is not Release
            told = self._take_shortcut(execute, key, loaded, request, now, wall) if hands_over else None
            if told is not None:
                return told
            rule = apply if hands_over else transitions.apply
            if self._is_plain(loaded, request, now):
                record, guards = loaded.record, _NOBODY
                step = rule(record, request, now, wall)
            else:
                view = self._view(execute, loaded, now, getattr(request, "nonce", ""), fresh=attempt > 0)
                record, guards = view.record, expired(view, now)
                step = rule(record, request, now, wall, view.dead)
            if not self._is_to_be_rebased(loaded, request) and _is_told_already(step, record, request, now):
                return step.reply, ()  # perhaps it was written by another, for us
            if self._store(execute, key, loaded, step.record, wall, guards, successor_of(request, step)):
                return step.reply, step.wake
            self._presence.stay_registered(execute)
        raise Busy

    def _change_unread(self, execute: Execute, key: bytes, request: Request) -> Told | None:
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
        stored = self._store(execute, key, recalled, after, wall, _NOBODY, successor_of(request, step))
        return (step.reply, step.wake) if stored else None

    def _take_shortcut(
        self, execute: Execute, key: bytes, loaded: Loaded, request: Request, now: float, wall: int
    ) -> Told | None:
        """Where others wait: joining the line and handing over, without understanding all of the record."""
        if loaded.boot != self._table.boot:
            return None
        table, forget_at = self._table, wall + RETENTION_US
        if request.__class__ is Release and not request.linger:
            handed = shortcuts.handed_over(loaded.text, request.nonce, now, wall)
            if handed is not None:
                text, heir = handed
                if table.store_text(execute, key, loaded, text, forget_at, heir=heir.client):
                    return _DONE, (heir,)
        elif request.__class__ is Acquire:
            joined = shortcuts.joined(loaded.text, request, now)
            if joined is not None and table.store_text(execute, key, loaded, joined.text, forget_at):
                return joined.reply, ()
        return None

    def _is_plain(self, loaded: Loaded, request: Request, now: float) -> bool:
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
            if not is_told_without_a_look(record, request):
                return False
        elif request.__class__ is not Release:
            return False
        at = next_event_at(record)
        return at is None or at > now

    def _view(
        self, execute: Execute, loaded: Loaded, now: float, nonce: str = "", fresh: bool = False
    ) -> View:
        return self._presence.joined.census.view(execute, loaded.record, loaded.boot, now, nonce, fresh)

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
        guards: Sequence[Guard] = (),
        heir: str | None = None,
    ) -> bool:
        if not self._table.store(execute, key, loaded, after, wall, guards, heir):
            return False
        for holder in after.holders:
            if holder.ttl < self._shortest_ttl:
                self._shortest_ttl = holder.ttl
        return True

    # --- several at once ------------------------------------------------------------------------

    def _change_several(self, execute: Execute, steps: Steps, stop_when_refused: bool) -> list[Step]:
        """Decided outside the transaction, as ever; stored in one, all or nothing."""
        for attempt in range(TRIES):
            loaded = {name: self._table.load(execute, name.encode()) for name, _ in steps}
            now, wall = boottime(), wall_us()
            views = {n: self._view(execute, one, now, fresh=attempt > 0) for n, one in loaded.items()}
            dead = frozenset[str]().union(*(view.dead for view in views.values()))
            records = {name: view.record for name, view in views.items()}
            done = apply_in_order(records, steps, now, wall, stop_when_refused, dead)
            after = {name: step.record for (name, _), step in zip(steps, done, strict=False)}
            changes = [
                (name.encode(), loaded[name], record, wall, expired(views[name], now))
                for name, record in after.items()
                if record is not records[name]
            ]
            if self._store_all(execute, changes):
                return done
            self._presence.stay_registered(execute)
        raise Busy

    def _store_all(
        self, execute: Execute, changes: list[tuple[bytes, Loaded, Record, int, Sequence[Guard]]]
    ) -> bool:
        if not changes:
            return True
        execute("BEGIN IMMEDIATE")
        stored = False
        self._table.is_tentative = True
        try:
            stored = all(self._store(execute, *change) for change in changes)
            execute("COMMIT" if stored else "ROLLBACK")
        except BaseException:
            stored = False
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise
        finally:
            self._table.is_tentative = False
            if not stored:
                self._table.forget()
        return stored

    # --- the keeper's batch ---------------------------------------------------------------------

    def renew_batch(self, steps: Steps) -> list[Reply]:
        """Renew the client as a whole, with one row; then see what that reached."""
        presence = self._presence
        try:
            with presence.database.mutex:
                if presence.has_moved():
                    presence.leave()
                    return [_database_gone(request) for _, request in steps]
                execute = presence.ready()
                this = _Round(presence.joined.renewed_at, boottime(), {}, [])
                if not presence.joined.renew(execute, this.now):
                    presence.rejoin(execute)
                elif this.now - this.renewed_before >= self._shortest_ttl:
                    self._remove_expired(execute, this)
                replies = self._look_after(execute, steps, this)
        except sqlite3.Error as error:
            raise explain(self._place, error) from error
        for key, due in this.wakes:
            self._wake(key, due)
        presence.janitor.look()
        return replies

    def _remove_expired(self, execute: Execute, this: _Round) -> None:
        """The renewal came late. What it came too late for is in force again by our row, and must go.

        That is also what nobody here asks to renew any more, because it was given up meanwhile.
        """
        self._shortest_ttl = inf
        for key, loaded in self._table.load_of_client(execute, self._client):
            for holder in loaded.record.holders:
                if holder.client != self._client or loaded.boot != self._table.boot:
                    continue
                if ends_at(holder, this.renewed_before) <= this.now:
                    self._changed(execute, key, Release(holder.nonce), this)
                else:
                    self._shortest_ttl = min(self._shortest_ttl, holder.ttl)
            for waiter in loaded.record.queue:
                if waiter.client == self._client and waiter.wants is not None:
                    self._shortest_ttl = min(self._shortest_ttl, waiter.wants.ttl)

    def _look_after(self, execute: Execute, steps: Steps, this: _Round) -> list[Reply]:
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

    def _renewed(self, execute: Execute, key: bytes, loaded: Loaded, request: Renew, this: _Round) -> Reply:
        """Stored only where the client's row does not say it already."""
        holder = holder_of(loaded.record, request.nonce)
        if holder is None or loaded.boot != self._table.boot:
            return self._changed(execute, key, request, this)
        if ends_at(holder, this.renewed_before) <= this.now:
            self._changed(execute, key, Release(request.nonce), this)
            return Gone("expired")
        if not holder.renews or holder.ttl != request.ttl:
            return self._changed(execute, key, request, this)
        return _DONE

    def _refreshed(
        self, execute: Execute, key: bytes, loaded: Loaded, request: Refresh, this: _Round
    ) -> Reply:
        """Where one stands; the place itself is kept by the client's row."""
        if watches_not_much_longer(loaded.record, request.nonce, this.now):
            return self._changed(execute, key, request, this)
        standing = this.standings.get(key)
        if standing is None:
            standing = Standing(self._view(execute, loaded, this.now), this.now)
            this.standings[key] = standing
        return standing.of(request.nonce)

    def _changed(self, execute: Execute, key: bytes, request: Request, this: _Round) -> Reply:
        reply, wake = self._change(execute, key, request)
        if wake:
            this.wakes.append((key, wake))
        return reply

    # --- waking others --------------------------------------------------------------------------

    def _wake(self, key: bytes, wakes: Iterable[Wake]) -> None:
        """Tell those whom a change concerns. Who cannot be told may be dead: then the next one is told."""
        membership, due = self._presence.membership, [*wakes]
        for wake in due:
            here = HERE.get(wake.client)
            peer = None if here is None else here()
            if peer is not None:
                peer.tell(wake.nonce, wake.handed)
            elif membership is not None and membership.inbox.send(wake) is Sent.REFUSED:
                # Nothing is lost if that fails: the next waiter looks by itself before long.
                with contextlib.suppress(Busy, EngineUnavailable, sqlite3.Error):
                    due += self._drop_if_dead(key, wake.client)

    def _drop_if_dead(self, key: bytes, client: str) -> tuple[Wake, ...]:
        """Take out of this record what a dead client claims; tells who is to be woken in its place."""
        with self._presence.database.mutex:
            execute = self._presence.ready()
            census = self._presence.joined.census
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
            now = boottime()
            record = loaded.record if loaded.boot == self._table.boot else rebase(loaded.record, now)
            after, wakes = without(record, client, now)
            if after is record or self._store(execute, key, loaded, after, wall_us()):
                return wakes
        raise Busy

    # --- hearing from others --------------------------------------------------------------------

    def listen_in_thread(self) -> None:
        self._lets_others_run = True
        if not self._presence.is_heard:
            self._listen(None)

    def listen_in_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._listen(loop)

    def _listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        try:
            with self._presence.database.mutex:
                self._presence.listen(loop)
        except sqlite3.Error as error:
            raise explain(self._place, error) from error

    @property
    def notification_reader(self) -> NotificationReader | None:
        membership = self._presence.membership
        return None if membership is None else membership.listener.notification_reader

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        membership = self._presence.membership
        if membership is None:
            return
        known = membership.census.known
        others = {client: known(client) for client in clients if client not in HERE}
        strangers = [client for client in others if others[client] is None] if None in others.values() else ()
        if strangers:
            # Nothing is lost if that fails: they are probed now and then.
            with contextlib.suppress(sqlite3.Error, Busy, EngineUnavailable), self._presence.database.mutex:
                for client, row in membership.census.load(self._presence.ready(), strangers).items():
                    others[client] = None if row is None else row.identity
        membership.listener.watch(nonce, others)

    def unlisten(self, nonce: str, name: str | None) -> None:
        """A client has one inbox, whatever it waits for."""
        if self._presence.membership is not None:
            self._presence.membership.listener.unwatch(nonce)


def _is_told_already(step: Step, before: Record, request: Request, now: float) -> bool:
    """Nothing needs to be stored: nothing changed, or nothing that the client's own row does not say."""
    if step.record is before:
        return True
    if step.reply.__class__ is not Queued or not isinstance(request, Acquire):
        return False
    return is_same_place(before, step.record, request.nonce, now)


def _database_gone(request: Request) -> Reply:
    if isinstance(request, Renew):
        return Gone("expired", "the database file was deleted or replaced")
    return Absent()
