"""One client's presence at the database: connected when needed, moved when it moves, left in the end."""

from __future__ import annotations

import atexit
import contextlib
import os
import sqlite3
import time
import weakref
from typing import TYPE_CHECKING, Final

from ...drivers.adapter import Hooks
from ...drivers.clock import boottime, wall_us
from ...errors import EngineUnavailable
from ...rules.record import rebase
from ..local import Busy
from .board import Board
from .claims import without
from .database import Database, explain
from .janitor import Janitor, is_due, shorten_log
from .membership import Membership
from .place import Place, Side
from .table import Execute, Loaded, Table

if TYPE_CHECKING:
    import asyncio

__all__ = ["Presence"]

LOOK_AT_FILE_SECONDS: Final = 0.1
"""How often an acquire makes sure that the file is still the one that others open, its log not too long."""

GOODBYE_TRIES: Final = 20
GOODBYE_PAUSE_SECONDS: Final = 0.001


class Presence:
    """What one client has open. All but ``close`` and ``forked`` is called with ``database.mutex`` held."""

    def __init__(self, place: Place, namespace: str, hooks: Hooks) -> None:
        self.place = place
        self.database = Database(place)
        self.table = Table(place, namespace, hooks.client)
        self.janitor = Janitor(place)
        self.membership: Membership | None = None
        self.source = ""
        self._namespace = namespace
        self._client = hooks.client
        self._post = hooks.post
        self._pid = os.getpid()
        self._hears_in: list[asyncio.AbstractEventLoop | None] = []
        """Where wake-ups are to be delivered: a loop, or (None) a thread. Empty: nowhere yet."""
        self._file: tuple[int, int] | None = None
        """Which file we are a client of."""
        self._looked_at = 0.0
        self._closed = False
        _all.add(self)

    @property
    def joined(self) -> Membership:
        if self.membership is None:
            raise self.place.unavailable("is not open", "connect again")
        return self.membership

    # --- coming ---------------------------------------------------------------------------------

    def ready(self, to_acquire: bool = False) -> Execute:
        """The way to the database."""
        if os.getpid() != self._pid:
            raise self.place.unavailable(
                "was opened before this process was forked by code that Python does not see",
                "connect again in the child",
            )
        connection = self.database.connection
        if connection is None or self.membership is None:
            return self._connect()
        if to_acquire:
            now = boottime()
            if now - self._looked_at > LOOK_AT_FILE_SECONDS:
                self._looked_at = now
                self.janitor.look_at_log(connection.total_changes)
                if self.has_moved():
                    # What was held there excludes nobody any more; the next renewal tells.
                    return self._connect()
        return connection.execute

    def _connect(self) -> Execute:
        if self._closed:
            raise self.place.unavailable("was closed by this client", "connect again")
        if self.membership is not None and not self.has_moved():
            # The connection was closed for a fork of this process: we are still who we were.
            execute = self.database.open().execute
            if self.database.identity == self._file:
                return execute
        self._let_go()
        try:
            if not self.database.is_of_file():
                self.database.close()
            return self._open()
        except EngineUnavailable as error:
            error.nothing_was_sent = True
            raise

    def _open(self) -> Execute:
        side = self.database.create()
        try:
            execute = self.database.open().execute
            self._join(execute, side)
        except BaseException as error:
            self._let_go()
            # Open, it disturbs nobody; opened and closed at each try, it would lock out others who come.
            if not self._is_busy(error):
                self.database.close()
            side.close()
            raise
        return execute

    def _is_busy(self, error: BaseException) -> bool:
        return isinstance(explain(self.place, error) if isinstance(error, sqlite3.Error) else error, Busy)

    def _join(self, execute: Execute, side: Side) -> None:
        meta = dict(execute("SELECT key, value FROM meta").fetchall())
        try:
            self.membership = Membership(execute, side, self._client, self._post)
        except EngineUnavailable:
            raise
        except OSError as error:
            raise self.place.explain(error) from error
        self.table.boot = self.membership.us.boot
        self.table.board = Board(side, self._namespace)
        self.source = f"sqlite:{meta['source']}/{self._namespace}"
        self._file = self.database.identity
        self._looked_at = boottime()
        for loop in self._hears_in:
            self.membership.listen(loop)
        if is_due(meta["swept_at"], wall_us()):
            self.janitor.start()

    @property
    def is_heard(self) -> bool:
        """Whether wake-ups are delivered already, by a thread."""
        membership = self.membership
        return membership is not None and membership.listener.is_running

    def listen(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Deliver wake-ups from now on, also when the database is another one day."""
        self._hears_in = [loop]
        self.ready()
        self.joined.listen(loop)

    # --- being taken for dead -------------------------------------------------------------------

    def stay_registered(self, execute: Execute) -> None:
        """A change was not stored. Where that is because others took us for dead, join again."""
        if not self.joined.is_registered(execute):
            self.rejoin(execute)

    def rejoin(self, execute: Execute) -> None:
        """Others took us for dead, so that all we claimed is void: take it out, then be a client anew."""
        self.table.forget()
        execute("BEGIN IMMEDIATE")
        try:
            for key, loaded in self.table.load_of_client(execute, self._client):
                self._take_out(execute, key, loaded)
            execute("DELETE FROM clients WHERE id = ?", (self._client,))
            execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                execute("ROLLBACK")
            raise
        self.joined.close()
        self.table.board.close()
        self.membership = None
        self._join(execute, self.place.open_side())

    def _take_out(self, execute: Execute, key: bytes, loaded: Loaded) -> None:
        now = boottime()
        record = loaded.record if loaded.boot == self.table.boot else rebase(loaded.record, now)
        after, _ = without(record, self._client, now)
        self.table.overwrite(execute, key, loaded, after, wall_us())

    # --- going ----------------------------------------------------------------------------------

    def has_moved(self) -> bool:
        """The file was deleted or replaced: what we hold there excludes nobody any more."""
        try:
            return self.membership is not None and self.place.identity() != self._file
        except EngineUnavailable:
            return False  # It cannot be seen (its folder was closed to us), which is not being gone.

    def leave(self) -> None:
        """Let go of the database without a word."""
        self._let_go()
        self.database.close()

    def _let_go(self) -> None:
        """Be no client any more."""
        membership, self.membership = self.membership, None
        if membership is not None:
            membership.close()
        self.table.board.close()
        self.table.forget()

    def close(self) -> None:
        """Say goodbye and let go of everything. Safe to call again."""
        self._closed = True
        if os.getpid() != self._pid:
            self.database.forked()
            return
        membership = self.membership
        if membership is not None:
            # Before the mutex is taken: whom the listener wakes may want it.
            membership.listener.close()
        with self.database.mutex:
            if self.membership is not None and not self.has_moved():
                self._say_goodbye(self.membership)
                self._shorten_log()
            self.leave()

    def _say_goodbye(self, membership: Membership) -> None:
        """If it does not get through: the lock on our file is let go of, and says the same."""
        for _ in range(GOODBYE_TRIES):
            with contextlib.suppress(sqlite3.Error, Busy, EngineUnavailable):
                membership.say_goodbye(self.database.open().execute)
                return
            time.sleep(GOODBYE_PAUSE_SECONDS)

    def _shorten_log(self) -> None:
        """If it cannot be now: the next one who leaves does it, or the janitor."""
        connection = self.database.connection
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                shorten_log(self.place, connection.execute)

    def forked(self) -> None:
        """This is the child: let go of everything inherited without a word."""
        self._closed = True
        membership, self.membership = self.membership, None
        if membership is not None:
            membership.forked()
        self.table.board.close()
        self.database.forked()

    def __del__(self) -> None:
        # Dropped without close(). A child of a fork leaves alone what is its parent's.
        if getattr(self, "_closed", True) or (self.membership is None and self.database.connection is None):
            return
        self.close()


_all: weakref.WeakSet[Presence] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for presence in list(_all):
        presence.close()
