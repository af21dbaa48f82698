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
from ..client_state import ClientState, LeaseState
from .releases import release, report_loss

__all__ = ["CLOSING", "close", "closed_error"]

CLOSE_SECONDS = 1.0
"""How long ``close`` waits for the other threads or tasks of its client to leave their queues. A release that
takes longer and fails is the last one it tries."""

CLOSING = "closing"


async def close(client_state: ClientState) -> None:
    """Have all waiters of this client leave their queues, then release every lease."""
    client_state.closed = True
    try:
        if client_state.waiting:
            await _wake_waiters(client_state)
        await _release_all(client_state)
    finally:
        # What the engine still has expires with its ttl. Nothing renews it or reports its loss any more.
        for state in list(client_state.leases.values()):
            await _end(client_state, state)


async def _release_all(client_state: ClientState) -> None:
    """An engine that is down refuses each of them at once. One that hangs is waited for once."""
    ends_at = (await Now()) + CLOSE_SECONDS
    for state in list(client_state.leases.values()):
        try:
            await release(client_state, state, 0.0)
        except EngineUnavailable:
            if await Now() >= ends_at:
                return


async def _end(client_state: ClientState, state: LeaseState) -> None:
    """End a lease that could not be released, for this process."""
    client_state.drop(state)
    if state.loss(client_state.now()) is not None:
        with contextlib.suppress(Exception):  # no thread can be started for it
            await report_loss(state)
    else:
        state.end("released")


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
