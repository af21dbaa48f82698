"""Real servers on free loopback ports, each in a temporary folder. They end with the process that started
them.

with Redis() as server:
    server.command("SET", "x", "1")
    server.kill()
    server.restart()
"""

from __future__ import annotations

from .errors import ProgramMissing, ServerFailed
from .etcd import Etcd, EtcdCluster
from .group import Group
from .mariadb import MariaDB
from .pgbouncer import PgBouncer
from .postgresql import PostgreSQL
from .redis import Redis
from .redis_cluster import RedisCluster
from .redis_sentinel import RedisSentinel
from .seaweedfs import SeaweedFS
from .server import Server
from .zookeeper import ZooKeeper, ZooKeeperEnsemble

__all__ = [
    "Etcd",
    "EtcdCluster",
    "Group",
    "MariaDB",
    "PgBouncer",
    "PostgreSQL",
    "ProgramMissing",
    "Redis",
    "RedisCluster",
    "RedisSentinel",
    "SeaweedFS",
    "Server",
    "ServerFailed",
    "ZooKeeper",
    "ZooKeeperEnsemble",
]
