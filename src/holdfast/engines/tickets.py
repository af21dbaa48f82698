"""Engines of the tickets family, for threads: the family's scripts, run on the store of an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ..core.effects import Now
from ..engine_api import Steps
from ..protocols import tickets
from ..protocols.tickets import TicketClient, TicketCoroutine
from ..protocols.tickets.store import StoreOp, Wall
from ..rules.requests import Reply, Request, Snapshot
from ..runtime import trampoline
from ..runtime.clock import boottime, wall_seconds

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
    notification_reader = None

    def __init__(self, desk: TicketClient, store: ThreadsStore) -> None:
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

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self._run(tickets.renew_batch(self._desk, steps))

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

    def _run(self, script: TicketCoroutine[T]) -> T:
        return trampoline.run(script, self._do)

    def _do(self, op: Any) -> Any:
        if op.__class__ is Now:
            return boottime()
        return wall_seconds() if op.__class__ is Wall else self._perform(op)
