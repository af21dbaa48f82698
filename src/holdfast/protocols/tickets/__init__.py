"""The tickets family: requests of ``rules.requests`` as a few operations of an ordered store with sessions.

It plugs in below the protocol that all engines share: what a record answers elsewhere is answered here by
tickets. Written once, without I/O: engines perform the operations of ``ops`` for threads and for asyncio, and
the simulator performs them in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...rules.requests import (
    Acquire,
    Adopt,
    Break,
    Downgrade,
    Export,
    Granted,
    Inspect,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Resize,
    SetValue,
    Stop,
    Unwatch,
    Watch,
    Withdraw,
)
from .desk import Desk, Script
from .giving_back import break_, release, withdraw
from .holding import adopt, downgrade, export, renew, resize, set_value, stop
from .looking import inspect, list_names, unwatch, watch
from .taking import acquire
from .tending import refresh, tend

__all__ = ["Desk", "Script", "apply", "apply_in_order", "list_names", "tend"]

_HANDLERS: Final[dict[type, Callable[[Desk, str, Any], Script[Reply]]]] = {
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
    Resize: resize,
    Watch: watch,
    Unwatch: unwatch,
    Inspect: inspect,
}


def apply(desk: Desk, name: str, request: Request) -> Script[Reply]:
    return _HANDLERS[request.__class__](desk, name, request)


async def apply_in_order(
    desk: Desk, steps: tuple[tuple[str, Request], ...], stop_when_refused: bool
) -> list[Reply]:
    """One after the other: who asks for several knows what became of each."""
    replies: list[Reply] = []
    for name, request in steps:
        replies.append(await apply(desk, name, request))
        if stop_when_refused and not isinstance(replies[-1], Granted):
            break
    return replies
