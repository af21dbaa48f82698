"""Many threads that do all there is to do with jobs, in random order; and what must hold all the same."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import defaultdict
from dataclasses import dataclass, field

import holdfast.queue
from holdfast.errors import StaleToken
from holdfast.queue import Job, JobInfo, NewJob, Queue
from support import wait_until

__all__ = ["Crowd"]

KINDS = ("ordered", "serial", "limited", "plain")
ENDED = {"finished", "dead", "cancelled"}


@dataclass
class Crowd:
    """Each kind of job has a way of its own to use keys."""

    url: str
    seed: int
    jobs: int = 60
    threads: int = 5
    patience: float = 15.0
    broken: list[str] = field(default_factory=list)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _running: dict[tuple[str, str | None], int] = field(default_factory=lambda: defaultdict(int))

    def run(self, queue: Queue) -> list[str]:
        """What did not hold."""
        queue.limit("limited", key_concurrency=2)
        workers = [
            threading.Thread(target=self._work, args=(self.seed * 100 + n,)) for n in range(self.threads)
        ]
        for worker in workers:
            worker.start()
        choose = random.Random(self.seed)
        ids = [queue.put_many([self._new_job(choose, n)])[0] for n in range(self.jobs)]
        for id_ in choose.sample(ids, 5):
            queue.cancel(id_)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not left(queue), timeout=self.patience)
        self._over = True
        for worker in workers:
            worker.join()
        if found := left(queue):
            self.broken.append(f"left behind: {found}")
        self._check_order(queue.jobs("finished", "ordered", limit=1000))
        return self.broken

    _over = False

    @staticmethod
    def _new_job(choose: random.Random, number: int) -> NewJob:
        kind = choose.choice(KINDS)
        key = choose.choice("xyz")
        if kind == "ordered":
            return NewJob(kind, number, key=key, ordered=True, max_attempts=6)
        if kind == "serial":
            return NewJob(
                kind, number, key=key, unique="running", priority=choose.randrange(3), max_attempts=6
            )
        return NewJob(kind, number, key=key if kind == "limited" else None, unique=None, max_attempts=6)

    # --- workers

    def _work(self, seed: int) -> None:
        choose = random.Random(seed)
        # One of them never waits: the others wait until a client takes back what they have abandoned.
        may_wait = seed % 100 != 0
        with holdfast.queue.connect(self.url, io_timeout=30) as queue:
            while not self._over:
                try:
                    self._claim(choose, queue, may_wait)
                except Exception as error:
                    self._broke(repr(error))

    def _claim(self, choose: random.Random, queue: Queue, may_wait: bool) -> None:
        abandons = choose.random() < 0.1
        jobs = queue.claim(limit=choose.choice([1, 3]), lease=0.05 if abandons else 60)
        if not abandons:
            for job in jobs:
                self._count(job, +1)
            for job in jobs:
                self._end(choose, job)
        elif may_wait and choose.random() < 0.5:
            for job in jobs:
                wait_until(lambda job=job: self._is_lost(job))  # type: ignore[misc]  # called at once

    def _is_lost(self, job: Job) -> bool:
        """A zombie: what it says once its job is another's must be refused."""
        try:
            job.check()
        except StaleToken:
            with contextlib.suppress(StaleToken):
                job.fail("a zombie")
                self._broke(f"a zombie failed {job}")
            return True
        except holdfast.queue.JobCancelled:
            return True
        return self._over

    def _end(self, choose: random.Random, job: Job) -> None:
        how = choose.random()
        self._count(job, -1)  # before the end: another may have it at once
        if how < 0.2:
            job.fail("by chance", retry_in=choose.choice([0, 0.02]))
        elif how < 0.3:
            job.release()
        else:
            job.finish()

    def _count(self, job: Job, change: int) -> None:
        most = {"ordered": 1, "serial": 1, "limited": 2}.get(job.kind)
        with self._mutex:
            self._running[job.kind, job.key] += change
            if most is not None and self._running[job.kind, job.key] > most:
                self.broken.append(
                    f"{self._running[job.kind, job.key]} jobs of {job.kind} {job.key} ran at once"
                )

    def _broke(self, what: str) -> None:
        with self._mutex:
            self.broken.append(what)

    def _check_order(self, finished: list[JobInfo]) -> None:
        latest: dict[str | None, float] = {}
        for job in finished:
            if job.ended_at is not None and job.ended_at < latest.get(job.key, 0.0):
                self.broken.append(f"job {job.id} of key {job.key} ended before an older one")
            latest[job.key] = max(latest.get(job.key, 0.0), job.ended_at or 0.0)


def left(queue: Queue) -> dict[str, int]:
    return {state: count for state, count in queue.counts().items() if count and state not in ENDED}
