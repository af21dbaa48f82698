"""Behind a proxy that lends out connections by the transaction: all works, and nothing is left in them."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import holdfast
from contract.harness import World, held
from engines.postgres.introspection import receives_notifications
from holdfast import EngineUnavailable
from holdfast.lab.servers import PgBouncer, PostgreSQL
from support import renewal_of, run_python, wait_until
from support.servers import shared_pgbouncer, shared_postgresql

CONTENDER = """
import json, sys, time, holdfast
url, rounds = sys.argv[1], int(sys.argv[2])
with holdfast.connect(url) as client:
    lock = client.lock("x", ttl=10)
    print("ready", flush=True)
    input()
    spans = []
    for _ in range(rounds):
        with lock as lease:
            entered = time.monotonic_ns()
            lease.check()
            spans.append((entered, time.monotonic_ns(), lease.token))
    print("spans", json.dumps(spans), flush=True)
"""


FEW = {"default_pool_size": "2", "server_login_retry": "1"}


@pytest.fixture
def url(schema: str) -> str:
    return f"{shared_pgbouncer().url}?schema={schema}"


@pytest.fixture(scope="module")
def pooled() -> Iterator[PgBouncer]:
    """With a server of its own, whose connections can be inspected."""
    with PostgreSQL() as server, PgBouncer(server, settings=FEW) as pooled:
        yield pooled


async def test_waiters_poll(world: World) -> None:
    """Notifications do not arrive: clients detect it, and waiters poll, in order."""
    ann, crowd = world.actor(), [world.actor() for _ in range(3)]
    mine = world.client()
    lock = mine.lock("x")
    await ann(lock.acquire)
    theirs = world.client()
    waiting = []
    for number, actor in enumerate(crowd, start=1):
        waiting.append(actor(theirs.lock("x").acquire))
        await world.until_waiting("x", number)
    assert not receives_notifications(mine)
    assert not receives_notifications(theirs)
    await ann(lock.release)
    tokens = []
    for pending in waiting:
        began = time.monotonic()
        lease = held(await pending)
        assert time.monotonic() - began < 3
        tokens.append(lease.token)
        await ann(lease.release)
    assert tokens == sorted(tokens)


async def test_watchers_poll(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    watch = world.client().watch("x")
    await bob(getattr(watch, bob.enter_name))
    assert await bob(watch.next) is not None
    lease = held(await ann(world.client().lock("x").acquire))
    seen = await bob(watch.next, timeout=10)
    assert seen is not None
    assert [holder.token for holder in seen.holders] == [lease.token]
    await bob(getattr(watch, bob.exit_name), None, None, None)


def test_processes_exclude_each_other(url: str) -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(run_python(CONTENDER, url, "8")) for _ in range(4)]
        for child in children:
            child.expect("ready")
        for child in children:
            child.send()
        spans = [json.loads(child.expect("spans", timeout=60)) for child in children]
        for child in children:
            child.succeed()
    every = sorted(span for each in spans for span in each)
    assert len(every) == 32
    for (_, left, token), (entered, _, following) in itertools.pairwise(every):
        assert left <= entered, "two were inside at once"
        assert token < following


async def test_readers_and_writers(world: World) -> None:
    ann, bob, cy = world.actor(), world.actor(), world.actor()
    client, other = world.client(), world.client()
    readers = [held(await each(client.rwlock("x").read().acquire)) for each in (ann, bob)]
    assert await cy(other.rwlock("x").write().acquire, timeout=0) is None
    waiting = cy(other.rwlock("x").write().acquire, timeout=30)
    await world.until_waiting("x", 1)
    for actor, lease in zip((ann, bob), readers, strict=True):
        await actor(lease.release)
    writer = held(await waiting)
    assert writer.token > max(lease.token for lease in readers)
    assert await ann(client.rwlock("x").read().acquire, timeout=0) is None
    reading = await cy(writer.downgrade)
    second = held(await ann(client.rwlock("x").read().acquire, timeout=10))
    await ann(second.release)
    await cy(reading.release)
    await world.until_free("x")


async def test_permits(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    leases = [held(await ann(client.semaphore("x", 2).acquire)) for _ in range(2)]
    assert await bob(client.semaphore("x", 2).acquire, timeout=0) is None
    waiting = bob(client.semaphore("x", 2).acquire, timeout=30)
    await world.until_waiting("x", 1)
    await ann(leases[0].release)
    third = held(await waiting)
    assert third.token > leases[1].token
    assert len(world.look("x").holders) == 2
    await bob(third.release)
    await ann(leases[1].release)
    await world.until_free("x")


async def test_values(world: World) -> None:
    ann, client, other = world.actor(), world.client(), world.client()
    value = bytes(range(256))
    async with ann.inside(client.lock("x")) as lease:
        await ann(lease.set_value, value)
    async with ann.inside(other.lock("x")) as lease:
        assert (await ann(other.inspect, "x")).value == value
        await ann(lease.set_value, b"")
    assert world.look("x").value == b""


def test_nothing_is_left_in_borrowed_connections(pooled: PgBouncer, schema: str) -> None:
    """No prepared statement, no setting, no LISTEN: the next user of the session is another client."""
    url = f"{pooled.url}?schema={schema}"
    with holdfast.connect(url) as client:
        lock = client.lock("x", ttl=6)
        lease = lock.acquire()
        assert lease is not None
        waiter = threading.Thread(target=lambda: client.lock("x").acquire(timeout=0.5))
        waiter.start()
        waiter.join()
        wait_until(renewal_of(lease))
        lock.release()
        for setting in ("lock_timeout", "statement_timeout", "enable_seqscan", "plan_cache_mode", "jit"):
            default = pooled.server.sql(f"SHOW {setting}")
            assert {pooled.sql(f"SHOW {setting}") for _ in range(4)} == {default}, setting
        assert {pooled.sql("SELECT count(*) FROM pg_prepared_statements") for _ in range(4)} == {"0"}
        assert {pooled.sql("SELECT count(*) FROM pg_listening_channels()") for _ in range(4)} == {"0"}


def test_more_clients_than_connections(pooled: PgBouncer, schema: str) -> None:
    url = f"{pooled.url}?schema={schema}"
    with ExitStack() as stack:
        clients = [stack.enter_context(holdfast.connect(url)) for _ in range(12)]
        leases = [client.lock(f"lock-{number}").acquire() for number, client in enumerate(clients)]
        assert all(lease is not None for lease in leases)
        own = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'"
        assert int(pooled.server.sql(own)) <= 2


async def test_a_proxy_that_is_restarted(world: World, pooled: PgBouncer, schema: str) -> None:
    async with World(world.driver, f"{pooled.url}?schema={schema}") as behind:
        ann = behind.actor()
        lock = behind.client().lock("x", ttl=30)
        lease = held(await ann(lock.acquire))
        pooled.restart(kill=True)
        lease.check()
        await ann(lock.release)
        held(await ann(lock.acquire))
        await ann(lock.release)


async def test_a_server_that_is_restarted_behind_the_proxy(
    world: World, pooled: PgBouncer, schema: str
) -> None:
    async with World(world.driver, f"{pooled.url}?schema={schema}") as behind:
        ann = behind.actor()
        lock = behind.client().lock("x", ttl=30)
        lease = held(await ann(lock.acquire))
        pooled.server.restart()
        lease.check()
        await ann(lock.release)
        held(await ann(lock.acquire, timeout=20))
        await ann(lock.release)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_another_isolation_level_by_default(pooled: PgBouncer, schema: str, level: str) -> None:
    """It cannot be set on a pooled connection; then statements that conflict are retried."""
    server = pooled.server
    server.sql(f"ALTER ROLE postgres SET default_transaction_isolation = '{level}'")
    try:
        pooled.restart(kill=True)
        url = f"{pooled.url}?schema={schema}"
        granted: list[int] = []

        def work() -> None:
            with holdfast.connect(url) as client:
                for _ in range(5):
                    with client.lock("x", timeout=60) as lease:
                        granted.append(lease.token)
                        assert granted[-1] == lease.token

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(granted) == 20
        assert granted == sorted(granted)
    finally:
        server.sql("ALTER ROLE postgres RESET default_transaction_isolation")
        pooled.restart(kill=True)


def test_a_proxy_can_be_named(schema: str) -> None:
    """``pooler=yes`` needs no finding out."""
    url = f"{shared_postgresql().url}?schema={schema}&pooler=yes"
    with holdfast.connect(url) as client, client.lock("x"):
        wait_until(lambda: client.inspect("x").holders[0].age > 0.3)
        assert not receives_notifications(client)


def test_a_proxy_that_is_denied_is_found_out(pooled: PgBouncer, schema: str) -> None:
    """What was prepared on one connection is not there on the next."""
    with ExitStack() as stack:
        url = f"{pooled.url}?schema={schema}&pooler=no"
        clients = [stack.enter_context(holdfast.connect(url)) for _ in range(4)]

        def use_all() -> None:
            for _ in range(10):
                for client in clients:
                    with client.lock("x"):
                        pass

        with pytest.raises(EngineUnavailable, match="pooler=yes"):
            use_all()
    pooled.restart(kill=True)


def test_a_session_pool_with_pooler_no_passes_notifications(schema: str) -> None:
    with ExitStack() as stack:
        session = stack.enter_context(PgBouncer(shared_postgresql(), pool_mode="session"))
        client = stack.enter_context(holdfast.connect(f"{session.url}?schema={schema}&pooler=no"))
        stack.enter_context(client.lock("x"))
        wait_until(lambda: receives_notifications(client))
