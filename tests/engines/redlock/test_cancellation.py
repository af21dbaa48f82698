"""Cancelling whenever nodes are asked, meanwhile and once they have answered: nothing stays behind there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import pytest

import holdfast.aio
from contract.engines import fresh_namespace
from engines.redlock.test_faults import NOBODY
from faults.redlock_nodes import Nodes, nodes
from holdfast import NotHeld
from holdfast.aio import AsyncClient
from holdfast.engines.redlock.asyncio import RedlockAsyncio
from holdfast.protocols.quorum import Answers, Broadcast
from support import async_wait_until

Act = Callable[[], Awaitable[None]]
Prepare = Callable[[AsyncClient], Awaitable[Act]]

LONG = 60.0


@pytest.fixture(scope="module")
def trio() -> Iterator[Nodes]:
    with nodes(3) as trio:
        yield trio


class Cancellers:
    """Cancel a task at one of its moments, and perhaps at the next one as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._at: dict[asyncio.Task[None], tuple[int, int]] = {}
        self._met: dict[asyncio.Task[None], int] = {}
        shipped = RedlockAsyncio._broadcast

        async def fan(adapter: RedlockAsyncio, op: Broadcast) -> Answers:
            self._strikes()  # it comes while nodes are waited for, if they are
            answers = await shipped(adapter, op)
            if self._strikes():
                await asyncio.sleep(0)  # the nodes have answered
            return answers

        monkeypatch.setattr(RedlockAsyncio, "_broadcast", fan)

    def _strikes(self) -> bool:
        task = asyncio.current_task()
        if task not in self._at:
            return False  # the keeper and the timer are not who is cancelled
        self._met[task] += 1
        first, last = self._at[task]
        if first <= self._met[task] <= last:
            task.cancel()
            return True
        return False

    async def run(self, act: Act, first: int, last: int) -> int:
        """How many moments it came to."""

        async def acting() -> None:
            await act()

        task = asyncio.create_task(acting())
        self._at[task], self._met[task] = (first, last), 0
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return self._met[task]


async def sweep(trio: Nodes, cancellers: Cancellers, prepare: Prepare, times: int) -> int:
    """Once without, then at every moment, all at once; how many moments there are."""

    async def once(at: int) -> int:
        namespace = fresh_namespace()
        async with holdfast.aio.connect(trio.url(), namespace=namespace) as client:
            act = await prepare(client)
            moments = await cancellers.run(act, at, at + times - 1)
            await async_wait_until(
                lambda: trio.claims("x", namespace) == NOBODY and not client._driver.client_state.waiting,
                timeout=5,
                message=f"cancelled at moment {at}: something stayed behind",
            )
        return moments

    moments = await once(-1)
    await asyncio.gather(*(once(at) for at in range(1, moments + 1)))
    return moments


async def taking(client: AsyncClient) -> Act:
    async def act() -> None:
        async with client.lock("x", ttl=LONG) as lease:
            await lease.extend()
            await client.inspect("x")
            await client.list()

    return act


async def waiting(client: AsyncClient) -> Act:
    holder = client.lock("x", ttl=LONG)
    await holder.acquire()

    async def let_go_when_somebody_waits() -> None:
        await async_wait_until(lambda: client._driver.client_state.waiting)
        await holder.release()

    async def act() -> None:
        letting_go = asyncio.create_task(let_go_when_somebody_waits())
        try:
            async with client.lock("x", ttl=LONG):
                pass
        finally:
            letting_go.cancel()
            with contextlib.suppress(NotHeld):
                if holder.lease is not None:
                    await asyncio.shield(holder.lease.release())

    return act


async def adopting(client: AsyncClient) -> Act:
    """What nobody adopted to the end runs out."""
    lease = await client.lock("x", ttl=1.0).acquire()
    assert lease is not None
    text = await lease.export()

    async def act() -> None:
        adopted = await client.adopt(text)
        await adopted.release()

    return act


async def breaking(client: AsyncClient) -> Act:
    lease = await client.lock("x", ttl=LONG).acquire()
    assert lease is not None

    async def act() -> None:
        try:
            await client.break_lock("x", reason="it hangs")
        finally:
            with contextlib.suppress(holdfast.HoldfastError):
                await asyncio.shield(lease.release())

    return act


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize(
    ("prepare", "least"),
    [(taking, 12), (waiting, 6), (adopting, 8), (breaking, 6)],
    ids=["taking", "waiting", "adopting", "breaking"],
)
def test_cancelled_at_every_moment(
    trio: Nodes, monkeypatch: pytest.MonkeyPatch, prepare: Prepare, least: int, times: int
) -> None:
    assert asyncio.run(sweep(trio, Cancellers(monkeypatch), prepare, times)) >= least
