"""Connections that end, are cut or silent, or lose a reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import cast

import pytest

from contract.harness import World, held
from engines.postgres.introspection import granted, receives_notifications
from holdfast import EngineUnavailable, LockLost, LockTimeout, provision
from holdfast.aio import AsyncClient
from holdfast.lab.proxy import Proxy
from support import renewal_of, wait_until
from support.servers import shared_postgresql

BACKENDS = "FROM pg_stat_activity WHERE application_name = '{}'"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    server = shared_postgresql()
    with Proxy(server.host, server.port) as proxy:
        yield proxy


@pytest.fixture
def url(schema: str, proxy: Proxy) -> str:
    """Through the proxy; the schema is made, so that what follows is about locks alone."""
    provision.install(f"{shared_postgresql().url}?schema={schema}")
    return f"postgresql://postgres@{proxy.address}/postgres?schema={schema}&application_name={schema}"


def end_backends(schema: str) -> int:
    """Have the server end every connection of the test's clients."""
    ended = shared_postgresql().sql(f"SELECT count(pg_terminate_backend(pid)) {BACKENDS.format(schema)}")
    return int(ended)


def backends(schema: str) -> int:
    return int(shared_postgresql().sql(f"SELECT count(*) {BACKENDS.format(schema)}"))


# --- ended by the server ------------------------------------------------------------------------


async def test_ended_while_idle(world: World, schema: str) -> None:
    """It is noticed before anything is sent, so nothing is uncertain."""
    ann, lock = world.actor(), world.client().lock("x")
    lease = held(await ann(lock.acquire))
    assert end_backends(schema) >= 1
    await world.until(lambda: backends(schema) <= 1, "the old connections stayed")
    lease.check()
    await ann(lock.release)
    assert held(await ann(lock.acquire)).token > lease.token
    await ann(lock.release)


async def test_ended_again_and_again_while_renewing(world: World, schema: str) -> None:
    ann, lock = world.actor(), world.client().lock("x", ttl=2.0)
    lease = held(await ann(lock.acquire))

    def end_until_it_is_old() -> None:
        """Apart from the loop, which is to renew: looking may take its time when its connection is ended."""
        for tenth in range(2, 35, 3):
            wait_until(lambda at=tenth / 10: world.look("x").holders[0].age > at)  # type: ignore[misc]  # mypy cannot type a lambda with a default
            end_backends(schema)

    await asyncio.to_thread(end_until_it_is_old)
    lease.check()
    assert world.look("x").holders[0].token == lease.token
    await ann(lock.release)


async def test_a_waiter_is_served_although_its_connection_was_ended(world: World, schema: str) -> None:
    ann, bob = world.actor(), world.actor()
    first, second = world.client().lock("x"), world.client().lock("x")
    await ann(first.acquire)
    waiting = bob(second.acquire)
    await world.until_waiting("x", 1)
    end_backends(schema)
    await ann(first.release)
    began = time.monotonic()
    held(await waiting)
    assert time.monotonic() - began < 5
    await bob(second.release)


# --- cut ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [True, False])
async def test_all_connections_are_cut(world: World, proxy: Proxy, reset: bool) -> None:
    ann, bob = world.actor(), world.actor()
    lock, other = world.client().lock("x", ttl=5), world.client().lock("x", ttl=5)
    lease = held(await ann(lock.acquire))
    waiting = bob(other.acquire)
    await world.until_waiting("x", 1)
    proxy.cut(reset=reset)
    lease.check()
    await ann(lock.release)
    assert held(await waiting).token > lease.token
    await bob(other.release)
    await world.until_free("x")


async def test_a_grant_whose_reply_was_lost_is_recognised(world: World, proxy: Proxy) -> None:
    """The same attempt repeats its request: one grant, one token, and it can be released."""
    ann, lock = world.actor(), world.client().lock("x")
    held(await ann(lock.acquire))
    await ann(lock.release)
    lost = proxy.lose_reply(b"holdfast_acquire_1")
    lease = held(await ann(lock.acquire))
    assert lost.is_set()
    info = world.look("x")
    assert [holder.token for holder in info.holders] == [lease.token]
    assert info.token == lease.token, "nothing was minted the second time"
    await ann(lock.release)
    assert not world.look("x").locked


async def test_a_lost_request_is_repeated(world: World, proxy: Proxy) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    held(await ann(lock.acquire))
    await ann(lock.release)
    lost = proxy.lose_request(b"holdfast_acquire_1")
    held(await ann(lock.acquire))
    assert lost.is_set()
    await ann(lock.release)


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_release_whose_reply_was_lost(world: World, proxy: Proxy, arrives: bool) -> None:
    ann, lock = world.actor(), world.client().lock("x")
    held(await ann(lock.acquire))
    await ann(lock.release)
    held(await ann(lock.acquire))
    lose = proxy.lose_reply if arrives else proxy.lose_request
    lost = lose(b"holdfast_release_1")
    await ann(lock.release)
    assert lost.is_set()
    await world.until_free("x")


async def test_a_lost_renewal_is_repeated(world: World, proxy: Proxy) -> None:
    ann, lock = world.actor(), world.client(io_timeout=1.0).lock("x", ttl=6.0)
    lease = await granted(ann, lock)
    lost = proxy.lose_request(b"holdfast_tend_1", ending="silence")
    await world.until(lost.is_set)
    await world.until(renewal_of(lease), "it was not repeated")
    lease.check()
    await ann(lock.release)


# --- silent -------------------------------------------------------------------------------------


async def test_silence_is_outlasted_for_io_timeout_and_no_longer(world: World, proxy: Proxy) -> None:
    ann, lock = world.actor(), world.client(io_timeout=0.5).lock("x")
    await granted(ann, lock)
    await ann(lock.release)
    proxy.hold()
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="did not answer"):
        await ann(lock.acquire)
    assert 0.4 < time.monotonic() - began < 5
    proxy.pass_on()
    await world.until_free("x")
    held(await ann(lock.acquire, timeout=10))
    await ann(lock.release)


async def test_unanswered_renewals_are_a_loss_signalled_once_and_in_time(world: World, proxy: Proxy) -> None:
    """At the deadline, however long the connection stays silent; the other holder is not concerned."""
    ann, bob = world.actor(), world.actor()
    client = world.client(io_timeout=0.5)
    lease, long = [await granted(ann, client.lock(f"x{ttl}", ttl=ttl)) for ttl in (2, 60)]
    losses: list[bool] = []
    lease.on_lost(lambda lost: losses.append(lost.lost))
    await world.until(renewal_of(lease), "it was not renewed before")
    deadline = time.monotonic() + lease.remaining
    proxy.hold()
    assert await bob(lease.wait_lost, timeout=20)
    assert time.monotonic() < deadline + 1.0
    with pytest.raises(LockLost) as caught:
        lease.check()
    assert caught.value.reason == "unreachable"
    long.check()
    proxy.pass_on()
    await world.until(lambda: not world.look("x2").locked)
    await ann(long.extend)
    assert held(await ann(client.lock("x2").acquire, timeout=10)).token > lease.token
    assert losses == [True], "signalled more than once, or never"


async def test_closing_a_client_ends_what_waits_for_a_reply(world: World, proxy: Proxy) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client(io_timeout=2.0)
    await ann(client.cell("x").get)
    sent = proxy.lose_request(b"read_cell_1", "silence")
    pending = bob(client.cell("x").get)
    await world.until(sent.is_set)
    await ann(client.close)
    with pytest.raises(EngineUnavailable):
        async with asyncio.timeout(20):
            await pending


async def test_a_time_out_holds_in_silence(world: World, proxy: Proxy) -> None:
    """Once queued it goes on trying, but never beyond its time."""
    ann, bob = world.actor(), world.actor()
    first, second = world.client().lock("x", ttl=60), world.client(io_timeout=0.5).lock("x")
    await ann(first.acquire)
    waiting = bob(second.acquire, timeout=2.0)
    await world.until_waiting("x", 1)
    proxy.hold()
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="did not answer"):
        await waiting
    assert time.monotonic() - began < 5
    proxy.pass_on()
    await ann(first.release)
    await world.until_free("x")


async def test_a_waiter_behind_a_silent_connection_is_served_after_it(world: World, proxy: Proxy) -> None:
    """The connection that listens receives nothing from now on, and notices."""
    ann, bob = world.actor(), world.actor()
    first, theirs = world.client().lock("x", ttl=60), world.client(io_timeout=0.5)
    second = theirs.lock("x")
    await ann(first.acquire)
    waiting = bob(second.acquire)
    await world.until_waiting("x", 1)
    await world.until(lambda: receives_notifications(theirs))
    proxy.hold()
    await world.until(lambda: not receives_notifications(theirs), "it never noticed")
    proxy.cut()
    proxy.pass_on()
    await ann(first.release)
    held(await waiting)
    await bob(second.release)


async def test_an_unreachable_server_is_reported_within_io_timeout(world: World, proxy: Proxy) -> None:
    proxy.refuse()
    ann = world.actor()
    client = world.client(io_timeout=0.3)
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="cannot be reached"):
        await ann(client.lock("x").acquire)
    with pytest.raises(EngineUnavailable):
        await ann(client.lock("x", timeout=0.1).acquire)
    with pytest.raises(EngineUnavailable):
        await ann(client.inspect, "x")
    assert time.monotonic() - began < 10


async def test_the_first_of_two_hosts_is_silent(world: World, proxy: Proxy, schema: str) -> None:
    """Half of the time is left for the second."""
    server = shared_postgresql()
    proxy.hold()
    url = f"postgresql://postgres@{proxy.address},{server.address}/postgres?schema={schema}"
    async with World(world.driver, url) as both:
        ann = both.actor()
        held(await ann(both.client(io_timeout=2).lock("x").acquire))


async def test_a_late_request_of_a_caller_that_gave_up_holds_nothing(world: World, proxy: Proxy) -> None:
    """The request arrives after its caller gave up: it is withdrawn, and stays so."""
    ann, lock = world.actor(), world.client(io_timeout=0.5).lock("x", ttl=600)
    await granted(ann, lock)
    await ann(lock.release)
    proxy.hold("to_server")
    with pytest.raises((EngineUnavailable, LockTimeout)):
        await ann(lock.acquire, timeout=0.3)
    proxy.pass_on()
    await world.until_free("x")
    held(await ann(world.client().lock("x").acquire, timeout=5))


async def test_deleted_rows_are_a_loss_and_no_token_goes_back(world: World, schema: str) -> None:
    """Signalled at the next renewal; the waiter is served, and the next token is larger by the clock."""
    ann, bob = world.actor(), world.actor()
    mine, theirs = world.client().lock("x", ttl=3.0), world.client().lock("x", ttl=3.0)
    lease = held(await ann(mine.acquire))
    waiting = bob(theirs.acquire, timeout=30)
    await world.until_waiting("x", 1)
    shared_postgresql().sql(f"DELETE FROM {schema}.locks")
    assert await ann(lease.wait_lost, timeout=20)
    newer = held(await waiting)
    assert newer.token > lease.token
    with pytest.raises(LockLost):
        await ann(mine.release)
    newer.check()
    shared_postgresql().sql(f"TRUNCATE {schema}.locks, {schema}.values")
    with pytest.raises(LockLost):
        await bob(newer.set_value, b"1")
    assert newer.lost
    assert held(await ann(mine.acquire, timeout=20)).token > newer.token


# --- cancelled ----------------------------------------------------------------------------------

only_tasks = pytest.mark.parametrize("driver", ["asyncio"], indirect=True)
"""A thread cannot be cancelled."""


@only_tasks
async def test_cancelling_leaves_the_connection_whole(world: World, proxy: Proxy, schema: str) -> None:
    client = world.client()
    ann = world.actor()
    held(await ann(client.lock("x").acquire))
    proxy.hold("to_client")
    locks = cast(AsyncClient, client)
    acquires = [asyncio.ensure_future(locks.lock(f"y{i}").acquire()) for i in range(6)]
    granted = f"SELECT count(*) FROM {schema}.locks WHERE holders IS NOT NULL"
    await world.until(lambda: shared_postgresql().sql(granted) == "2")
    for task in acquires:
        task.cancel()
    await asyncio.gather(*acquires, return_exceptions=True)
    proxy.pass_on()
    for i in range(6):
        await world.until_free(f"y{i}")
    assert backends(schema) <= 6
    held(await ann(client.lock("z").acquire))


@only_tasks
async def test_cancelled_while_queued(world: World) -> None:
    ann, bob, client = world.actor(), world.actor(), world.client()
    lease = held(await ann(client.lock("x").acquire))
    locks = cast(AsyncClient, world.client())
    first = asyncio.ensure_future(locks.lock("x").acquire())
    await world.until_waiting("x", 1)
    second = bob(client.lock("x").acquire, timeout=20)
    await world.until_waiting("x", 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len(world.look("x").waiters) == 1, "its place is given up before it ends"
    await ann(lease.release)
    assert held(await second).token > lease.token
