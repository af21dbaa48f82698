"""The observers of every lock that a thread or task of this process acquires: the checker of lock order."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any, Final

__all__ = ["OBSERVERS", "Observer"]

Observer = Callable[[Collection[Any], weakref.ref[Any], bool], None]
"""Called with a new lease, the thread or task that acquired it, and whether it would have waited for it.

There are several leases where none of them was held while the caller would have waited for another."""

OBSERVERS: Final[list[Observer]] = []
"""Empty but in development and tests. An observer that raises refuses the lease."""
