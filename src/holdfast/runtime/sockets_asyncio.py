"""Sockets in an event loop. Holdfast connects them itself, so that a forked child can close its copies."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from .sockets import tune

__all__ = ["give_to_loop", "open_socket", "socket_connected"]


async def open_socket(host: str, port: int, seconds: float) -> socket.socket:
    """Connect to the first address that accepts. If there are several, none may take all the time.

    Raises OSError, of which TimeoutError is one.
    """
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
    """Attach a connected socket and its protocol to the loop. On any failure the socket is closed.

    TLS starts on a connection that the loop has already, so that it can be aborted. If asyncio creates both
    at once and the caller gives up just when the handshake is done, asyncio closes the connection politely,
    which takes up to 30 seconds and cannot be aborted.
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
    """Buffers what arrives before the protocol is attached."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.is_over = False

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, error: Exception | None) -> None:
        self.is_over = True
