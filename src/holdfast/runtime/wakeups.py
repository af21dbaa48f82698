"""Waking one thread that waits: what a waiter is posted to, and what it sleeps on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ..engine_api import NotificationReader
from ..rules.requests import Handoff
from .clock import boottime

__all__ = ["ThreadWakeup"]

SLEEP_SECONDS_MAX: Final = 1.0
"""Waiting is cut into pieces of this length: the machine may sleep meanwhile, and then our clock runs on
while the clock by which threads wait stands still."""


class ThreadWakeup:
    """Remembers one wake-up until somebody waits for it. Posting never blocks.

    ``notification_reader``: the waiter reads the engine's notifications itself, unless another thread does.
    """

    __slots__ = ("_handed", "_is_reading", "_is_to_look", "_lock", "name", "notification_reader")

    def __init__(self) -> None:
        self.name: str | None = None
        """The record whose changes are heard here, if the engine was asked to tell of them."""
        self._handed: Handoff | None = None
        self._is_to_look = False
        """A wake-up brought nothing, so whoever waits is to look, whatever others bring, now and later: its
        nonce has been told on a channel, where others may have heard it."""
        self.notification_reader: NotificationReader | None = None
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_reading = False

    def post(self, handed: Handoff | None = None) -> None:
        if handed is None:
            self._is_to_look = True
        self._handed = handed
        try:  # noqa: SIM105 - on the way of every wake-up, where each call counts
            self._lock.release()
        except RuntimeError:
            pass  # posted already and not yet fetched
        if self._is_reading and self.notification_reader is not None:
            self.notification_reader.ring()

    def fetch(self) -> Handoff | None:
        """What was brought along since the last time."""
        handed = None if self._is_to_look else self._handed
        self._handed = None
        return handed

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=seconds) if seconds > 0 else self._lock.acquire(blocking=False)

    def wait_until(self, until: float | None) -> bool:
        """Wait until a moment of the local clock; None: until posted."""
        if until is None:
            return self._lock.acquire()
        if self.notification_reader is not None:
            try:
                if self.notification_reader.take():
                    self._is_reading = True
                    return self._read_until(until, self.notification_reader.hear)
            finally:
                self._is_reading = False
                self.notification_reader.give_back()  # whatever an interrupt left of it
        while True:
            left = until - boottime()
            if self.wait(min(left, SLEEP_SECONDS_MAX)):
                return True
            if left <= SLEEP_SECONDS_MAX and boottime() >= until:
                return False

    def _read_until(self, until: float, hear: Callable[[float], bool]) -> bool:
        # Looked at after it is known that we hear: whoever posts from now on rings.
        while not self._lock.acquire(blocking=False):
            left = until - boottime()
            if left <= 0:
                return False
            if hear(min(left, SLEEP_SECONDS_MAX)):
                break
        return True
