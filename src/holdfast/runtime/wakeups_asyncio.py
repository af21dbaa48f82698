"""Waking one task; a module of its own, so that threads never import asyncio."""

from __future__ import annotations

import asyncio

from ..rules.requests import Handoff
from .clock import boottime
from .wakeups import SLEEP_SECONDS_MAX, Wakeup

__all__ = ["LoopWakeup"]


class LoopWakeup(Wakeup):
    """Wakes one task. Posted to from within its event loop only."""

    __slots__ = ("_loop", "_posted", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._posted = False
        self._waiter: asyncio.Future[None] | None = None

    def post(self, handoff: Handoff | None = None) -> None:
        super().post(handoff)
        self._posted = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait_until(self, until: float | None) -> bool:
        """Wait until a moment of the local clock; None: until posted. True: posted."""
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
