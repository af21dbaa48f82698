"""Waking one task that waits; a file apart, so that threads never import asyncio."""

from __future__ import annotations

import asyncio
from typing import Final

from ..rules.requests import Handoff
from .clock import boottime

__all__ = ["LoopWakeup"]

SLEEP_SECONDS_MAX: Final = 1.0
"""Waiting is cut into pieces of this length: the loop's clock stands still while the machine sleeps."""


class LoopWakeup:
    """Remembers one wake-up until somebody waits for it. For one waiter, within one loop."""

    __slots__ = ("_handed", "_is_to_look", "_loop", "_posted", "_waiter", "name")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.name: str | None = None
        """The record whose changes are heard here, if the engine was asked to tell of them."""
        self._handed: Handoff | None = None
        self._is_to_look = False
        """A wake-up brought nothing, so whoever waits is to look, whatever others bring, now and later: its
        nonce has been told on a channel, where others may have heard it."""
        self._loop = loop
        self._posted = False
        self._waiter: asyncio.Future[None] | None = None

    def post(self, handed: Handoff | None = None) -> None:
        if handed is None:
            self._is_to_look = True
        self._handed = handed
        self._posted = True
        self._wake()

    def fetch(self) -> Handoff | None:
        """What was brought along since the last time."""
        handed = None if self._is_to_look else self._handed
        self._handed = None
        return handed

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait_until(self, until: float | None) -> bool:
        """Wait until a moment of the local clock; None: until posted."""
        while not self._posted:
            left = SLEEP_SECONDS_MAX if until is None else until - boottime()
            if left <= 0:
                return False
            self._waiter = self._loop.create_future()
            timer = (
                self._loop.call_later(min(left, SLEEP_SECONDS_MAX), self._wake) if until is not None else None
            )
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        self._posted = False
        return True
