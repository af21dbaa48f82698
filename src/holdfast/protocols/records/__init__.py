"""The records family: a lock is a record in an engine, moved by one transition at a time."""

from __future__ import annotations

from .acquiring import NotGranted, acquire, acquire_in_order
from .closing import close, closed
from .giving_back import abandon, dropped, release, tell_of_loss
from .holding import adopt, downgrade, export, extend, set_value
from .outside import break_lock, inspect, list_names, resize
from .watching import next_change, subscribe, unsubscribe

__all__ = [
    "NotGranted",
    "abandon",
    "acquire",
    "acquire_in_order",
    "adopt",
    "break_lock",
    "close",
    "closed",
    "downgrade",
    "dropped",
    "export",
    "extend",
    "inspect",
    "list_names",
    "next_change",
    "release",
    "resize",
    "set_value",
    "subscribe",
    "tell_of_loss",
    "unsubscribe",
]
