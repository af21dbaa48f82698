"""Holdfast as a contestant, for any engine: what differs between engines is the URL."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import holdfast
import holdfast.aio

from ..contestant import PAIRS_PER_LOOK, Handle

__all__ = ["open_asyncio", "open_threads"]


class ThreadsHandle(Handle):
    """The threads API with its defaults: a token on every grant, the keeper renewing."""

    def __init__(self, url: str, name: str) -> None:
        self._client = holdfast.connect(url)
        self._lock = self._client.lock(name)
        self._leases: list[holdfast.Lease] = []
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        return self._lock.acquire(blocking=False) is not None

    def token(self) -> int:
        with self._lock as lease:
            return lease.token

    def hold_many(self, count: int, ttl_seconds: float) -> None:
        for number in range(count):
            lease = self._client.lock(f"held-{number}", ttl=ttl_seconds).acquire()
            if lease is not None:
                self._leases.append(lease)

    def held(self) -> int:
        return sum(not lease.lost for lease in self._leases)

    def least_remaining(self) -> float:
        return min(lease.remaining for lease in self._leases)

    def close(self) -> None:
        self._client.close()


class AsyncioHandle(Handle):
    """The asyncio API. The loop runs during a slice only, as its client stays with one loop."""

    def __init__(self, url: str, name: str) -> None:
        self._runner = asyncio.Runner()
        self._client = holdfast.aio.connect(url)
        self._lock = self._client.lock(name)
        self.acquire = self._acquire
        self.release = self._release

    def try_acquire(self) -> bool:
        async def attempt() -> bool:
            return await self._lock.acquire(blocking=False) is not None

        return self._runner.run(attempt())

    def token(self) -> int:
        async def one() -> int:
            async with self._lock as lease:
                return lease.token

        return self._runner.run(one())

    def pairs_until(self, deadline: float) -> int:
        async def pairs_until() -> int:
            acquire, release, clock = self._lock.acquire, self._lock.release, time.monotonic
            pairs = 0
            while not pairs or clock() < deadline:
                for _ in range(PAIRS_PER_LOOK):
                    await acquire()
                    await release()
                pairs += PAIRS_PER_LOOK
            return pairs

        return self._runner.run(pairs_until())

    def close(self) -> None:
        async def close() -> None:
            await self._client.close()

        self._runner.run(close())
        self._runner.close()

    def _acquire(self) -> None:
        async def acquire() -> None:
            await self._lock.acquire()

        self._runner.run(acquire())

    def _release(self) -> None:
        async def release() -> None:
            await self._lock.release()

        self._runner.run(release())


def open_threads(url: str, folder: Path, name: str) -> Handle:
    """``{folder}`` in the URL is the contestant's own folder."""
    return ThreadsHandle(url.format(folder=folder), name)


def open_asyncio(url: str, folder: Path, name: str) -> Handle:
    return AsyncioHandle(url.format(folder=folder), name)
