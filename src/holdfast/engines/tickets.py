"""Engines of the tickets family, for threads: runs the family's coroutines and performs their I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ..engine_api import Steps
from ..protocols import tickets
from ..protocols.tickets import TicketClient, TicketCoroutine
from ..protocols.tickets.store import TicketStore
from ..rules.requests import Reply, Request, Snapshot
from ..runtime import trampoline

__all__ = ["ThreadsTransport", "TicketsThreads"]

T = TypeVar("T")


class ThreadsTransport(Protocol):
    """An engine's I/O for one client, and the store whose coroutines await that I/O. Calls block."""

    @property
    def store(self) -> TicketStore: ...

    @property
    def source(self) -> str: ...

    @property
    def perform(self) -> Callable[[Any], Any]:
        """Perform one I/O operation that the store awaits."""
        ...

    def listen(self) -> None:
        """From now on deliver wake-ups, those of ``evict`` included, if that is not done already."""
        ...

    def disarm(self, nonce: str) -> None:
        """End the watch for this nonce. Does not wait."""
        ...

    def close(self) -> None:
        """End the sessions and close the connections."""
        ...

    def forked(self) -> None: ...


class TicketsThreads:
    """The threads driver's adapter."""

    __slots__ = ("_client", "_perform", "_transport", "close", "forked")
    notification_reader = None

    def __init__(self, client: TicketClient, transport: ThreadsTransport) -> None:
        self._client = client
        client.store = transport.store
        self._transport = transport
        self._perform = transport.perform
        self.close = transport.close
        self.forked = transport.forked

    @property
    def source(self) -> str:
        return self._transport.source

    def apply(self, name: str, request: Request) -> Reply:
        return trampoline.run(tickets.apply(self._client, name, request), self._perform)

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return self._run(tickets.apply_in_order(self._client, steps, stop_when_refused))

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self._run(tickets.renew_batch(self._client, steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self._run(tickets.list_names(self._client, prefix))

    def listen(self, name: str | None) -> None:
        self._transport.listen()

    def unlisten(self, nonce: str, name: str | None) -> None:
        """A client has one watch stream, whatever it waits for."""
        self._transport.disarm(nonce)

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """A client that dies loses its tickets, and the tickets are watched."""

    def handle_of(self, nonce: str) -> Any:
        """The engine's handle of the ticket that was granted to this attempt; None: there is none."""
        return self._client.handle_of(nonce)

    def _run(self, coroutine: TicketCoroutine[T]) -> T:
        return trampoline.run(coroutine, self._perform)
