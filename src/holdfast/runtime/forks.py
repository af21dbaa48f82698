"""After fork() the child owns nothing. Every client is notified before any other Python code runs there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["register_after_fork"]


class Forkable(Protocol):
    def forked(self) -> None: ...


_first: weakref.WeakSet[Forkable] = weakref.WeakSet()
_then: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register_after_fork(forkable: Forkable, first: bool = False) -> None:
    """``first``: what clients depend on is notified before the clients."""
    (_first if first else _then).add(forkable)


def _notify_all() -> None:
    for forkable in [*_first, *_then]:
        forkable.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_notify_all)
