"""The wake-up of one waiting thread: where notifications arrive, and what the thread sleeps on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ..engine_api import NotificationReader
from ..rules.requests import Handoff
from .clock import boottime

__all__ = ["ThreadWakeup"]

SLEEP_SECONDS_MAX: Final = 1.0
"""A wait is cut into pieces of this length. While the machine is suspended, the boot clock runs on, and the
clock of a waiting thread stands still."""


class ThreadWakeup:
    """Remembers one wake-up until the thread waits for it. Posting never blocks.

    ``notification_reader``: the waiter reads the engine's notifications itself, unless another thread does.
    """

    __slots__ = ("_handed", "_is_reading", "_is_to_look", "_lock", "name", "notification_reader")

    def __init__(self) -> None:
        self.name: str | None = None
        """The record whose changes arrive here, if the attempt subscribed to them."""
        self._handed: Handoff | None = None
        self._is_to_look = False
        """A wake-up came without a handoff. From then on the waiter polls, and believes no handoff: its nonce
        was sent on a channel, where other clients may have read it."""
        self.notification_reader: NotificationReader | None = None
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_reading = False

    def post(self, handed: Handoff | None = None) -> None:
        if handed is None:
            self._is_to_look = True
        self._handed = handed
        try:  # noqa: SIM105 - every wake-up passes here, where each call counts
            self._lock.release()
        except RuntimeError:
            pass  # Posted already, and not fetched yet.
        if self._is_reading and self.notification_reader is not None:
            self.notification_reader.ring()

    def fetch(self) -> Handoff | None:
        """The handoff that arrived since the last call."""
        handed = None if self._is_to_look else self._handed
        self._handed = None
        return handed

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds) if seconds > 0 else self._lock.acquire(blocking=False)

    def wait_until(self, until: float | None) -> bool:
        """Wait until a moment of the local clock, or (None) until posted."""
        if until is None:
            return self._lock.acquire()
        if self.notification_reader is not None:
            try:
                if self.notification_reader.take():
                    self._is_reading = True
                    return self._read_until(until, self.notification_reader.hear)
            finally:
                self._is_reading = False
                self.notification_reader.give_back()  # Also after an interrupt.
        while True:
            left = until - boottime()
            if self.wait(min(left, SLEEP_SECONDS_MAX)):
                return True
            if left <= SLEEP_SECONDS_MAX and boottime() >= until:
                return False

    def _read_until(self, until: float, hear: Callable[[float], bool]) -> bool:
        # Checked after ``_is_reading`` is set: a thread that posts from now on rings.
        while not self._lock.acquire(blocking=False):
            left = until - boottime()
            if left <= 0:
                return False
            if hear(min(left, SLEEP_SECONDS_MAX)):
                break
        return True
