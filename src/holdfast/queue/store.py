"""Runs plans on blocking connections: the queue's own, kept for the next use, or the user's.

What is known about a broken connection becomes ``EngineUnavailable``. Nothing is retried here: after such an
error a change may have been made or not.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from ..errors import EngineUnavailable, InvalidArgument
from ..fencing.connections import FenceTable, table_of
from ..fencing.plans import Plan, run
from ..runtime.clock import boottime
from ..runtime.forks import register_after_fork
from ..runtime.readable import wait_readable
from ..runtime.self_pipe import SelfPipe
from ..sql.failures import translated
from .database import Database, PostgresDatabase
from .migrations import migrate, needs_migration
from .plans import listen_to, next_event
from .texts import Session

__all__ = ["Call", "EventClock", "Store", "session_on", "within_transaction"]

T = TypeVar("T")

Call = Callable[[Session], Plan[T]]
"""Makes the plan for a session."""

IDLE_MAX: Final = 16
LISTENING_SECONDS: Final = 1.0
"""The longest wait where notifications arrive: a notification may get lost with its connection."""
POLL_SECONDS: Final = 0.1
"""The same behind a proxy that does not pass notifications on."""
FILE_POLL_SECONDS: Final = 0.01
"""How often a waiter checks whether the file has changed, which costs microseconds."""
SOONEST_SECONDS: Final = 0.01
"""The shortest wait when a change is due: another claimant may be about to do it."""
EVENTS_SECONDS: Final = 0.2
"""How often a busy claimant makes the timed changes."""
RETENTION_SECONDS: Final = 30.0
"""How often it removes some of the jobs that are older than their retention."""

_inherited: Final[list[Any]] = []
"""Connections of a parent process: never used, never closed."""


class EventClock:
    """When a busy claimant next makes timed changes (an idle one always does), or removes old jobs."""

    def __init__(self, seconds: float = EVENTS_SECONDS) -> None:
        self._at = 0.0
        self._seconds = seconds

    def is_due(self) -> bool:
        now = boottime()
        if now < self._at:
            return False
        self._at = now + self._seconds
        return True

    def make_due(self) -> None:
        """More is left to do: be due again soon."""
        self._at = min(self._at, boottime() + EVENTS_SECONDS)


def session_on(table: Any, database: Database, namespace: str, is_own: bool) -> Session:
    if not is_own and table.dialect.name != database.dialect:
        raise InvalidArgument(
            f"this connection is to {table.dialect.name}, and the queue is in {database.dialect}: pass a"
            " connection to the queue's own database"
        )
    notifies = database.notifies if isinstance(database, PostgresDatabase) else False
    return Session(table, database.texts, namespace, is_own, notifies)


def within_transaction(call: Call[T], table: Any, database: Database, namespace: str) -> Plan[T]:
    """As a part of the user's transaction, with the errors of ``holdfast.sql``."""
    plan = call(session_on(table, database, namespace, False))
    return translated(table, "the queue could not do its part of this transaction", plan)


class Store:
    """The queue's database, for threads."""

    def __init__(self, database: Database, namespace: str) -> None:
        self.database = database
        self.namespace = namespace
        self.events = EventClock()
        self.removals = EventClock(RETENTION_SECONDS)
        self._mutex = threading.Lock()
        self._idle: list[Any] = []
        self._is_installed = False
        self._is_closed = False
        self._pid = os.getpid()
        self._listener: Any = None
        self._listening = threading.Lock()
        self._notified = threading.Condition()
        self._siblings: list[Store] = []
        register_after_fork(self)

    def sibling(self, namespace: str) -> Store:
        """One for another namespace of this database, which is closed with this one."""
        made = Store(self.database, namespace)
        self._siblings.append(made)
        return made

    # --- running plans

    def run(self, call: Call[T], connection: Any = None) -> T:
        """On a connection of its own; with a ``connection``, there, in the user's transaction."""
        if connection is None:
            self.install_if_needed()
        else:
            self.install_beside_transaction()
            table = table_of(connection)
            return run(within_transaction(call, table, self.database, self.namespace), table.carry_out)
        with self.connection() as (_, table):
            return run(call(session_on(table, self.database, self.namespace, True)), table.carry_out)

    @contextlib.contextmanager
    def connection(self) -> Iterator[tuple[Any, FenceTable]]:
        """One of the queue's own, for as long as the block lasts."""
        connection = self._take()
        try:
            yield connection, table_of(connection)
        except BaseException as error:
            self._give_back(connection)
            if isinstance(error, Exception):
                failure = self.database.failure(error, connection)
                if failure is not None:
                    raise failure from error
            raise
        self._give_back(connection)

    def _take(self) -> Any:
        while True:
            with self._mutex:
                if self._is_closed:
                    raise InvalidArgument("this queue is closed: connect again")
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.database.connect()
            if self.database.is_usable(connection):
                return connection
            connection.close()

    def _give_back(self, connection: Any) -> None:
        """A connection that an interruption left within a transaction is not used again."""
        is_clean = self.database.is_usable(connection) and not table_of(connection).in_transaction()
        with self._mutex:
            if is_clean and not self._is_closed and len(self._idle) < IDLE_MAX and self._pid == os.getpid():
                self._idle.append(connection)
                return
        if self._pid == os.getpid():
            connection.close()

    # --- the tables

    def install_if_needed(self) -> None:
        if not self._is_installed:
            self.install()

    def install_beside_transaction(self) -> None:
        """The tables are made by another connection than the user's."""
        try:
            self.install_if_needed()
        except EngineUnavailable as error:
            if not self.database.is_locked(error.__cause__):
                raise
            raise EngineUnavailable(
                f"the queue has no tables in {self.database.name} yet, and they could not be made because a"
                " transaction keeps other writers out. If that is the transaction of the connection given,"
                " roll it back, call queue.install() once, and run the transaction again"
            ) from error

    def install(self) -> bool:
        """Whether there was something to do."""
        with self.connection() as (_, table):
            session = session_on(table, self.database, self.namespace, True)
            done = False
            if run(needs_migration(session), table.carry_out):
                done = run(migrate(session), table.carry_out)
        self._is_installed = True
        return done

    # --- waiting

    def wait(self, timeout: float, interruption: SelfPipe | None = None) -> bool:
        """Until there may be something to claim: whether the wait ended before its time. ``interruption``
        ends it when it is woken, or was."""
        event = self.run(next_event)
        if event is not None:
            timeout = min(timeout, max(event, SOONEST_SECONDS))
        if self._listening.acquire(blocking=False):
            try:
                return self._listen(timeout, interruption)
            finally:
                self._listening.release()
                with self._notified:
                    self._notified.notify_all()
        with self._notified:
            return self._notified.wait(timeout=min(timeout, LISTENING_SECONDS))

    def pause(self, timeout: float, interruption: SelfPipe) -> None:
        """Without the database, until the time is over or the interruption is woken."""
        _readable([], interruption, timeout)

    def _listen(self, timeout: float, interruption: SelfPipe | None) -> bool:
        if isinstance(self.database, PostgresDatabase):
            return self._listen_to_server(self.database, timeout, interruption)
        return self._watch_file(min(timeout, LISTENING_SECONDS), interruption)

    def _listen_to_server(
        self, database: PostgresDatabase, timeout: float, interruption: SelfPipe | None
    ) -> bool:
        connection = self._listener
        if connection is None or not self._is_alive(connection):
            self._start_listening(database)
            if not self._listener_polls:
                return True  # what was put before this is looked for once more
        if self._listener_polls or connection is None:
            return bool(_readable([], interruption, min(timeout, POLL_SECONDS)))
        try:
            readable = _readable([connection], interruption, min(timeout, LISTENING_SECONDS))
        except Exception:
            if self._is_closed:  # by another thread, and its descriptor with it
                return False
            raise
        if connection in readable:
            with contextlib.suppress(Exception):  # a broken connection is found at the next wait
                drain(connection.pgconn)
        return bool(readable)

    def _start_listening(self, database: PostgresDatabase) -> None:
        """Only a connection that listens is kept: after an interrupt it might receive no notification."""
        connection = database.connect()
        must_poll = connection.prepare_threshold is None or not database.notifies
        try:
            if not must_poll:
                connection.execute(listen_to(self.namespace))
        except BaseException as error:
            connection.close()
            if isinstance(error, Exception):
                failure = database.failure(error, connection)
                if failure is not None:
                    raise failure from error
            raise
        self._listener_polls = must_poll
        self._keep_listener(connection)

    def _keep_listener(self, connection: Any) -> None:
        with self._mutex:
            if not self._is_closed:
                self._listener = connection
                return
        connection.close()

    def _is_alive(self, connection: Any) -> bool:
        if not connection.closed and connection.pgconn.status == 0:
            return True
        connection.close()
        self._listener = None
        return False

    def _watch_file(self, timeout: float, interruption: SelfPipe | None) -> bool:
        if self._listener is None:
            listener = self.database.connect()
            self._version = _data_version(listener)
            self._keep_listener(listener)
            return True
        deadline = boottime() + timeout
        while True:
            version = self._version_of_file()
            if version is None:
                return False
            if version != self._version:
                self._version = version
                return True
            left = deadline - boottime()
            if left <= 0:
                return False
            if _readable([], interruption, min(left, FILE_POLL_SECONDS)):
                return True

    def _version_of_file(self) -> int | None:
        """None: another thread has closed this queue."""
        listener = self._listener
        try:
            return None if listener is None else _data_version(listener)
        except sqlite3.ProgrammingError:
            if self._is_closed:
                return None
            raise

    # --- the end

    def close(self) -> None:
        with self._mutex:
            self._is_closed = True
            idle, self._idle = self._idle, []
            listener, self._listener = self._listener, None
        if self._pid == os.getpid():
            for connection in [*idle, *([listener] if listener is not None else [])]:
                connection.close()
        for sibling in self._siblings:
            sibling.close()

    def forked(self) -> None:
        """In the child: what is the parent's is left alone, and connections are made afresh."""
        _inherited.extend([*self._idle, self._listener])
        self._idle, self._listener = [], None
        self._mutex, self._listening, self._notified = (
            threading.Lock(),
            threading.Lock(),
            threading.Condition(),
        )
        self._pid = os.getpid()


def _readable(connections: list[Any], interruption: SelfPipe | None, timeout: float) -> list[Any]:
    """Those that become readable within the time."""
    watched = [*connections, *([interruption] if interruption is not None else [])]
    descriptors = {each.fileno(): each for each in watched}
    found = [descriptors[number] for number in wait_readable(descriptors, timeout)]
    if interruption is not None and interruption in found:
        interruption.clear()
    return found


def drain(pgconn: Any) -> None:
    """Consume the notifications that have arrived."""
    pgconn.consume_input()
    while pgconn.notifies() is not None:
        pass


def _data_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])
