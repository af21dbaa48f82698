"""What the asyncio transport does of its own: cancellation at every moment, broken connections, restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast.aio
from engines.etcd.admin import Admin
from holdfast import EngineUnavailable, LockLost
from holdfast.aio import AsyncClient
from holdfast.engines.etcd.asyncio import EtcdAsyncio
from holdfast.engines.etcd.connection_asyncio import Subchannel
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import Etcd
from holdfast.runtime.clock import boottime
from holdfast.runtime.concurrency_limit import REQUESTS_MAX
from support import async_wait_until, renewal_of

CANCELLED_AFTER = 40
"""Turns of the loop."""

LOOPS = 12


@contextlib.asynccontextmanager
async def clients(
    url: str, namespace: str, count: int = 2, **options: float
) -> AsyncIterator[list[AsyncClient]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(holdfast.aio.connect(url, namespace=namespace, **options))
            for _ in range(count)
        ]


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_cancelled_at_every_moment_nothing_stays_behind(
    url: str, namespace: str, admin: Admin, held: bool
) -> None:
    async def run() -> None:
        async with clients(url, namespace) as (client, other):
            async with client.lock("x"):
                pass  # the session is open
            lease = await other.lock("x").acquire() if held else None
            for turns in range(CANCELLED_AFTER):
                task = asyncio.create_task(client.lock("x").acquire())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                taken = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(taken, holdfast.aio.AsyncLease):
                    await taken.release()
            await async_wait_until(lambda: len(admin.tickets(namespace)) == (1 if held else 0))
            if lease is not None:
                await lease.release()
            async with client.lock("x", timeout=10):
                pass

    asyncio.run(run())


@pytest.mark.parametrize("left", ["waiting", "watching", "asking"])
def test_nothing_is_left_for_the_next_loop(url: str, namespace: str, left: str) -> None:
    settings_received: list[dict[str, Any]] = []

    async def leave(turns: int) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: settings_received.append(context))
        async with clients(url, namespace) as (client, other), contextlib.AsyncExitStack() as held:
            if left == "waiting":
                await held.enter_async_context(other.lock("x"))
            coming = first_look(client) if left == "watching" else client.lock("x").acquire()
            task = asyncio.create_task(coming)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    for turns in range(0, LOOPS * 4, 4):
        asyncio.run(leave(turns))
    assert not settings_received


async def first_look(client: AsyncClient) -> None:
    async with client.watch("x") as watch:
        async for _ in watch:
            return


async def until_waiting(client: AsyncClient) -> None:
    """Until a client waits for ``x``."""
    async with client.watch("x") as watch:
        async for info in watch:
            if info.waiters:
                return


def test_a_cut_connection_costs_nothing(namespace: str, proxy: Proxy, url: str) -> None:
    async def run() -> None:
        async with (
            clients(f"etcd://{proxy.address}", namespace, 1) as (client,),
            clients(url, namespace, 1) as (other,),
            client.lock("mine", ttl=6) as lease,
        ):
            theirs = await other.lock("x").acquire()
            assert theirs is not None
            task = asyncio.create_task(client.lock("x").acquire())
            await until_waiting(other)
            for _ in range(3):
                assert proxy.cut()
                await async_wait_until(lambda: proxy.open_connections)
            await theirs.release()
            taken = await task
            assert taken is not None
            await async_wait_until(renewal_of(lease), timeout=20)
            await taken.release()

    asyncio.run(run())


def test_a_silent_connection_is_reported_at_the_deadline(namespace: str, proxy: Proxy) -> None:
    async def run() -> None:
        async with clients(f"etcd://{proxy.address}", namespace, 1, io_timeout=1) as (client,):
            lease = await client.lock("x", ttl=2).acquire()
            assert lease is not None
            proxy.hold()
            held_up = boottime()
            assert await lease.wait_lost(timeout=20)
            assert lease._state.deadline <= held_up + 2, "nothing moved it since"
            with pytest.raises(LockLost) as loss:
                lease.check()
            assert loss.value.reason == "unreachable"
            with pytest.raises(EngineUnavailable):
                await client.lock("y").acquire()
            proxy.pass_on()
            async with client.lock("y", ttl=2) as again:
                again.check()

    asyncio.run(run())


def test_a_restart_is_survived(namespace: str) -> None:
    async def run(server: Etcd) -> None:
        async with clients(f"etcd://{server.address}", namespace) as (client, other):
            lease = await client.lock("x", ttl=10).acquire()
            assert lease is not None
            task = asyncio.create_task(other.lock("x", ttl=10).acquire())
            await until_waiting(client)
            await asyncio.to_thread(server.restart, kill=True)
            lease.check()
            await lease.release()
            taken = await task
            assert taken is not None
            assert taken.token > lease.token
            await taken.release()

    with Etcd() as server:
        asyncio.run(run(server))


def test_however_many_ask_only_so_many_are_asked_at_once(
    namespace: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait unsent, and their time runs when they are sent."""
    under_way: set[int] = set()
    most: list[int] = []
    shipped = EtcdAsyncio._call

    async def call(op: Any) -> Any:
        number = id(op)
        under_way.add(number)
        most.append(len(under_way))
        try:
            return await shipped(op)
        finally:
            under_way.discard(number)

    monkeypatch.setattr(EtcdAsyncio, "_call", staticmethod(call))

    async def one(client: AsyncClient, number: int) -> None:
        async with client.lock(f"x{number}"):
            pass

    async def run() -> None:
        async with holdfast.aio.connect(f"etcd://{proxy.address}", namespace=namespace) as client:
            await one(client, 0)
            proxy.hold("to_client")
            tasks = [asyncio.create_task(one(client, number)) for number in range(2 * REQUESTS_MAX)]
            await async_wait_until(lambda: len(under_way) == REQUESTS_MAX)
            proxy.pass_on()
            await asyncio.gather(*tasks)

    asyncio.run(run())
    assert max(most) == REQUESTS_MAX


def test_a_call_that_waits_for_its_turn_is_not_sent_to_a_server_that_was_given_up(
    namespace: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all would wait in vain, one behind the other. They ask again, over another connection."""
    sent: Counter[Subchannel] = Counter()
    shipped = EtcdAsyncio._call

    async def call(op: Any) -> Any:
        sent[op.connection] += 1
        return await shipped(op)

    async def run() -> None:
        url = f"etcd://{proxy.address}"
        async with holdfast.aio.connect(url, namespace=namespace, io_timeout=1) as client:
            async with client.lock("x"):
                pass
            proxy.hold()
            monkeypatch.setattr(EtcdAsyncio, "_call", staticmethod(call))
            tries = [client.lock(f"x{number}").acquire(timeout=3) for number in range(3 * REQUESTS_MAX)]
            results = await asyncio.gather(*tries, return_exceptions=True)
            monkeypatch.undo()
            proxy.pass_on()
            assert all(isinstance(result, EngineUnavailable) for result in results)

    asyncio.run(run())
    assert len(sent) > 1
    assert max(sent.values()) == REQUESTS_MAX
