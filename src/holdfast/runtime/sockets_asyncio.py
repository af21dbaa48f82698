"""Connecting sockets in an event loop: our own, so that the child of a fork can let go of them by itself."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from .sockets import tune

__all__ = ["give_to_loop", "open_socket", "socket_connected"]


async def open_socket(host: str, port: int, seconds: float) -> socket.socket:
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


async def give_to_loop(
    connected: socket.socket, protocol: asyncio.Protocol, tls: ssl.SSLContext | None, host: str
) -> None:
    """From now on the loop serves the socket, for the protocol. Whatever fails, the socket is closed.

    TLS is begun on a connection that the loop has already, so that it can be cut: whoever gives up while
    asyncio makes both at once, just when the handshake is done, has it part politely from the server, out of
    our reach and for up to 30 seconds.
    """
    loop = asyncio.get_running_loop()
    transport: asyncio.Transport | None = None
    try:
        tune(connected)
        if tls is None:
            await loop.create_connection(lambda: protocol, sock=connected)
            return
        transport, early = await loop.create_connection(_Early, sock=connected)
        protected = await loop.start_tls(transport, early, tls, server_hostname=host)
        if protected is None or protected.is_closing() or early.is_over:
            raise ConnectionResetError("the server closed the connection after the handshake")
    except BaseException:
        if transport is not None:
            transport.abort()
        connected.close()
        raise
    protected.set_protocol(protocol)
    protocol.connection_made(protected)
    if early.heard:
        protocol.data_received(bytes(early.heard))


class _Early(asyncio.Protocol):
    """Keeps what comes before the protocol is there."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.is_over = False

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
