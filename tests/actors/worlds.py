"""The two drivers under one form: every call is awaited, so each test is written once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import holdfast.queue
import holdfast.queue.aio
from holdfast import actors
from holdfast.actors import aio
from holdfast.queue import JobInfo
from queue_tests.databases import FRESH_URL, SERVER_MARK
from support import async_wait_until

__all__ = ["DRIVERS", "SCHEMES", "World", "fresh_url"]

SCHEMES: Final = [pytest.param("postgresql", marks=SERVER_MARK), pytest.param("sqlite")]
DRIVERS: Final = ["threads", "asyncio"]


def fresh_url(scheme: str, folder: Path) -> str:
    return FRESH_URL[scheme](folder)


class World:
    """Systems on one queue."""

    def __init__(self, driver: str, url: str, namespace: str) -> None:
        self.driver = driver
        self.url = url
        self.namespace = namespace
        connect: Any = holdfast.queue.connect if driver == "threads" else holdfast.queue.aio.connect
        self.queue = connect(url, namespace=namespace)

    def system(self, client: Any = None, **options: Any) -> Any:
        if self.driver == "asyncio":
            return aio.System(client, self.queue, **options)
        return Awaited(actors.System(client, self.queue, **options))

    async def jobs(self, state: Any = None) -> list[JobInfo]:
        found: list[JobInfo] = await called(self.queue.jobs, state)
        return found

    async def retry(self, job: int) -> bool:
        return bool(await called(self.queue.retry, job))

    async def close(self) -> None:
        await called(self.queue.close)

    @classmethod
    @asynccontextmanager
    async def opened(cls, driver: str, url: str) -> AsyncIterator[World]:
        world = cls(driver, url, f"test-{secrets.token_hex(4)}")
        try:
            yield world
        finally:
            await world.close()


async def called(function: Any, *arguments: Any) -> Any:
    """A plain function on a thread, an async one here."""
    if asyncio.iscoroutinefunction(function):
        return await function(*arguments)
    return await asyncio.to_thread(function, *arguments)


class Awaited:
    """A system for threads, whose calls are awaited."""

    def __init__(self, system: actors.System) -> None:
        self.inner = system
        self.actor = system.actor
        self.stop = system.stop
        self.stream = system.stream

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(getattr(self.inner, name), *arguments, **options)

        return call


@asynccontextmanager
async def running(*systems: Any) -> AsyncIterator[None]:
    """They handle messages as long as the block lasts."""
    tasks = [asyncio.create_task(system.run()) for system in systems]
    try:
        yield
    finally:
        for system in systems:
            system.stop()
        await asyncio.gather(*tasks)


async def handled(system: Any, world: World) -> None:
    """Until no message is left, those that wait for another try included."""
    while True:
        await system.run(until_idle=True)
        if not any([await world.jobs(state) for state in ("scheduled", "blocked", "ready", "running")]):
            return
        await async_wait_until(lambda: True)
