"""The records family: a lock is a record in an engine, and each request is one transition of it."""

from __future__ import annotations

from .acquisition import (
    Attempt,
    LongWait,
    NotGranted,
    Outcome,
    WatchLongWait,
    acquire,
    acquire_request,
    is_in_time,
    keep_grant,
)
from .admin import WAITS, break_lock, inspect, list_names, resize
from .lease_operations import adopt, downgrade, export, extend, set_value
from .releases import abandon, dropped, mark_released, release, release_request, report_loss
from .several import abandon_all, acquire_in_order, release_all
from .shutdown import close, closed_error
from .subscription import (
    forget_subscription,
    look_again,
    next_change,
    subscribe,
    unsubscribe,
    wait_for_wakeup,
)

__all__ = [
    "WAITS",
    "Attempt",
    "LongWait",
    "NotGranted",
    "Outcome",
    "WatchLongWait",
    "abandon",
    "abandon_all",
    "acquire",
    "acquire_in_order",
    "acquire_request",
    "adopt",
    "break_lock",
    "close",
    "closed_error",
    "downgrade",
    "dropped",
    "export",
    "extend",
    "forget_subscription",
    "inspect",
    "is_in_time",
    "keep_grant",
    "list_names",
    "look_again",
    "mark_released",
    "next_change",
    "release",
    "release_all",
    "release_request",
    "report_loss",
    "resize",
    "set_value",
    "subscribe",
    "unsubscribe",
    "wait_for_wakeup",
]
