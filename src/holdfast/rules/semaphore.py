"""The semaphore: as many holders as the current limit allows."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["admits"]


def admits(held: Sequence[str], mode: str, limit: int) -> bool:
    return len(held) < limit
