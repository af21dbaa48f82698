"""Peers on Redis, at their defaults; only time limits are lifted.

Each has keys of its own: names begin with the word of the place. Packages are imported when a handle is
opened: what is not installed is left out.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from ..contestant import Ability, Contestant, Handle, Place
from .looping import AsyncioHandle
from .tooz import open_tooz

__all__ = ["CONTESTANTS"]

NEVER_SECONDS = 1e6


def key_of(place: Place, name: str) -> str:
    return f"{place.space}:{name}"


def url_of(place: Place) -> str:
    return f"redis://{place.addresses[0]}/0"


class RedisPy(Handle):
    """``redis.Redis.lock``: ``SET NX``, and a script to release; looks every 100 ms."""

    def __init__(self, place: Place, name: str) -> None:
        import redis

        self._client: Any = redis.Redis.from_url(url_of(place))
        self._lock: Any = self._client.lock(key_of(place, name))
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(blocking=False))

    def close(self) -> None:
        self._client.close()


class RedisPyAsyncio(AsyncioHandle):
    """``redis.asyncio.Redis.lock``."""

    async def connect(self, place: Place) -> None:
        import redis.asyncio

        self._place = place
        self._client: Any = redis.asyncio.Redis.from_url(url_of(place))

    def lock_of(self, name: str) -> Any:
        return self._client.lock(key_of(self._place, name))

    async def attempt(self, lock: Any) -> bool:
        return bool(await lock.acquire(blocking=False))

    async def disconnect(self) -> None:
        await self._client.aclose()


class PythonRedisLock(Handle):
    """``redis_lock.Lock`` (python-redis-lock): waiters block on a list."""

    def __init__(self, place: Place, name: str) -> None:
        import redis
        import redis_lock

        logging.getLogger("redis_lock").addHandler(logging.NullHandler())  # it warns of every lock taken
        self._client: Any = redis.Redis.from_url(url_of(place))
        self._lock: Any = redis_lock.Lock(self._client, key_of(place, name))
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(blocking=False))

    def close(self) -> None:
        self._client.close()


class Sherlock(Handle):
    """``sherlock.RedisLock``: looks every 100 ms."""

    def __init__(self, place: Place, name: str) -> None:
        import redis
        import sherlock

        self._client: Any = redis.Redis.from_url(url_of(place))
        self._lock: Any = sherlock.RedisLock(key_of(place, name), client=self._client, timeout=NEVER_SECONDS)
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(blocking=False))

    def close(self) -> None:
        self._client.close()


class Portalocker(Handle):
    """``portalocker.RedisLock``: a subscription is the lock; looks every 250 ms."""

    def __init__(self, place: Place, name: str) -> None:
        import portalocker
        import redis

        self._refused: type[Exception] = portalocker.LockException
        self._client: Any = redis.Redis.from_url(url_of(place))
        self._lock: Any = portalocker.RedisLock(
            key_of(place, name), connection=self._client, timeout=NEVER_SECONDS
        )
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def try_acquire(self) -> bool:
        try:
            self._lock.acquire(timeout=0, fail_when_locked=True)
        except self._refused:
            return False
        return True

    def close(self) -> None:
        self._client.close()


PROCESSES: frozenset[Ability] = frozenset({"processes"})

CONTESTANTS = (
    Contestant("redis-py", "redis-py", "peer", RedisPy, PROCESSES, "redis", phase_seconds=0.1),
    Contestant(
        "redis-py-asyncio",
        "redis-py, asyncio",
        "peer",
        RedisPyAsyncio,
        frozenset({"transactions", "tasks"}),
        "redis",
    ),
    Contestant(
        "python-redis-lock", "python-redis-lock", "peer", PythonRedisLock, PROCESSES, "python-redis-lock"
    ),
    Contestant("sherlock", "sherlock", "peer", Sherlock, PROCESSES, "sherlock", phase_seconds=0.1),
    Contestant(
        "tooz-redis",
        "tooz",
        "peer",
        partial(open_tooz, "redis://{address}"),
        PROCESSES,
        "tooz",
        phase_seconds=0.1,
    ),
    Contestant(
        "portalocker-redis",
        "portalocker, Redis",
        "peer",
        Portalocker,
        PROCESSES,
        "portalocker",
        phase_seconds=0.25,
    ),
)
