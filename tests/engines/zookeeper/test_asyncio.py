"""What the asyncio transport does of its own: cancellation at every moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast.aio
from engines.zookeeper.admin import Admin
from holdfast.drivers.asyncio import AsyncioDriver
from holdfast.engines.zookeeper.session import Session
from holdfast.rules.requests import Handoff
from holdfast.runtime.concurrency_limit import REQUESTS_MAX
from support import async_wait_until


class Canceller:
    """Cancels a task at its n-th request: while that is under way, or when it was just answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.left = 0
        self.answered = False
        self._waits = False
        shipped, wait = Session.send, AsyncioDriver._wait

        def send(session: Session, requests: Any, notify: Any) -> None:
            task = self.task
            self.left -= task is not None
            is_the_one = task is not None and not self.left

            def answered(answers: Any) -> None:
                notify(answers)
                if is_the_one and self.answered and task is not None:
                    task.get_loop().call_soon_threadsafe(cancel_once, task)

            shipped(session, requests, answered)
            if is_the_one and not self.answered and task is not None:
                cancel_once(task)

        async def waiting(driver: AsyncioDriver, op: Any) -> Handoff | bool:
            is_ours = asyncio.current_task() is self.task
            self._waits = self._waits or is_ours
            try:
                return await wait(driver, op)
            finally:
                if is_ours:
                    self._waits = False

        monkeypatch.setattr(Session, "send", send)
        monkeypatch.setattr(AsyncioDriver, "_wait", waiting)

    async def until_quiet(self, task: asyncio.Task[Any]) -> None:
        """Until it is done; or it waits for its turn, and so sends no more requests."""
        await async_wait_until(lambda: task.done() or self._waits)


def cancel_once(task: asyncio.Task[Any]) -> None:
    """A second time would hurry its cleaning up."""
    if not task.cancelling():
        task.cancel()


@pytest.fixture
def canceller(monkeypatch: pytest.MonkeyPatch) -> Canceller:
    return Canceller(monkeypatch)


@pytest.mark.parametrize("answered", [False, True], ids=["under way", "answered"])
@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_cancelled_at_every_moment_nothing_stays_behind(
    url: str, namespace: str, admin: Admin, canceller: Canceller, held: bool, answered: bool
) -> None:
    async def run() -> int:
        async with (
            holdfast.aio.connect(url, namespace=namespace) as client,
            holdfast.aio.connect(url, namespace=namespace) as other,
        ):
            async with client.lock("x"):
                pass  # the session is open
            lease = await other.lock("x").acquire() if held else None
            at = 0
            cancelled = True
            while cancelled:
                at += 1
                cancelled = await cancelled_at(client, at)
                await async_wait_until(lambda: len(admin.tickets(namespace)) == (1 if held else 0))
            if lease is not None:
                await lease.release()
            async with client.lock("x", timeout=10):
                pass
            return at - 1

    async def cancelled_at(client: holdfast.aio.AsyncClient, at: int) -> bool:
        # Every attempt takes all steps, whatever the one before it learned.
        client._driver.client_state.contended.clear()
        canceller.answered, canceller.left = answered, at
        canceller.task = task = asyncio.create_task(client.lock("x").acquire())
        await canceller.until_quiet(task)
        canceller.task = None
        cancel_once(task)
        await asyncio.wait({task})
        if not task.cancelled():
            taken = task.result()
            assert taken is not None
            await taken.release()
        return canceller.left <= 0

    moments = asyncio.run(run())
    assert moments >= (3 if held else 1)


def test_however_many_ask_only_so_many_are_asked_at_once(
    url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait unsent, and their time runs when they are sent."""
    held: list[Any] = []
    holds = False
    shipped = Session.send

    def send(session: Session, requests: Any, notify: Any) -> None:
        shipped(session, requests, (lambda answers: held.append((notify, answers))) if holds else notify)

    monkeypatch.setattr(Session, "send", send)

    async def one(client: holdfast.aio.AsyncClient, number: int) -> None:
        async with client.lock(f"x{number}"):
            pass

    async def run() -> None:
        nonlocal holds
        async with holdfast.aio.connect(url, namespace=namespace, session_timeout=60) as client:
            await one(client, 0)
            holds = True
            tasks = [asyncio.create_task(one(client, number)) for number in range(2 * REQUESTS_MAX)]
            await async_wait_until(lambda: len(held) >= REQUESTS_MAX)
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(held) == REQUESTS_MAX
            holds = False
            for notify, answers in held:
                notify(answers)
            await asyncio.gather(*tasks)

    asyncio.run(run())
