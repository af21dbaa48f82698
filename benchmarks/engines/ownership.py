"""Members of a group that share its partitions, each a process."""

from __future__ import annotations

from functools import partial
from typing import Final

import holdfast
from holdfast import ownership

from ..contestant import Contestant, Handle, Place
from .group import Group
from .together import LABELS, PACKAGES, serve_each, url_of

__all__ = ["GROUP", "TTL_SECONDS", "Membership"]

ENGINES: Final = ("sqlite", "redis", "postgresql")
TTL_SECONDS: Final = 2.0


class Membership(Handle):
    """A client, which joins when it is told to."""

    def __init__(self, engine: str, place: Place, name: str) -> None:
        self._client = holdfast.connect(url_of(engine, ENGINES, place), namespace=place.space)
        self._group = name
        self._member: ownership.Member | None = None

    def try_acquire(self) -> bool:
        """There is nothing to take. It connects."""
        self.look()
        return False

    def join(self, partitions: int) -> str:
        self._member = ownership.join(self._client, self._group, partitions, ttl=TTL_SECONDS)
        return self._member.name

    def look(self) -> ownership.GroupInfo | None:
        return ownership.show(self._client, self._group)

    def close(self) -> None:
        self._client.close()


GROUP = Group(
    "Single ownership",
    tuple(
        Contestant(
            f"ownership-{engine}",
            LABELS[engine],
            "subject",
            partial(Membership, engine),
            distribution=PACKAGES[engine],
        )
        for engine in ENGINES
    ),
    ("moves",),
    {},
    {"moves": "One server of each on loopback. Redis keeps nothing; PostgreSQL does not wait for its disk."},
    serve_each(*ENGINES),
    locks=False,
)
