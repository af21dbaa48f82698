"""The tickets family: answers the requests of ``rules.requests`` from an ordered store with sessions.

It stands below the protocol that all engines share: where other engines answer a request from a record, this
family answers it from tickets. Written once, without I/O: it awaits the methods of a ``TicketStore``, which
engines provide for threads and asyncio, and the simulator in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...core.effects import mark_never_sent, never_sent
from ...rules.requests import (
    Acquire,
    Adopt,
    Break,
    Downgrade,
    Export,
    Granted,
    Inspect,
    ReadCell,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Resize,
    SetValue,
    Stop,
    SwapCell,
    Unwatch,
    Watch,
    Withdraw,
)
from .acquisition import acquire, acquire_together
from .client import TicketClient, TicketCoroutine
from .inspection import inspect, list_names, unwatch, watch
from .lease_operations import adopt, downgrade, export, read_cell, renew, resize, set_value, stop, swap_cell
from .releases import break_, release, withdraw
from .renewal import refresh, renew_batch

__all__ = ["TicketClient", "TicketCoroutine", "apply", "apply_in_order", "list_names", "renew_batch"]

TOGETHER_MAX: Final = 25
"""So many tickets are created in one step: etcd allows 128 operations by default, and each needs five."""

_HANDLERS: Final[dict[type, Callable[[TicketClient, str, Any], TicketCoroutine[Reply]]]] = {
    Acquire: acquire,
    Release: release,
    Withdraw: withdraw,
    Renew: renew,
    Refresh: refresh,
    Stop: stop,
    Export: export,
    Adopt: adopt,
    Downgrade: downgrade,
    Break: break_,
    SetValue: set_value,
    ReadCell: read_cell,
    SwapCell: swap_cell,
    Resize: resize,
    Watch: watch,
    Unwatch: unwatch,
    Inspect: inspect,
}


def apply(client: TicketClient, name: str, request: Request) -> TicketCoroutine[Reply]:
    return _HANDLERS[request.__class__](client, name, request)


async def apply_in_order(
    client: TicketClient, steps: tuple[tuple[str, Request], ...], stop_when_refused: bool
) -> list[Reply]:
    """In one step where the engine can and the names are free; else one after the other, so that the caller
    learns the outcome of each."""
    if stop_when_refused and len(steps) > 1:
        together = await acquire_together(client, steps[:TOGETHER_MAX])
        if together is not None:
            return together
    replies: list[Reply] = []
    for name, request in steps:
        try:
            replies.append(await apply(client, name, request))
        except BaseException as error:
            if replies and never_sent(error):
                mark_never_sent(error, False)  # the steps before it were
            raise
        if stop_when_refused and not isinstance(replies[-1], Granted):
            break
    return replies
