"""Three servers of ZooKeeper, of which some die or stand still."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import holdfast
from contract.engines import fresh_namespace
from engines.zookeeper.conftest import session_of
from holdfast import Client, EngineUnavailable, Lease, LockLost
from holdfast.engines.zookeeper.connection import Client as Kazoo
from holdfast.lab.servers import ServerFailed, ZooKeeper, ZooKeeperEnsemble
from support import wait_until
from support.waiting import TimedOut

pytestmark = pytest.mark.engine("zookeeper")

Connect = Callable[..., Client]

SECONDS = 9.0
"""Enough for an election, also where other things keep the machine busy."""

SETTINGS = {
    "maxSessionTimeout": "60000",
    "syncLimit": "6",
    "fastleader.maxNotificationInterval": "500",
}
"""A server without a message of its leader for six ticks elects another; one that was alone asks for votes
again soon."""

RUNNING: list[ZooKeeper] = []
"""Asked what they have to say when something fails."""

LOG_SHOWN = 4000


@pytest.fixture(scope="module")
def servers() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tick_ms=250, settings=SETTINGS) as ensemble:
        RUNNING[:] = ensemble.members
        yield ensemble


@pytest.fixture
def ensemble(servers: ZooKeeperEnsemble) -> Iterator[ZooKeeperEnsemble]:
    """All three are well before and after each test."""
    yield servers
    make_well(servers)


@pytest.fixture(autouse=True)
def _in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are tried in the order of the URL, so that it is known which one is talked to."""
    monkeypatch.setattr(
        Kazoo, "randomize_hosts", property(lambda _: False, lambda _, value: None), raising=False
    )


@pytest.fixture
def connect(ensemble: ZooKeeperEnsemble) -> Iterator[Connect]:
    namespace = fresh_namespace()
    with ExitStack() as clients:

        def make(first: ZooKeeper | None = None, **options: Any) -> Client:
            members = sorted(ensemble.members, key=lambda member: member is not first)
            url = f"zookeeper://{','.join([member.address for member in members])}"
            given = {"namespace": namespace, "session_timeout": SECONDS, "io_timeout": 3.0, **options}
            return clients.enter_context(holdfast.connect(url, **given))

        yield make


def make_well(ensemble: ZooKeeperEnsemble, last: ZooKeeper | None = None) -> None:
    """``last``: the leader, if it stood still with a majority. It goes on when the others have another. Would
    it go on as the leader that it was, then ZooKeeper 3.8.0 came to a standstill for good now and then: all
    servers answer, but what was proposed meanwhile is never agreed on, nor anything behind it."""
    for member in sorted(ensemble.members, key=lambda each: each is last):
        if member is last:
            leader_of(ensemble, but=last)
        member.resume()
        if not member.running:
            member.start()
    wait_until(lambda: all(mode_of(member) for member in ensemble.members), timeout=30)


def mode_of(member: ZooKeeper) -> str:
    with contextlib.suppress(OSError):
        return member.mode(0.5)
    return ""


def leader_of(ensemble: ZooKeeperEnsemble, but: ZooKeeper | None = None) -> ZooKeeper:
    def leader() -> ZooKeeper | None:
        with contextlib.suppress(ServerFailed):
            return next((m for m in ensemble.members if m is not but and mode_of(m) == "leader"), None)
        return None

    found = wait_until(leader, timeout=30)
    assert found is not None
    return found


def taken(client: Client, name: str = "x") -> Lease:
    """Also while there is nobody who could grant it."""
    told: list[str] = []

    def take() -> Lease | None:
        try:
            lease = client.lock(name).acquire(timeout=30)
            told.append("it was held by another all the time")
            return lease
        except EngineUnavailable as trouble:
            told.append(f"{trouble} ({trouble.__cause__})")
        return None

    try:
        lease = wait_until(take, timeout=40)
    except TimedOut as failure:
        told += [f"{each!r}, {mode_of(each)!r}, wrote:\n{each.log[-LOG_SHOWN:]}" for each in RUNNING]
        failure.add_note("\n".join(told))
        raise
    assert lease is not None
    return lease


def until_extended(lease: Lease) -> None:
    """The keeper would do it in its own time."""

    def extended() -> bool:
        with contextlib.suppress(EngineUnavailable):
            lease.extend()
            return True
        return False

    wait_until(extended, timeout=20)
    lease.check()


def harm_by_killing(member: ZooKeeper) -> None:
    member.kill()


def harm_by_stopping(member: ZooKeeper) -> None:
    member.pause()


Harm = Callable[[ZooKeeper], None]
harms = pytest.mark.parametrize("harm", [harm_by_killing, harm_by_stopping], ids=["killed", "stopped"])


@harms
@pytest.mark.parametrize("role", ["follower", "leader"])
def test_one_server_is_missed_by_nobody(
    ensemble: ZooKeeperEnsemble, connect: Connect, role: str, harm: Harm
) -> None:
    """Neither by those who hold nor by those who wait, though it is the one they all talk to."""
    leader = leader_of(ensemble)
    victim = leader if role == "leader" else next(m for m in ensemble.members if m is not leader)
    client, other = connect(victim), connect(victim)
    kept, lease = taken(client, "kept"), taken(client)
    granted: list[Lease] = []
    thread = threading.Thread(target=lambda: granted.append(taken(other)))
    thread.start()
    wait_until(lambda: len(client.inspect("x").waiters) == 1)
    session = session_of(client).session_id
    harm(victim)
    new = taken(client, "new")
    assert new.token > lease.token
    new.release()
    until_extended(kept)
    lease.check()
    assert session_of(client).session_id == session
    assert not granted
    lease.release()
    thread.join(30)
    assert granted[0].token > lease.token
    granted[0].check()
    for held in (kept, granted[0]):
        held.release()


def test_a_leader_that_goes_on_after_another_was_elected(
    ensemble: ZooKeeperEnsemble, connect: Connect
) -> None:
    """It may still think that it leads: its word alone keeps nothing alive, and nobody holds twice."""
    old = leader_of(ensemble)
    client, rival = connect(old), connect()
    lease = taken(client)
    old.pause()
    leader_of(ensemble, but=old)
    until_extended(lease)
    old.resume()
    assert rival.lock("x").acquire(timeout=1) is None
    until_extended(lease)
    lease.release()
    newer = taken(rival)
    assert newer.token > lease.token
    newer.release()


@harms
def test_without_a_majority_nothing_is_granted_and_loss_is_signalled(
    ensemble: ZooKeeperEnsemble, connect: Connect, harm: Harm
) -> None:
    leader = leader_of(ensemble)  # one that is left alone takes its time until it elects another
    survivor = next(member for member in ensemble.members if member is not leader)
    victims = [member for member in ensemble.members if member is not survivor]
    client, other = connect(survivor, session_timeout=3, io_timeout=1), connect(survivor, io_timeout=1)
    lease = taken(client)
    for victim in victims:
        harm(victim)
    for locks in (client, other):
        with pytest.raises(EngineUnavailable):
            locks.lock("y").acquire()
    assert lease.wait_lost(timeout=20)
    with pytest.raises(LockLost) as loss:
        lease.check()
    assert loss.value.reason == "unreachable"
    make_well(ensemble, last=leader)
    again = taken(other)
    assert again.token > lease.token
    assert lease.lost, "nothing revives it"
    with pytest.raises(LockLost):
        lease.release()
    again.check()
    again.release()


def test_a_server_that_is_left_alone_and_only_answers_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It grants nothing, and keeps nothing alive."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Dreadonlymode.enabled=true")
    with (
        ZooKeeperEnsemble(2, tick_ms=250, settings=SETTINGS) as pair,
        holdfast.connect(f"zookeeper://{pair.members[0].address}", session_timeout=3, io_timeout=1) as client,
    ):
        lease = taken(client)
        pair.members[1].kill()
        wait_until(lambda: mode_of(pair.members[0]) == "read-only", timeout=20)
        for _ in range(2):
            with pytest.raises(EngineUnavailable):
                client.lock("y").acquire()
        assert lease.wait_lost(timeout=20)
        with pytest.raises(LockLost):
            lease.check()


def test_an_ensemble_that_is_up_in_part_when_we_first_come(
    ensemble: ZooKeeperEnsemble, connect: Connect
) -> None:
    dead = ensemble.members[0]
    dead.kill()
    for first in ensemble.members:
        lease = taken(connect(first))
        lease.check()
        lease.release()


def test_all_clients_of_an_ensemble_agree_on_whose_numbers_tokens_are(
    ensemble: ZooKeeperEnsemble, connect: Connect
) -> None:
    """And each sees at once what was granted over another server."""
    clients = [connect(member) for member in ensemble.members]
    sources, tokens = set(), []
    for client in clients * 2:
        lease = taken(client)
        assert all(each.lock("x").acquire(blocking=False) is None for each in clients)
        sources.add(lease.fence.source)
        tokens.append(lease.token)
        lease.release()
    assert len(sources) == 1
    assert tokens == sorted(set(tokens))
