"""A limit on the requests that are in flight at a time, for asyncio.

A thousand concurrent requests make a server slow for each of them while all of their time-outs run. So
requests beyond the limit wait here unsent, and their time-outs start when they are sent. Threads need no such
limit: those of one process hardly send a hundred requests at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

__all__ = ["REQUESTS_MAX", "ConcurrencyLimit"]

REQUESTS_MAX: Final = 100


class ConcurrencyLimit:
    """The limit of one client."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(REQUESTS_MAX)

    @contextlib.asynccontextmanager
    async def permit(self, urgent: bool) -> AsyncIterator[None]:
        """``urgent``: renewals do not wait for a permit."""
        if urgent:
            yield
        else:
            async with self._free:
                yield
