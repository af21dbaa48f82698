"""Ten thousand held leases: the same two threads, a few calls to the engine."""

from __future__ import annotations

import threading

import pytest

from api.spy import SpyWorld
from contract.harness import held
from support import wait_until

MANY = 10_000


@pytest.mark.slow
async def test_ten_thousand_leases_are_kept_together(world: SpyWorld) -> None:
    ann, client = world.actor(), world.client()
    before = threading.active_count()
    leases = [held(await ann(client.lock(f"x{number}", ttl=10).acquire)) for number in range(MANY)]
    assert threading.active_count() - before <= 2, "the keeper and the timer"
    world.spy.calls.clear()
    last = leases[-1]
    await world.until(lambda: last.remaining < 6.9, timeout=30)
    await world.until(lambda: leases[0].remaining > 6 and last.remaining > 8, timeout=30)
    tending = [call for call in world.spy.calls if call.method == "tend"]
    assert len(tending) <= 40
    assert sum(len(call.asked) for call in tending) >= MANY
    for lease in leases:
        lease.check()
    await ann(client.close)
    assert not world.look("x0").locked
    assert not world.look(f"x{MANY - 1}").locked


def test_many_clients_are_cheap() -> None:
    """A client that is connected and not used has no thread of its own."""
    import holdfast

    before = set(threading.enumerate())  # some of which may be just about to end
    clients = [holdfast.connect("memory://many") for _ in range(100)]
    assert not set(threading.enumerate()) - before
    for client in clients:
        client.close()
    wait_until(lambda: not set(threading.enumerate()) - before)
