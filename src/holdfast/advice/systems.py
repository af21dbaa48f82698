"""What a user may run already: where locks or data can live, and how a program opens it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["SYSTEMS", "System"]


@dataclass(frozen=True, slots=True)
class System:
    """One of them. The URLs are examples, and what the tests replace by those of real servers."""

    name: str
    url: str
    """Of Holdfast; its guarantees are those of this engine."""
    locks: str
    """The statement that opens a client."""
    database: str = ""
    """The statement that opens a connection, where it is a database."""
    database_url: str = ""
    """The URL of that database, for what Holdfast keeps in it: a queue, streams of events."""


SYSTEMS: Final[Mapping[str, System]] = {
    "sqlite": System(
        "nothing: one machine, one user",
        "sqlite:////var/lib/app/locks.db",
        'locks = holdfast.connect("sqlite:////var/lib/app/locks.db")',
        'db = sqlite3.connect("/var/lib/app/app.db")',
        "sqlite:////var/lib/app/app.db",
    ),
    "redis": System(
        "Redis or Valkey", "redis://localhost:6379/0", 'locks = holdfast.connect("redis://localhost:6379/0")'
    ),
    "postgresql": System(
        "PostgreSQL",
        "postgresql://localhost/app",
        'locks = holdfast.connect("postgresql://localhost/app")',
        'db = psycopg.connect("postgresql://localhost/app")',
        "postgresql://localhost/app",
    ),
    "etcd": System("etcd", "etcd://localhost:2379", 'locks = holdfast.connect("etcd://localhost:2379")'),
    "zookeeper": System(
        "ZooKeeper", "zookeeper://localhost:2181", 'locks = holdfast.connect("zookeeper://localhost:2181")'
    ),
    "redlock": System(
        "several independent Redis servers",
        "redlock://a:6379,b:6379,c:6379",
        'locks = holdfast.connect("redlock://a:6379,b:6379,c:6379")',
    ),
}
"""In the order in which they are offered."""
