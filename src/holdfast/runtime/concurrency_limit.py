"""Letting only so many requests be under way at a time, for asyncio.

A thousand tasks that ask at once make a server slow for each of them, and all of their time-outs run: so the
others wait here, unsent, and their time runs when they are sent. Threads need no such thing: those of one
process hardly ask a hundred at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

__all__ = ["REQUESTS_MAX", "ConcurrencyLimit"]

REQUESTS_MAX: Final = 100


class ConcurrencyLimit:
    """Of one client."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(REQUESTS_MAX)

    @contextlib.asynccontextmanager
    async def permit(self, urgent: bool) -> AsyncIterator[None]:
        """``urgent``: signs of life wait behind nobody."""
        if urgent:
            yield
        else:
            async with self._free:
                yield
