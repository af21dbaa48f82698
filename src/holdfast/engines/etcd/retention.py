"""Keeping things for a while without a lease for each of them.

What is to be forgotten in the end (what a name is, its value, notes) hangs on a lease that is shared by all
clients: its id is computed from how long it lasts and from the time of its beginning, so that they all find
the same one without asking. There are a few dozen of them at most, however many names there are; and what
expires at one moment is never everything.
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
"""What is kept longer than it asked for is forgotten by whoever reads it."""

PARTS: Final = 16
"""A new lease begins after such a part of the length."""


class Retention:
    """The shared leases, as far as this client knows them."""

    __slots__ = ("_channel", "_known", "_scope")

    def __init__(self, scope: bytes, channel: ClusterChannel) -> None:
        self._scope = scope
        self._channel = channel
        self._known: dict[tuple[int, int], int] = {}

    def known(self, seconds: float) -> int | None:
        """A lease that lives for so long at least, if it has been asked for before."""
        return self._known.get(_which(seconds))

    async def lease(self, seconds: float) -> int:
        """A lease that lives for so long at least."""
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
        """One of them is missing, by somebody's hand: ask for each again."""
        self._known.clear()


def _which(seconds: float) -> tuple[int, int]:
    """How long it lasts, and in which part of time it begins."""
    for length in LENGTHS:
        if seconds <= length:
            break
    return length, int(wall_seconds()) // (length // PARTS)


def lease_id(*parts: object) -> int:
    """The same for everybody who computes it; never 0, which etcd takes for "choose one"."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 1) or 1
