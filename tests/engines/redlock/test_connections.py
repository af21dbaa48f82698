"""Connections to nodes: what was not sent on them, a process that is short of something, nodes that move."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from typing import Any

import pytest

import holdfast
from contract.harness import World, held
from engines.redlock.test_faults import NOBODY, adapter_runs, hold_everywhere, note_all, ran
from faults.redlock_nodes import Nodes
from holdfast import Client, EngineUnavailable
from holdfast.aio import AsyncClient
from holdfast.core.urls import parse_url
from holdfast.engine_api import AdapterContext
from holdfast.engines.redlock import asyncio as asyncio_adapter
from holdfast.engines.redlock import errors, hinted_handoff, routing
from holdfast.engines.redlock.asyncio import RedlockAsyncio
from holdfast.engines.redlock.config import config_from_url
from holdfast.engines.redlock.keys import Keyspace
from holdfast.engines.redlock.routing import NodeConnections
from holdfast.engines.redlock.threads import RedlockThreads
from holdfast.rules import node
from holdfast.rules.requests import Inspect, Reply
from support import async_wait_until, wait_until


def adapter_of(client: Client | AsyncClient) -> Any:
    return client._driver.adapter


def begin_to_connect(trio: Nodes, *numbers: int) -> None:
    """Connections to these nodes end, and new ones come to nothing for now."""
    for number in numbers:
        trio.proxies[number].hold()
        trio.proxies[number].cut()


# --- what was never sent --------------------------------------------------------------------------


def test_what_was_not_sent_when_its_task_was_cancelled_never_is(trio: Nodes) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(trio.url()) as client:
            adapter: RedlockAsyncio = adapter_of(client)
            lease = await client.lock("x").acquire()
            assert lease is not None
            await async_wait_until(lambda: "" not in trio.claims())  # what is on its way counts, too
            await lease.release()
            await async_wait_until(lambda: trio.claims() == NOBODY)
            note_all(trio)
            begin_to_connect(trio, 0, 1)
            task = asyncio.ensure_future(client.lock("x", ttl=60).acquire())
            await async_wait_until(lambda: all(acquires(adapter, each) for each in (0, 1)))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for proxy in trio.proxies:
                proxy.pass_on()
            await async_wait_until(lambda: all("release" in ran(each) for each in trio.servers))
            assert [ran(each).count("acquire") for each in trio.servers[:2]] == [0, 0]
            assert trio.claims() == NOBODY

    asyncio.run(main())


def test_what_could_not_be_sent_is_sent_on_a_new_connection(trio: Nodes) -> None:
    """A node that was restarted while nobody looked takes part in the next try, where it is needed."""
    with holdfast.connect(trio.url()) as client:
        with client.lock("x"):
            pass
        (bundle,) = adapter_of(client)._pool._taken

        def break_down(payload: bytes) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

        bundle._connections[0]._send_some = break_down
        trio.servers[1].kill()
        held(client.lock("x").acquire(timeout=0)).release()


def acquires(adapter: RedlockAsyncio, number: int) -> bool:
    waiting = list(adapter._nodes[number]._next)
    return any(isinstance(each.request.batch[0][1], node.Acquire) for each in waiting)


async def test_hints_are_delivered_before_the_client_is_gone(
    world: World, trio: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that tells them would not come to it for a minute."""
    for module in (hinted_handoff, asyncio_adapter):
        monkeypatch.setattr(module, "RETRY_SECONDS", 60.0)
    ann, client = world.actor(), world.client()
    lease = await hold_everywhere(world, trio, ann, client, ttl=600)
    begin_to_connect(trio, 0)
    await ann(lease.release)
    trio.proxies[0].pass_on()
    assert trio.claims("x", world.namespace)[0], "it got the claim at once"
    await ann(client.close)
    assert trio.claims("x", world.namespace) == NOBODY


async def test_a_node_that_hangs_does_not_hold_up_the_end_of_a_client(world: World, trio: Nodes) -> None:
    """It is given less time than it would be given for a lock."""
    world.url = trio.url(node_timeout="30s")
    ann, client = world.actor(), world.client()
    lease = await hold_everywhere(world, trio, ann, client, ttl=30)
    begin_to_connect(trio, 0)
    await ann(lease.release)
    began = time.monotonic()
    await ann(client.close)
    assert time.monotonic() - began < 5


# --- a process that is short of something ---------------------------------------------------------


def test_no_thread_is_to_be_had_to_tell_nodes_what_they_missed(
    trio: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the interpreter ends. All of it is sent later, or when the client is closed."""
    with holdfast.connect(trio.url()) as client:
        bundle = bundle_at_rest(client)
        trio.proxies[0].hold()
        for _ in range(3):
            held(client.lock("x").acquire()).release()

        def start(self: threading.Thread) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            bundle.close()
        assert len(adapter_of(client)._pool._handoff._hints._hints) == 3
        trio.proxies[0].pass_on()
    assert trio.claims() == NOBODY


def bundle_at_rest(client: Client) -> NodeConnections:
    """Connected to all nodes, each of which has answered all that it was asked."""
    _again(client)
    bundle: NodeConnections = adapter_of(client)._pool._idle.get_nowait()
    adapter_of(client)._pool._idle.put(bundle)
    wait_until(lambda: all(line.run_id for line in bundle._connections) or _again(client))

    def is_at_rest() -> bool:
        bundle._process_events(0.0)
        return not any(line._pending for line in bundle._connections)

    wait_until(is_at_rest)
    return bundle


def _again(client: Client) -> bool:
    held(client.lock("x").acquire()).release()
    return False


def test_answers_that_came_while_the_thread_did_not_run_are_read(
    trio: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is over when it looks at the clock again; they have been there for long."""
    with holdfast.connect(trio.url()) as client:
        bundle_at_rest(client)
        note_all(trio)
        away = [0.0]
        monkeypatch.setattr(routing, "monotonic", lambda: time.monotonic() + away[0])
        shipped = NodeConnections._poll_events

        def news(self: NodeConnections, seconds: float, look_until: float) -> list[tuple[int, int]]:
            if seconds and not away[0]:
                wait_until(lambda: len(self._poll.poll(0)) == 3)
                away[0] = 3600.0
                return []
            return shipped(self, seconds, look_until)

        monkeypatch.setattr(NodeConnections, "_poll_events", news)
        lease = held(client.lock("x").acquire(timeout=5))
        assert away[0]
        assert [ran(server) for server in trio.servers] == [["acquire"]] * 3
        lease.release()


def test_the_keeper_does_not_wait_for_connections_that_others_use(trio: Nodes) -> None:
    """Whatever it does first."""
    settings = config_from_url(parse_url(trio.url(connections=1)), {})

    def is_keeper() -> bool:
        return threading.current_thread().name == "keeper"

    hooks = AdapterContext("me", lambda nonce, handed=None: None, lambda: None, 0.5, is_keeper)
    adapter = RedlockThreads(settings, Keyspace("holdfast"), hooks)
    adapter.apply("x", Inspect())
    busy = adapter._pool._idle.get_nowait()
    with pytest.raises(Exception, match="connections to the nodes are busy"):
        adapter.apply("x", Inspect())
    told: list[Reply] = []
    keeper = threading.Thread(target=lambda: told.append(adapter.apply("x", Inspect())), name="keeper")
    keeper.start()
    keeper.join()
    assert len(told) == 1
    busy.close()
    adapter.close()


def test_the_driver_says_which_thread_is_the_keeper(trio: Nodes) -> None:
    with holdfast.connect(trio.url()) as client:
        asked: list[str] = []
        adapter = adapter_of(client)
        shipped = adapter._pool.broadcast_for_keeper

        def broadcast_for_keeper(op: Any) -> Any:
            asked.append(threading.current_thread().name)
            return shipped(op)

        adapter._pool.broadcast_for_keeper = broadcast_for_keeper
        with client.lock("x", ttl=1.0):
            wait_until(lambda: asked)
        assert set(asked) == {"holdfast-keeper"}


# --- nodes that are elsewhere ---------------------------------------------------------------------


def point(trio: Nodes, number: int, to: int) -> None:
    """From now on the address of one node leads to the server of another one."""
    server = trio.servers[to]
    trio.proxies[number]._server = (server.host, server.port)
    trio.proxies[number].cut()


async def test_two_addresses_of_one_server_are_looked_at_again(
    world: World, trio: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator puts it right; a client that was refused need not start anew."""
    monkeypatch.setattr(errors, "RECHECK_SECONDS", 0.2)
    ann, client = world.actor(), world.client(io_timeout=0.5)
    await ann(held(await ann(client.lock("x").acquire)).release)
    point(trio, 2, 0)

    async def is_refused() -> bool:
        try:
            await ann(held(await ann(client.lock("x").acquire, timeout=1)).release)
        except EngineUnavailable as error:
            return "are one server" in str(error)
        return False

    while not await is_refused():
        pass
    point(trio, 2, 2)
    while await is_refused():
        pass
    await ann(held(await ann(client.lock("x").acquire, timeout=5)).release)


async def test_addresses_of_two_servers_are_exchanged(world: World, trio: Nodes) -> None:
    """One leads to a server to which the other led before; that connection is gone."""
    ann, client = world.actor(), world.client()
    while not (runs := adapter_runs(client)) or not all(runs):
        await ann(held(await ann(client.lock("x").acquire)).release)
    begin_to_connect(trio, 0)
    point(trio, 2, 0)
    while adapter_runs(client)[2] != runs[0]:
        await ann(held(await ann(client.lock("x").acquire, timeout=5)).release)
    point(trio, 0, 2)
    trio.proxies[0].pass_on()
    while adapter_runs(client)[:3] != runs[::-1]:
        await ann(held(await ann(client.lock("x").acquire, timeout=5)).release)
