"""``wait_replicas``: a grant counts when replicas have it, and is given back when they do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from engines.redis.asking import Asker, Driver
from engines.redis.test_many import calls
from holdfast import EngineUnavailable
from holdfast.core.ops import Refused
from holdfast.lab.servers import Redis
from holdfast.rules.requests import Acquire, Busy, Done, Granted, Inspect, Queued
from support import wait_until


@pytest.fixture
def pair() -> Iterator[tuple[Redis, Redis]]:
    with Redis() as master, Redis(replica_of=master) as replica:
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
        with pytest.raises(Refused, match="0 of 1 replicas acknowledged the grant in time"):
            asker.acquire("x", "n1")
        assert asker.apply("x", Inspect()).record.holders == ()
        steps = tuple(
            (name, Acquire(f"n-{name}", asker.id, "me", "lock", "exclusive", ttl=30.0, wait=False))
            for name in "abc"
        )
        with pytest.raises(Refused, match="0 of 1 replicas"):
            asker.ask(asker.adapter.apply_in_order, steps, True)
        assert all(not asker.apply(name, Inspect()).record.holders for name in "abc")
    replica.resume()
    with Asker(driver, f"{master.url}?wait_replicas=1&wait_timeout=10") as patient:
        assert isinstance(patient.acquire("x", "n2"), Granted)


def test_a_client_says_so_in_the_end(pair: tuple[Redis, Redis]) -> None:
    master, _ = pair
    with holdfast.connect(master.url, wait_replicas=2, wait_timeout=0.05, io_timeout=1.0) as locks:
        with pytest.raises(EngineUnavailable, match=r"[01] of 2 replicas acknowledged"):
            locks.lock("x").acquire()
        assert not locks.inspect("x").locked


def test_renewals_do_not_wait_behind_grants(pair: tuple[Redis, Redis]) -> None:
    """With asyncio all share a connection; those that wait for replicas have one of their own."""
    master, _ = pair
    with Asker("asyncio", f"{master.url}?wait_replicas=1") as asker:
        asker.acquire("x", "n1")
        rows = master.command("CLIENT", "LIST").splitlines()
        assert sum(b"name=holdfast-" in row for row in rows) == 2
