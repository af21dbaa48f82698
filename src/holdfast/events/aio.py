"""A store of events, awaited: the calls of ``holdfast.events``, the same names.

What a call does and raises is described at the call of the same name in ``holdfast.events``. ``connection=``
takes psycopg's ``AsyncConnection``, SQLAlchemy's ``AsyncConnection`` and ``AsyncSession``, and aiosqlite's.

    store = events.connect("postgresql://localhost/app")
    await store.append("account-7", [{"type": "opened"}], expected_version=0)
    async for event in store.read("account-7"): ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..core.arguments import check_io_timeout
from ..core.lock_options import Duration
from ..fencing.connections import Executes
from ..fencing.connections_asyncio import runner_of
from ..fencing.dialects import TableState
from ..fencing.plans import Done, Plan
from ..sql.aio import retry_transaction
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
from .connections import opener_of
from .connections_asyncio import AsyncFeedConnection, pool_of
from .model import Event, Snapshot
from .transactions import checked, explained

__all__ = ["AsyncEventStore", "AsyncProjection", "AsyncSubscription", "connect"]

AsyncHandler = Callable[[Any, Event], Awaitable[object]]


def connect(url: str | None = None, *, io_timeout: Duration = IO_TIMEOUT_SECONDS) -> AsyncEventStore:
    """A store of events in a PostgreSQL or SQLite database. It connects when it is first used."""
    return AsyncEventStore(url, io_timeout=io_timeout)


class AsyncEventStore:
    """``holdfast.events.EventStore``, awaited. It belongs to one event loop."""

    def __init__(self, url: str | None = None, *, io_timeout: Duration = IO_TIMEOUT_SECONDS) -> None:
        self._opener = opener_of(address_of(url), check_io_timeout(io_timeout))
        self._dialect: plans.StoreDialect = self._opener.dialect
        self._pool = pool_of(self._opener)
        self._is_installed = False

    async def __aenter__(self) -> AsyncEventStore:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections."""
        await self._pool.close()

    async def install(self) -> bool:
        """Make the tables; False: they were there."""
        made = await self._pool.run(lambda table: plans.install(table, self._dialect))
        self._is_installed = True
        return made

    async def append(
        self,
        stream: str,
        events: Sequence[Mapping[str, Any]],
        expected_version: int | None = None,
        *,
        connection: Executes | None = None,
    ) -> int:
        """Append events, all or none; return the version of the stream."""
        check_stream(stream)
        bodies, expected = check_events(events), check_expected(expected_version)
        return await self._run(
            lambda table: plans.append(table, self._dialect, stream, bodies, expected), connection
        )

    def read(self, stream: str, from_: int = 0) -> AsyncIterator[Event]:
        """The events of a stream in order, without the first ``from_``."""
        return self._read(check_stream(stream), check_from(from_))

    async def _read(self, stream: str, after: int) -> AsyncIterator[Event]:
        while found := await self._run(plans.reading(self._dialect, stream, after)):
            for event in found:
                yield event
            after = found[-1].version

    def read_all(self, from_: int = 0) -> AsyncIterator[Event]:
        """All events in the order of their positions, without the first ``from_``; ends with the newest."""
        return self._read_all(check_from(from_))

    async def _read_all(self, after: int) -> AsyncIterator[Event]:
        while found := await self._run(plans.reading_all(self._dialect, after)):
            for event in found:
                yield event
            after = found[-1].position or after

    def subscribe(self, from_: int = 0, *, timeout: Duration | None = None) -> AsyncSubscription:
        """``read_all`` that goes on: iterating waits for the next event."""
        self._pool.check_open()
        return AsyncSubscription(self, check_from(from_), check_timeout(timeout))

    async def snapshot(
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
        await self._run(lambda table: plans.snapshot(table, self._dialect, stream, number, text), connection)

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        """The newest snapshot of a stream; None: there is none."""
        check_stream(stream)
        return await self._run(lambda table: plans.load_snapshot(self._dialect, stream))

    def projection(self, name: str) -> AsyncProjection:
        """What is computed from all events, with a checkpoint of this name."""
        return AsyncProjection(self, check_projection(name))

    # --- inside

    async def _prepare(self) -> None:
        if not self._is_installed:
            await self.install()

    async def _run(
        self, make_plan: Callable[[TableState], Plan[Done]], connection: Executes | None = None
    ) -> Done:
        if connection is None:
            await self._prepare()
            return await self._pool.run(make_plan)
        runner = runner_of(connection)
        await runner.run(lambda table: checked(table, self._dialect))
        with explained():
            await self._prepare()
        return await runner.run(make_plan)


class AsyncSubscription:
    """``holdfast.events.Subscription``, awaited: an asynchronous iterator for one task at a time."""

    def __init__(self, store: AsyncEventStore, after: int, timeout: float | None) -> None:
        self._store = store
        self._connection = AsyncFeedConnection(store._opener, store._pool)
        self._feed = plans.Feed(after)
        self._timeout = timeout
        self._found: Iterator[Event] = iter(())
        self._using = asyncio.Lock()
        self.position = after
        """That of the last event given out: where another subscription would go on."""

    async def get(self, timeout: Duration | None = None) -> Event | None:
        """The next event; None: none came in time, or the subscription was closed."""
        seconds = check_timeout(timeout)
        async with self._using:
            event = next(self._found, None)
            if event is None and not self._connection.is_closed:
                await self._store._prepare()
                wait = plans.next_events(self._store._dialect, self._feed, seconds)
                self._found = iter(await self._connection.run(wait))
                event = next(self._found, None)
            if self._connection.is_closed:
                await self._connection.close()
                return None
        if event is not None:
            self.position = event.position or self.position
        return event

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        event = await self.get(self._timeout)
        if event is None:
            raise StopAsyncIteration
        return event

    async def close(self) -> None:
        """End it; a task that waits for the next event gets none."""
        self._connection.wake()
        async with self._using:
            await self._connection.close()

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncProjection:
    """``holdfast.events.Projection``, awaited."""

    def __init__(self, store: AsyncEventStore, name: str) -> None:
        self._store = store
        self._dialect = store._dialect
        self._stopped = False
        self._waiting: AsyncSubscription | None = None
        self.name = name

    async def position(self) -> int:
        """The position of the last event that was handled, and committed; 0: none was."""
        return await self._store._run(lambda table: plans.checkpoint(self._dialect, self.name))

    async def apply(self, connection: Executes, handler: AsyncHandler, batch: int = 100) -> int:
        """Handle the next events, at most ``batch``, in the transaction that is open; return how many."""
        check_handler(handler, "async")
        most, runner = check_batch(batch), runner_of(connection)
        await runner.run(lambda table: checked(table, self._dialect, needed=True))
        await self._store._run(lambda _: plans.order(self._dialect))
        found = await runner.run(
            lambda table: plans.events_after_checkpoint(table, self._dialect, self.name, most)
        )
        for event in found:
            await handler(connection, event)
        if found:
            position = found[-1].position or 0
            await runner.run(lambda table: plans.save_checkpoint(table, self._dialect, self.name, position))
        return len(found)

    async def reset(self, connection: Executes, position: int = 0) -> None:
        """Go on after this position, as a part of the transaction that also clears what was computed."""
        number, runner = check_position(position), runner_of(connection)
        await runner.run(lambda table: checked(table, self._dialect, needed=True))
        await self._store._prepare()
        await runner.run(lambda table: plans.reset_checkpoint(table, self._dialect, self.name, number))

    async def run(
        self,
        connection: Executes,
        handler: AsyncHandler,
        *,
        batch: int = 100,
        timeout: Duration | None = None,
    ) -> int:
        """Handle events as they come, a transaction for each batch; return how many."""
        check_handler(handler, "async")
        check_batch(batch)
        seconds = check_timeout(timeout)
        await self._store._prepare()  # not within the transaction below, which may keep other writers out
        handled = 0
        while not self._stopped:
            number = await retry_transaction(lambda db: self.apply(db, handler, batch), connection)
            handled += number
            if not number and not await self._wait(seconds):
                break
        self._stopped = False
        return handled

    def stop(self) -> None:
        """End ``run`` after the batch it is in."""
        self._stopped = True
        if self._waiting is not None:
            self._waiting._connection.wake()

    async def _wait(self, seconds: float | None) -> bool:
        """Whether there is an event that was not handled."""
        async with self._store.subscribe(await self.position()) as waiting:
            self._waiting = waiting
            try:
                return not self._stopped and await waiting.get(seconds) is not None
            finally:
                self._waiting = None
