"""A lock of asyncio as a contestant. The loop runs only while something is asked of the handle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from ..contestant import Handle, Moments, Place, pairs_per_look

__all__ = ["AsyncLock", "AsyncioHandle"]


class AsyncLock(Protocol):
    """What they all have."""

    def acquire(self) -> Awaitable[object]: ...

    def release(self) -> Awaitable[object]: ...


class AsyncioHandle(Handle):
    """The four methods below say what differs."""

    async def connect(self, place: Place) -> None:
        raise NotImplementedError

    async def disconnect(self) -> None:
        raise NotImplementedError

    def lock_of(self, name: str) -> AsyncLock:
        raise NotImplementedError

    async def attempt(self, lock: Any) -> bool:
        """Take it only if it is free."""
        raise NotImplementedError

    # --- what they have in common

    def __init__(self, place: Place, name: str) -> None:
        self._runner = asyncio.Runner()
        self._name = name
        self.run(self.connect(place))
        self._lock = self.lock_of(name)
        self._locks: list[AsyncLock] = []
        self.acquire = lambda: self.run(_awaited(self._lock.acquire))
        self.release = lambda: self.run(_awaited(self._lock.release))

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    def try_acquire(self) -> bool:
        return bool(self.run(self.attempt(self._lock)))

    def pairs_until(self, deadline: float) -> int:
        async def pairs_until() -> int:
            acquire, release, clock = self._lock.acquire, self._lock.release, time.monotonic
            began = clock()
            await acquire()
            await release()
            pairs, at_once = 1, pairs_per_look(clock() - began)
            while clock() < deadline:
                for _ in range(at_once):
                    await acquire()
                    await release()
                pairs += at_once
            return pairs

        return int(self.run(pairs_until()))

    def tasks_until(self, tasks: int, deadline: float) -> int:
        while len(self._locks) < tasks:
            self._locks.append(self.lock_of(f"{self._name}-{len(self._locks)}"))

        async def pairs_until(lock: AsyncLock) -> int:
            acquire, release, clock = lock.acquire, lock.release, time.monotonic
            pairs = 0
            while not pairs or clock() < deadline:
                await acquire()
                await release()
                pairs += 1
            return pairs

        async def all_tasks() -> int:
            return sum(await asyncio.gather(*(pairs_until(lock) for lock in self._locks[:tasks])))

        return int(self.run(all_tasks()))

    def crowd(self, count: int, inside: Callable[[], None], moments: Moments) -> None:
        async def wait_for_turn() -> None:
            lock = self.lock_of(self._name)
            await lock.acquire()
            inside()
            await lock.release()

        async def everyone() -> None:
            waiters = [asyncio.create_task(wait_for_turn()) for _ in range(count)]
            for seconds, act in moments:
                await asyncio.sleep(seconds)
                act()
            await asyncio.gather(*waiters)

        self.run(everyone())

    def close(self) -> None:
        self.run(self.disconnect())
        self._runner.close()


async def _awaited(call: Callable[[], Awaitable[object]]) -> object:
    return await call()
