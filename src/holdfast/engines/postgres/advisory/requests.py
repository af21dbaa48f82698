"""The requests of the protocol, each answered by a script over the desk of one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ....engine_api import Steps
from ....rules.requests import (
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
from . import holding
from .desk import Desk, Script
from .taking import acquire, withdraw

__all__ = ["apply", "apply_in_order"]

_HANDLERS: Final[dict[type, Callable[[Desk, str, Any], Script[Reply]]]] = {
    Acquire: acquire,
    Withdraw: withdraw,
    Release: holding.release,
    Renew: holding.renew,
    Refresh: holding.refresh,
    Stop: holding.stop,
    Export: holding.export,
    Adopt: holding.adopt,
    Downgrade: holding.downgrade,
    Break: holding.break_,
    SetValue: holding.set_value,
    Resize: holding.resize,
    Watch: holding.watch,
    Unwatch: holding.unwatch,
    Inspect: holding.inspect,
}


def apply(desk: Desk, name: str, request: Request) -> Script[Reply]:
    return _HANDLERS[request.__class__](desk, name, request)


async def apply_in_order(desk: Desk, steps: Steps, stop_when_refused: bool) -> list[Reply]:
    """One after the other: who asks for several knows what became of each."""
    replies: list[Reply] = []
    for name, request in steps:
        replies.append(await apply(desk, name, request))
        if stop_when_refused and not isinstance(replies[-1], Granted):
            break
    return replies
