"""What a node answers when nobody waits for it any more is read, and what it calls for is done."""

from __future__ import annotations

import threading

import pytest

from contract.harness import World, held
from engines.redlock.test_faults import NOBODY, hold_everywhere
from faults.redlock_nodes import Nodes
from holdfast.engines.redlock import hinted_handoff
from support import wait_until

LATE_SECONDS = 0.3

SOON_SECONDS = 10.0
"""Far below the ttl, which would free everything."""


async def test_a_node_that_replies_late_that_it_lacks_the_script_gets_it(world: World, trio: Nodes) -> None:
    """It gets no request meanwhile. With one more node down its claim would keep all clients out."""
    ann, bob, client, other = world.actor(), world.actor(), world.client(), world.client()
    lease = await hold_everywhere(world, trio, ann, client, ttl=600)
    trio.servers[2].command("SCRIPT", "FLUSH")
    trio.proxies[2].delay(to_client=LATE_SECONDS)
    await ann(lease.release)
    await world.until(lambda: trio.claims("x", world.namespace) == NOBODY, "a claim stayed behind")
    trio.proxies[2].pass_on()
    trio.servers[0].kill()
    assert held(await bob(other.lock("x").acquire, timeout=SOON_SECONDS)).token > lease.token


async def test_a_release_that_was_swallowed_is_sent_again(world: World, trio: Nodes) -> None:
    """The network took it and did not deliver it, and nobody asks that node anything meanwhile."""
    ann, client = world.actor(), world.client(io_timeout=1.0)
    lease = await hold_everywhere(world, trio, ann, client, ttl=600)
    trio.proxies[2].drop("to_server")
    await ann(lease.release)
    assert trio.claims("x", world.namespace)[2]
    trio.proxies[2].pass_on()
    await world.until(lambda: trio.claims("x", world.namespace) == NOBODY, "a claim stayed behind")


def handoff_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "holdfast-handoff"]


async def test_one_thread_reads_for_all_and_ends(
    world: World, trio: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hinted_handoff, "IDLE_THREAD_SECONDS", 0.1)
    ann, client = world.actor(), world.client()
    leases = [await hold_everywhere(world, trio, ann, client, 600, name) for name in ("a", "b", "c")]
    trio.servers[2].command("SCRIPT", "FLUSH")
    trio.proxies[2].delay(to_client=LATE_SECONDS)
    for lease in leases:
        await ann(lease.release)
    assert len(handoff_threads()) <= 1
    for name in ("a", "b", "c"):
        await world.until(
            lambda name=name: trio.claims(name, world.namespace) == NOBODY,  # type: ignore[misc]  # its default
            "a claim stayed behind",
        )
    wait_until(lambda: not handoff_threads())
