"""A store of events, blocking: the calls users make, the same for both databases.

What they do is in ``plans``. ``aio`` has the same calls, awaited.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..core.arguments import check_io_timeout
from ..core.lock_options import Duration
from ..fencing.connections import Executes, table_of
from ..fencing.dialects import TableState
from ..fencing.plans import Done, Plan, run
from ..sql import retry_transaction
from . import plans
from .address import address_of
from .arguments import (
    IO_TIMEOUT_SECONDS,
    check_batch,
    check_events,
    check_expected,
    check_from,
    check_handler,
    check_mapping,
    check_position,
    check_projection,
    check_stream,
    check_timeout,
    check_version,
)
from .connections import ConnectionPool, FeedConnection, opener_of
from .model import Event, Snapshot
from .transactions import check_transaction, explained

__all__ = ["EventStore", "Projection", "Subscription", "connect"]

Handler = Callable[[Any, Event], object]


def connect(url: str | None = None, *, io_timeout: Duration = IO_TIMEOUT_SECONDS) -> EventStore:
    """A store of events in a PostgreSQL or SQLite database. It connects when it is first used.

    url: ``postgresql://…`` or ``sqlite:///path.db``. None: the PostgreSQL of ``$HOLDFAST_URL``, else the file
        ``events.db`` beside the locks of this user.
    io_timeout: how long to wait for a connection, or for SQLite's writer.
    """
    return EventStore(url, io_timeout=io_timeout)


class EventStore:
    """Streams of events in one database. All threads may share it; ``close()`` ends its connections."""

    def __init__(self, url: str | None = None, *, io_timeout: Duration = IO_TIMEOUT_SECONDS) -> None:
        opener = opener_of(address_of(url), check_io_timeout(io_timeout))
        self._opener = opener
        self._dialect: plans.StoreDialect = opener.dialect
        self._pool = ConnectionPool(opener)
        self._is_installed = False

    def __enter__(self) -> EventStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connections. Subscriptions have their own: close them, too."""
        self._pool.close()

    def install(self) -> bool:
        """Make the tables; False: they were there. The first use does it too, where the role may."""
        made = self._pool.run(lambda table: plans.install(table, self._dialect))
        self._is_installed = True
        return made

    def append(
        self,
        stream: str,
        events: Sequence[Mapping[str, Any]],
        expected_version: int | None = None,
        *,
        connection: Executes | None = None,
    ) -> int:
        """Append events, all or none; return the version of the stream, which is how many it has now.

        ``expected_version`` is the version that the writer has decided on, 0 for a new stream: ``Conflict``
        (its ``version`` is the one found) if the stream has another. None appends after whatever is there.

        With a ``connection`` of the user's, the events are part of its transaction, and appear with it.
        """
        check_stream(stream)
        bodies, expected = check_events(events), check_expected(expected_version)
        return self._run(
            lambda table: plans.append(table, self._dialect, stream, bodies, expected), connection
        )

    def read(self, stream: str, from_: int = 0) -> Iterator[Event]:
        """The events of a stream in order, without the first ``from_``: what came after that version."""
        return self._read(check_stream(stream), check_from(from_))

    def _read(self, stream: str, after: int) -> Iterator[Event]:
        while found := self._run(plans.reading(self._dialect, stream, after)):
            yield from found
            after = found[-1].version

    def read_all(self, from_: int = 0) -> Iterator[Event]:
        """All events in the order of their positions, without the first ``from_``; ends with the newest.

        The order is that in which they became visible. It never changes: nothing appears later at a position
        that was passed.
        """
        return self._read_all(check_from(from_))

    def _read_all(self, after: int) -> Iterator[Event]:
        while found := self._run(plans.reading_all(self._dialect, after)):
            yield from found
            after = found[-1].position or after

    def subscribe(self, from_: int = 0, *, timeout: Duration | None = None) -> Subscription:
        """``read_all`` that goes on: iterating waits for the next event.

        It ends when no event came for ``timeout`` seconds (None: never), or at ``close()``.
        """
        after, seconds = check_from(from_), check_timeout(timeout)
        self._pool.check_open()
        self._prepare()
        return Subscription(FeedConnection(self._opener), self._dialect, after, seconds)

    def snapshot(
        self,
        stream: str,
        version: int,
        data: Mapping[str, Any],
        *,
        connection: Executes | None = None,
    ) -> None:
        """Keep what the stream amounts to at this version, in the place of an older one."""
        check_stream(stream)
        text, number = check_mapping(data, "a snapshot"), check_version(version)
        self._run(lambda table: plans.snapshot(table, self._dialect, stream, number, text), connection)

    def load_snapshot(self, stream: str) -> Snapshot | None:
        """The newest snapshot of a stream; read on from its version. None: there is none."""
        check_stream(stream)
        return self._run(lambda table: plans.load_snapshot(self._dialect, stream))

    def projection(self, name: str) -> Projection:
        """What is computed from all events, with a checkpoint of this name."""
        return Projection(self, check_projection(name))

    # --- inside

    def _prepare(self) -> None:
        if not self._is_installed:
            self.install()

    def _run(self, make_plan: Callable[[TableState], Plan[Done]], connection: Executes | None = None) -> Done:
        if connection is None:
            self._prepare()
            return self._pool.run(make_plan)
        table = table_of(connection)
        check_transaction(table, self._dialect)
        with explained():
            self._prepare()
        return run(make_plan(table), table.carry_out)


class Subscription:
    """Events as they are committed, each once, in the order of ``read_all``. An iterator for one thread.

    A connection that breaks is opened again. ``close`` may come from any thread.
    """

    def __init__(
        self, connection: FeedConnection, dialect: plans.StoreDialect, after: int, timeout: float | None
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._feed = plans.Feed(after)
        self._timeout = timeout
        self._found: Iterator[Event] = iter(())
        self._using = threading.Lock()
        self.position = after
        """That of the last event given out: where another subscription would go on."""

    def get(self, timeout: Duration | None = None) -> Event | None:
        """The next event; None: none came in time, or the subscription was closed."""
        seconds = check_timeout(timeout)
        with self._using:
            event = next(self._found, None)
            if event is None and not self._connection.is_closed:
                wait = plans.next_events(self._dialect, self._feed, seconds)
                self._found = iter(self._connection.run(wait))
                event = next(self._found, None)
            if self._connection.is_closed:
                self._connection.close()
                return None
        if event is not None:
            self.position = event.position or self.position
        return event

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = self.get(self._timeout)
        if event is None:
            raise StopIteration
        return event

    def close(self) -> None:
        """End it; a thread that waits for the next event gets none."""
        self._connection.wake()
        if self._using.acquire(blocking=False):
            try:
                self._connection.close()
            finally:
                self._using.release()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Projection:
    """What is computed from all events: each is handled once, in order, however many processes try.

    The checkpoint is stored in the user's own transaction, with what the handler wrote: both are there, or
    neither. Its row is locked until that transaction ends, so two runners take turns.
    """

    def __init__(self, store: EventStore, name: str) -> None:
        self._store = store
        self._dialect = store._dialect
        self._stopped = threading.Event()
        self._waiting: Subscription | None = None
        self.name = name

    def position(self) -> int:
        """The position of the last event that was handled, and committed; 0: none was."""
        return self._store._run(lambda table: plans.checkpoint(self._dialect, self.name))

    def apply(self, connection: Executes, handler: Handler, batch: int = 100) -> int:
        """Handle the next events, at most ``batch``, in the transaction that is open; return how many.

        ``handler(connection, event)`` writes by this connection; the user commits. If anything fails, roll
        back: none of it has happened, the checkpoint included.
        """
        check_handler(handler, "plain")
        most, table = check_batch(batch), table_of(connection)
        check_transaction(table, self._dialect, needed=True)
        self._store._run(lambda _: plans.order(self._dialect))
        found = run(plans.events_after_checkpoint(table, self._dialect, self.name, most), table.carry_out)
        for event in found:
            handler(connection, event)
        if found:
            position = found[-1].position or 0
            run(plans.save_checkpoint(table, self._dialect, self.name, position), table.carry_out)
        return len(found)

    def reset(self, connection: Executes, position: int = 0) -> None:
        """Go on after this position, as a part of the transaction that also clears what was computed."""
        number, table = check_position(position), table_of(connection)
        check_transaction(table, self._dialect, needed=True)
        self._store._prepare()
        run(plans.reset_checkpoint(table, self._dialect, self.name, number), table.carry_out)

    def run(
        self,
        connection: Executes,
        handler: Handler,
        *,
        batch: int = 100,
        timeout: Duration | None = None,
    ) -> int:
        """Handle events as they come, a transaction for each batch; return how many.

        It ends when none came for ``timeout`` seconds (0: as soon as none is left; None: never), and at
        ``stop()``. The transactions are begun and committed on ``connection``, which is used for nothing else
        meanwhile; after ``Conflict`` and ``Deadlock`` a batch is handled again. Every other error ends it,
        with the batch rolled back: run it again.
        """
        check_handler(handler, "plain")
        check_batch(batch)
        seconds = check_timeout(timeout)
        self._store._prepare()  # not within the transaction below, which may keep other writers out
        handled = 0
        while not self._stopped.is_set():
            number = retry_transaction(lambda db: self.apply(db, handler, batch), connection)
            handled += number
            if not number and not self._wait(seconds):
                break
        self._stopped.clear()
        return handled

    def stop(self) -> None:
        """End ``run``, from another thread or from the handler, after the batch it is in."""
        self._stopped.set()
        waiting = self._waiting
        if waiting is not None:
            waiting.close()

    def _wait(self, seconds: float | None) -> bool:
        """Whether there is an event that was not handled."""
        with self._store.subscribe(self.position()) as waiting:
            self._waiting = waiting
            try:
                return not self._stopped.is_set() and waiting.get(seconds) is not None
            finally:
                self._waiting = None
