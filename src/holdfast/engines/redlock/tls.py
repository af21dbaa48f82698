"""TLS on a connection that never blocks: what would block says so as a plain socket does."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

__all__ = ["nonblocking_receive", "nonblocking_send"]


def nonblocking_send(secure: ssl.SSLSocket) -> Callable[..., Any]:
    """Sends all of it or, for now, nothing: then it has to be called again with the same bytes, or more."""

    def send(payload: bytes) -> int:
        try:
            return secure.send(payload)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            raise BlockingIOError from None

    return send


def nonblocking_receive(secure: ssl.SSLSocket) -> Callable[..., Any]:
    """Returns all that was decrypted: of that the poll knows nothing."""

    def receive(size: int) -> bytes:
        try:
            data = secure.recv(size)
            while data and secure.pending():
                data += secure.recv(size)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        return data

    return receive
