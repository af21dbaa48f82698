"""A real Cluster: every name at the server of its slot, while slots move and masters fail."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from itertools import count

import pytest

import holdfast
import holdfast.aio
from engines.redis.adapters import Asker, Driver
from holdfast.core.effects import NotApplied, TransientError
from holdfast.engines.redis.keys import key_of, slot_of
from holdfast.lab.servers import RedisCluster
from holdfast.lab.servers.redis_cluster import ClusterNode
from holdfast.protocols import records
from holdfast.rules.requests import Acquire, Break, Broken, Busy, Done, Gone, Granted, Queued, Renew
from support import wait_until
from support.servers import shared_redis_cluster


@pytest.fixture
def asker(driver: Driver) -> Iterator[Asker]:
    with Asker(driver, url_of(shared_redis_cluster())) as asker:
        yield asker


@pytest.fixture(scope="module")
def moving() -> Iterator[RedisCluster]:
    """One whose slots may be moved."""
    with RedisCluster() as cluster:
        yield cluster


def url_of(cluster: RedisCluster) -> str:
    return f"redis+cluster://{cluster.addresses}"


def names_apart(asker: Asker, cluster: RedisCluster) -> list[str]:
    """One name at each master."""
    found: dict[int, str] = {}
    for number in count():
        name = f"name-{number}"
        found.setdefault(cluster.owner(slot_of(asker.engine._space, name)).port, name)
        if len(found) == len(cluster.masters):
            return list(found.values())
    raise AssertionError


def move(cluster: RedisCluster, asker: Asker, name: str) -> None:
    slot = slot_of(asker.engine._space, name)
    owner = cluster.owner(slot)
    cluster.move(slot, next(node for node in cluster.masters if node is not owner))


def deadline(lease: holdfast.Lease) -> float:
    return time.monotonic() + lease.remaining


def until_longer(seen: list[int], enough: int) -> None:
    wait_until(lambda: len(seen) > enough, timeout=30)


def test_names_are_where_the_cluster_says(asker: Asker) -> None:
    cluster = shared_redis_cluster()
    for name in ("a", "b", "with {tag} in it", "{", "}", "{}x", "%"):
        slot = slot_of(asker.engine._space, name)
        assert slot == cluster.slot_of(key_of(asker.engine._space, name))
        assert isinstance(asker.acquire(name, f"n-{name}"), Granted)


def test_any_member_is_enough_to_begin_with(driver: Driver) -> None:
    cluster = shared_redis_cluster()
    url = f"redis+cluster://127.0.0.1:1,{cluster.masters[2].address}"
    with Asker(driver, url) as asker:
        for name in names_apart(asker, cluster):
            assert isinstance(asker.acquire(name, f"n-{name}"), Granted)


def test_nobody_answers(driver: Driver) -> None:
    with (
        Asker(driver, "redis+cluster://127.0.0.1:1,127.0.0.1:2") as asker,
        pytest.raises(
            NotApplied, match=r"no member of the cluster answers \(127\.0\.0\.1:1, 127\.0\.0\.1:2\)"
        ),
    ):
        asker.acquire()


def test_tend_reaches_every_server(asker: Asker) -> None:
    names = [f"x{number}" for number in range(300)]
    for name in names:
        asker.acquire(name, f"n-{name}")
    steps = tuple((name, Renew(f"n-{name}", 30.0)) for name in names)
    assert asker.ask(asker.adapter.renew_batch, steps) == [Done()] * 300
    assert [name for name, _ in asker.ask(asker.adapter.list_names, "x")] == sorted(names)
    assert len(asker.ask(asker.adapter.list_names, "x1")) == 111


def test_several_at_once_as_far_as_they_share_a_slot(asker: Asker) -> None:
    def step(name: str) -> tuple[str, Acquire]:
        return name, Acquire(f"n-{name}", asker.id, "me", "lock", "exclusive", ttl=30.0, wait=False)

    together = tuple(step(f"order {number} of {{42}}") for number in range(3))
    told = asker.ask(asker.adapter.apply_in_order, together, True)
    assert [type(each) for each in told] == [Granted] * 3
    one, two, three = names_apart(asker, shared_redis_cluster())
    apart = (step(one), step(two), step(three))
    told = asker.ask(asker.adapter.apply_in_order, apart, True)
    assert [type(each) for each in told] == [Granted]


def test_a_lock_of_several_names_takes_them_one_after_the_other() -> None:
    with holdfast.connect(url_of(shared_redis_cluster()), namespace=f"test-{secrets.token_hex(6)}") as locks:
        driver = locks._driver
        specs = tuple(locks.lock(name)._core.spec for name in "abcde")
        taken = driver.run(records.acquire_in_order(driver.client_state, specs, "me", 5.0))
        assert isinstance(taken, tuple)
        assert [state.name for state in taken] == list("abcde")
        again = driver.run(records.acquire_in_order(driver.client_state, specs[3:], "me", 0.0))
        assert isinstance(again, records.NotGranted)


def test_a_holder_is_notified_that_its_lock_was_broken(asker: Asker) -> None:
    """It listens to no slot; the one who breaks tells it."""
    asker.ask(asker.adapter.listen, None)
    for name in names_apart(asker, shared_redis_cluster()):
        assert isinstance(asker.acquire(name, f"n-{name}"), Granted)
        asker.until_told_to_look()
        assert isinstance(asker.apply(name, Break(None, "test")), Broken)
        asker.until_posted(f"n-{name}")


def test_wake_ups_come_from_every_server(asker: Asker) -> None:
    names = names_apart(asker, shared_redis_cluster())
    for name in names:
        asker.acquire(name, f"holds {name}")
        asker.ask(asker.adapter.listen, name)
        assert isinstance(asker.acquire(name, f"waits {name}", wait=True), Queued)
        asker.release(name, f"holds {name}")
    wait_until(lambda: sorted(asker.posted) == sorted(f"waits {name}" for name in names))


def test_one_connection_listens_at_each_master_however_many_wait(driver: Driver) -> None:
    cluster = shared_redis_cluster()
    with Asker(driver, url_of(cluster)) as asker:
        for number in range(60):
            asker.ask(asker.adapter.listen, f"x{number}")
        for node in cluster.masters:
            rows = node.command("CLIENT", "LIST", "TYPE", "PUBSUB").decode().splitlines()
            assert sum(f"name=holdfast-{asker.id} " in row for row in rows) == 1


def test_a_client_that_stops_listening_is_forgotten_in_time(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engines.redis.pubsub.IDLE_CHANNELS_MAX", 2)
    cluster = shared_redis_cluster()

    def channels() -> int:
        pattern = f"{asker.engine._space.prefix.decode()}wake:*"
        return sum(len(node.command("PUBSUB", "SHARDCHANNELS", pattern)) for node in cluster.masters)

    for name in "abcde":
        asker.ask(asker.adapter.listen, name)
    assert channels() == 5
    for name in "abcde":
        asker.ask(asker.adapter.unlisten, "n", name)
    wait_until(lambda: channels() == 2)
    asker.ask(asker.adapter.listen, "a")
    assert channels() == 3


# --- slots that move ----------------------------------------------------------------------------


def test_requests_follow_a_slot_that_moved(driver: Driver, moving: RedisCluster) -> None:
    with Asker(driver, url_of(moving)) as asker:
        first = asker.acquire("x", "n1")
        for _ in range(3):
            move(moving, asker, "x")
            assert isinstance(asker.acquire("x", "n2"), Busy)
            assert asker.ask(asker.adapter.renew_batch, (("x", Renew("n1", 30.0)),)) == [Done()]
        asker.release("x", "n1")
        second = asker.acquire("x", "n2")
        assert second.token > first.token


def test_requests_follow_a_slot_that_is_on_its_way(driver: Driver, moving: RedisCluster) -> None:
    """The old server has what was not moved yet, and redirects requests for the rest (ASK)."""
    with Asker(driver, url_of(moving)) as asker:
        for name in ("{t}old", "{t}other"):
            asker.acquire(name, f"n-{name}")
        slot = slot_of(asker.engine._space, "{t}old")
        owner = moving.owner(slot)
        target = next(node for node in moving.masters if node is not owner)
        moving.begin_move(slot, target)
        assert isinstance(asker.acquire("{t}old", "late"), Busy)
        fresh = asker.acquire("{t}fresh", "n1")
        assert isinstance(fresh, Granted)
        assert asker.ask(asker.adapter.renew_batch, (("{t}fresh", Renew("n1", 30.0)),)) == [Done()]
        moving.move_keys(slot, target)
        assert isinstance(asker.acquire("{t}old", "late"), Busy)
        moving.end_move(slot, target)
        assert asker.acquire("{t}fresh", "n1").token == fresh.token
        assert isinstance(asker.release("{t}old", "n-{t}old"), Done)
        assert asker.adapter._topology.masters[slot].port == target.port


def test_what_is_held_is_renewed_while_its_keys_are_at_two_servers(
    driver: Driver, moving: RedisCluster
) -> None:
    """A script that needs both is refused meanwhile (TRYAGAIN); one key is always at one place."""
    names = [f"{{split}}{number}" for number in range(4)]
    with Asker(driver, url_of(moving)) as asker:
        for name in ("elsewhere", *names):
            assert isinstance(asker.acquire(name, f"n-{name}"), Granted)
        slot = slot_of(asker.engine._space, names[0])
        target = next(node for node in moving.masters if node is not moving.owner(slot))
        source = moving.owner(slot)
        moving.begin_move(slot, target)
        for name in names[:2]:
            key = key_of(asker.engine._space, name)
            source.command("MIGRATE", target.host, target.port, key, 0, 5000)
        steps = tuple((name, Renew(f"n-{name}", 30.0)) for name in ("elsewhere", *names, "{split}nobody's"))
        told = asker.ask(asker.adapter.renew_batch, steps)
        assert [type(each) for each in told] == [Done] * 5 + [Gone]
        moving.move_keys(slot, target)
        assert asker.ask(asker.adapter.renew_batch, steps[:-1]) == [Done()] * 5
        moving.end_move(slot, target)
        assert asker.ask(asker.adapter.renew_batch, steps[:-1]) == [Done()] * 5


def test_a_waiter_is_woken_where_the_slot_is_now(driver: Driver, moving: RedisCluster) -> None:
    with Asker(driver, url_of(moving)) as asker:
        asker.acquire("x", "n1")
        asker.listen("x")
        asker.acquire("x", "n2", wait=True)
        for _ in range(2):
            looked = asker.told_to_look
            move(moving, asker, "x")
            asker.until_told_to_look(looked)
        assert asker.posted == []
        asker.release("x", "n1")
        wait_until(lambda: asker.posted == ["n2"])


def test_locks_change_hands_while_slots_move(moving: RedisCluster) -> None:
    """Two processes' worth of clients, one name, its slot on the move all the time: never two holders."""
    inside: list[int] = []
    tokens: list[int] = []
    stop = threading.Event()
    namespace = f"test-{secrets.token_hex(6)}"

    def work() -> None:
        with holdfast.connect(url_of(moving), namespace=namespace) as locks:
            while not stop.is_set():
                with locks.lock("x", timeout=60) as lease:
                    inside.append(1)
                    assert len(inside) == 1
                    tokens.append(lease.token)
                    inside.pop()

    with Asker("threads", url_of(moving), namespace=namespace) as asker:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(6):
                enough = len(tokens) + 3
                move(moving, asker, "x")
                until_longer(tokens, enough)
        finally:
            stop.set()
            for thread in threads:
                thread.join(70)
    assert not any(thread.is_alive() for thread in threads)
    assert tokens == sorted(set(tokens))


# --- masters that fail --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def partial() -> Iterator[RedisCluster]:
    """One that serves what it can while some of its masters are down."""
    with RedisCluster(settings={"cluster-require-full-coverage": "no"}, node_timeout_ms=30_000) as cluster:
        yield cluster


def owner_of_source(asker: Asker, cluster: RedisCluster) -> ClusterNode:
    return cluster.owner(cluster.slot_of(asker.adapter._topology._source_key))


@pytest.mark.parametrize(("harm", "which"), [("killed", "another"), ("stopped", "with the id")])
def test_one_master_that_fails_costs_no_lease_at_the_others(
    driver: Driver, partial: RedisCluster, harm: str, which: str
) -> None:
    """Whether it refuses or is silent, and also if it is the one that knows whose numbers the tokens are."""
    with Asker(driver, url_of(partial), io_timeout=0.5) as asker:
        names = names_apart(asker, partial)
        for name in names:
            assert isinstance(asker.acquire(name, f"n-{name}"), Granted)
        steps = tuple((name, Renew(f"n-{name}", 30.0)) for name in names)
        owners = [partial.owner(slot_of(asker.engine._space, name)) for name in names]
        source = owner_of_source(asker, partial)
        victim = next(node for node in owners if (node is source) is (which == "with the id"))
        unknown = [None if node is victim else Done() for node in owners]
        if harm == "killed":
            victim.kill()
        else:
            victim.pause()
        try:
            for _ in range(3):
                assert asker.ask(asker.adapter.renew_batch, steps) == unknown
            well = names[owners.index(victim) - 1]
            assert isinstance(asker.acquire(well, "late"), Busy)
        finally:
            if harm == "killed":
                victim.start()
            else:
                victim.resume()
            partial.settle()
        back = Gone if harm == "killed" else Done
        wanted = [back if node is victim else Done for node in owners]
        wait_until(
            lambda: [type(each) for each in asker.ask(asker.adapter.renew_batch, steps)] == wanted, timeout=30
        )


def test_leases_outlive_a_master_of_others(partial: RedisCluster) -> None:
    """The one that does not answer takes its time at every renewal; the others are renewed in theirs."""
    with (
        holdfast.connect(url_of(partial), namespace=f"test-{secrets.token_hex(6)}", io_timeout=0.5) as locks,
        Asker("threads", url_of(partial), namespace=locks.namespace) as asker,
    ):
        names = names_apart(asker, partial)
        leases = [locks.lock(name, ttl=3.0).acquire(timeout=10) for name in names]
        held = [lease for lease in leases if lease is not None]
        victim = partial.owner(slot_of(asker.engine._space, names[1]))
        victim.pause()
        try:
            assert held[1].wait_lost(timeout=20)
            before = [deadline(lease) for lease in held]
            wait_until(lambda: all(deadline(held[n]) > before[n] + 0.5 for n in (0, 2)))
        finally:
            victim.resume()
            partial.settle()


@pytest.mark.slow
def test_a_master_that_died_is_followed_by_its_replica(driver: Driver) -> None:
    with (
        RedisCluster(replicas=1, node_timeout_ms=1000) as cluster,
        Asker(driver, url_of(cluster), io_timeout=2.0) as asker,
    ):
        first = asker.acquire("x", "n1")
        asker.listen("x")
        old = cluster.owner(slot_of(asker.engine._space, "x"))
        wait_until(lambda: old.command("WAIT", 1, 1000) == 1)
        looked = asker.told_to_look
        old.kill()

        def again() -> object:
            with contextlib.suppress(TransientError):
                return asker.acquire("x", "n1")
            return None

        second = wait_until(again, timeout=60)
        assert isinstance(second, Granted)
        assert second.token >= first.token
        asker.until_told_to_look(looked)
        asker.acquire("x", "n2", wait=True)
        asker.release("x", "n1")
        asker.until_posted("n2")
