"""Three nodes that are harmed, by threads and in a loop: each driver talks to nodes in a way of its own."""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

import holdfast
from contract.harness import Actor, World, held
from faults.redlock_nodes import HARM, Nodes
from holdfast import Client, EngineUnavailable, Lease, LockLost
from holdfast.aio import AsyncClient
from holdfast.core.arguments import Spec
from holdfast.engines.redlock.admin import rejoin
from holdfast.engines.redlock.asyncio import RedlockAsyncio
from holdfast.engines.redlock.codec import _end_of_claim
from holdfast.engines.redlock.keys import MARK_KEY, Keyspace
from holdfast.engines.redlock.scripts import load
from holdfast.engines.redlock.threads import RedlockThreads
from holdfast.lab.servers import Redis
from holdfast.protocols import records
from holdfast.rules.node import Acquire
from holdfast.runtime.clock import wall_us
from support import renewal_of, wait_until

HURRY = 0.6
"""Seconds: how long one tries who is to find that too few nodes answer. Who is to get it has more time."""

NOBODY = ["", "", ""]


def ran(server: Redis, after: int = 0) -> list[str]:
    """The scripts that a node was asked to run, in their order, but for the first ones."""
    names = {script.sha1: name for name, script in load().items()}
    told = reversed(server.command("SLOWLOG", "GET", "-1"))
    return [names[words[1]] for _, _, _, words, *_ in told if words[0].upper() == b"EVALSHA"][after:]


def note_all(trio: Nodes) -> None:
    for server in trio.servers:
        server.command("CONFIG", "SET", "slowlog-max-len", "10000")
        server.command("CONFIG", "SET", "slowlog-log-slower-than", "0")


async def hold_everywhere(
    world: World, trio: Nodes, ann: Actor, client: Client, ttl: float, name: str = "x"
) -> Lease:
    """Connected to all nodes first: one that is still being connected to when the others have granted
    something is not asked for it any more."""
    while not all(runs := adapter_runs(client)) or not runs:
        await ann(held(await ann(client.lock(name).acquire)).release)
    lease = held(await ann(client.lock(name, ttl=ttl).acquire))
    await world.until(lambda: "" not in trio.claims(name, world.namespace))
    return lease


def majority(trio: Nodes) -> list[tuple[Redis, Any]]:
    return list(zip(trio.servers, trio.proxies, strict=True))[:2]


# --- a majority -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "stopped", "cut"])
async def test_without_a_majority_nothing_is_granted_and_loss_is_signalled_in_time(
    world: World, trio: Nodes, how: str
) -> None:
    world.url = trio.url(node_timeout="200ms")
    ann, bob, client, other = world.actor(), world.actor(), world.client(), world.client()
    lease = held(await ann(client.lock("x", ttl=2.0).acquire, timeout=5))
    told: list[bool] = []
    lease.on_lost(lambda lost: told.append(lost.lost))
    for server, proxy in majority(trio):
        HARM[how](server, proxy)
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="of 3 nodes take part, 2 must"):
        await bob(other.lock("y").acquire, timeout=HURRY)
    assert await ann(lease.wait_lost, timeout=10)
    assert time.monotonic() - began < 2.0 + 1.0
    with pytest.raises(LockLost) as caught:
        lease.check()
    assert caught.value.reason == "unreachable"
    for server, proxy in majority(trio):
        server.start() if how == "killed" else server.resume()
        proxy.pass_on()
    assert held(await bob(other.lock("x").acquire, timeout=20)).token > lease.token
    await world.until(lambda: told == [True], "it was not told, or more than once")


async def test_the_replies_of_a_majority_are_lost(world: World, trio: Nodes) -> None:
    """The nodes have it and no reply arrived: the attempt is released there, and another one granted."""
    ann, client = world.actor(), world.client()
    await ann(held(await ann(client.lock("x").acquire)).release)
    lost = [proxy.lose_reply(load()["acquire"].sha1) for _, proxy in majority(trio)]
    lease = held(await ann(client.lock("x", ttl=60).acquire, timeout=20))
    assert all(each.is_set() for each in lost)
    owner = await world.until(lambda: _only_owner(trio.claims("x", world.namespace)))
    assert owner
    await ann(lease.release)
    await world.until(lambda: trio.claims("x", world.namespace) == NOBODY, "an attempt stayed behind")


def _only_owner(claims: list[str]) -> str:
    """Of a majority; empty: there are others, too, or there is none."""
    owners = set(claims) - {""}
    return owners.pop() if len(owners) == 1 and claims.count("") <= 1 else ""


@pytest.mark.parametrize("known", [False, True])
async def test_a_release_that_does_not_reach_a_majority_may_be_repeated(
    world: World, trio: Nodes, known: bool
) -> None:
    """Also where it is known beforehand that there are no connections: nodes get it when there are."""
    ann, client = world.actor(), world.client(io_timeout=0.5)
    lease = held(await ann(client.lock("x", ttl=60).acquire))
    for _, proxy in majority(trio):
        proxy.refuse()
        proxy.cut()
    if known:
        with pytest.raises(EngineUnavailable):
            await ann(client.lock("y").acquire, timeout=0)
    with pytest.raises(EngineUnavailable, match="too few nodes"):
        await ann(lease.release)
    for _, proxy in majority(trio):
        proxy.pass_on()
    await world.until(lambda: trio.claims("x", world.namespace) == NOBODY)  # told behind our back
    await ann(lease.release)
    await world.until(lambda: trio.claims("x", world.namespace) == NOBODY)
    assert held(await ann(client.lock("x").acquire, timeout=5)).token > lease.token


async def test_keys_that_are_deleted_on_a_majority_are_a_loss(world: World, trio: Nodes) -> None:
    """On one of three nobody notices, and it is given the claim again."""
    ann, client = world.actor(), world.client()
    lease = held(await ann(client.lock("x", ttl=3.0).acquire))
    key = Keyspace(world.namespace).key_of("x")
    for server in trio.servers:
        await world.until(lambda: "" not in trio.claims("x", world.namespace))
        lease.check()
        assert server.command("DEL", key) == 1
    await world.until(lambda: "" not in trio.claims("x", world.namespace))

    def is_lost() -> bool:
        """A renewal may come between the two, and give it to the first again."""
        for server, _ in majority(trio):
            server.command("DEL", key)
        return lease.lost

    await world.until(is_lost)
    with pytest.raises(LockLost) as caught:
        await ann(lease.release)
    assert caught.value.reason == "expired"


# --- messages that are late -----------------------------------------------------------------------


def test_an_acquire_that_arrives_after_its_release_is_refused(trio: Nodes) -> None:
    """The two go over different connections; the node learned first that the attempt is over."""
    with holdfast.connect(trio.url()) as client:
        two_connections(client)
        note_all(trio)
        trio.proxies[0].delay(to_server=1.0)
        lease = held(client.lock("x", ttl=60).acquire(timeout=0))
        trio.proxies[0].pass_on()
        lease.release()
        # Behind requests of the time before that may not have reached the node yet.
        wait_until(
            lambda: ran(trio.servers[0])[-2:] == ["release", "acquire"], message="they did not arrive so"
        )
        assert trio.claims() == NOBODY
        newer = held(client.lock("x").acquire(timeout=5))
        assert newer.token > lease.token
        newer.release()


def two_connections(client: Client) -> None:
    """To each node, of which threads use now one and now the other."""
    adapter: object = client._driver.adapter
    assert isinstance(adapter, RedlockThreads)
    held(client.lock("x").acquire()).release()
    first = adapter._pool._idle.get_nowait()
    held(client.lock("x").acquire()).release()
    adapter._pool._idle.put(first)

    def are_made() -> bool:
        """A connection makes progress only during requests."""
        held(client.lock("x").acquire()).release()
        return len(adapter_runs(client)) == 6 and all(adapter_runs(client))

    wait_until(are_made)


# --- nodes that are restarted ---------------------------------------------------------------------


async def test_what_is_held_is_given_to_a_node_that_was_away(world: World, trio: Nodes) -> None:
    """It was not there when the lock was taken, and one of those that were fails after that."""
    ann, client = world.actor(), world.client()
    await ann(held(await ann(client.lock("x").acquire)).release)
    trio.proxies[2].refuse()
    trio.proxies[2].cut()
    lease = held(await ann(client.lock("x", ttl=6.0).acquire))
    owner = _only_owner(trio.claims("x", world.namespace))
    assert trio.claims("x", world.namespace) == [owner, owner, ""]
    trio.proxies[2].pass_on()
    await world.until(lambda: trio.claims("x", world.namespace) == [owner] * 3)
    trio.servers[0].kill()
    await world.until(renewal_of(lease))
    trio.servers[0].start()
    assert world.look("x").holders[0].token == lease.token
    await ann(lease.release)
    await world.until(lambda: trio.claims("x", world.namespace) == NOBODY)


async def test_nodes_that_remember_take_part_again_by_themselves(world: World, trio: Nodes) -> None:
    ann, bob, client, other = world.actor(), world.actor(), world.client(), world.client()
    lease = held(await ann(client.lock("x", ttl=60).acquire))
    for server in trio.servers:
        server.restart(kill=True)
        await ann(lease.extend)
        # Not in one try: that may meet two connections at once that ended while nobody looked.
        assert await bob(other.lock("x").acquire, timeout=HURRY) is None
    await ann(lease.release)
    newer = held(await bob(other.lock("x", ttl=1.0).acquire, timeout=10))  # it looks after nodes often
    assert newer.token > lease.token
    runs = [server.info("server")["run_id"].encode() for server in trio.servers]
    await world.until(
        lambda: all((mark or b"").endswith(run) for mark, run in zip(trio.marks(), runs, strict=True))
    )


async def test_a_node_that_forgot_is_refused_until_it_has_rejoined(world: World, trio: Nodes) -> None:
    world.url = trio.url(node_timeout="500ms")
    ann, client = world.actor(), world.client()
    lock = client.lock("x", ttl=2.0)
    first = held(await ann(lock.acquire, timeout=5))
    await ann(lock.release)
    trio.servers[0].restart(keep_data=False, kill=True)
    second = held(await ann(lock.acquire, timeout=5))
    await ann(lock.release)
    trio.servers[1].pause()
    with pytest.raises(EngineUnavailable, match="holdfast redlock rejoin"):
        await ann(lock.acquire, timeout=HURRY)
    trio.servers[1].resume()
    told = await asyncio.to_thread(rejoin, world.url, {0}, wait=0.5)
    assert told == {0: "rejoined: 1 fences were copied"}
    trio.servers[1].pause()
    third = held(await ann(lock.acquire, timeout=10))
    trio.servers[1].resume()
    assert first.token < second.token < third.token


async def test_the_scripts_are_flushed(world: World, trio: Nodes) -> None:
    ann, client = world.actor(), world.client()
    lock = client.lock("x")
    await ann(held(await ann(lock.acquire)).release)
    for act in (lock.acquire, lambda: held(lock.lease).extend(), lock.release):
        for server in trio.servers:
            server.command("SCRIPT", "FLUSH")
        await ann(act)
    await world.until(lambda: trio.claims("x", world.namespace) == NOBODY, "a claim stayed behind")


# --- several names --------------------------------------------------------------------------------


async def _several(client: Client, ann: Any, *names: str) -> Any:
    specs: tuple[Spec, ...] = tuple([client.lock(name, ttl=60)._core.spec for name in names])
    driver = client._driver
    return await ann(lambda: driver.run(records.acquire_in_order(driver.client_state, specs, "me", 0.3)))


async def test_several_names_at_once(world: World, trio: Nodes) -> None:
    """All or none; also where the round teaches that a node was restarted, while one of them is taken."""
    ann, bob, client, other = world.actor(), world.actor(), world.client(), world.client()
    taken = await _several(client, ann, "a", "b", "c")
    assert [state.name for state in taken] == ["a", "b", "c"]
    for state in taken:
        await ann(client._driver.run, records.release(client._driver.client_state, state, 1.0))
    await bob(other.lock("b", ttl=60).acquire)
    trio.servers[2].restart(kill=True)
    assert isinstance(await _several(client, ann, "a", "b", "c"), records.NotGranted)
    await world.until(
        lambda: all(trio.claims(name, world.namespace) == NOBODY for name in ("a", "c")), "it was left there"
    )
    assert await bob(other.lock("a").acquire, timeout=5) is not None


# --- tokens ---------------------------------------------------------------------------------------


def issue(trio: Nodes, node: int, key: bytes, ahead_us: int) -> int:
    """Have a node issue a number that is ahead of every clock, as for a client whose clock is."""
    server = trio.servers[node]
    mark = server.command("HGET", MARK_KEY, "ready")
    seconds, micros = server.command("TIME")
    hint = int(seconds) * 1_000_000 + int(micros) + ahead_us
    ask = Acquire(f"stranger.{node}", hint, 1_000_000, 0, "stranger", "stranger", "")
    words = (mark, ask.owner, hint, ask.ttl, "86401000", _end_of_claim(ask))
    number = server.command("EVAL", load()["acquire"].source, "2", key, MARK_KEY, *words)
    server.command("EVAL", load()["release"].source, "1", key, ask.owner, "0")
    return int(number)


async def test_numbers_that_differ_are_stamped_in_a_second_round(world: World, trio: Nodes) -> None:
    """Each node is ahead of our clock, one more than the other; and the third does not answer."""
    ann, client = world.actor(), world.client()
    await ann((await hold_everywhere(world, trio, ann, client, ttl=600, name="warm")).release)
    await world.until(lambda: trio.claims("warm", world.namespace) == NOBODY)  # nothing is under way
    key = Keyspace(world.namespace).key_of("x")
    ahead = [issue(trio, node, key, seconds * 1_000_000) for node, seconds in ((0, 20), (1, 10))]
    note_all(trio)
    trio.servers[2].pause()
    lease = held(await ann(client.lock("x", ttl=60).acquire, timeout=0))
    assert lease.token == ahead[0] + 1
    assert (ran(trio.servers[0]), ran(trio.servers[1])) == (["acquire"], ["acquire", "stamp"])
    trio.servers[2].resume()
    await world.until(lambda: ran(trio.servers[2]) == ["acquire", "stamp"])
    assert world.look("x").holders[0].token == lease.token
    await ann(lease.release)
    before = [len(ran(server)) for server in trio.servers]
    again = held(await ann(client.lock("x", ttl=60).acquire, timeout=0))
    assert again.token == lease.token + 1, "it has learned where the numbers are"
    await world.until(
        lambda: all(
            "acquire" in ran(server, count) for server, count in zip(trio.servers, before, strict=True)
        )
    )
    assert not any("stamp" in ran(server, count) for server, count in zip(trio.servers, before, strict=True))


@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_the_wall_clock_of_a_client_is_set(world: World, trio: Nodes, seconds: int) -> None:
    """Nodes say what time it is; what is held stays held, and tokens go on from where they were."""
    ann, bob, client, other = world.actor(), world.actor(), world.client(), world.client()
    kept = held(await ann(client.lock("kept", ttl=1.5).acquire))
    first = held(await ann(client.lock("x").acquire))
    await ann(first.release)
    adapter: object = client._driver.adapter
    assert isinstance(adapter, RedlockAsyncio | RedlockThreads)
    adapter.quorum.wall_us = lambda: wall_us() + seconds * 1_000_000
    second = held(await ann(client.lock("x").acquire))
    await ann(second.release)
    third = held(await bob(other.lock("x").acquire))
    assert first.token < second.token < third.token < first.token + 60_000_000
    await world.until(renewal_of(kept))
    kept.check()


def adapter_runs(client: Client) -> list[str]:
    """By node: the life of the server to which the client is connected; empty: it is not."""
    adapter: object = client._driver.adapter
    if isinstance(adapter, RedlockAsyncio):
        return [node.run_id for node in adapter._nodes]
    assert isinstance(adapter, RedlockThreads)
    return [line.run_id for bundle in list(adapter._pool._taken) for line in bundle._connections]


# --- cancelled ------------------------------------------------------------------------------------

only_tasks = pytest.mark.parametrize("driver", ["asyncio"], indirect=True)
"""A thread cannot be cancelled."""


@only_tasks
async def test_cancelled_while_asking(world: World, trio: Nodes) -> None:
    """The nodes have it, and their client is gone."""
    ann, client = world.actor(), cast(AsyncClient, world.client())
    await ann(held(await ann(cast(Client, client).lock("x").acquire)).release)
    for proxy in trio.proxies:
        proxy.hold("to_client")
    task = asyncio.ensure_future(client.lock("x", ttl=60).acquire())
    await world.until(lambda: "" not in trio.claims("x", world.namespace))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for proxy in trio.proxies:
        proxy.pass_on()
    await world.until(lambda: trio.claims("x", world.namespace) == NOBODY, "it was left there")


@only_tasks
async def test_cancelled_while_waiting(world: World, trio: Nodes) -> None:
    ann, client, other = world.actor(), cast(AsyncClient, world.client()), world.client()
    lease = held(await ann(other.lock("x", ttl=60).acquire))
    owners = set(trio.claims("x", world.namespace))
    task = asyncio.ensure_future(client.lock("x", ttl=60).acquire())
    await world.until_waiting("x", 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert set(trio.claims("x", world.namespace)) <= owners | {""}
    await ann(lease.release)
    await world.until(lambda: trio.claims("x", world.namespace) == NOBODY)
    assert not client._driver.client_state.waiting
