"""Holdfast as a contestant, for any engine: what differs between engines is the URL."""

from __future__ import annotations

import holdfast
import holdfast.aio

from ..contestant import Handle, Place
from .looping import AsyncioHandle

__all__ = ["open_asyncio", "open_threads"]


class ThreadsHandle(Handle):
    """The threads API with its defaults: a token on every grant, the keeper renewing."""

    def __init__(self, url: str, place: Place, name: str) -> None:
        self._client = holdfast.connect(url, namespace=place.space)
        self._name = name
        self._lock = self._client.lock(name)
        self._leases: list[holdfast.Lease] = []
        self.acquire = self._lock.acquire
        self.release = self._lock.release
        # A first attempt that may not wait gives a busy machine half a second to connect.
        self._client.inspect(name)

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

    def waiting(self) -> int:
        return len(self._client.inspect(self._name).waiters)

    def close(self) -> None:
        self._client.close()


class HoldfastAsyncio(AsyncioHandle):
    """The asyncio API with its defaults."""

    def __init__(self, url: str, place: Place, name: str) -> None:
        self._client = holdfast.aio.connect(url, namespace=place.space)
        super().__init__(place, name)

    async def connect(self, place: Place) -> None:
        """Within ``io_timeout``: a first attempt that may not wait gives a busy machine half a second."""
        await self._client.inspect("connect")

    async def disconnect(self) -> None:
        await self._client.close()

    def lock_of(self, name: str) -> holdfast.aio.AsyncLock:
        return self._client.lock(name)

    async def attempt(self, lock: holdfast.aio.AsyncLock) -> bool:
        return await lock.acquire(blocking=False) is not None

    def token(self) -> int:
        async def one() -> int:
            async with self._client.lock(self._name) as lease:
                return lease.token

        return int(self.run(one()))

    def waiting(self) -> int:
        async def look() -> int:
            return len((await self._client.inspect(self._name)).waiters)

        return int(self.run(look()))


def open_threads(url: str, place: Place, name: str) -> Handle:
    """``{folder}`` in the URL is the contestant's own folder, ``{addresses}`` are those of its servers."""
    return ThreadsHandle(_filled_in(url, place), place, name)


def open_asyncio(url: str, place: Place, name: str) -> Handle:
    return HoldfastAsyncio(_filled_in(url, place), place, name)


def _filled_in(url: str, place: Place) -> str:
    return url.format(folder=place.folder, addresses=",".join(place.addresses))
