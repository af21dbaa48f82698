"""A connection that is given up while it is made leaves nothing in the loop."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest

from holdfast.runtime.sockets_asyncio import give_to_loop, open_socket
from support import async_wait_until
from support.servers import shared_redis, shared_redis_tls

PING = b"PING\r\n"
PONG = b"+PONG\r\n"


class Asks(asyncio.Protocol):
    """Sends one thing and keeps what it receives."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self.transport is None
        self.transport = transport
        self.transport.write(PING)

    def data_received(self, data: bytes) -> None:
        self.received += data


@pytest.mark.parametrize("is_protected", [False, True], ids=["plain", "TLS"])
def test_given_up_at_every_turn_of_the_loop(is_protected: bool) -> None:
    server = shared_redis_tls() if is_protected else shared_redis()
    tls = server.certificates.client_context() if is_protected else None

    async def connect() -> Asks:
        asks = Asks()
        connected = await open_socket(server.host, server.port, 5)
        await give_to_loop(connected, asks, tls, server.host)
        return asks

    async def given_up_after(turns: int) -> bool:
        loop: Any = asyncio.get_running_loop()
        task = asyncio.create_task(connect())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            asks = task.result()
            await async_wait_until(lambda: asks.received == PONG)
            asks.transport.abort()
        await asyncio.sleep(0)
        for transport in loop._transports.values():
            assert transport.is_closing()
        return task.cancelled()

    async def run() -> None:
        turns = 0
        while await given_up_after(turns):
            turns += 1

    asyncio.run(run())


def test_given_up_just_when_the_handshake_is_done() -> None:
    """asyncio would part politely, and wait for the server's answer on a socket that is closed already."""
    server = shared_redis_tls()
    tls = server.certificates.client_context()

    class Shakes(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            tasks[0].cancel()

    async def connect() -> None:
        connected = await open_socket(server.host, server.port, 5)
        await give_to_loop(connected, Asks(), tls, server.host)

    async def run() -> None:
        tls.sslobject_class = Shakes
        tasks.append(asyncio.create_task(connect()))
        await asyncio.wait(tasks)
        assert tasks[0].cancelled()
        loop: Any = asyncio.get_running_loop()
        assert all(transport.is_closing() for transport in loop._transports.values())

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(run())
