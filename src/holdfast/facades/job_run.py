"""What the body of a job gets, for threads and for asyncio: its run, and the lease that it runs under."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ..model import Run
from ..recipes import job as recipe
from .base import BaseLease

__all__ = ["JobRun"]

L = TypeVar("L", bound=BaseLease)


class JobRun(Generic[L]):
    """One run of a job, while it runs."""

    __slots__ = ("_began", "_name", "lease")

    def __init__(self, name: str, lease: L, began: recipe.BeganRun) -> None:
        self._name = name
        self._began = began
        self.lease = lease
        """The lease of the job: for guards, and for ``on_lost``."""

    def __repr__(self) -> str:
        return f"<holdfast.JobRun {self._name!r} token={self.token} due={self.due:.3f}>"

    @property
    def token(self) -> int:
        """The fencing token of this run, larger than that of every earlier run."""
        return self.lease.token

    @property
    def started(self) -> float:
        """Seconds since 1970, by the engine's clock where it has one."""
        return self._began.run.started

    @property
    def due(self) -> float:
        """The firing that it runs for."""
        return self._began.run.due

    @property
    def missed(self) -> int:
        """Firings at which nothing ran since the last run, or before, and that no run has made up for."""
        return self._began.start.missed

    @property
    def catches_up(self) -> bool:
        """This run makes up for the missed firings."""
        return self._began.start.settles

    @property
    def reruns(self) -> bool:
        """The run before this one crashed, and this one repeats it."""
        return self._began.start.reruns

    @property
    def previous(self) -> Run | None:
        """The run before this one, as it was stored."""
        return self._began.previous

    @property
    def lost(self) -> bool:
        return self.lease.lost

    @property
    def remaining(self) -> float:
        """Seconds this process may still rely on running alone."""
        return self.lease.remaining

    def check(self) -> None:
        """Raise LockLost unless this process may still rely on running alone."""
        self.lease.check()

    def set_result(self, result: Any) -> None:
        """What is remembered as the result of this run when it ends: any JSON value, up to 56 KiB."""
        self._began.result = recipe.check_result(self._name, result)
