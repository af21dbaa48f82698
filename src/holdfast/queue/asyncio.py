"""The queue for asyncio: the calls of ``holdfast.queue``, the same names, awaited.

What a call does and raises is described at the call of the same name there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any

from ..core.arguments import check_io_timeout, check_name
from ..core.lock_options import Duration
from ..errors import Conflict, EngineUnavailable
from ..fencing.connections import Executes
from ..fencing.connections_asyncio import runner_of
from ..model import UNSET, Unset
from ..sql import retry as transactions
from . import admin, calls
from .arguments import IO_TIMEOUT_SECONDS, LEASE_SECONDS, RETENTION_SECONDS, check_seconds
from .database import database_of
from .model import JobCancelled, JobInfo, KindInfo, NewJob, PeriodicInfo, State, Unique
from .store_asyncio import AsyncStore, open_store

__all__ = ["AsyncJob", "AsyncQueue", "connect"]


class AsyncJob(calls.BaseJob):
    """One claim of a job. What it does is refused with ``StaleToken`` once the job was given to another.

    ``id``, ``kind``, ``key``, ``payload``, ``attempt`` (1 at first), ``max_attempts``, ``priority``;
    ``token``, the fencing token of this claim: for guards, and larger than that of every earlier claim of
    this job.
    """

    def __init__(self, queue: AsyncQueue, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self._queue = queue

    async def finish(self, result: Any = None, *, connection: Executes | None = None) -> None:
        """It is done. ``result``, as JSON, is kept with it. With a ``connection``: in the transaction that is
        open there, so that all of it is committed, or nothing."""
        with self.ending():
            await self._queue._store.run(self.finish_call(result), connection)

    async def fail(self, error: object, retry_in: Duration | None = None, *, final: bool = False) -> State:
        """It did not succeed, because of ``error`` (a text or an exception). It is tried again after a pause
        by chance that grows with each try, or after ``retry_in``; after its last attempt, or with ``final``,
        it is dead. The state it is in now."""
        with self.ending():
            return await self._queue._store.run(self.fail_call(error, retry_in, final))

    async def extend(self, lease: Duration | None = None) -> None:
        """The lease ends so long from now: as long as it was claimed for, or ``lease``. ``JobCancelled``: it
        was extended, but is to stop."""
        await self._queue._store.run(self.extend_call(lease))

    async def release(self) -> None:
        """Give it back as it was: any worker may claim it at once, and this attempt does not count."""
        with self.ending():
            await self._queue._store.run(self.release_call())

    async def check(self) -> None:
        """Ask the database: ``StaleToken`` if it is another claimant's now, ``JobCancelled`` if it should
        stop."""
        await self._queue._store.run(self.check_call())

    @asynccontextmanager
    async def transaction(
        self, connection: Executes | None = None, *, result: Any = None
    ) -> AsyncIterator[Any]:
        """A transaction that ends with this job's finish: what is written there happens exactly once.

        Gives a connection of psycopg's to the queue's database, or begins on the ``connection`` given (on
        SQLite it has to be one of aiosqlite's).
        """
        finish = self.finish_call(result)
        store = self._queue._store
        if connection is None:
            await store.install_if_needed()
            async with store.connection() as own, self._transaction_on(own, finish):
                if store.database.own_transaction is not None:
                    await own.execute(store.database.own_transaction)
                yield own
        else:
            async with self._transaction_on(connection, finish):
                yield connection

    @asynccontextmanager
    async def _transaction_on(self, connection: Any, finish: Any) -> AsyncIterator[None]:
        runner = runner_of(connection)
        await runner.run(transactions.begin)
        try:
            yield
            with self.ending():
                await self._queue._store.run(finish, connection)
                await runner.run(transactions.commit)
        except BaseException as error:
            await runner.run(transactions.roll_back)
            if isinstance(error, Conflict):  # perhaps with its next claimant
                with suppress(EngineUnavailable, JobCancelled):
                    await self.check()
            raise


class AsyncQueue(calls.BaseQueue):
    """Jobs of one namespace in one database. Made by ``connect``; connects when it is first used."""

    def __init__(self, store: AsyncStore, retention: float | None) -> None:
        super().__init__(store, retention)
        self._store = store

    @property
    def namespace(self) -> str:
        return self._store.namespace

    def __repr__(self) -> str:
        return f"<AsyncQueue {self.namespace!r} in {self._store.database.name}>"

    # --- putting

    async def put(
        self,
        kind: str,
        payload: Any = None,
        *,
        connection: Executes | None = None,
        run_at: Any = None,
        priority: int = 0,
        key: str | None = None,
        unique: Unique | Unset | None = UNSET,
        ordered: bool = False,
        max_attempts: int | None = None,
        backoff: Any = None,
    ) -> int:
        """Put a job, and return its id.

        ``payload`` is a value of JSON. With a ``connection``: in the transaction that is open there, so
        that the job exists if, and only if, what else it writes does. ``run_at``: not before that time (a
        datetime with a time zone), or so long from now (a timedelta). The larger its ``priority`` the
        sooner; among equals the oldest first. ``max_attempts`` (20) and ``backoff`` (a ``Backoff`` or its
        first pause in seconds) say how often and when it is tried again.

        ``key`` names what the job is about. ``unique="both"``, the default with a key: at most one unfinished
        job of that kind and key; if there is one, nothing is put and its id is returned. ``"queued"``: at
        most one that was not claimed yet. ``"running"``: at most one runs at a time. ``ordered=True``: they
        run in the order they were put in, each after the end of the one before it. ``unique=None``: any
        number.
        """
        job = NewJob(kind, payload, run_at, priority, key, unique, ordered, max_attempts, backoff)
        return (await self._store.run(calls.put_call([job]), connection))[0]

    async def put_many(self, jobs: Iterable[NewJob], *, connection: Executes | None = None) -> list[int]:
        """Put all, or none: their ids, in order."""
        return await self._store.run(calls.put_call(jobs), connection)

    # --- claiming

    async def claim(
        self,
        kinds: str | Iterable[str] | None = None,
        limit: int = 1,
        lease: Duration = LEASE_SECONDS,
    ) -> list[AsyncJob]:
        """At most ``limit`` jobs that are ready, the best first; none, if there is none. Does not wait.

        Each is this claimant's until its ``lease`` ends; ``extend`` it in time. A job whose lease has ended
        is given to the next claimant. ``kinds`` None: any kind. If this call is cancelled, the jobs
        that it has claimed are given back.
        """
        claiming = asyncio.ensure_future(self._claim(kinds, limit, lease))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The database may have executed the claim. Without a release these jobs would wait until their
            # leases end.
            with suppress(Exception):
                for job in await claiming:
                    await job.release()
            raise

    async def _claim(self, kinds: str | Iterable[str] | None, limit: int, lease: Duration) -> list[AsyncJob]:
        found = await self._store.run(calls.claim_call(kinds, limit, lease, self))
        return [AsyncJob(self, row) for row in found]

    async def wait(self, timeout: float = 1.0) -> bool:
        """Until a job may have become ready, or the time is over, or a second: claim again in any case.
        True: something has happened."""
        return await self._store.wait(check_seconds(timeout, "timeout", 0.0))

    async def extend_many(self, jobs: Iterable[AsyncJob]) -> dict[int, bool]:
        """Extend the leases of several jobs in one statement. Id → whether it is to stop, of those that are
        still their claimants'. The row of a missing job may only be locked: its ``check`` finds out."""
        return await self._store.run(calls.extend_many_call(jobs))

    # --- jobs of any claimant

    async def cancel(self, job: int) -> bool:
        """It will not run; or, if it runs, its claimant gets ``JobCancelled`` at the next ``extend`` or
        ``check``. False: it was over, or there is none."""
        return await self._store.run(calls.cancel_call(job)) is not None

    async def retry(self, job: int) -> bool:
        """Let a dead or cancelled job run again, with all its attempts. False: it is neither."""
        return await self._store.run(calls.retry_call(job))

    async def pause(self, kind: str) -> None:
        """No job of this kind is claimed until ``resume``; running jobs continue."""
        await self._store.run(calls.pause_call(kind, True))

    async def resume(self, kind: str) -> None:
        await self._store.run(calls.pause_call(kind, False))

    async def limit(
        self, kind: str, concurrency: int | None = None, key_concurrency: int | None = None
    ) -> None:
        """At most so many jobs of this kind run at once, in all processes together; and so many of each key
        (of jobs put from now on). None: any number."""
        await self._store.run(calls.limit_call(kind, concurrency, key_concurrency))

    async def kinds(self) -> list[KindInfo]:
        """The settings of kinds. A kind without settings is left out."""
        return [calls.kind_in(row) for row in await self._store.run(admin.kinds)]

    async def counts(self, kind: str | None = None) -> dict[State, int]:
        """State → how many."""
        return calls.counts_in(await self._store.run(calls.counts_call(kind)))

    async def jobs(
        self, state: State | None = None, kind: str | None = None, limit: int = 100, after: int = 0
    ) -> list[JobInfo]:
        """By their ids, those after ``after``."""
        found = await self._store.run(calls.jobs_call(state, kind, limit, after))
        return [calls.info_in(row) for row in found]

    async def get(self, job: int) -> JobInfo | None:
        """None: there is none, or no longer."""
        row = await self._store.run(calls.get_call(job))
        return None if row is None else calls.info_in(row)

    async def prune(self, older_than: Duration, states: Iterable[str] = ("finished", "cancelled")) -> int:
        """Remove jobs that were over so long ago; how many."""
        return await self._store.run(calls.prune_call(older_than, states))

    # --- periodic jobs

    async def schedule(
        self,
        name: str,
        kind: str,
        payload: Any = None,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        **options: Any,
    ) -> None:
        """A job that is put again and again, each time by one claimant of the whole fleet.

        ``cron`` has five fields, in UTC; ``every`` is a period. Times that passed while no claimant was there
        are made up for by one job. To declare the same again changes nothing; the name is what is replaced.
        ``options`` are those of ``put``: ``key`` and its like, ``priority``, ``max_attempts``, ``backoff``.
        """
        await self._store.run(calls.schedule_call(name, kind, payload, cron, every, options))

    async def unschedule(self, name: str) -> bool:
        return await self._store.run(calls.unschedule_call(name))

    async def scheduled(self) -> list[PeriodicInfo]:
        return [calls.periodic_in(row) for row in await self._store.run(admin.periodic)]

    # --- the database

    async def install(self) -> bool:
        """Make the tables now, not at first use; False: they were there."""
        return await self._store.install()

    async def close(self) -> None:
        """Close the connections. Jobs that are claimed stay so until their leases end."""
        await self._store.close()

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def connect(
    url: str | None = None,
    *,
    namespace: str = "holdfast",
    io_timeout: Duration = IO_TIMEOUT_SECONDS,
    retention: Duration | None = RETENTION_SECONDS,
) -> AsyncQueue:
    """The queue in the database that ``url`` names: ``postgresql://…`` or ``sqlite:///path``. Does no I/O.

    Without a URL that of ``$HOLDFAST_URL``, else a file of this user's.
    """
    check_name(namespace, "namespace")
    kept = None if retention is None else check_seconds(retention, "retention", 0.0)
    store = open_store(database_of(url, check_io_timeout(io_timeout)), namespace)
    return AsyncQueue(store, kept)
