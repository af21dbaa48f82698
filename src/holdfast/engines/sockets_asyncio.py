"""Connecting sockets in an event loop: our own, so that the child of a fork can let go of them by itself."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

__all__ = ["reach", "socket_connected"]


async def reach(host: str, port: int, seconds: float) -> socket.socket:
    """Connected to the first of the addresses that answers. Where there are several, none has all the time.
    Raises OSError, TimeoutError among others."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    async with asyncio.timeout_at(ends_at):
        places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        trouble: OSError = TimeoutError()
        for number, (family, _, _, _, place) in enumerate(places):
            left = ends_at - loop.time()
            try:
                async with asyncio.timeout(left / 2 if number + 1 < len(places) else left):
                    return await socket_connected(family, place)
            except OSError as error:
                trouble = error
        raise trouble


async def socket_connected(family: int, place: Any) -> socket.socket:
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, place)
    except BaseException:
        connected.close()
        raise
    return connected
