"""The reader/writer lock: many readers or one writer. The queue is one, so writers are not starved."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["admits"]


def admits(held: Sequence[str], mode: str, limit: int) -> bool:
    return not held or (mode == "read" and "write" not in held)
