"""Latches, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import arguments
from ...core.lock_options import Duration
from ...recipes import cell
from ...recipes import latch as recipe

if TYPE_CHECKING:
    from ...aio import AsyncClient

__all__ = ["AsyncLatch"]


class AsyncLatch:
    """A count that goes down to zero, once. Waiters go on when it is zero; later ones do not wait."""

    __slots__ = ("_latch", "_run")

    def __init__(self, client: AsyncClient, name: str, count: int) -> None:
        arguments.check_name(name)
        cell.check_engine(client.guarantees)
        self._latch = recipe.Latch(client._driver.client_state, name, count)
        self._run = client._driver.run

    def __repr__(self) -> str:
        return f"<holdfast.AsyncLatch {self.name!r} from {self._latch.count}>"

    @property
    def name(self) -> str:
        return self._latch.name

    async def count_down(self, n: int = 1) -> int:
        """Count down by ``n``, at most to zero. Returns what is left."""
        return await self._run(recipe.count_down(self._latch, arguments.check_limit(n, "n")))

    async def remaining(self) -> int:
        """What is left of the count."""
        return await self._run(recipe.remaining(self._latch))

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until the count is zero, at most ``timeout`` (None: for ever). False: it was not in time."""
        return await self._run(recipe.wait(self._latch, arguments.check_timeout(timeout)))
