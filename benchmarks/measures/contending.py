"""The task of a contender: take the lock over and over, with a critical section that counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..contestant import Place, check
from ..counter import Counter
from ..interleaving import begin_soon, wait_for
from ..worker import TaskContext, Worker, gather

__all__ = ["Contended", "contend", "contend_all"]


@dataclass(frozen=True, slots=True)
class Contended:
    """What one contender did in a slice."""

    wanted: list[float]
    granted: list[float]
    released: list[float]
    """Moments of the monotonic clock: before acquire, after acquire, before release."""
    ends: float
    cpu_seconds: float

    @property
    def grants_in_time(self) -> int:
        """Without the last one that began to wait within the slice and was served after it."""
        return sum(moment < self.ends for moment in self.granted)

    @property
    def waits(self) -> list[float]:
        return [granted - wanted for wanted, granted in zip(self.wanted, self.granted, strict=True)]


def contend(
    context: TaskContext,
    counter_path: Path,
    begins: float,
    seconds: float,
    critical_seconds: float,
    between_seconds: float,
) -> Contended:
    acquire, release, clock, sleep = (
        context.handle.acquire,
        context.handle.release,
        time.monotonic,
        time.sleep,
    )
    did = Contended([], [], [], begins + seconds, 0.0)
    with Counter(counter_path) as counter:
        wait_for(begins)
        cpu = time.process_time()
        # At least once, however late the scheduler lets this process begin.
        while (wanted := clock()) < did.ends or not did.granted:
            acquire()
            did.granted.append(clock())
            did.wanted.append(wanted)
            value = counter.value
            if critical_seconds:
                sleep(critical_seconds)
            counter.value = value + 1
            did.released.append(clock())
            release()
            if between_seconds:
                sleep(between_seconds)
        used = time.process_time() - cpu
    return Contended(did.wanted, did.granted, did.released, did.ends, used)


def contend_all(
    workers: Sequence[Worker],
    place: Place,
    seconds: float,
    critical_seconds: float = 0.0,
    between_seconds: float = 0.0,
) -> list[Contended]:
    """One slice with all workers at once. Every increment behind the lock must have counted."""
    with Counter(place.counter) as counter:
        before = counter.value
        begins = begin_soon()
        everyone = gather(
            [
                worker.start(contend, place.counter, begins, seconds, critical_seconds, between_seconds)
                for worker in workers
            ]
        )
        made = sum(len(did.granted) for did in everyone)
        lost = before + made - counter.value
        check(lost == 0, f"lost {lost} increments of {made}", workers[0].contestant)
    return everyone
