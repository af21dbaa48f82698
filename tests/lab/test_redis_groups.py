"""Redis under Sentinels and as a cluster, as the lab starts them."""

from __future__ import annotations

import pytest

from holdfast.lab.servers import RedisCluster, RedisSentinel
from holdfast.lab.servers.resp import Redirected
from support import wait_until
from support.servers import shared_redis_cluster

SENTINEL = pytest.mark.engine("redis+sentinel")
CLUSTER = pytest.mark.engine("redis+cluster")


@SENTINEL
def test_sentinels_replace_a_master_that_is_well() -> None:
    with RedisSentinel() as watched:
        assert watched.failover() is watched.nodes[1]
        assert watched.master() is watched.nodes[1]


@SENTINEL
def test_sentinels_replace_a_master_that_is_gone() -> None:
    with RedisSentinel(password="secret") as watched:
        first, second = watched.nodes
        assert watched.master() is first
        first.command("SET", "x", "1")
        first.command("WAIT", 1, 5000)
        first.kill()
        assert watched.wait_for_another(first) is second
        assert second.command("GET", "x") == b"1"
        first.start()
        wait_until(first.is_replica)
        wait_until(lambda: second.info("replication")["connected_slaves"] == "1")
        second.restart()
        assert second.is_replica() is False, "a node keeps the role that it was given"


@pytest.fixture
def cluster() -> RedisCluster:
    return shared_redis_cluster()


@CLUSTER
def test_each_master_has_its_share(cluster: RedisCluster) -> None:
    assert [cluster.owner(slot) for slot in (0, 8000, 16383)] == list(cluster.masters)
    slot = cluster.slot_of("x")
    owner = cluster.owner(slot)
    assert owner.command("SET", "x", "1") == "OK"
    other = next(node for node in cluster.members if node is not owner)
    with pytest.raises(Redirected, match=f"MOVED {slot} {owner.address}"):
        other.command("GET", "x")


@CLUSTER
def test_a_slot_moves(cluster: RedisCluster) -> None:
    slot = cluster.slot_of("moving")
    source = cluster.owner(slot)
    target = next(node for node in cluster.members if node is not source)
    source.command("SET", "{moving}1", "1")
    cluster.begin_move(slot, target)
    assert source.command("GET", "{moving}1") == b"1"
    with pytest.raises(Redirected, match=f"ASK {slot} {target.address}"):
        source.command("GET", "{moving}2")
    there = source.command("CLUSTER", "COUNTKEYSINSLOT", slot)  # others use the cluster, too
    assert there >= 1
    assert cluster.move_keys(slot, target) == there
    cluster.end_move(slot, target)
    assert cluster.owner(slot) is target
    assert target.command("GET", "{moving}1") == b"1"
    cluster.move(slot, source)
    assert source.command("GET", "{moving}1") == b"1"


@CLUSTER
def test_a_whole_cluster_starts_again() -> None:
    with RedisCluster() as cluster:
        ports = [node.port for node in cluster.members]
        cluster.restart(kill=True)
        assert [cluster.owner(slot) for slot in (0, 16383)] == [cluster.members[0], cluster.members[2]]
        cluster.restart(keep_data=False)
        assert [node.port for node in cluster.members] == ports


@CLUSTER
def test_a_replica_takes_over() -> None:
    with RedisCluster(replicas=1, node_timeout_ms=1000, password="secret") as cluster:
        first, replica = cluster.members[0], cluster.members[3]
        first.kill()
        wait_until(lambda: cluster.owner(0) is replica)
        cluster.move(0, cluster.members[1])
        assert cluster.owner(0) is cluster.members[1]
