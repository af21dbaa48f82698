"""Valkey in place of Redis: a real server, alone, behind Sentinels, as a Cluster; three for a majority.

Much of the contract runs on it as well (``tests/contract/engines.py``), and all that concerns replicas
(``test_replicas.py``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import holdfast
import holdfast.aio
from contract.engines import fresh_namespace
from engines.redis.adapters import Asker, Driver
from engines.redis.twins import (
    Translation,
    compare,
    crowded_deeds,
    deeds_of,
    passing_deeds,
    random_deeds,
    scripts_with,
)
from holdfast import Client
from holdfast.lab.servers import Redis, RedisCluster, RedisSentinel
from holdfast.lab.servers.group import Group
from holdfast.rules.requests import Done, Granted, Renew
from rules.moves import KINDS, Move, moves
from support import async_wait_until, wait_until
from support.servers import shared_valkey, valkey_program
from support.thorough import examples

EXAMPLES = 25
"""Of each kind: that the scripts say what the rules say is shown on Redis, with many more."""


def test_it_is_valkey() -> None:
    assert shared_valkey().info("server")["server_name"] == "valkey"


# --- the scripts --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translation() -> Iterator[Translation]:
    translation = Translation(shared_valkey(), scripts_with())
    yield translation
    translation.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_scripts_do_what_the_rules_do(kind: str, translation: Translation) -> None:
    without_shrinking = [Phase.explicit, Phase.reuse, Phase.generate]

    @settings(max_examples=examples(EXAMPLES))
    @given(moves(kind))
    def short(sequence: list[Move]) -> None:
        compare(translation, deeds_of(sequence))

    @settings(max_examples=examples(EXAMPLES), phases=without_shrinking)
    @given(st.integers(0, 2**32))
    def long(seed: int) -> None:
        compare(translation, random_deeds(kind, seed))
        compare(translation, passing_deeds(seed))

    short()
    long()
    compare(translation, crowded_deeds(kind))


def test_scripts_that_were_flushed_are_loaded_again(driver: Driver) -> None:
    with Redis(program=valkey_program()) as server, Asker(driver, server.url) as asker:
        server.command("SCRIPT", "FLUSH")
        assert isinstance(asker.acquire("x", "n1"), Granted)
        server.command("SCRIPT", "FLUSH")
        (renewed,) = asker.ask(asker.adapter.renew_batch, (("x", Renew("n1", 30.0)),))
        assert isinstance(renewed, Done)
        server.command("SCRIPT", "FLUSH")
        assert isinstance(asker.release("x", "n1"), Done)


# --- clients ------------------------------------------------------------------------------------


def hand_on(locks: Client, name: str) -> None:
    """From a holder to a waiter, which is notified."""
    lease = locks.lock(name, ttl=600).acquire(timeout=10)
    assert lease is not None
    tokens: list[int] = []

    def wait() -> None:
        with locks.lock(name, ttl=600, timeout=20) as taken:
            tokens.append(taken.token)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: locks.inspect(name).waiters)
    lease.release()
    thread.join(20)
    assert tokens > [lease.token]
    assert not locks.inspect(name).locked


def is_renewed(locks: Client) -> bool:
    return any(held.age > 1.2 for held in locks.inspect("x").holders)


def test_threads_renew_and_hand_on() -> None:
    with holdfast.connect(shared_valkey().url, namespace=fresh_namespace()) as locks:
        with locks.lock("x", ttl=1.0):
            wait_until(lambda: is_renewed(locks))
        hand_on(locks, "x")


def test_tasks_renew_and_hand_on() -> None:
    namespace = fresh_namespace()

    async def main(other: Client) -> None:
        async with holdfast.aio.connect(shared_valkey().url, namespace=namespace) as locks:
            lease = await locks.lock("x", ttl=1.0).acquire()
            assert lease is not None

            await async_wait_until(lambda: is_renewed(other))
            waiter = asyncio.create_task(locks.lock("x", ttl=600).acquire(timeout=20))
            await async_wait_until(lambda: other.inspect("x").waiters)
            await lease.release()
            taken = await waiter
            assert taken is not None
            assert taken.token > lease.token
            await taken.release()

    with holdfast.connect(shared_valkey().url, namespace=namespace) as other:
        asyncio.run(main(other))


def test_readers_and_a_writer() -> None:
    with holdfast.connect(shared_valkey().url, namespace=fresh_namespace()) as locks:
        lock, other = locks.rwlock("x", timeout=5), locks.rwlock("x", timeout=5)
        with lock.write() as writing:
            assert other.read().acquire(timeout=0) is None
        with lock.read() as first, other.read() as second:
            assert writing.token < first.token < second.token
            assert lock.write().acquire(timeout=0) is None


# --- several servers ----------------------------------------------------------------------------


def test_behind_sentinels() -> None:
    with RedisSentinel(program=valkey_program(), sentinels=1) as system:
        url = f"redis+sentinel://{system.addresses}?service={system.service}"
        with holdfast.connect(url) as locks:
            hand_on(locks, "x")


def test_as_a_cluster() -> None:
    with (
        RedisCluster(program=valkey_program()) as cluster,
        holdfast.connect(f"redis+cluster://{cluster.addresses}") as locks,
    ):
        slots = {cluster.slot_of(f"holdfast:default:lock:{{{name}}}") for name in "abc"}
        assert len({cluster.owner(slot) for slot in slots}) > 1
        with locks.lock("a"), locks.lock("b"), locks.lock("c"):
            assert [info.name for info in locks.list()] == ["a", "b", "c"]
        hand_on(locks, "a")


@pytest.mark.engine("redlock")
def test_a_majority() -> None:
    with Group([Redis(program=valkey_program()) for _ in range(3)]) as nodes:
        url = f"redlock://{nodes.addresses}?node_timeout=1s"
        with holdfast.connect(url) as locks, holdfast.connect(url) as other:
            with locks.lock("x") as lease:
                assert other.lock("x").acquire(timeout=0) is None
                lease.extend()
                nodes.members[0].kill()
                lease.extend()
            newer = other.lock("x").acquire(timeout=10)
            assert newer is not None
            newer.release()
