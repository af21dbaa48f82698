"""A client's internal state, where nothing outside shows it; and the first lock of an impatient client."""

from __future__ import annotations

import contextlib

from contract.harness import Actor
from holdfast import Client, EngineUnavailable, Lease, Lock
from holdfast.engines.postgres.asyncio import PostgresAsyncio
from holdfast.engines.postgres.threads import PostgresThreads

__all__ = ["granted", "receives_notifications"]


def receives_notifications(client: Client) -> bool:
    """Whether notifications reach it."""
    adapter: object = client._driver.adapter
    assert isinstance(adapter, PostgresThreads | PostgresAsyncio)
    return adapter._wakeups.has_notifications


async def granted(actor: Actor, lock: Lock) -> Lease:
    """Retry until the server answers in time: on a busy machine that may take several tries at first, if a
    client does not wait for long."""
    for _ in range(40):
        with contextlib.suppress(EngineUnavailable):
            lease = await actor(lock.acquire, timeout=20)
            assert lease is not None
            return lease
    raise AssertionError("the server never answered in time")
