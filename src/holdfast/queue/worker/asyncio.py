"""The worker for asyncio: functions are tasks of one event loop. Its behaviour is described in
``threads``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from ...core.lock_options import Duration
from ...errors import EngineUnavailable, InvalidArgument, StaleToken
from ...runtime.clock import boottime
from ..asyncio import AsyncJob, AsyncQueue
from ..calls import BaseJob, finish_many_call
from ..model import StopReason
from ..store import Store
from . import outcomes
from .base import DEFAULT_LEASE, GRACE_SECONDS, BaseWorker
from .heartbeats import Heartbeats
from .outcomes import Outcome
from .pace import Pace, pause_after
from .signals import stopping_at_signals

__all__ = ["AsyncWorker"]

log = logging.getLogger("holdfast")

WAIT_SECONDS = 1.0
LAST_SECONDS = 1.0
"""How long functions have to end after they were cancelled, before their jobs are given back."""


class AsyncWorker(BaseWorker):
    """Runs coroutine functions on jobs, ``concurrency`` of them at once.

        worker = holdfast.queue.aio.AsyncWorker(queue, concurrency=100)

        @worker.job("mail")
        async def send(job):
            ...

        await worker.run()

    Leases are extended on a thread of their own, also while the event loop is blocked. When a job is
    cancelled or is given to another, its function is cancelled.
    """

    is_awaited = True

    def __init__(
        self,
        queue: AsyncQueue,
        concurrency: int = 10,
        *,
        lease: Duration = DEFAULT_LEASE,
        grace: Duration = GRACE_SECONDS,
    ) -> None:
        super().__init__(concurrency, lease, grace)
        if not isinstance(queue, AsyncQueue):
            raise InvalidArgument(
                f"AsyncWorker takes a queue of holdfast.queue.aio.connect(…); this is"
                f" {type(queue).__name__}. For a queue of holdfast.queue, use Worker"
            )
        self.queue = queue
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._skips_grace = False

    def __repr__(self) -> str:
        return f"<AsyncWorker of {', '.join(self.functions) or 'nothing'} from {self.queue!r}>"

    async def run(self, *, signals: bool = True, until_idle: bool = False) -> None:
        """Work until ``stop``, SIGTERM or SIGINT; with ``until_idle``, until no job is ready. As
        ``holdfast.queue.Worker.run``. When this call is cancelled, the jobs are given back at once."""
        self._begin()
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        try:
            with stopping_at_signals(self._stop_on_signal) if signals else contextlib.nullcontext():
                await _Run(self, self._changed).work(until_idle)
        finally:
            self.is_running = self.is_stopping = self._skips_grace = False
            self._loop = None

    def stop(self, *, now: bool = False) -> None:
        """Let ``run`` end, which waits for the jobs that run; ``now``: they are given back at once. May be
        called from any thread, and from a job's function."""
        self._skips_grace = self._skips_grace or now
        self.is_stopping = True
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed.set)

    def _stop_on_signal(self) -> None:
        self.stop(now=self.is_stopping)


class _Run:
    """One ``run`` of a worker."""

    def __init__(self, worker: AsyncWorker, changed: asyncio.Event) -> None:
        self._worker = worker
        self._queue = worker.queue
        self._store = worker.queue._store
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        # Blocking, so that it needs no event loop.
        self._beating = Store(self._store.database, self._store.namespace)
        self._heartbeats = Heartbeats(self._beating, worker.lease, self._cancel_from_thread)
        self._pace = Pace(worker.concurrency)
        self._tasks: dict[AsyncJob, asyncio.Task[None]] = {}
        self._called: set[int] = set()
        """The ids of jobs whose functions run now: only these are cancelled."""
        self._unfinished: list[tuple[AsyncJob, str | None]] = []
        self._waiting: asyncio.Task[bool] | None = None
        self._failures = 0

    async def work(self, until_idle: bool) -> None:
        self._heartbeats.start()
        try:
            await self._schedule()
            while not self._worker.is_stopping and await self._turn(until_idle):
                pass
            self._worker.is_stopping = True
            await self._drain(self._worker.grace)
        except asyncio.CancelledError:
            self._worker.is_stopping = True
            await self._drain(0.0)
            raise
        finally:
            if self._waiting is not None:
                self._waiting.cancel()
                await asyncio.wait([self._waiting])
            await asyncio.to_thread(self._end_heartbeats)

    def _end_heartbeats(self) -> None:
        self._heartbeats.stop()
        self._beating.close()

    async def _schedule(self) -> None:
        for kind, options in self._worker.schedules():
            while not self._worker.is_stopping:
                try:
                    await self._queue.schedule(kind, kind, **options)
                    break
                except Exception as error:  # noqa: BLE001 - a worker outlives what its database does
                    await self._pause(error)

    async def _turn(self, until_idle: bool) -> bool:
        """Finish what was done, claim anew, or else wait; False: there is nothing more to do."""
        self._changed.clear()
        try:
            await self._finish()
            is_idle = not self._tasks  # what ends during the claim may let another in
            wanted = self._worker.concurrency - len(self._tasks)
            found = await self._claim(wanted) if wanted > 0 else 0
        except Exception as error:  # noqa: BLE001 - a worker outlives what its database does
            await self._pause(error)
            return True
        self._failures = 0
        if found:
            await asyncio.sleep(0)
            return True
        if until_idle and is_idle:
            return False
        if not self._changed.is_set():
            await self._sleep(is_full=wanted <= 0)
        return True

    async def _claim(self, wanted: int) -> int:
        jobs = await self._queue.claim(self._worker.kinds, min(wanted, 1000), self._worker.lease)
        for job in jobs:
            self._heartbeats.add(job)
            self._tasks[job] = asyncio.create_task(self._run_job(job), name=f"holdfast {job!r}")
        return len(jobs)

    async def _sleep(self, is_full: bool) -> None:
        """Wait until a job ends or, below the limit of running jobs, a job may be claimed."""
        changed = asyncio.create_task(self._changed.wait())
        tasks: set[asyncio.Task[Any]] = {changed}
        if not is_full:
            # A wait that is still under way from the last call is kept: to cancel it costs more.
            if self._waiting is None:
                self._waiting = asyncio.create_task(self._queue.wait(WAIT_SECONDS))
            tasks.add(self._waiting)
        try:
            await asyncio.wait(tasks, timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
        if self._waiting is not None and self._waiting.done():
            waiting, self._waiting = self._waiting, None
            if (error := waiting.exception()) is not None:
                if not isinstance(error, Exception):
                    raise error
                await self._pause(error)

    async def _pause(self, error: Exception) -> None:
        pause = pause_after(error, self._failures)
        self._failures += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._changed.wait()

    async def _finish(self) -> None:
        if not self._unfinished:
            return
        chosen, self._unfinished = self._unfinished, []
        try:
            found = await self._store.run(finish_many_call(chosen))
            while chosen:
                job, result = chosen[-1]
                if job.id not in found:
                    # An earlier call finished it and its reply was lost, or another claimant has it.
                    try:
                        await self._store.run(job.finish_text_call(result))
                    except StaleToken as error:
                        log.warning("what was done is dropped: %s", error)
                chosen.pop()
                self._forget(job)
        finally:
            self._unfinished += chosen

    def _forget(self, job: AsyncJob) -> None:
        self._heartbeats.remove(job)
        self._tasks.pop(job, None)
        self._changed.set()

    # --- the tasks of the jobs

    async def _run_job(self, job: AsyncJob) -> None:
        outcome = await self._settle(job, await self._call(job))
        self._worker.ended += 1
        if isinstance(outcome, outcomes.Finish):
            self._unfinished.append((job, outcome.result))
            self._changed.set()
        else:
            self._forget(job)

    async def _call(self, job: AsyncJob) -> Outcome:
        try:
            if job.should_stop:
                raise asyncio.CancelledError
            self._called.add(job.id)
            result = await self._worker.functions[job.kind](job)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            return outcomes.of_error(job, error)
        except Exception as error:  # noqa: BLE001 - a job must not end its worker
            return outcomes.of_error(job, error)
        finally:
            self._called.discard(job.id)
        return outcomes.of_result(job, result)

    async def _settle(self, job: AsyncJob, outcome: Outcome) -> Outcome:
        """Here, unless it can be finished together with others."""
        job.is_ending = True
        failures = 0
        while True:
            try:
                if isinstance(outcome, outcomes.Fail):
                    await job.fail(outcome.error, final=outcome.is_final)
                elif isinstance(outcome, outcomes.Release):
                    await job.release()
                elif isinstance(outcome, outcomes.Finish) and job.claim.lane is not None:
                    await self._store.run(job.finish_text_call(outcome.result))
                else:
                    return outcome
            except (StaleToken, InvalidArgument) as error:
                log.info("%r could not be ended: %s", job, error)
            except Exception as error:  # noqa: BLE001 - as above
                if self._worker.is_running and not self._worker._skips_grace:
                    await asyncio.sleep(pause_after(error, failures))
                    failures += 1
                    continue
            return outcomes.Nothing()

    def _cancel_from_thread(self, job: BaseJob, reason: StopReason) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._cancel, job)

    def _cancel(self, job: BaseJob) -> None:
        task = self._tasks.get(job)  # type: ignore[call-overload]  # what is not ours is not found
        if task is not None and job.id in self._called:
            task.cancel()

    # --- the end

    async def _drain(self, grace: float) -> None:
        await self._finish_until(boottime() + grace, is_grace=True)
        for job in list(self._tasks):
            if job.stop_reason is None:
                job.stop_reason = "given back"
                self._cancel(job)
        await self._finish_until(boottime() + LAST_SECONDS, is_grace=False)
        is_cut_off = False
        for job in list(self._tasks):
            log.warning("%r still runs, and is given back", job)
            self._forget(job)
            try:
                if not is_cut_off:
                    await job.release()
            except Exception as error:  # noqa: BLE001 - nothing depends on it
                log.info("%r could not be given back, so its lease runs out: %s", job, error)
                # Wait for an absent database once, not for each job.
                is_cut_off = isinstance(error, EngineUnavailable)

    async def _finish_until(self, deadline: float, is_grace: bool) -> None:
        while self._tasks or self._unfinished:
            left = deadline - boottime()
            if left <= 0 or (is_grace and self._worker._skips_grace):
                return
            self._changed.clear()
            try:
                await self._finish()
            except Exception as error:  # noqa: BLE001 - as above
                await self._pause(error)
                continue
            if self._tasks:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._changed.wait()
