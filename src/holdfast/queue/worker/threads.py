"""The worker for threads.

The thread that called ``run`` talks to the database. It claims jobs, and one statement finishes all jobs
whose functions have ended since the last one. So the number of round trips for each job falls as the rate of
jobs rises. The other threads do not wait for the database: they work on jobs that were claimed ahead.
"""

from __future__ import annotations

import contextlib
import logging
import queue as queues
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from ...core.lock_options import Duration
from ...errors import EngineUnavailable, InvalidArgument, StaleToken
from ...runtime.clock import boottime
from ...runtime.self_pipe import SelfPipe
from ..calls import BaseJob, finish_many_call
from ..model import StopReason
from ..threads import Job, Queue
from . import outcomes
from .base import DEFAULT_LEASE, GRACE_SECONDS, BaseWorker
from .heartbeats import Heartbeats
from .outcomes import Outcome
from .pace import Pace, pause_after
from .signals import stopping_at_signals

__all__ = ["Worker"]

log = logging.getLogger("holdfast")

WAIT_SECONDS: Final = 1.0
STALLED_SECONDS: Final = 0.25
"""Jobs that were claimed ahead and could not begin for so long are given back."""
LAST_SECONDS: Final = 1.0
"""How long functions have to look at ``should_stop`` before their jobs are given back."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The function of a job has ended."""

    job: Job
    outcome: Outcome
    seconds: float


class Worker(BaseWorker):
    """Runs functions on jobs, ``concurrency`` of them at once, each on a thread.

        worker = holdfast.queue.Worker(queue, concurrency=4)

        @worker.job("mail")
        def send(job):
            ...

        worker.run()

    Leases are extended on another thread, however long a function takes. A function that runs long checks
    ``job.should_stop`` now and then: True if its job was cancelled, or was given to another claimant.
    """

    is_awaited = False

    def __init__(
        self,
        queue: Queue,
        concurrency: int = 1,
        *,
        lease: Duration = DEFAULT_LEASE,
        grace: Duration = GRACE_SECONDS,
    ) -> None:
        super().__init__(concurrency, lease, grace)
        if not isinstance(queue, Queue):
            raise InvalidArgument(
                f"Worker takes a queue of holdfast.queue.connect(…); this is {type(queue).__name__}."
                " For a queue of holdfast.queue.aio, use AsyncWorker"
            )
        self.queue = queue
        self._interruption: SelfPipe | None = None
        self._skips_grace = False

    def __repr__(self) -> str:
        return f"<Worker of {', '.join(self.functions) or 'nothing'} from {self.queue!r}>"

    def run(self, *, signals: bool = True, until_idle: bool = False) -> None:
        """Work until ``stop``, SIGTERM or SIGINT; with ``until_idle``, until no job is ready.

        Then no more jobs are claimed. The worker waits for running jobs for as long as ``grace``. It
        asks those that still run then to stop, and gives them back to other workers. A second signal ends the
        wait at once. With ``signals=False``, or outside the main thread, no signal handler is installed. The
        worker waits for the end of an outage of the database.
        """
        self._begin()
        self._interruption = SelfPipe()
        try:
            with stopping_at_signals(self._stop_on_signal) if signals else contextlib.nullcontext():
                _Run(self, self._interruption).work(until_idle)
        finally:
            self.is_running = False
            interruption, self._interruption = self._interruption, None
            interruption.close()
            self.is_stopping = self._skips_grace = False

    def stop(self, *, now: bool = False) -> None:
        """Let ``run`` end, which waits for the jobs that run; ``now``: they are given back at once. May be
        called from any thread, and from a job's function."""
        self._skips_grace = self._skips_grace or now
        self.is_stopping = True
        interruption = self._interruption
        if interruption is not None:
            interruption.wake()

    def _stop_on_signal(self) -> None:
        self.stop(now=self.is_stopping)


class _Run:
    """One ``run`` of a worker. Its fields are its own thread's, but for the queues between the threads."""

    def __init__(self, worker: Worker, interruption: SelfPipe) -> None:
        self._worker = worker
        self._queue = worker.queue
        self._store = worker.queue._store
        self._interruption = interruption
        self._heartbeats = Heartbeats(self._store, worker.lease, self._ignore)
        self._pace = Pace(worker.concurrency)
        self._waiting: queues.SimpleQueue[Job | None] = queues.SimpleQueue()
        """Claimed, not begun. None: the thread that gets it ends."""
        self._ended: queues.SimpleQueue[Ended] = queues.SimpleQueue()
        self._claimed: dict[int, Job] = {}
        """Waiting or running here."""
        self._unfinished: list[tuple[Job, str | None]] = []
        """Done, to be finished in the database."""
        self._begun_at = boottime()
        """When a job was last begun."""
        self._sleeps = False
        """Whether this thread waits, so that what ends has to wake it."""
        self._failures = 0
        self._is_cut_off = False
        """Whether the database was unreachable while the worker gave jobs back: their leases run out."""

    def work(self, until_idle: bool) -> None:
        threads = [
            threading.Thread(target=self._run_jobs, name=f"holdfast-queue-worker-{number}", daemon=True)
            for number in range(1, self._worker.concurrency + 1)
        ]
        self._heartbeats.start()
        for thread in threads:
            thread.start()
        try:
            self._schedule()
            while not self._worker.is_stopping and self._turn(until_idle):
                pass
            self._worker.is_stopping = True
            self._drain()
        finally:
            for _ in threads:
                self._waiting.put(None)
            self._heartbeats.stop()

    # --- the thread of run

    def _schedule(self) -> None:
        for kind, options in self._worker.schedules():
            while not self._worker.is_stopping:
                try:
                    self._queue.schedule(kind, kind, **options)
                    break
                except Exception as error:  # noqa: BLE001 - a worker outlives what its database does
                    self._pause(error)

    def _turn(self, until_idle: bool) -> bool:
        """Finish what was done, claim anew, or else wait; False: there is nothing more to do."""
        try:
            self._note_ended()
            self._finish()
            wanted = self._pace.wanted(len(self._claimed))
            found = self._claim(wanted) if wanted else 0
        except Exception as error:  # noqa: BLE001 - a worker outlives what its database does
            self._pause(error)
            return True
        self._failures = 0
        if self._ended.qsize() or found:
            return True
        if until_idle and not self._claimed and not self._unfinished:
            return False
        self._sleep(is_full=not wanted)
        return True

    def _claim(self, wanted: int) -> int:
        jobs = self._queue.claim(self._worker.kinds, min(wanted, 1000), self._worker.lease)
        if jobs and self._waiting.empty():
            self._begun_at = boottime()
        for job in jobs:
            self._claimed[job.id] = job
            self._heartbeats.add(job)
            self._waiting.put(job)
        return len(jobs)

    def _sleep(self, is_full: bool) -> None:
        """Until a job ends, may be claimed, or stalls behind others."""
        timeout = WAIT_SECONDS
        if not self._waiting.empty():
            timeout = max(0.0, self._begun_at + STALLED_SECONDS - boottime())
            if timeout == 0.0:
                self._pace.stalled(STALLED_SECONDS)
                self._give_back_waiting()
                return
        self._sleeps = True
        try:
            if self._ended.qsize() or self._worker.is_stopping:
                return
            if is_full:
                self._store.pause(timeout, self._interruption)
            else:
                self._store.wait(timeout, self._interruption)
        except Exception as error:  # noqa: BLE001 - as above
            self._pause(error)
        finally:
            self._sleeps = False

    def _pause(self, error: Exception) -> None:
        """The database is away, or refuses: it is tried again."""
        pause = pause_after(error, self._failures)
        self._failures += 1
        self._store.pause(pause, self._interruption)

    def _note_ended(self) -> None:
        while self._ended.qsize():
            ended = self._ended.get()
            self._worker.ended += 1
            self._pace.record(ended.seconds)
            if isinstance(ended.outcome, outcomes.Finish):
                self._unfinished.append((ended.job, ended.outcome.result))
            else:
                self._forget(ended.job)

    def _forget(self, job: Job) -> None:
        self._heartbeats.remove(job)
        if self._claimed.get(job.id) is job:
            del self._claimed[job.id]

    def _finish(self) -> None:
        if not self._unfinished:
            return
        found = self._store.run(finish_many_call(self._unfinished))
        while self._unfinished:
            job, result = self._unfinished[-1]
            if job.id not in found:
                # An earlier call finished it and its reply was lost, or another claimant has it.
                try:
                    self._store.run(job.finish_text_call(result))
                except StaleToken as error:
                    log.warning("what was done is dropped: %s", error)
            self._unfinished.pop()
            self._forget(job)

    def _give_back_waiting(self) -> None:
        while True:
            try:
                job = self._waiting.get_nowait()
            except queues.Empty:
                return
            if job is not None:
                self._release(job)

    def _release(self, job: Job) -> None:
        self._forget(job)
        if self._is_cut_off:
            return
        try:
            job.release()
        except Exception as error:  # noqa: BLE001 - nothing depends on it
            log.info("%r could not be given back, so its lease runs out: %s", job, error)
            # While the worker ends, wait for an absent database once, not for each job.
            self._is_cut_off = self._worker.is_stopping and isinstance(error, EngineUnavailable)

    def _ignore(self, job: BaseJob, reason: StopReason) -> None:
        """A thread cannot be interrupted: its function looks at ``job.should_stop``."""

    # --- the end

    def _drain(self) -> None:
        self._give_back_waiting()
        worker = self._worker
        self._finish_until(lambda: boottime() + worker.grace, lambda: worker._skips_grace)
        for job in self._claimed.values():
            if job.stop_reason is None:
                job.stop_reason = "given back"
        self._finish_until(lambda: boottime() + LAST_SECONDS, lambda: False)
        for job in list(self._claimed.values()):
            log.warning("%r still runs, and is given back", job)
            self._release(job)

    def _finish_until(self, deadline_of: Any, is_over: Any) -> None:
        deadline = deadline_of()
        while self._claimed and not is_over() and boottime() < deadline:
            try:
                self._note_ended()
                self._finish()
            except Exception as error:  # noqa: BLE001 - as above
                self._pause(error)
                continue
            if self._claimed and not self._unfinished:
                self._sleeps = True
                if not self._ended.qsize() and not is_over():
                    self._store.pause(max(0.0, min(1.0, deadline - boottime())), self._interruption)
                self._sleeps = False

    # --- the threads of the jobs

    def _run_jobs(self) -> None:
        while True:
            job = self._waiting.get()
            if job is None:
                return
            self._begun_at = began = boottime()
            outcome = self._settle(job, self._call(job))
            self._ended.put(Ended(job, outcome, boottime() - began))
            if self._sleeps:
                self._interruption.wake()

    def _call(self, job: Job) -> Outcome:
        if job.should_stop:
            return outcomes.of_error(job, RuntimeError("it was to stop before it began"))
        try:
            result = self._worker.functions[job.kind](job)
        except BaseException as error:  # noqa: BLE001 - a job must not end its thread
            return outcomes.of_error(job, error)
        return outcomes.of_result(job, result)

    def _settle(self, job: Job, outcome: Outcome) -> Outcome:
        """Here, unless it can be finished together with others."""
        job.is_ending = True
        failures = 0
        while True:
            try:
                if isinstance(outcome, outcomes.Fail):
                    job.fail(outcome.error, final=outcome.is_final)
                elif isinstance(outcome, outcomes.Release):
                    job.release()
                elif isinstance(outcome, outcomes.Finish) and job.claim.lane is not None:
                    self._store.run(job.finish_text_call(outcome.result))
                else:
                    return outcome
            except (StaleToken, InvalidArgument) as error:
                log.info("%r could not be ended: %s", job, error)
            except Exception as error:  # noqa: BLE001 - as above
                if self._worker.is_running and self._claimed.get(job.id) is job:
                    time.sleep(pause_after(error, failures))
                    failures += 1
                    continue
            return outcomes.Nothing()
