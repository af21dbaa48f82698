"""Extends the leases of a worker's jobs, on a thread of its own.

So neither a long computation nor an event loop that is blocked loses a job. All jobs of a worker are extended
by one statement. From its result the worker learns that a job was cancelled, or was given to another claimant
while this process was stopped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from ...errors import HoldfastError, StaleToken
from ..calls import BaseJob, extend_many_call
from ..model import JobCancelled, StopReason
from ..store import Store

__all__ = ["Heartbeats"]

log = logging.getLogger("holdfast")

BEATS_PER_LEASE: Final = 3
RETRIES_PER_BEAT: Final = 4
JOIN_SECONDS: Final = 5.0


class Heartbeats:
    """Extends the leases of the jobs that are added, until they are removed. For each job that is to stop,
    this thread calls ``on_stop`` once, with the reason."""

    def __init__(self, store: Store, lease: float, on_stop: Callable[[BaseJob, StopReason], None]) -> None:
        self._store = store
        self._interval = lease / BEATS_PER_LEASE
        self._on_stop = on_stop
        self._jobs: dict[int, BaseJob] = {}
        self._mutex = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="holdfast-queue-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(JOIN_SECONDS)

    def add(self, job: BaseJob) -> None:
        with self._mutex:
            earlier = self._jobs.get(job.id)
        if earlier is not None:
            self._report(earlier, "lost")  # its lease had expired, and this worker has claimed the job again
        with self._mutex:
            self._jobs[job.id] = job

    def remove(self, job: BaseJob) -> None:
        with self._mutex:
            if self._jobs.get(job.id) is job:
                del self._jobs[job.id]

    def _beat(self) -> None:
        pause = self._interval
        while not self._ended.wait(pause):
            with self._mutex:
                jobs = list(self._jobs.values())
            try:
                self._extend(jobs)
                pause = self._interval
            except HoldfastError as error:
                log.warning("the leases of %d jobs could not be extended: %s", len(jobs), error)
                pause = self._interval / RETRIES_PER_BEAT
            except Exception:
                # This thread must live: without it every job is lost.
                log.exception("the leases of %d jobs could not be extended", len(jobs))
                pause = self._interval / RETRIES_PER_BEAT

    def _extend(self, jobs: list[BaseJob]) -> None:
        if not jobs:
            return
        found = self._store.run(extend_many_call(jobs))
        for job in jobs:
            if found.get(job.id) is False:
                continue
            reason: StopReason | None = "cancelled" if job.id in found else self._why_missing(job)
            if reason is not None:
                self._report(job, reason)

    def _why_missing(self, job: BaseJob) -> StopReason | None:
        """The row may only be locked, for example by the transaction that is about to finish the job."""
        if job.is_ended:
            return None
        try:
            self._store.run(job.check_call())
        except StaleToken:
            return "lost"
        except JobCancelled:
            return "cancelled"
        return None

    def _report(self, job: BaseJob, reason: StopReason) -> None:
        if reason == "lost" and (job.is_ending or job.is_ended):
            return  # this process ended the claim, though the function may continue
        with self._mutex:
            is_kept = self._jobs.get(job.id) is job
            if reason == "lost" and is_kept:
                del self._jobs[job.id]
            if not is_kept or job.stop_reason is not None:
                return  # the job was removed, or its reason was reported before
            job.stop_reason = reason
        what = "was cancelled" if reason == "cancelled" else "was given to another claimant"
        log.log(logging.INFO if reason == "cancelled" else logging.WARNING, "%r %s while it ran", job, what)
        self._on_stop(job, reason)
