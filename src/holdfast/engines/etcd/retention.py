"""Retention of keys without a lease for each of them.

Keys that are to expire in the end (the kind of a name, its value, notes) are attached to leases that all
clients share. The id of a shared lease is computed from its length and the period in which it begins, so that
all clients find the same lease without a request. There are a few dozen at most, however many names there
are; and they never all expire at one moment.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Final

from ...runtime.clock import wall_seconds
from . import wire_pb2 as wire
from .errors import LeaseExistsError
from .routing import ClusterChannel

__all__ = ["Retention"]

HOUR: Final = 3600
LENGTHS: Final = (2 * HOUR, 24 * HOUR, 30 * 24 * HOUR, 366 * 24 * HOUR)
"""A key that lives longer than requested is ignored by its readers."""

PARTS: Final = 16
"""A new shared lease begins after this part of the length."""


class Retention:
    """The shared leases, as far as this client knows them."""

    __slots__ = ("_channel", "_known", "_scope")

    def __init__(self, scope: bytes, channel: ClusterChannel) -> None:
        self._scope = scope
        self._channel = channel
        self._known: dict[tuple[int, int], int] = {}

    def known(self, seconds: float) -> int | None:
        """A lease with at least this time left, if this client knows it already."""
        return self._known.get(_which(seconds))

    async def lease(self, seconds: float) -> int:
        """A lease with at least this time left."""
        length, began = which = _which(seconds)
        lease = self._known.get(which)
        if lease is None:
            lease = lease_id(self._scope, length, began)
            with contextlib.suppress(LeaseExistsError):  # another client was first
                grant = wire.LeaseGrantRequest(TTL=length + 2 * (length // PARTS), ID=lease)
                await self._channel.call("LeaseGrant", grant)
            if len(self._known) > PARTS * len(LENGTHS):
                self._known.clear()
            self._known[which] = lease
        return lease

    def invalidate(self) -> None:
        """A shared lease was revoked from outside: grant each again when needed."""
        self._known.clear()


def _which(seconds: float) -> tuple[int, int]:
    """The length of a lease, and the period in which it begins."""
    for length in LENGTHS:
        if seconds <= length:
            break
    return length, int(wall_seconds()) // (length // PARTS)


def lease_id(*parts: object) -> int:
    """The same for every client that computes it; never 0, by which etcd chooses an id."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 1) or 1
