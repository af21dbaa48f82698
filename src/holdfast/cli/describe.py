"""Locks as JSON and as rows of a table; shared by ``ls`` and ``show``."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

from holdfast import HolderInfo, LockInfo

from .output import age

__all__ = ["as_json", "holder_row", "state"]


def as_json(lock: LockInfo) -> dict[str, Any]:
    """A stable document: fields are added, never renamed. The value is base64, because it may be any
    bytes."""
    return {
        "name": lock.name,
        "kind": lock.kind,
        "locked": lock.locked,
        "limit": lock.limit,
        "token": lock.token,
        "holders": [_fields(holder) for holder in lock.holders],
        "waiters": [_fields(waiter) for waiter in lock.waiters],
        "value_base64": None if lock.value is None else base64.b64encode(lock.value).decode(),
    }


def state(lock: LockInfo) -> str:
    """``free``, ``held``, ``2 readers``, ``written``, ``3 of 5``."""
    if lock.kind == "semaphore":
        return f"{len(lock.holders)} of {lock.limit}"
    if not lock.holders:
        return "free"
    if lock.holders[0].mode == "read":
        return f"{len(lock.holders)} reader{'s' if len(lock.holders) > 1 else ''}"
    return "written" if lock.holders[0].mode == "write" else "held"


def holder_row(holder: HolderInfo) -> tuple[str, ...]:
    """Cells: owner, mode, token, age, remaining time unless renewed, metadata."""
    what = ", ".join(f"{key}={value}" for key, value in sorted(holder.metadata.items()))
    return (
        holder.owner,
        holder.mode,
        str(holder.token),
        age(holder.age),
        age(max(0.0, holder.remaining)),
        what,
    )


def _fields(item: Any) -> dict[str, Any]:
    """The fields of a frozen, slotted dataclass, without copying their values."""
    return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
