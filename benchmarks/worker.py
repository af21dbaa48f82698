"""Worker processes: each has one handle and runs the tasks it is sent, one after the other.

They are started once per measurement and sit on a pipe between two slices, where they use no CPU. A task
is a function of a module. Its first parameter is a ``TaskContext``; its result, or its failure, comes back by
the pipe.
"""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from .contestant import Contestant, Handle, MeasurementInvalid, Place

__all__ = ["Pending", "TaskContext", "Team", "Worker", "gather"]

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE_SECONDS = 120.0
"""A worker silent for longer is reported as stuck. Far above anything a working lock needs."""

FAREWELL_SECONDS = 20.0

# Forked from a small server process that has the code loaded: a hundred workers start in a second or two,
# and none inherits the coordinator's threads or descriptors.
_context = get_context("forkserver")
_context.set_forkserver_preload(
    [
        "benchmarks.worker",
        "benchmarks.measures",
        "holdfast.engines.sqlite",
        "holdfast.engines.redis",
        "redis",
        "redis.asyncio",
    ]
)


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What a task works with."""

    handle: Handle
    place: Place
    report_progress: Callable[[], None]
    """Tells the coordinator that the task has come this far (``Pending.wait_for_progress``)."""


class Worker:
    """A process of one contestant."""

    def __init__(self, contestant: Contestant, place: Place, name: str) -> None:
        self.contestant = contestant
        self._connection, theirs = _context.Pipe()
        self._process = _context.Process(
            target=_serve, args=(theirs, contestant, place, name), name=contestant.key, daemon=True
        )
        self._process.start()
        theirs.close()
        self._opening: Pending[None] | None = Pending(self)

    def start(
        self, task: Callable[Concatenate[TaskContext, P], R], *args: P.args, **kwargs: P.kwargs
    ) -> Pending[R]:
        """Begin a task; one at a time."""
        self.ready()
        self._connection.send((task, args, kwargs))
        return Pending(self)

    def call(self, task: Callable[Concatenate[TaskContext, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self.start(task, *args, **kwargs).result()

    def ready(self) -> None:
        """Wait until it has opened its handle and used it once."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.result()

    def receive(self) -> tuple[str, Any]:
        if not self._connection.poll(PATIENCE_SECONDS):
            raise self.complaint(f"a process has been stuck for {PATIENCE_SECONDS:g} s")
        try:
            kind, content = self._connection.recv()
        except EOFError:
            self._process.join(FAREWELL_SECONDS)
            raise self.complaint(f"a process ended with status {self._process.exitcode}") from None
        return kind, content

    def complaint(self, text: str) -> MeasurementInvalid:
        return MeasurementInvalid(f"{self.contestant.label}: {text}", self.contestant)

    def kill(self) -> None:
        """SIGKILL: it closes nothing."""
        self._process.kill()
        self._process.join()

    def dismiss(self) -> None:
        """Tell it to close its handle and end."""
        with contextlib.suppress(OSError):
            self._connection.send(None)

    def join(self, seconds: float) -> None:
        """Wait for its end; end it if it takes too long."""
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self._connection.close()


class Pending(Generic[R]):
    """A task under way."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def wait_for_progress(self) -> None:
        """Wait until the task calls ``TaskContext.report_progress``."""
        self._expect("progress")

    def result(self) -> R:
        value: R = self._expect("done")
        return value

    def _expect(self, wanted: str) -> Any:
        kind, content = self._worker.receive()
        if kind == "failed":
            raise self._worker.complaint(f"\n{content}")
        if kind != wanted:
            raise self._worker.complaint(f"expected {wanted!r}, got {kind!r}")
        return content


def gather(pending: Iterable[Pending[R]]) -> list[R]:
    return [each.result() for each in list(pending)]


class Team:
    """The workers of one measurement. At its end they close in order; after an error they are killed."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def hire(self, contestant: Contestant, place: Place, name: str = "resource") -> Worker:
        """A new worker. All workers with the same place and name contend for the same lock."""
        place.folder.mkdir(parents=True, exist_ok=True)
        worker = Worker(contestant, place, name)
        self._workers.append(worker)
        return worker

    def ready(self) -> None:
        """Wait until everyone has opened the handle: no start-up falls into a slice."""
        for worker in self._workers:
            worker.ready()

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.dismiss()
        for worker in self._workers:
            worker.join(FAREWELL_SECONDS if kind is None else 0.0)


def _serve(connection: Connection, contestant: Contestant, place: Place, name: str) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator gets it and ends its workers
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            handle = contestant.open(place, name)
            # Some connect when they are first used; that, too, belongs before the first slice.
            if handle.try_acquire():
                handle.release()
        except Exception:  # noqa: BLE001 - whatever it is, the coordinator reports it
            connection.send(("failed", traceback.format_exc()))
            return
        with contextlib.closing(handle):
            connection.send(("done", None))
            context = TaskContext(handle, place, lambda: connection.send(("progress", None)))
            while (order := connection.recv()) is not None:
                connection.send(_carry_out(context, *order))


def _carry_out(context: TaskContext, task: Callable[..., Any], args: Any, kwargs: Any) -> tuple[str, Any]:
    try:
        return "done", task(context, *args, **kwargs)
    except Exception:  # noqa: BLE001 - whatever it is, the coordinator reports it
        return "failed", traceback.format_exc()
