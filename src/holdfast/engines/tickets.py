"""Engines of the tickets family, for threads: the family's scripts, run on the store of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ..core.ops import Now
from ..drivers.adapter import Steps
from ..drivers.clock import boottime, wall_seconds
from ..protocols import tickets
from ..protocols.tickets import Desk, Script
from ..protocols.tickets.ops import StoreOp, Wall
from ..rules.requests import Reply, Request, Snapshot
from . import scripts

__all__ = ["ThreadsStore", "TicketsThreads"]

T = TypeVar("T")


class ThreadsStore(Protocol):
    """An ordered store with sessions, for one client. Calls block; they raise as its ``ops`` say."""

    @property
    def source(self) -> str: ...

    def perform(self, op: StoreOp) -> Any: ...

    def listen(self) -> None:
        """From now on deliver wake-ups, those of ``Evict`` included, if that is not done already."""
        ...

    def disarm(self, nonce: str) -> None:
        """Nobody listens to this nonce any more. Does not wait."""
        ...

    def close(self) -> None:
        """End the sessions and let go of the engine."""
        ...

    def forked(self) -> None: ...


class TicketsThreads:
    """The threads driver's adapter."""

    __slots__ = ("_desk", "_perform", "_store", "close", "forked")
    hearing = None

    def __init__(self, desk: Desk, store: ThreadsStore) -> None:
        self._desk = desk
        self._store = store
        self._perform: Callable[[StoreOp], Any] = store.perform
        self.close = store.close
        self.forked = store.forked

    @property
    def source(self) -> str:
        return self._store.source

    def apply(self, name: str, request: Request) -> Reply:
        return self._run(tickets.apply(self._desk, name, request))

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return self._run(tickets.apply_in_order(self._desk, steps, stop_when_refused))

    def tend(self, steps: Steps) -> list[Reply]:
        return self._run(tickets.tend(self._desk, steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self._run(tickets.list_names(self._desk, prefix))

    def listen(self, name: str | None) -> None:
        self._store.listen()

    def unlisten(self, nonce: str, name: str | None) -> None:
        """A client has one watch stream, whatever it waits for."""
        self._store.disarm(nonce)

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Who dies loses its tickets, and those are watched."""

    def handle_of(self, nonce: str) -> Any:
        """Where the ticket is that was granted to this attempt; None: it is over."""
        return self._desk.handle_of(nonce)

    def _run(self, script: Script[T]) -> T:
        return scripts.run(script, self._do)

    def _do(self, op: Any) -> Any:
        if op.__class__ is Now:
            return boottime()
        return wall_seconds() if op.__class__ is Wall else self._perform(op)
