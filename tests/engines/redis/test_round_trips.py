"""What a server is asked, as it says itself: one command takes a lock that is free, one gives it back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

import pytest

import holdfast
import holdfast.aio
from engines.redis.adapters import Driver
from engines.redis.wire import Wire
from holdfast.engines.redis.scripts import load
from holdfast.lab.servers import Redis
from support import wait_until

TIMES = 10


@pytest.fixture
def server() -> Iterator[Redis]:
    """Of our own: nobody else asks it anything. It knows the scripts."""
    with Redis() as server:
        Wire(server, load(sharded=False)).close()
        yield server


def until_all_is_in_place(server: Redis) -> None:
    """Of a client that holds one lock, and has asked for nothing else.

    When it has begun to listen, the keeper looks once at what is held, beside all that is done meanwhile:
    after that it asks for nothing for a long time.
    """
    wait_until(lambda: evalsha_calls(server) == 2, timeout=30, message="granted, but not looked at since")


def evalsha_calls(server: Redis) -> int:
    told = server.info("commandstats").get("cmdstat_evalsha", "calls=0")
    return int(told.split(",")[0].removeprefix("calls="))


def asked(server: Redis, act: Callable[[], None]) -> list[str]:
    """The commands that came from clients while ``act`` ran; what scripts do is no round trip.

    Nor is what is said on the connection that listens: it is there beside all this, and may ping.
    """
    listening = server.command("CLIENT", "LIST", "TYPE", "PUBSUB").decode()
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
            until_all_is_in_place(server)

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
                await asyncio.to_thread(until_all_is_in_place, server)

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


def test_a_stored_result_is_one_command(server: Redis) -> None:
    with holdfast.connect(server.url) as locks:
        operation = locks.idempotent("x", fingerprint="payload")
        with locks.lock("x"):
            until_all_is_in_place(server)
        assert operation.run(lambda: "first") == "first"

        def act() -> None:
            for _ in range(TIMES):
                assert operation.run(lambda: "again") == "first"

        assert asked(server, act) == ["EVALSHA"] * TIMES
