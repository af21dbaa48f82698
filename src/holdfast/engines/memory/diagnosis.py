"""``holdfast doctor`` for ``memory://``."""

from __future__ import annotations

from ..findings import Finding, ok, warn

__all__ = ["diagnose"]


def diagnose() -> list[Finding]:
    return [
        ok("connection", "none: everything is in this process"),
        warn("scope", "locks exclude the threads and tasks of one process, and no other process"),
    ]
