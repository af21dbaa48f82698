"""Local engines for the asyncio driver. It is a separate module, so that threads never import asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from ..engine_api import Steps
from ..rules.requests import Reply, Request, Snapshot
from .local import LocalAdapter, StoreBusyError

__all__ = ["LocalAsyncio"]

T = TypeVar("T")


class LocalAsyncio(LocalAdapter):
    """For the asyncio driver: the store's calls take microseconds, so they run in the loop itself."""

    __slots__ = ()

    async def apply(self, name: str, request: Request) -> Reply:
        try:
            return self._store.apply(name, request)
        except StoreBusyError:
            return await self._retry_while_busy(lambda: self._store.apply(name, request))

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return await self._retry_while_busy(lambda: self._store.apply_in_order(steps, stop_when_refused))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return await self._retry_while_busy(lambda: self._store.renew_batch(steps))

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return await self._retry_while_busy(lambda: self._store.list_names(prefix))

    async def _retry_while_busy(self, call: Callable[[], T]) -> T:
        pauses = self._backoff()
        while True:
            try:
                return call()
            except StoreBusyError:
                await asyncio.sleep(pauses.next())

    async def listen(self, name: str | None) -> None:
        loop = asyncio.get_running_loop()
        await self._retry_while_busy(lambda: self._store.listen_in_loop(loop))

    async def close(self) -> None:
        self._store.close()
