"""The requests of the protocol, each answered by a coroutine over the sessions of one client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ....core.effects import mark_never_sent, never_sent
from ....engine_api import Steps
from ....rules.requests import (
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
from . import admin, lease_operations
from .acquisition import acquire, withdraw
from .admin import list_names
from .effects import SessionCoroutine
from .lease_operations import renew_batch
from .pool import SessionPool

__all__ = ["apply", "apply_in_order", "list_names", "renew_batch"]

_HANDLERS: Final[dict[type, Callable[[SessionPool, str, Any], SessionCoroutine[Reply]]]] = {
    Acquire: acquire,
    Withdraw: withdraw,
    Release: lease_operations.release,
    Renew: lease_operations.renew,
    Refresh: lease_operations.refresh,
    Stop: lease_operations.stop,
    Export: lease_operations.export,
    Adopt: lease_operations.adopt,
    Downgrade: lease_operations.downgrade,
    SetValue: lease_operations.set_value,
    Resize: admin.resize,
    Break: admin.break_lock,
    Watch: admin.watch,
    Unwatch: admin.unwatch,
    Inspect: admin.inspect,
    ReadCell: admin.apply_to_cell,
    SwapCell: admin.apply_to_cell,
}


def apply(pool: SessionPool, name: str, request: Request) -> SessionCoroutine[Reply]:
    return _HANDLERS[request.__class__](pool, name, request)


async def apply_in_order(pool: SessionPool, steps: Steps, stop_when_refused: bool) -> list[Reply]:
    """One after the other, so that the outcome of each is known."""
    replies: list[Reply] = []
    for name, request in steps:
        try:
            replies.append(await apply(pool, name, request))
        except BaseException as error:
            if replies and never_sent(error):
                mark_never_sent(error, False)  # the steps before it were
            raise
        if stop_when_refused and not isinstance(replies[-1], Granted):
            break
    return replies
