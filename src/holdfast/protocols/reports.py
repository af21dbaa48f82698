"""What the background work of a client writes to the log: failing renewals and unexpected errors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client_state import LeaseState

__all__ = ["Reports"]

log = logging.getLogger("holdfast")


class Reports:
    """Writes to the log: failing renewals once when they begin to fail, and once when they work again."""

    __slots__ = ("engine", "failing_since")

    def __init__(self, engine: str = "the engine") -> None:
        self.engine = engine
        """Its URL without secrets."""
        self.failing_since: float | None = None

    def unexpected(self, what: str, error: BaseException) -> None:
        """Log an error that no engine should raise. The renewal thread continues."""
        log.error("holdfast: unexpected %s while %s", type(error).__name__, what, exc_info=error)

    def failing(self, leases: Sequence[LeaseState], cause: str, now: float) -> None:
        if self.failing_since is not None or not leases:
            return
        self.failing_since = now
        first = min(leases, key=lambda state: state.deadline)
        self.warn(
            f"holdfast: renewing fails on {self.engine}: {cause}; it is tried again. Of {len(leases)} held "
            f"leases, the first to be lost is the {first.kind} {first.name!r} (token {first.token}), "
            f"in {max(first.deadline - now, 0.0):.1f} s"
        )

    def working(self, now: float) -> None:
        if self.failing_since is None:
            return
        seconds = now - self.failing_since
        self.failing_since = None
        self.inform(f"holdfast: renewing works again on {self.engine}, after {seconds:.1f} s")

    def warn(self, message: str) -> None:
        log.warning("%s", message)

    def inform(self, message: str) -> None:
        log.info("%s", message)
