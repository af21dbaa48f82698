"""What sockets to servers have in common, whatever is spoken over them."""

from __future__ import annotations

import socket
import struct
from typing import Final

__all__ = ["HARD_CLOSE", "told", "tune"]

HARD_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER, no seconds: what was not sent is thrown away, and the other side is told at once."""

KEEPALIVE_SECONDS: Final = 15


def tune(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL"):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), KEEPALIVE_SECONDS)


def told(error: Exception) -> str:
    """What the system says of it."""
    if isinstance(error, TimeoutError | BlockingIOError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
