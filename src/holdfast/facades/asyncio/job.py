"""Jobs that run once, for asyncio."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from ...aio import AsyncLease, AsyncLock, _current_task
from ...core import arguments
from ...model import Run
from ...protocols.locks import LockCore
from ...recipes import job as recipe
from ...recipes.schedule import Skip
from ...runtime.clock import wall_seconds
from ..job_run import JobRun

if TYPE_CHECKING:
    from ...aio import AsyncClient

__all__ = ["AsyncJob"]

P = ParamSpec("P")
R = TypeVar("R")


class Entry(NamedTuple):
    """One ``async with job``, from its beginning to its end."""

    task: asyncio.Task[Any]
    lock: AsyncLock
    began: recipe.BeganRun | None
    """None: it was not this caller's turn."""


class AsyncJob:
    """A job, each firing of which one server runs: with ``async with``, or as a decorator."""

    __slots__ = ("_client", "_entries", "_job", "_skipped")

    def __init__(self, client: AsyncClient, options: recipe.JobOptions) -> None:
        recipe.check_engine(client.guarantees)
        self._client = client
        self._job = recipe.Job(
            client._driver.client_state, options, wall_seconds, client.guarantees.has_timed_tokens
        )
        self._entries: list[Entry] = []
        self._skipped: Skip | None = None

    def __repr__(self) -> str:
        return f"<holdfast.AsyncJob {self.name!r}>"

    @property
    def name(self) -> str:
        return self._job.name

    @property
    def last(self) -> Coroutine[Any, Any, Run | None]:
        """Awaited: the last run, by any server; None: there was none, or it is too long ago."""
        return self._client._driver.run(recipe.read(self._current()))

    @property
    def skipped(self) -> Skip | None:
        """Why the latest ``async with`` of this object did not run; None: it ran, or there was none."""
        return self._skipped

    async def __aenter__(self) -> JobRun[AsyncLease] | None:
        """The run, or None: another server runs it, or ran it for this period."""
        lock = AsyncLock(self._client, LockCore, self._job.options.spec)
        try:
            task, driver = _current_task(), lock._driver()
            entered = await driver.run(
                recipe.enter(
                    self._current(), lock._core, weakref.ref(task), driver.owner_prefix + task.get_name()
                )
            )
            if isinstance(entered, Skip):
                self._skipped = entered
                self._entries.append(Entry(task, lock, None))
                return None
            lease, began = entered
            if self._job.options.spec.if_lost == "cancel":
                lock._cancel_on_loss(task, lease)
            self._skipped = None
            self._entries.append(Entry(task, lock, began))
            return JobRun(self.name, lease, began)
        except BaseException as error:
            if lock.lease is not None:
                await lock.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entry = self._entry()
        failure = error
        try:
            if entry.began is not None and not self._client._driver.closed:
                await self._client._driver.run(recipe.finish(self._current(), entry.began, error))
        except BaseException as trouble:
            failure = trouble
            raise
        finally:
            try:
                if entry.began is not None:
                    await entry.lock.__aexit__(None if failure is None else type(failure), failure, trace)
            finally:
                if entry.lock.lease is None:  # else an interrupt came before its release began
                    self._entries.remove(entry)

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R | None]]:
        """Decorate ``function``: a call runs it and stores what it returns, or returns None at once."""
        arguments.check_decorated(function, "async", "holdfast.connect()")

        @functools.wraps(function)
        async def once(*args: P.args, **kwargs: P.kwargs) -> R | None:
            async with self as run:
                if run is None:
                    return None
                result = await function(*args, **kwargs)
                run.set_result(result)
                return result

        return once

    def _entry(self) -> Entry:
        """This task's latest entry; else, as with exit stacks, the latest of any."""
        mine = asyncio.current_task()
        return next((each for each in self._entries[::-1] if each.task is mine), self._entries[-1])

    def _current(self) -> recipe.Job:
        """After a fork the driver has another ``ClientState``."""
        self._job.client_state = self._client._driver.client_state
        return self._job
