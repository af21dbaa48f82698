"""The queue for threads: the calls users make. What they do is in ``calls`` and the plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

from ..core.arguments import check_io_timeout, check_name
from ..core.lock_options import Duration
from ..errors import Conflict, EngineUnavailable
from ..fencing.connections import Executes, table_of
from ..fencing.plans import run
from ..model import UNSET, Unset
from ..sql import retry as transactions
from . import admin, calls
from .arguments import IO_TIMEOUT_SECONDS, LEASE_SECONDS, RETENTION_SECONDS, check_seconds
from .database import database_of
from .model import JobCancelled, JobInfo, KindInfo, NewJob, PeriodicInfo, State, Unique
from .store import Store

__all__ = ["Job", "Queue", "connect"]


class Job(calls.BaseJob):
    """One claim of a job. What it does is refused with ``StaleToken`` once the job was given to another.

    ``id``, ``kind``, ``key``, ``payload``, ``attempt`` (1 at first), ``max_attempts``, ``priority``;
    ``token``, the fencing token of this claim: for guards, and larger than that of every earlier claim of
    this job.
    """

    def __init__(self, queue: Queue, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self._queue = queue

    def finish(self, result: Any = None, *, connection: Executes | None = None) -> None:
        """It is done. ``result``, as JSON, is kept with it. With a ``connection``: in the transaction that is
        open there, so that all of it is committed, or nothing."""
        with self.ending():
            self._queue._store.run(self.finish_call(result), connection)

    def fail(self, error: object, retry_in: Duration | None = None, *, final: bool = False) -> State:
        """It did not succeed, because of ``error`` (a text or an exception). It is tried again after a pause
        by chance that grows with each try, or after ``retry_in``; after its last attempt, or with ``final``,
        it is dead. The state it is in now."""
        with self.ending():
            return self._queue._store.run(self.fail_call(error, retry_in, final))

    def extend(self, lease: Duration | None = None) -> None:
        """The lease ends so long from now: as long as it was claimed for, or ``lease``. ``JobCancelled``: it
        was extended, but is to stop."""
        self._queue._store.run(self.extend_call(lease))

    def release(self) -> None:
        """Give it back as it was: any worker may claim it at once, and this attempt does not count."""
        with self.ending():
            self._queue._store.run(self.release_call())

    def check(self) -> None:
        """Ask the database: ``StaleToken`` if it is another claimant's now, ``JobCancelled`` if it should
        stop."""
        self._queue._store.run(self.check_call())

    @contextmanager
    def transaction(self, connection: Executes | None = None, *, result: Any = None) -> Iterator[Any]:
        """A transaction that ends with this job's finish: what is written there happens exactly once.

        Gives a connection to the queue's database (psycopg's or sqlite3's), or begins on the ``connection``
        given. At the end of the block the job is finished in the same transaction: ``StaleToken``, and all of
        it is rolled back, if the job was given to another. An exception rolls back, and leaves the job as it
        is.
        """
        finish = self.finish_call(result)
        store = self._queue._store
        if connection is None:
            store.install_if_needed()
            with store.connection() as (own, _), self._transaction_on(own, finish):
                if store.database.own_transaction is not None:
                    own.execute(store.database.own_transaction)
                yield own
        else:
            with self._transaction_on(connection, finish):
                yield connection

    @contextmanager
    def _transaction_on(self, connection: Any, finish: Any) -> Iterator[None]:
        table = table_of(connection)
        run(transactions.begin(table), table.carry_out)
        try:
            yield
            with self.ending():
                self._queue._store.run(finish, connection)
                run(transactions.commit(table), table.carry_out)
        except BaseException as error:
            run(transactions.roll_back(table), table.carry_out)
            if isinstance(error, Conflict):  # perhaps with its next claimant
                with suppress(EngineUnavailable, JobCancelled):
                    self.check()
            raise


class Queue(calls.BaseQueue):
    """Jobs of one namespace in one database. Made by ``connect``; connects when it is first used."""

    def __init__(self, store: Store, retention: float | None) -> None:
        super().__init__(store, retention)
        self._store = store

    @property
    def namespace(self) -> str:
        return self._store.namespace

    def __repr__(self) -> str:
        return f"<Queue {self.namespace!r} in {self._store.database.name}>"

    # --- putting

    def put(
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
        return self._store.run(calls.put_call([job]), connection)[0]

    def put_many(self, jobs: Iterable[NewJob], *, connection: Executes | None = None) -> list[int]:
        """Put all, or none: their ids, in order."""
        return self._store.run(calls.put_call(jobs), connection)

    # --- claiming

    def claim(
        self,
        kinds: str | Iterable[str] | None = None,
        limit: int = 1,
        lease: Duration = LEASE_SECONDS,
    ) -> list[Job]:
        """At most ``limit`` jobs that are ready, the best first; none, if there is none. Does not wait.

        Each is this claimant's until its ``lease`` ends; ``extend`` it in time. A job whose lease has ended
        is given to the next claimant. ``kinds`` None: any kind.
        """
        found = self._store.run(calls.claim_call(kinds, limit, lease, self))
        return [Job(self, row) for row in found]

    def wait(self, timeout: float = 1.0) -> bool:
        """Until a job may have become ready, or the time is over, or a second: claim again in any case.
        True: something has happened."""
        return self._store.wait(check_seconds(timeout, "timeout", 0.0))

    def extend_many(self, jobs: Iterable[Job]) -> dict[int, bool]:
        """Extend the leases of several jobs in one statement. Id → whether it is to stop, of those that are
        still their claimants'. The row of a missing job may only be locked: its ``check`` finds out."""
        return self._store.run(calls.extend_many_call(jobs))

    # --- jobs of any claimant

    def cancel(self, job: int) -> bool:
        """It will not run; or, if it runs, its claimant gets ``JobCancelled`` at the next ``extend`` or
        ``check``. False: it was over, or there is none."""
        return self._store.run(calls.cancel_call(job)) is not None

    def retry(self, job: int) -> bool:
        """Let a dead or cancelled job run again, with all its attempts. False: it is neither."""
        return self._store.run(calls.retry_call(job))

    def pause(self, kind: str) -> None:
        """No job of this kind is claimed until ``resume``; running jobs continue."""
        self._store.run(calls.pause_call(kind, True))

    def resume(self, kind: str) -> None:
        self._store.run(calls.pause_call(kind, False))

    def limit(self, kind: str, concurrency: int | None = None, key_concurrency: int | None = None) -> None:
        """At most so many jobs of this kind run at once, in all processes together; and so many of each key
        (of jobs put from now on). None: any number."""
        self._store.run(calls.limit_call(kind, concurrency, key_concurrency))

    def kinds(self) -> list[KindInfo]:
        """The settings of kinds. A kind without settings is left out."""
        return [calls.kind_in(row) for row in self._store.run(admin.kinds)]

    def counts(self, kind: str | None = None) -> dict[State, int]:
        """State → how many."""
        return calls.counts_in(self._store.run(calls.counts_call(kind)))

    def jobs(
        self, state: State | None = None, kind: str | None = None, limit: int = 100, after: int = 0
    ) -> list[JobInfo]:
        """By their ids, those after ``after``."""
        found = self._store.run(calls.jobs_call(state, kind, limit, after))
        return [calls.info_in(row) for row in found]

    def get(self, job: int) -> JobInfo | None:
        """None: there is none, or no longer."""
        row = self._store.run(calls.get_call(job))
        return None if row is None else calls.info_in(row)

    def prune(self, older_than: Duration, states: Iterable[str] = ("finished", "cancelled")) -> int:
        """Remove jobs that were over so long ago; how many."""
        return self._store.run(calls.prune_call(older_than, states))

    # --- periodic jobs

    def schedule(
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
        self._store.run(calls.schedule_call(name, kind, payload, cron, every, options))

    def unschedule(self, name: str) -> bool:
        return self._store.run(calls.unschedule_call(name))

    def scheduled(self) -> list[PeriodicInfo]:
        return [calls.periodic_in(row) for row in self._store.run(admin.periodic)]

    # --- the database

    def install(self) -> bool:
        """Make the tables now, not at first use; False: they were there."""
        return self._store.install()

    def close(self) -> None:
        """Close the connections. Jobs that are claimed stay so until their leases end."""
        self._store.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    url: str | None = None,
    *,
    namespace: str = "holdfast",
    io_timeout: Duration = IO_TIMEOUT_SECONDS,
    retention: Duration | None = RETENTION_SECONDS,
) -> Queue:
    """The queue in the database that ``url`` names: ``postgresql://…`` or ``sqlite:///path``. Does no I/O.

    Without a URL that of ``$HOLDFAST_URL``, else a file of this user's.
    """
    check_name(namespace, "namespace")
    kept = None if retention is None else check_seconds(retention, "retention", 0.0)
    store = Store(database_of(url, check_io_timeout(io_timeout)), namespace)
    return Queue(store, kept)
