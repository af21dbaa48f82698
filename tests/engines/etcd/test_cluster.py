"""Three members, of which some die or stand still."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import holdfast
from contract.engines import fresh_namespace
from engines.etcd.conftest import Connect, Hold
from holdfast import Client, EngineUnavailable, Lease, LockLost
from holdfast.lab.servers import Etcd, EtcdCluster, ServerFailed
from support import wait_until


@pytest.fixture(scope="module")
def members() -> Iterator[EtcdCluster]:
    with EtcdCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(members: EtcdCluster) -> Iterator[EtcdCluster]:
    """All three are well before and after each test."""
    yield members
    for member in members.members:
        member.resume()
        if not member.running:
            member.start()
    wait_until(lambda: all(member.answers() for member in members.members), timeout=30)


@pytest.fixture
def url(cluster: EtcdCluster) -> str:
    return f"etcd://{cluster.addresses}"


def leader_of(cluster: EtcdCluster) -> Etcd:
    def leader() -> Etcd | None:
        with contextlib.suppress(ServerFailed, OSError):
            return cluster.leader()
        return None

    found = wait_until(leader, timeout=30)
    assert found is not None
    return found


def first(url_of: Etcd, cluster: EtcdCluster) -> str:
    """A URL that names this member first: it is the one that is talked to."""
    others = [member.address for member in cluster.members if member is not url_of]
    return f"etcd://{','.join([url_of.address, *others])}"


def harm_by_killing(member: Etcd) -> None:
    member.kill()


def harm_by_stopping(member: Etcd) -> None:
    member.pause()


Harm = Callable[[Etcd], None]
harms = pytest.mark.parametrize("harm", [harm_by_killing, harm_by_stopping], ids=["killed", "stopped"])


@harms
@pytest.mark.parametrize("role", ["follower", "leader"])
def test_one_member_is_missed_by_nobody(
    cluster: EtcdCluster, connect: Connect, hold: Hold, role: str, harm: Harm
) -> None:
    """Neither by those who hold nor by those who wait, though it is the one they all talk to."""
    leader = leader_of(cluster)
    victim = leader if role == "leader" else next(m for m in cluster.members if m is not leader)
    url = first(victim, cluster)
    client, other = connect(url, io_timeout=3), connect(url, io_timeout=3)
    kept = hold(client.lock("kept", ttl=8))
    lease = hold(client.lock("x", ttl=8))
    granted: list[Lease] = []
    thread = threading.Thread(target=lambda: granted.append(hold(other.lock("x", ttl=8))))
    thread.start()
    wait_until(lambda: len(client.inspect("x").waiters) == 1)
    harm(victim)
    with client.lock("new", ttl=8, timeout=20) as new:
        assert new.token > lease.token
    until = kept._state.deadline
    wait_until(lambda: kept._state.deadline > until, timeout=20, message="it was not renewed")
    kept.check()
    lease.check()
    assert not granted
    lease.release()
    thread.join(30)
    assert granted
    assert granted[0].token > lease.token
    granted[0].check()


def test_a_leader_that_goes_on_after_another_was_elected(
    cluster: EtcdCluster, connect: Connect, hold: Hold
) -> None:
    """It may still think that it leads: its word alone keeps nothing alive, and nobody holds twice."""
    old = leader_of(cluster)
    client = connect(first(old, cluster), io_timeout=3)
    rival = connect(io_timeout=3)
    lease = hold(client.lock("x", ttl=6))
    old.pause()
    wait_until(lambda: leader_of(_without(cluster, old)) is not old, timeout=30)
    until = lease._state.deadline
    wait_until(lambda: lease._state.deadline > until, timeout=20, message="it was not renewed elsewhere")
    old.resume()
    granted = rival.lock("x").acquire(timeout=3)
    if granted is None:
        lease.check()
    else:  # etcd before 3.4.28: the old leader ends sessions that the new one keeps
        assert granted.token > lease.token
        assert lease.wait_lost(timeout=5)
        granted.release()


def _without(cluster: EtcdCluster, member: Etcd) -> EtcdCluster:
    """The others, to be asked who leads."""
    rest = EtcdCluster.__new__(EtcdCluster)
    rest.members = tuple(each for each in cluster.members if each is not member)
    return rest


@harms
def test_without_a_majority_nothing_is_granted_and_loss_is_signalled(
    cluster: EtcdCluster, connect: Connect, hold: Hold, harm: Harm
) -> None:
    survivor, *victims = cluster.members
    client, other = connect(first(survivor, cluster), io_timeout=2), connect(io_timeout=2)
    lease = hold(client.lock("x", ttl=4))
    for victim in victims:
        harm(victim)
    for locks in (client, other):
        with pytest.raises(EngineUnavailable):
            locks.lock("y").acquire()
        assert locks.lock("y", timeout=0) is not None
    assert lease.wait_lost(timeout=20)
    with pytest.raises(LockLost) as loss:
        lease.check()
    assert loss.value.reason == "unreachable"
    for victim in victims:
        victim.resume()
        if not victim.running:
            victim.start()
    wait_until(lambda: all(member.answers() for member in cluster.members), timeout=30)
    with pytest.raises(LockLost):
        lease.release()
    again = other.lock("x").acquire(timeout=30)
    assert again is not None
    assert again.token > lease.token
    again.release()
    assert loss_is_final(lease)


def loss_is_final(lease: Lease) -> bool:
    return lease.lost and lease.remaining == 0


def test_a_cluster_that_is_up_in_part_when_we_first_come(cluster: EtcdCluster, namespace: str) -> None:
    dead = cluster.members[0]
    dead.kill()
    leader_of(_without(cluster, dead))
    began = time.monotonic()
    with holdfast.connect(first(dead, cluster), namespace=namespace) as client, client.lock("x") as lease:
        lease.check()
    assert time.monotonic() - began < 20


def test_all_clients_of_a_cluster_agree_on_whose_numbers_tokens_are(
    cluster: EtcdCluster, connect: Connect, hold: Hold
) -> None:
    sources = set()
    for member in cluster.members:
        client: Client = connect(f"etcd://{member.address}")
        with client.lock("x") as lease:
            sources.add(lease.fence.source)
    assert len(sources) == 1
    assert fresh_namespace() not in sources
