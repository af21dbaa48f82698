"""Closing a client: its waiters leave their queues, and its leases are released."""

from __future__ import annotations

import contextlib

from ...core.effects import (
    Listen,
    Notify,
    Now,
    Unlisten,
    Wait,
)
from ...errors import EngineUnavailable, InvalidArgument
from ..client_state import ClientState
from .releases import release

__all__ = ["CLOSING", "close", "closed_error"]

CLOSE_SECONDS = 1.0
"""How long ``close`` waits for the other threads or tasks of its client to leave their queues."""

CLOSING = "closing"


async def close(client_state: ClientState) -> None:
    """Have all waiters of this client leave their queues, then release every lease."""
    client_state.closed = True
    if client_state.waiting:
        await _wake_waiters(client_state)
    for state in list(client_state.leases.values()):
        with contextlib.suppress(EngineUnavailable):
            await release(client_state, state, 0.0)


async def _wake_waiters(client_state: ClientState) -> None:
    ends_at = (await Now()) + CLOSE_SECONDS
    await Listen(CLOSING, None)
    try:
        for nonce in list(client_state.waiting):
            await Notify(nonce)
        while client_state.waiting and (await Now()) < ends_at:
            await Wait(CLOSING, ends_at)
    finally:
        await Unlisten(CLOSING)


def closed_error() -> InvalidArgument:
    return InvalidArgument("this client is closed: connect again")
