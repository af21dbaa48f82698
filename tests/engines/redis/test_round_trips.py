"""What a server is asked, as it says itself: one command takes a lock that is free, one gives it back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest

import holdfast
import holdfast.aio
from engines.redis.asking import Driver
from engines.redis.wire import Wire
from holdfast.lab.servers import Redis
from support import wait_until

TIMES = 10


@pytest.fixture
def server() -> Iterator[Redis]:
    """Of our own: nobody else asks it anything."""
    with Redis() as server:
        yield server


def asked(server: Redis, act: Callable[[], None]) -> list[str]:
    """The commands that came from clients while ``act`` ran; what scripts do is no round trip.

    Nor is what is said on the connection that listens: it is there beside all this, and may ping.
    """
    listening = wait_until(lambda: server.command("CLIENT", "LIST", "TYPE", "PUBSUB").decode())
    apart = {"lua", *re.findall(r" addr=(\S+)", listening)}
    rows: list[str] = []
    wire = Wire(server)
    try:
        wire.ask(b"MONITOR")
        act()
        server.command("ECHO", "the end")
        while "the end" not in (row := as_text(wire.read())):
            rows.append(row)
    finally:
        wire.close()
    commands = [re.match(r'[\d.]+ \[\d+ (\S+)\] "(\w+)"', row) for row in rows]
    return [each[2] for each in commands if each is not None and each[1] not in apart]


def as_text(told: object) -> str:
    return told.decode() if isinstance(told, bytes) else str(told)


def use_threads(server: Redis) -> list[str]:
    with holdfast.connect(server.url) as locks:
        with locks.lock("x"):
            pass  # connected, and the scripts are known there

        def act() -> None:
            for _ in range(TIMES):
                lock = locks.lock("x")
                assert lock.acquire() is not None
                lock.release()

        return asked(server, act)


def use_asyncio(server: Redis) -> list[str]:
    async def main() -> list[str]:
        async with holdfast.aio.connect(server.url) as locks:
            async with locks.lock("x"):
                pass

            async def work() -> None:
                for _ in range(TIMES):
                    lock = locks.lock("x")
                    assert await lock.acquire() is not None
                    await lock.release()

            loop = asyncio.get_running_loop()

            def act() -> None:
                asyncio.run_coroutine_threadsafe(work(), loop).result(60)

            return await asyncio.to_thread(asked, server, act)

    return asyncio.run(main())


def test_one_command_each(driver: Driver, server: Redis) -> None:
    commands = use_threads(server) if driver == "threads" else use_asyncio(server)
    assert commands == ["EVALSHA"] * 2 * TIMES
