"""A server that stops, is killed, is suspended, loses data, or has its clock set."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import holdfast
from contract.harness import World, held
from engines.postgres.introspection import granted
from faults.children import holding
from holdfast import EngineUnavailable, LockLost
from holdfast.lab.servers import PostgreSQL
from holdfast.runtime.clock import wall_seconds
from support import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    """Of this module's own, with a real disk: it is killed."""
    with PostgreSQL(settings={"fsync": "on"}) as server:
        yield server


@pytest.fixture
def url(server: PostgreSQL, schema: str) -> str:
    return f"{server.url}?schema={schema}"


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_a_restart_loses_nothing(world: World, server: PostgreSQL, kill: bool) -> None:
    """The lease is kept if the server is back in time; a waiter keeps its place, or queues again."""
    ann, bob = world.actor(), world.actor()
    lock, other = world.client().lock("x", ttl=30), world.client().lock("x", ttl=30)
    lease = held(await ann(lock.acquire))
    await ann(lease.set_value, b"kept")
    waiting = bob(other.acquire)
    await world.until_waiting("x", 1)
    server.restart(kill=kill)
    lease.check()
    assert world.look("x").holders[0].token == lease.token
    assert world.look("x").value == b"kept"
    await world.until_waiting("x", 1)
    await ann(lock.release)
    assert held(await waiting).token > lease.token
    await bob(other.release)


async def test_without_its_server_a_lease_is_lost_at_its_deadline(world: World, server: PostgreSQL) -> None:
    ann = world.actor()
    lock = world.client(io_timeout=1.0).lock("x", ttl=3.0)
    lease = await granted(ann, lock)
    server.stop()
    try:
        began = time.monotonic()
        await world.until(lambda: lease.lost)
        assert time.monotonic() - began < 5
        with pytest.raises(LockLost) as lost:
            lease.check()
        assert lost.value.reason == "unreachable"
        with pytest.raises(EngineUnavailable):
            await ann(lock.acquire, timeout=0.5)
    finally:
        server.start()
    held(await ann(lock.acquire, timeout=20))
    await ann(lock.release)


async def test_a_suspended_server_is_given_up(world: World, server: PostgreSQL) -> None:
    """SIGSTOP: its kernel still answers, and nothing else does. Nothing hangs, and nothing stays behind."""
    ann = world.actor()
    client = world.client(io_timeout=0.5)
    lock = client.lock("x", ttl=600)
    await granted(ann, lock)
    await ann(lock.release)
    server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(EngineUnavailable, match="did not answer"):
            await ann(lock.acquire)
        with pytest.raises(EngineUnavailable, match="did not answer"):
            await ann(client.inspect, "x")
        assert time.monotonic() - began < 10
    finally:
        server.resume()
    await world.until_free("x")
    lease = held(await ann(lock.acquire, timeout=20))
    lease.check()
    await ann(lock.release)


async def test_a_waiter_outlasts_a_suspended_server(world: World, server: PostgreSQL) -> None:
    ann, bob = world.actor(), world.actor()
    lock, other = world.client(io_timeout=0.5).lock("x", ttl=60), world.client(io_timeout=0.5).lock("x")
    await granted(ann, lock)
    waiting = bob(other.acquire, timeout=60)
    await world.until_waiting("x", 1)
    server.pause()
    began = time.monotonic()
    await world.until(lambda: time.monotonic() - began > 1.5)
    server.resume()
    await ann(lock.release)
    held(await waiting)
    await bob(other.release)


async def test_a_server_that_forgets_everything_is_noticed(world: World, server: PostgreSQL) -> None:
    """The disk is lost. The holder learns of its loss, and the next token is larger all the same."""
    ann = world.actor()
    lock = world.client().lock("x", ttl=1.5)
    lease = held(await ann(lock.acquire))
    server.restart(keep_data=False)
    await world.until(lambda: lease.lost)
    assert held(await ann(world.client().lock("x").acquire, timeout=20)).token > lease.token


async def test_closing_beside_a_dead_server_does_not_hang(world: World, server: PostgreSQL) -> None:
    ann = world.actor()
    client = world.client(io_timeout=0.5)
    lease = await granted(ann, client.lock("x", ttl=60))
    server.pause()
    try:
        began = time.monotonic()
        await ann(client.close)
        assert time.monotonic() - began < 8
    finally:
        server.resume()
    assert lease.token


def test_a_process_exits_although_the_server_is_suspended(url: str, server: PostgreSQL) -> None:
    """Neither exit handlers nor threads of ours keep it."""
    with holding(url, ttl=60) as child:
        child.expect("held")
        server.pause()
        try:
            child.close_stdin()
            assert child.wait(timeout=30) == 0
        finally:
            server.resume()


def test_a_clock_that_is_set_back_does_not_set_back_tokens(schema: str) -> None:
    """Of the server; a lease lasts longer then, and tokens go on from where they were."""
    with PostgreSQL(faketime=True) as shifted, holdfast.connect(f"{shifted.url}?schema={schema}") as client:
        tokens = []
        statement = "SELECT extract(epoch FROM clock_timestamp())"
        for seconds in (0, -3600, 3600):
            shifted.shift_clock(seconds)
            wait_until(lambda s=seconds: abs(float(shifted.sql(statement)) - wall_seconds() - s) < 60)  # type: ignore[misc]  # mypy cannot type a lambda with a default
            lease = client.lock("x").acquire()
            assert lease is not None
            lease.check()
            tokens.append(lease.token)
            lease.release()
    assert tokens == sorted(set(tokens))


async def test_a_release_that_a_crash_forgot_costs_a_ttl_at_most(world: World, server: PostgreSQL) -> None:
    """A release does not wait for the server's disk. Killed in that moment, it may bring the lease back."""
    ann = world.actor()
    lock = world.client().lock("x", ttl=1.5)
    lease = held(await ann(lock.acquire))
    await ann(lock.release)
    server.restart(kill=True)
    assert held(await ann(lock.acquire, timeout=20)).token > lease.token
    await ann(lock.release)
