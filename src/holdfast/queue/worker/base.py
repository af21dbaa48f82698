"""The configuration of a worker: the functions for kinds of jobs, and its settings. No I/O."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ...core.lock_options import Duration
from ...errors import InvalidArgument
from ..arguments import LEASE_SECONDS, check_count, check_kind, check_lease, check_schedule, check_seconds

__all__ = ["GRACE_SECONDS", "BaseWorker", "Periodic"]

F = TypeVar("F", bound=Callable[..., Any])

GRACE_SECONDS: Final = 30.0
CONCURRENCY_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Periodic:
    """When jobs of a kind are put."""

    cron: str | None
    every: Duration | None


class BaseWorker:
    """The functions for kinds of jobs, and how they are run."""

    is_awaited: bool
    """Whether the functions are coroutine functions."""

    def __init__(self, concurrency: int, lease: Duration, grace: Duration) -> None:
        self.concurrency = check_count(concurrency, "concurrency", CONCURRENCY_MAX)
        self.lease = check_lease(lease)
        self.grace = check_seconds(grace, "grace", 0.0)
        self.is_stopping = False
        """Whether the worker claims no more jobs and waits for running ones. Long functions may check it."""
        self.is_running = False
        self.ended = 0
        """How many jobs have ended here, with any outcome."""
        self.functions: dict[str, Callable[[Any], Any]] = {}
        self.periodic: dict[str, Periodic] = {}

    @property
    def kinds(self) -> list[str]:
        """The kinds of jobs that it claims."""
        return list(self.functions)

    def job(self, kind: str, *, cron: str | None = None, every: Duration | None = None) -> Callable[[F], F]:
        """Have a function called with each job of this kind.

        What it returns becomes the job's result; when it raises, the job has failed, and is tried again.
        ``cron`` or ``every``: such a job is put at these times, once in a whole fleet, unless the last one is
        unfinished.
        """
        check_kind(kind)
        if kind in self.functions:
            raise InvalidArgument(f"this worker has a function for {kind!r} already: one is enough")
        periodic = None
        if cron is not None or every is not None:
            check_schedule(cron, every)
            periodic = Periodic(cron, every)

        def register(function: F) -> F:
            self._check_function(kind, function)
            self.functions[kind] = function
            if periodic is not None:
                self.periodic[kind] = periodic
            return function

        return register

    def _check_function(self, kind: str, function: Any) -> None:
        if not callable(function):
            raise InvalidArgument(f"what handles {kind!r} is a function of the job; this is {function!r}")
        is_awaited = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - whether it is one, not whether there is one
        )
        if is_awaited == self.is_awaited:
            return
        if is_awaited:
            raise InvalidArgument(
                f"the function for {kind!r} is async, and this worker runs threads: use"
                " holdfast.queue.aio.AsyncWorker, or write def"
            )
        raise InvalidArgument(
            f"the function for {kind!r} is not async: write async def, with asyncio.to_thread for calls"
            " that block, or use holdfast.queue.Worker"
        )

    def _begin(self) -> None:
        if not self.functions:
            raise InvalidArgument('this worker has nothing to do: write @worker.job("kind") over a function')
        if self.is_running:
            raise InvalidArgument("this worker runs already: make another one")
        self.is_running = True

    def schedules(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Kinds, and the arguments of ``queue.schedule`` for them: at most one unfinished job of each."""
        return [
            (kind, {"cron": each.cron, "every": each.every, "key": kind})
            for kind, each in self.periodic.items()
        ]


DEFAULT_LEASE: Final = LEASE_SECONDS
