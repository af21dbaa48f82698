"""Jobs that run once, for threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from ...client import Lease, Lock
from ...core import arguments
from ...model import Run
from ...protocols.locks import LockCore
from ...recipes import job as recipe
from ...recipes.schedule import Skip
from ...runtime.clock import wall_seconds
from ..job_run import JobRun

if TYPE_CHECKING:
    from ...client import Client

__all__ = ["Job"]

P = ParamSpec("P")
R = TypeVar("R")


class Entry(NamedTuple):
    """One ``with job``, from its beginning to its end."""

    thread: int
    lock: Lock
    began: recipe.BeganRun | None
    """None: it was not this caller's turn."""


class Job:
    """A job, each firing of which one server runs: used with ``with``, or as a decorator."""

    __slots__ = ("_client", "_entries", "_job", "_skipped")

    def __init__(self, client: Client, options: recipe.JobOptions) -> None:
        recipe.check_engine(client.guarantees)
        self._client = client
        self._job = recipe.Job(
            client._driver.client_state, options, wall_seconds, client.guarantees.has_timed_tokens
        )
        self._entries: list[Entry] = []
        self._skipped: Skip | None = None

    def __repr__(self) -> str:
        return f"<holdfast.Job {self.name!r}>"

    @property
    def name(self) -> str:
        return self._job.name

    @property
    def last(self) -> Run | None:
        """The last run, by any server; None: there was none, or it is too long ago to be remembered."""
        return self._client._driver.run(recipe.read(self._current()))

    @property
    def skipped(self) -> Skip | None:
        """Why the latest ``with`` of this object did not run; None: it ran, or there was none."""
        return self._skipped

    def __enter__(self) -> JobRun[Lease] | None:
        """The run, or None: another server runs it, or ran it for this period."""
        lock = Lock(self._client, LockCore, self._job.options.spec)
        try:
            driver, caller, thread = lock._ready()
            entered = driver.run(
                recipe.enter(self._current(), lock._core, caller, driver.owner_prefix + thread.name)
            )
            if isinstance(entered, Skip):
                self._skipped = entered
                self._entries.append(Entry(threading.get_ident(), lock, None))
                return None
            lease, began = entered
            self._skipped = None
            self._entries.append(Entry(threading.get_ident(), lock, began))
            return JobRun(self.name, lease, began)
        except BaseException as error:
            if lock.lease is not None:
                lock.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entry = self._entry()
        failure = error
        try:
            if entry.began is not None and not self._client._driver.closed:
                self._client._driver.run(recipe.finish(self._current(), entry.began, error))
        except BaseException as trouble:
            failure = trouble
            raise
        finally:
            try:
                if entry.began is not None:
                    entry.lock.__exit__(None if failure is None else type(failure), failure, trace)
            finally:
                if entry.lock.lease is None:  # else an interrupt came before its release began
                    self._entries.remove(entry)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate ``function``: a call runs it and stores what it returns, or returns None at once."""
        arguments.check_decorated(function, "plain", "holdfast.aio")

        @functools.wraps(function)
        def once(*args: P.args, **kwargs: P.kwargs) -> R | None:
            with self as run:
                if run is None:
                    return None
                result = function(*args, **kwargs)
                run.set_result(result)
                return result

        return once

    def _entry(self) -> Entry:
        """This thread's latest entry; else, as with exit stacks, the latest of any."""
        mine = threading.get_ident()
        return next((each for each in self._entries[::-1] if each.thread == mine), self._entries[-1])

    def _current(self) -> recipe.Job:
        """After a fork the driver has another ``ClientState``."""
        self._job.client_state = self._client._driver.client_state
        return self._job
