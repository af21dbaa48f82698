"""The guard for data in Redis, beside the same writes without one. All go through redis-py.

``acquire`` is one write here, and ``release`` nothing: what is measured as a pair is a write.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import holdfast
from holdfast.fencing import FencedRedis

from ..contestant import Contestant, Handle, Place
from .group import Group
from .redis import serve

__all__ = ["GROUP"]

SET: Final = "return redis.call('SET', KEYS[1], ARGV[1])"
VALUE: Final = b"x" * 100


def nothing() -> None:
    """A write is whole by itself."""


class Writes(Handle):
    """Writes of one key through a client of redis-py with its defaults."""

    def __init__(self, place: Place, name: str) -> None:
        import redis

        self.url = f"redis://{place.addresses[0]}"
        self.key = f"{place.space}:{name}"
        self.client: Any = redis.Redis.from_url(self.url)
        self.acquire = self.write()
        self.release = nothing

    def write(self) -> Any:
        return partial(self.client.set, self.key, VALUE)

    def try_acquire(self) -> bool:
        self.acquire()
        return True

    def close(self) -> None:
        self.client.close()


class ScriptWrites(Writes):
    """The same by a script that the server knows."""

    def write(self) -> Any:
        return partial(self.client.evalsha, self.client.script_load(SET), 1, self.key, VALUE)


class FencedWrites(Writes):
    """The same behind the guard, with a lease that is held and renewed."""

    def write(self) -> Any:
        self._locks = holdfast.connect(self.url, namespace="benchmark")
        lease = self._locks.lock(self.key).acquire()
        if lease is None:
            raise RuntimeError("the lock was not granted")
        self._lease = lease
        self._guard = FencedRedis(self.client, self.key)
        self._guard.advance(lease)
        return partial(self._guard.set, self.key, VALUE, lease)

    def token(self) -> int | None:
        """The newest that the guard has seen, which must be ours: else it guarded nothing."""
        newest = self._guard.newest()
        if newest != self._lease.fence:
            raise RuntimeError(f"the guard has seen {newest}, which is not the writer's grant")
        return newest.token

    def close(self) -> None:
        self._locks.close()
        super().close()


GROUP = Group(
    "Guard, Redis",
    (
        Contestant("fenced-redis", "FencedRedis.set", "subject", FencedWrites, distribution="redis"),
        Contestant("evalsha-set", "a plain EVALSHA that sets", "raw", ScriptWrites, distribution="redis"),
        Contestant("redis-set", "a plain SET", "raw", Writes, distribution="redis"),
    ),
    ("redis_writes",),
    {"redis_writes": "evalsha-set"},
    {"redis_writes": "One Redis on loopback, without persistence; values of 100 bytes; redis-py by itself."},
    serve,
    locks=False,
)
