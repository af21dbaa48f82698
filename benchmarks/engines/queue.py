"""Job queues in PostgreSQL: Holdfast's workers and procrastinate's, each with its defaults."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import holdfast.queue
from holdfast.queue import NewJob, aio

from ..contestant import Contestant, Handle, Place
from .group import Group
from .postgresql import serve

__all__ = ["GROUP", "HOLDFAST", "KIND", "PROCRASTINATE", "Jobs", "Queue", "analyse"]

HOLDFAST: Final = "holdfast-queue"
PROCRASTINATE: Final = "procrastinate"
KIND: Final = "noop"
CONCURRENCY: Final = 10

FILL: Final = """
INSERT INTO {schema}.queue_jobs (namespace, kind, lane, lane_rank, uniqueness, holds_key, state, priority,
    run_at, payload, max_attempts, backoff_first, backoff_maximum, attempt, token, created_at, started_at,
    ended_at)
SELECT %s, %s, 0, 0, 0, 0, 'finished', 0, t, 'null', 20, 2, 3600, 1, 1, t, t, t
FROM (SELECT extract(epoch FROM clock_timestamp())::float8 AS t FROM generate_series(1, %s)) AS times
"""

Ran = Callable[[int, float], None]
"""Called by each job with its number and the moment at which its function was called."""


class Jobs(Handle):
    """A queue, and a worker on it."""

    def try_acquire(self) -> bool:
        """There is nothing to take."""
        return False

    def put(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def unfinished(self) -> int:
        """How many jobs are not finished in the database."""
        raise NotImplementedError

    def work(self, ran: Ran, enough: int | None, begins: Callable[[], None]) -> None:
        """Work until no job is ready; with ``enough``, wait for jobs until so many have run here."""
        raise NotImplementedError


class Queue(Jobs):
    """Holdfast's, for threads, which run one job at a time by default."""

    def __init__(self, place: Place, name: str) -> None:
        self.schema = f"holdfast_{name}"
        self.queue = holdfast.queue.connect(f"{_url(place)}?schema={self.schema}", namespace=place.space)
        self.queue.install()

    def put(self, numbers: Sequence[int]) -> None:
        if len(numbers) == 1:
            self.queue.put(KIND, numbers[0])
        else:
            self.queue.put_many([NewJob(KIND, number) for number in numbers])

    def work(self, ran: Ran, enough: int | None, begins: Callable[[], None]) -> None:
        worker = holdfast.queue.Worker(self.queue)
        count = 0

        @worker.job(KIND)
        def noop(job: Any) -> None:
            nonlocal count
            ran(job.payload, time.monotonic())
            count += 1
            if count == enough:
                worker.stop()

        begins()
        worker.run(signals=False, until_idle=enough is None)

    def unfinished(self) -> int:
        return sum(count for state, count in self.queue.counts().items() if state != "finished")

    def fill(self, place: Place, finished: int) -> None:
        """Rows of jobs that are over."""
        import psycopg

        with psycopg.connect(_url(place), autocommit=True) as connection:
            connection.execute(FILL.format(schema=self.schema).encode(), (place.space, KIND, finished))
            connection.execute(f"VACUUM ANALYZE {self.schema}.queue_jobs".encode())

    def close(self) -> None:
        self.queue.close()


class Awaited(Jobs):
    """What runs on an event loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def put(self, numbers: Sequence[int]) -> None:
        self.loop.run_until_complete(self._put(numbers))

    async def _put(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def work(self, ran: Ran, enough: int | None, begins: Callable[[], None]) -> None:
        self.loop.run_until_complete(self._work(ran, enough, begins))

    async def _work(self, ran: Ran, enough: int | None, begins: Callable[[], None]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.loop.run_until_complete(self._close())
        self.loop.close()

    async def _close(self) -> None:
        raise NotImplementedError


class AwaitedQueue(Awaited):
    """Holdfast's, for asyncio."""

    def __init__(self, place: Place, name: str) -> None:
        super().__init__()
        self.queue = aio.connect(f"{_url(place)}?schema=holdfast_{name}", namespace=place.space)
        self.loop.run_until_complete(self.queue.install())

    async def _put(self, numbers: Sequence[int]) -> None:
        await self.queue.put_many([NewJob(KIND, number) for number in numbers])

    def unfinished(self) -> int:
        counts = self.loop.run_until_complete(self.queue.counts())
        return sum(count for state, count in counts.items() if state != "finished")

    async def _work(self, ran: Ran, enough: int | None, begins: Callable[[], None]) -> None:
        worker = aio.AsyncWorker(self.queue, CONCURRENCY)
        count = 0

        @worker.job(KIND)
        async def noop(job: Any) -> None:
            nonlocal count
            ran(job.payload, time.monotonic())
            count += 1
            if count == enough:
                worker.stop()

        begins()
        await worker.run(signals=False, until_idle=enough is None)

    async def _close(self) -> None:
        await self.queue.close()


class Procrastinate(Awaited):
    """``procrastinate``, which is asyncio throughout."""

    def __init__(self, concurrency: int, place: Place, name: str) -> None:
        import procrastinate

        super().__init__()
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        self.space = place.space
        self.concurrency = concurrency
        self.ran: Ran = lambda number, moment: None
        connector = procrastinate.PsycopgConnector(conninfo=_url(place))
        self.app: Any = procrastinate.App(connector=connector)

        @self.app.task(name=KIND, queue=self.space)  # type: ignore[untyped-decorator]  # of Any
        async def noop(number: int) -> None:
            self.ran(number, time.monotonic())

        self.noop: Any = noop
        self.loop.run_until_complete(self._open(place))

    async def _open(self, place: Place) -> None:
        import psycopg

        await self.app.open_async()
        connection = await psycopg.AsyncConnection.connect(_url(place))
        async with connection:
            # Two that create it at the same time would both begin, and one would fail.
            await connection.execute("SELECT pg_advisory_xact_lock(3)")
            cursor = await connection.execute("SELECT to_regclass('procrastinate_jobs')")
            row = await cursor.fetchone()
            if row is None or row[0] is None:
                await self.app.schema_manager.apply_schema_async()

    async def _put(self, numbers: Sequence[int]) -> None:
        if len(numbers) == 1:
            await self.noop.defer_async(number=numbers[0])
        else:
            await self.noop.batch_defer_async(*({"number": number} for number in numbers))

    def unfinished(self) -> int:
        query = (
            "SELECT count(*) AS count FROM procrastinate_jobs"
            " WHERE queue_name = %(space)s AND status <> 'succeeded'"
        )
        found = self.loop.run_until_complete(
            self.app.connector.execute_query_one_async(query, space=self.space)
        )
        return int(found["count"])

    async def _work(self, ran: Ran, enough: int | None, begins: Callable[[], None]) -> None:
        done = asyncio.Event()
        count = 0

        def counted(number: int, moment: float) -> None:
            nonlocal count
            ran(number, moment)
            count += 1
            if count == enough:
                done.set()

        self.ran = counted
        begins()
        worker = asyncio.create_task(
            self.app.run_worker_async(
                queues=[self.space],
                concurrency=self.concurrency,
                wait=enough is not None,
                install_signal_handlers=False,
            )
        )
        if enough is not None:
            await done.wait()
            worker.cancel()
        await asyncio.wait([worker])
        if not worker.cancelled() and (error := worker.exception()) is not None:
            raise error

    async def _close(self) -> None:
        await self.app.close_async()


def analyse(place: Place) -> None:
    """Plans go by the tables as they are now, whoever needs statistics for that."""
    import psycopg

    with psycopg.connect(_url(place), autocommit=True) as connection:
        connection.execute("ANALYZE")


def _url(place: Place) -> str:
    return f"postgresql://postgres@{place.addresses[0]}/postgres"


GROUP = Group(
    "Job queues in PostgreSQL",
    (
        Contestant(HOLDFAST, "Holdfast", "subject", Queue, frozenset({"claims"}), "psycopg"),
        Contestant(
            f"{HOLDFAST}-asyncio",
            f"Holdfast, asyncio, {CONCURRENCY} at once",
            "subject",
            AwaitedQueue,
            distribution="psycopg",
        ),
        Contestant(
            PROCRASTINATE,
            "procrastinate",
            "peer",
            partial(Procrastinate, 1),
            distribution="procrastinate",
        ),
        Contestant(
            f"{PROCRASTINATE}-{CONCURRENCY}",
            f"procrastinate, {CONCURRENCY} at once",
            "peer",
            partial(Procrastinate, CONCURRENCY),
            distribution="procrastinate",
        ),
    ),
    ("jobs", "starts", "finished"),
    {"jobs": PROCRASTINATE, "starts": PROCRASTINATE},
    dict.fromkeys(
        ("jobs", "starts", "finished"), "One PostgreSQL on loopback, which does not wait for its disk."
    ),
    serve,
    locks=False,
)
