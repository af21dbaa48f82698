"""The end of a client: those who wait are sent away, what is held is given back."""

from __future__ import annotations

import contextlib

from ...core.ops import (
    Listen,
    Now,
    Post,
    Unlisten,
    Wait,
)
from ...errors import EngineUnavailable, InvalidArgument
from ..book import Book
from .giving_back import release

__all__ = ["CLOSING", "close", "closed"]

CLOSE_SECONDS = 1.0
"""How long a client that is being closed waits for its other threads or tasks to leave their queues."""


CLOSING = "closing"


async def close(book: Book) -> None:
    """Send away those who wait, and give back everything that is held."""
    book.closed = True
    if book.waiting:
        await _send_away(book)
    for state in list(book.leases.values()):
        with contextlib.suppress(EngineUnavailable):
            await release(book, state, 0.0)


async def _send_away(book: Book) -> None:
    ends_at = (await Now()) + CLOSE_SECONDS
    await Listen(CLOSING, None)
    try:
        for nonce in list(book.waiting):
            await Post(nonce)
        while book.waiting and (await Now()) < ends_at:
            await Wait(CLOSING, ends_at)
    finally:
        await Unlisten(CLOSING)


def closed() -> InvalidArgument:
    return InvalidArgument("this client is closed: connect again")
