"""One server of each kind, for groups that compare ways on several engines rather than engines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Final

from ..contestant import Place
from ..service import Service
from . import etcd, postgresql, redis, zookeeper

__all__ = ["LABELS", "PACKAGES", "serve_each", "url_of"]

LABELS: Final[Mapping[str, str]] = {
    "sqlite": "SQLite",
    "redis": "Redis",
    "postgresql": "PostgreSQL",
    "etcd": "etcd",
    "zookeeper": "ZooKeeper",
}

PACKAGES: Final[Mapping[str, str | None]] = {
    "sqlite": None,
    "redis": "redis",
    "postgresql": "psycopg",
    "etcd": "hpack",
    "zookeeper": "kazoo",
}
"""What has to be installed for each."""

_SERVERS: Final[Mapping[str, Callable[[], AbstractContextManager[Service]]]] = {
    "redis": redis.serve,
    "postgresql": postgresql.serve,
    "etcd": etcd.serve,
    "zookeeper": zookeeper.serve,
}

_URLS: Final[Mapping[str, str]] = {
    "sqlite": "sqlite:///{folder}/locks.db",
    "redis": "redis://{address}",
    "postgresql": "postgresql://postgres@{address}/postgres",
    "etcd": "etcd://{address}",
    "zookeeper": "zookeeper://{address}",
}


def serve_each(*engines: str) -> Callable[[], AbstractContextManager[Service]]:
    """Starts the servers of these engines; their addresses are in this order."""

    @contextlib.contextmanager
    def serve() -> Iterator[Service]:
        with contextlib.ExitStack() as stack:
            services = [stack.enter_context(_SERVERS[each]()) for each in engines if each in _SERVERS]
            yield Service(
                tuple(address for each in services for address in each.addresses),
                {name: version for each in services for name, version in each.versions.items()},
            )

    return serve


def url_of(engine: str, engines: tuple[str, ...], place: Place) -> str:
    """The URL of one of the engines whose servers were started together."""
    served = [each for each in engines if each in _SERVERS]
    address = place.addresses[served.index(engine)] if engine in served else ""
    return _URLS[engine].format(folder=place.folder, address=address)
