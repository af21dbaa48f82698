"""Wake-ups: what a waiter sleeps on, and what a notification posts to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ..engine_api import NotificationReader
from ..rules.requests import Handoff
from .clock import boottime

__all__ = ["SLEEP_SECONDS_MAX", "ThreadWakeup", "Wakeup"]

SLEEP_SECONDS_MAX: Final = 1.0
"""A wait is cut into pieces of this length: while the machine sleeps, our clock runs on, but the clock by
which threads and event loops wait stands still."""


class Wakeup:
    """What the notifications of one nonce brought since its waiter last looked. Subclasses wait for it."""

    __slots__ = ("_handoff", "_must_ask", "name")

    def __init__(self) -> None:
        self.name: str | None = None
        """The record whose changes are posted here, if the engine was asked to report them."""
        self._handoff: Handoff | None = None
        self._must_ask = False
        """A notification came without a grant. From then on the waiter has to ask the engine, whatever other
        notifications bring: its nonce was published on a channel, where other clients may have read it."""

    def post(self, handoff: Handoff | None = None) -> None:
        """Keep the wake-up for the waiter. May be called from any thread; never blocks."""
        if handoff is None:
            self._must_ask = True
        self._handoff = handoff

    def fetch(self) -> Handoff | None:
        """The grant that a notification brought since the last call."""
        handoff = None if self._must_ask else self._handoff
        self._handoff = None
        return handoff


class ThreadWakeup(Wakeup):
    """Wakes one thread.

    ``notification_reader``: the waiter reads the engine's notifications itself, unless another thread does.
    """

    __slots__ = ("_is_reading", "_lock", "notification_reader")

    def __init__(self) -> None:
        super().__init__()
        self.notification_reader: NotificationReader | None = None
        self._lock = threading.Lock()
        """Locked, except while there is a wake-up that the waiter has not taken yet."""
        self._lock.acquire()
        self._is_reading = False

    def post(self, handoff: Handoff | None = None) -> None:
        super().post(handoff)
        try:  # noqa: SIM105 - on the path of every wake-up, where each call counts
            self._lock.release()
        except RuntimeError:
            pass  # an earlier wake-up was not taken yet
        if self._is_reading and self.notification_reader is not None:
            self.notification_reader.interrupt()

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds) if seconds > 0 else self._lock.acquire(blocking=False)

    def wait_until(self, until: float | None) -> bool:
        """Wait until a moment of the local clock; None: until posted. True: posted."""
        if until is None:
            return self._lock.acquire()
        if self.notification_reader is not None:
            try:
                if self.notification_reader.try_acquire():
                    self._is_reading = True
                    return self._read_until(until, self.notification_reader.read)
            finally:
                self._is_reading = False
                self.notification_reader.release()  # also where an interrupt came before it had started
        while True:
            left = until - boottime()
            if self.wait(min(left, SLEEP_SECONDS_MAX)):
                return True
            if left <= SLEEP_SECONDS_MAX and boottime() >= until:
                return False

    def _read_until(self, until: float, read: Callable[[float], bool]) -> bool:
        # Checked after ``_is_reading`` was set: from then on every post interrupts the reader.
        while not self._lock.acquire(blocking=False):
            left = until - boottime()
            if left <= 0:
                return False
            if read(min(left, SLEEP_SECONDS_MAX)):
                break
        return True
