"""After fork() the child owns nothing: every client is told, before any other Python code runs there."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["register_after_fork"]


class Forkable(Protocol):
    def forked(self) -> None: ...


_first: weakref.WeakSet[Forkable] = weakref.WeakSet()
_then: weakref.WeakSet[Forkable] = weakref.WeakSet()


def register_after_fork(someone: Forkable, first: bool = False) -> None:
    """``first``: what clients stand on is told before the clients are."""
    (_first if first else _then).add(someone)


def _tell_all() -> None:
    for someone in [*_first, *_then]:
        someone.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_all)
