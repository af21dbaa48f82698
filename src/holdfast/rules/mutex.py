"""The mutex: one holder. Reentrant locks are the same kind: re-entry never reaches the engine."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["admits"]


def admits(held: Sequence[str], mode: str, limit: int) -> bool:
    return not held
