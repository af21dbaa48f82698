"""A lock that nobody can reach any more, and that nobody released."""

from __future__ import annotations

import contextlib
import gc
import inspect
import warnings
from collections.abc import Awaitable
from typing import Any

from contract.harness import World, held
from holdfast import Client, Lease, LockLost
from holdfast.protocols.client_state import LeaseState

TTL = 0.3
"""Of both: some engines carry leases of one ttl together."""

TRIES = 20


async def test_it_is_warned_of_and_runs_out(world: World) -> None:
    """Whatever carries the leases of the client lives on for another one: it must not carry this one."""
    world.keeps_leases = False
    ann, client = world.actor(), world.client()
    kept = client.lock("kept", ttl=TTL)
    await ann(kept.acquire)
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(TRIES):
            if (await dropped(world, client)).ended == "dropped":
                break  # else this machine stood still and it was lost first, of which nobody is warned
    (warning,) = reported
    assert warning.category is ResourceWarning
    assert "'x'" in str(warning.message)
    await world.until_free("x")
    with contextlib.suppress(LockLost):  # of which this is no test
        await ann(kept.release)


async def dropped(world: World, client: Client) -> LeaseState:
    """What became of a lease that was taken, and dropped by the one who took it.

    Handed to us it would be kept until we wait for something, and if garbage is collected before that it is
    lost first: where there is much of it, that takes longer than the lease lasts.
    """
    ann = world.actor()

    def take() -> Any:
        acquiring: Any = client.lock("x", ttl=TTL).acquire()
        return taken(acquiring) if inspect.isawaitable(acquiring) else held(acquiring)._state

    async def taken(acquiring: Awaitable[Lease | None]) -> LeaseState:
        return held(await acquiring)._state

    state: LeaseState = await ann(take)

    def is_over() -> bool:
        gc.collect()
        return state.ended is not None or state.reason is not None

    await world.until(is_over, "somebody keeps it")
    return state
