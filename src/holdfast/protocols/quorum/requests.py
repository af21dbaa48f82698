"""The requests of the records family, answered by a quorum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import Unsupported
from ...rules.requests import (
    Acquire,
    Adopt,
    Break,
    Done,
    Downgrade,
    Export,
    Gone,
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
from . import acquisition, admin, lease_operations
from .effects import QuorumCoroutine
from .state import Quorum

__all__ = ["apply", "apply_in_order", "refusal"]

ALTERNATIVES = "sqlite://, redis:// and postgresql:// can"


def refusal(request: Request) -> str | None:
    """Why a quorum cannot serve this request; None: it can."""
    if isinstance(request, Acquire):
        if request.kind == "lock":
            return None
        return (
            f"a {request.kind} cannot be split over a quorum of independent nodes: {ALTERNATIVES}"
            if request.kind == "semaphore"
            else f"a quorum of independent nodes has no reader/writer locks: {ALTERNATIVES}"
        )
    if isinstance(request, SetValue):
        return f"independent nodes have no one place for a value: {ALTERNATIVES}"
    if isinstance(request, (Downgrade, Resize)):
        return f"a quorum of independent nodes has plain locks only: {ALTERNATIVES}"
    return None


def apply(quorum: Quorum, name: str, request: Request) -> QuorumCoroutine[Reply]:
    """What ``Apply(name, request)`` means here."""
    if request.__class__ is Acquire and request.kind == "lock":  # the hot path
        return acquisition.acquire(quorum, name, request)
    if request.__class__ not in _ALWAYS:
        why_not = refusal(request)
        if why_not is not None:
            raise Unsupported(why_not)
    return _COROUTINES[request.__class__](quorum, name, request)


async def apply_in_order(
    quorum: Quorum, steps: Sequence[tuple[str, Request]], stop_when_refused: bool
) -> list[Reply]:
    """Several names: acquires in one round, other requests one after the other."""
    for _, request in steps:
        why_not = refusal(request)
        if why_not is not None:
            raise Unsupported(why_not)
    asks = [(name, request) for name, request in steps if isinstance(request, Acquire)]
    if len(asks) == len(steps):
        return await acquisition.acquire_in_order(quorum, asks, stop_when_refused)
    return [await apply(quorum, name, request) for name, request in steps]


async def _stop(quorum: Quorum, name: str, ask: Stop) -> Reply:
    """The client stops its renewal; nodes need not know. The lease expires."""
    return Done() if ask.nonce in quorum.attempts else Gone("expired")


async def _watch(quorum: Quorum, name: str, ask: Watch) -> Reply:
    """Nodes report no changes: a watcher polls."""
    snapshot = await admin.inspect(quorum, name)
    quorum.watching.add(ask.nonce)
    return snapshot


async def _unwatch(quorum: Quorum, name: str, ask: Unwatch) -> Reply:
    quorum.watching.discard(ask.nonce)
    return Done()


async def _refresh(quorum: Quorum, name: str, ask: Refresh) -> Reply:
    return lease_operations.refresh(quorum, ask)


async def _inspect(quorum: Quorum, name: str, ask: Inspect) -> Reply:
    return await admin.inspect(quorum, name)


_COROUTINES: dict[type, Callable[[Quorum, str, Any], QuorumCoroutine[Reply]]] = {
    Acquire: acquisition.acquire,
    Release: lease_operations.release,
    Withdraw: lease_operations.withdraw,
    Renew: lease_operations.renew,
    Refresh: _refresh,
    Stop: _stop,
    Export: lease_operations.export,
    Adopt: lease_operations.adopt,
    Break: admin.break_lock,
    Watch: _watch,
    Unwatch: _unwatch,
    Inspect: _inspect,
}

_ALWAYS = frozenset(_COROUTINES) - {Acquire}
"""Requests that are never refused."""
