"""Translates a snapshot of a record into the public model."""

from __future__ import annotations

from typing import Final, cast

from ..model import HolderInfo, Kind, LockInfo, Mode, WaiterInfo
from ..rules.record import Holder, Waiter
from ..rules.requests import Snapshot

__all__ = ["describe", "describe_holders"]

EXPORTED: Final = "exported"
"""The owner of a lease that was exported and not adopted yet."""


def describe(name: str, snapshot: Snapshot) -> LockInfo:
    record, now = snapshot
    return LockInfo(
        name=name,
        kind=cast("Kind | None", record.kind),
        holders=describe_holders(record.holders, now),
        waiters=tuple(_waiter(waiter, now) for waiter in record.queue),
        value=None if record.value is None else record.value.data,
        limit=record.limit if record.kind == "semaphore" else None,
        token=record.token,
    )


def describe_holders(holders: tuple[Holder, ...], now: float) -> tuple[HolderInfo, ...]:
    return tuple(_holder(holder, now) for holder in holders)


def _holder(holder: Holder, now: float) -> HolderInfo:
    owner = holder.owner if holder.client else EXPORTED
    host, pid, thread = _parts(owner) if holder.client else ("", 0, "")
    return HolderInfo(
        owner=owner,
        client=holder.client,
        host=host,
        pid=pid,
        thread=thread,
        mode=cast(Mode, holder.mode),
        token=holder.token,
        age=max(now - holder.since, 0.0),
        remaining=max(holder.expires_at - now, 0.0),
        metadata=dict(holder.metadata),
    )


def _waiter(waiter: Waiter, now: float) -> WaiterInfo:
    host, pid, thread = _parts(waiter.owner)
    return WaiterInfo(
        owner=waiter.owner,
        client=waiter.client,
        host=host,
        pid=pid,
        thread=thread,
        mode=cast(Mode, waiter.mode),
        age=max(now - waiter.since, 0.0),
    )


def _parts(owner: str) -> tuple[str, int, str]:
    """``host/pid/thread``; a thread's name may itself have slashes."""
    host, _, rest = owner.partition("/")
    pid, _, thread = rest.partition("/")
    return host, int(pid) if pid.isdigit() else 0, thread
