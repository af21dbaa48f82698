"""The records family: a lock is a record in an engine, moved by one transition at a time."""

from __future__ import annotations

from .acquisition import (
    Attempt,
    NotGranted,
    Outcome,
    acquire,
    acquire_in_order,
    acquire_request,
    granted,
    is_in_time,
    never_sent,
)
from .admin import break_lock, inspect, list_names, resize
from .lease_operations import adopt, downgrade, export, extend, set_value
from .releases import abandon, dropped, release, released, releasing, tell_of_loss
from .shutdown import close, closed
from .subscription import next_change, subscribe, unsubscribe

__all__ = [
    "Attempt",
    "NotGranted",
    "Outcome",
    "abandon",
    "acquire",
    "acquire_in_order",
    "acquire_request",
    "adopt",
    "break_lock",
    "close",
    "closed",
    "downgrade",
    "dropped",
    "export",
    "extend",
    "granted",
    "inspect",
    "is_in_time",
    "list_names",
    "never_sent",
    "next_change",
    "release",
    "released",
    "releasing",
    "resize",
    "set_value",
    "subscribe",
    "tell_of_loss",
    "unsubscribe",
]
