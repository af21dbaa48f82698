"""The contestants, one file per group. A new engine adds a file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.engines import SCHEMES

from . import (
    cells,
    etcd,
    events,
    fencing,
    fencing_redis,
    memory,
    ownership,
    postgresql,
    queue,
    redis,
    redlock,
    sql_counters,
    sqlite,
    zookeeper,
)
from .group import Group

__all__ = [
    "BY_SCHEME",
    "CELLS",
    "COUNTERS",
    "EVENTS",
    "GROUPS",
    "GUARDS",
    "IN_MEMORY",
    "OWNERSHIP",
    "QUEUE",
    "Group",
]

IN_MEMORY: Final = "-in-memory"
"""An engine once more, with servers that keep nothing."""

GUARDS: Final = "fencing"
"""No engine: guarded writes. Groups of guards begin so."""

COUNTERS: Final = "sql-counters"
"""No engine: transactions in the user's own database."""

QUEUE: Final = "queue"
"""No engine: jobs in the user's own database."""

CELLS: Final = "cells"
"""No engine: compare-and-swap and a lock, on several engines."""

OWNERSHIP: Final = "ownership"
"""No engine: members of groups, on several engines."""

EVENTS: Final = "events"
"""No engine: streams of events in the user's own database."""

BY_SCHEME: Final[Mapping[str, Group]] = {
    "sqlite": sqlite.GROUP,
    "memory": memory.GROUP,
    "redis": redis.GROUP,
    "redlock": redlock.GROUP,
    f"redlock{IN_MEMORY}": redlock.IN_MEMORY,
    "etcd": etcd.GROUP,
    "zookeeper": zookeeper.GROUP,
    "postgresql": postgresql.LEASES,
    "postgresql+advisory": postgresql.ADVISORY,
    GUARDS: fencing.GROUP,
    "fencing-redis": fencing_redis.GROUP,
    COUNTERS: sql_counters.GROUP,
    QUEUE: queue.GROUP,
    CELLS: cells.GROUP,
    OWNERSHIP: ownership.GROUP,
    EVENTS: events.GROUP,
}
"""All of them, in the order of the report."""

GROUPS: Final[Mapping[str, Group]] = {
    scheme: group
    for scheme, group in BY_SCHEME.items()
    if scheme.startswith((GUARDS, COUNTERS, QUEUE, CELLS, OWNERSHIP, EVENTS))
    or scheme.removesuffix(IN_MEMORY) in SCHEMES
}
"""What ``ENGINES=`` can name: the engines of this Holdfast by the scheme of their URLs; guards, counters,
jobs, cells, groups, streams."""
