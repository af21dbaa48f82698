"""``wait_replicas``: a grant counts when replicas have it, and is given back when they do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import holdfast
from engines.redis.adapters import Asker, Driver
from engines.redis.test_batches import calls
from holdfast import EngineUnavailable
from holdfast.core.effects import NotApplied, OutcomeUnknown
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import Redis
from holdfast.rules.requests import Acquire, Busy, Done, Granted, Inspect, Queued, Renew
from support import wait_until
from support.servers import valkey_program


@pytest.fixture(params=["redis", "valkey"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Redis, Redis]]:
    """``WAIT`` waits for all that was written in Redis 7.0; in Valkey for what its own connection wrote."""
    program = "redis-server" if request.param == "redis" else valkey_program()
    with Redis(program=program) as master, Redis(program=program, replica_of=master) as replica:
        wait_until(lambda: replica.info("replication")["master_link_status"] == "up")
        yield master, replica


def test_a_grant_that_replicas_have(driver: Driver, pair: tuple[Redis, Redis]) -> None:
    master, replica = pair
    with Asker(driver, f"{master.url}?wait_replicas=1") as asker:
        for number in range(5):
            assert isinstance(asker.acquire("x", f"n{number}"), Granted)
            key = asker.engine._space.prefix + b"lock:{x}"
            assert replica.command("GET", key) == master.command("GET", key)
            assert isinstance(asker.acquire("x", "another"), Busy)
            assert isinstance(asker.release("x", f"n{number}"), Done)
        steps = tuple(
            (name, Acquire(f"n-{name}", asker.id, "me", "lock", "exclusive", ttl=30.0, wait=False))
            for name in "abc"
        )
        told = asker.ask(asker.adapter.apply_in_order, steps, True)
        assert [type(each) for each in told] == [Granted] * 3
        assert any("1 replicas" in need for need in asker.engine.guarantees.needs)


def test_what_is_handed_over_is_asked_for_until_replicas_have_it(
    driver: Driver, pair: tuple[Redis, Redis]
) -> None:
    master, replica = pair
    with Asker(driver, f"{master.url}?wait_replicas=1") as asker:
        asker.ask(asker.adapter.listen, "x")
        assert isinstance(asker.acquire("x", "n1"), Granted)
        assert isinstance(asker.acquire("x", "n2", wait=True), Queued)
        asker.release("x", "n1")
        asker.until_posted("n2")
        assert asker.handed == {"n2": None}, "the message says so, and is not believed"
        before = calls(master)
        assert isinstance(asker.acquire("x", "n2", wait=True), Granted)
        assert calls(master) > before
        key = asker.engine._space.prefix + b"lock:{x}"
        assert replica.command("GET", key) == master.command("GET", key)


def test_a_grant_that_they_do_not_have_is_given_back(driver: Driver, pair: tuple[Redis, Redis]) -> None:
    master, replica = pair
    with Asker(driver, f"{master.url}?wait_replicas=1&wait_timeout=0.1") as asker:
        asker.apply("warm", Inspect())
        replica.pause()
        with pytest.raises(NotApplied, match="0 of 1 replicas acknowledged the grant in time"):
            asker.acquire("x", "n1")
        assert asker.apply("x", Inspect()).record.holders == ()
        steps = tuple(
            (name, Acquire(f"n-{name}", asker.id, "me", "lock", "exclusive", ttl=30.0, wait=False))
            for name in "abc"
        )
        with pytest.raises(NotApplied, match="0 of 1 replicas"):
            asker.ask(asker.adapter.apply_in_order, steps, True)
        assert all(not asker.apply(name, Inspect()).record.holders for name in "abc")
    replica.resume()
    with Asker(driver, f"{master.url}?wait_replicas=1&wait_timeout=10") as patient:
        assert isinstance(patient.acquire("x", "n2"), Granted)


def test_a_grant_asked_for_again_needs_them_as_well(driver: Driver, pair: tuple[Redis, Redis]) -> None:
    """Asked again, on another connection, the server writes nothing that could be acknowledged."""
    master, replica = pair
    with (
        Proxy(master.host, master.port) as proxy,
        Asker(driver, f"redis://{proxy.address}?wait_replicas=1&wait_timeout=0.1") as asker,
    ):
        wait_until(lambda: is_taken(asker, "warm"))
        replica.pause()
        lost = proxy.lose_reply(b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            asker.acquire("x", "n1")
        assert lost.is_set()
        assert len(asker.apply("x", Inspect()).record.holders) == 1
        with pytest.raises(NotApplied, match="0 of 1 replicas acknowledged the grant in time"):
            asker.acquire("x", "n1")
        assert asker.apply("x", Inspect()).record.holders == ()


def is_taken(asker: Asker, name: str) -> bool:
    try:
        return isinstance(asker.acquire(name), Granted)
    except NotApplied:
        return False  # a tenth of a second was too short for the replica


def test_a_grant_asked_for_again_counts_once_they_have_it(driver: Driver, pair: tuple[Redis, Redis]) -> None:
    master, replica = pair
    with (
        Proxy(master.host, master.port) as proxy,
        Asker(driver, f"redis://{proxy.address}?wait_replicas=1&wait_timeout=10") as asker,
    ):
        asker.acquire("warm")
        lost = proxy.lose_reply(b"EVALSHA")
        with pytest.raises(OutcomeUnknown):
            asker.acquire("x", "n1")
        assert lost.is_set()
        (held,) = asker.apply("x", Inspect()).record.holders
        again = asker.acquire("x", "n1")
        assert isinstance(again, Granted)
        assert again.token == held.token
        key = asker.engine._space.prefix + b"lock:{x}"
        assert replica.command("GET", key) == master.command("GET", key)


def test_what_is_handed_over_needs_them_as_well(driver: Driver, pair: tuple[Redis, Redis]) -> None:
    """It was written by the releasing client, on another connection, after this one's last request."""
    master, replica = pair
    with (
        Asker(driver, f"{master.url}?wait_replicas=1&wait_timeout=0.1") as asker,
        Asker(driver, master.url, namespace=asker.namespace) as other,
    ):
        asker.ask(asker.adapter.listen, "x")
        assert isinstance(other.acquire("x", "n1"), Granted)
        assert isinstance(asker.acquire("x", "n2", wait=True), Queued)
        wait_until(lambda: _offset(replica) == _offset(master))
        replica.pause()
        other.release("x", "n1")
        asker.until_posted("n2")
        with pytest.raises(NotApplied, match="0 of 1 replicas acknowledged the grant in time"):
            asker.acquire("x", "n2", wait=True)
        assert asker.apply("x", Inspect()).record.holders == ()


def _offset(server: Redis) -> int:
    """What a replica has told its master that it has, and what there is to have."""
    told = server.info("replication")
    return int(told.get("slave_repl_offset", told["master_repl_offset"]))


def test_a_missing_right_to_wait_for_replicas_is_reported_at_once(driver: Driver) -> None:
    rules = "on >secret ~holdfast:* &holdfast:* +@all -wait"
    with (
        Redis(acl={"app": rules}) as server,
        Asker(driver, f"redis://app:secret@{server.address}?wait_replicas=1") as asker,
    ):
        with pytest.raises(EngineUnavailable, match=r"lacks a permission.*with wait_replicas \+wait"):
            asker.acquire("x", "n1")
        assert asker.apply("x", Inspect()).record.holders == ()


def test_a_client_says_so_in_the_end(pair: tuple[Redis, Redis]) -> None:
    master, _ = pair
    with holdfast.connect(master.url, wait_replicas=2, wait_timeout=0.05, io_timeout=1.0) as locks:
        with pytest.raises(EngineUnavailable, match=r"[01] of 2 replicas acknowledged"):
            locks.lock("x").acquire()
        assert not locks.inspect("x").locked


def test_renewals_do_not_wait_behind_grants(driver: Driver, pair: tuple[Redis, Redis]) -> None:
    """With asyncio all share a connection; those that wait for replicas have one of their own."""
    master, replica = pair
    with Asker(driver, f"{master.url}?wait_replicas=1&wait_timeout=20", io_timeout=60.0) as asker:
        assert isinstance(asker.acquire("held", "n1"), Granted)
        replica.pause()
        granted: list[object] = []
        thread = threading.Thread(target=lambda: granted.append(asker.acquire("x", "n2")))
        thread.start()
        wait_until(lambda: b" cmd=wait " in master.command("CLIENT", "LIST"))
        (renewed,) = asker.ask(asker.adapter.renew_batch, (("held", Renew("n1", 30.0)),))
        assert isinstance(renewed, Done)
        assert granted == [], "the grant waits"
        replica.resume()
        thread.join(30)
        assert [type(each) for each in granted] == [Granted]
        rows = master.command("CLIENT", "LIST").splitlines()
        assert sum(b"name=holdfast-" in row for row in rows) == 2
