"""Engines of the tickets family, for asyncio; a separate file, so that threads never import asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from ..engine_api import Steps
from ..protocols import tickets
from ..protocols.tickets import TicketClient, TicketCoroutine
from ..protocols.tickets.store import TicketStore
from ..rules.requests import Reply, Request, Snapshot
from ..runtime import trampoline

__all__ = ["AsyncioTransport", "TicketsAsyncio"]

T = TypeVar("T")


class AsyncioTransport(Protocol):
    """An engine's I/O for one client in one loop, and the store whose coroutines await that I/O."""

    @property
    def store(self) -> TicketStore: ...

    @property
    def source(self) -> str: ...

    @property
    def perform(self) -> Callable[[Any], Awaitable[Any]]:
        """Perform one I/O operation that the store awaits."""
        ...

    async def listen(self) -> None: ...

    def disarm(self, nonce: str) -> None: ...

    async def close(self) -> None: ...

    def forked(self) -> None: ...


class TicketsAsyncio:
    """The asyncio driver's adapter."""

    __slots__ = ("_client", "_perform", "_transport", "close", "forked")

    def __init__(self, client: TicketClient, transport: AsyncioTransport) -> None:
        self._client = client
        client.store = transport.store
        self._transport = transport
        self._perform = transport.perform
        self.close = transport.close
        self.forked = transport.forked

    @property
    def source(self) -> str:
        return self._transport.source

    async def apply(self, name: str, request: Request) -> Reply:
        return await self._run(tickets.apply(self._client, name, request))

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return await self._run(tickets.apply_in_order(self._client, steps, stop_when_refused))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return await self._run(tickets.renew_batch(self._client, steps))

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return await self._run(tickets.list_names(self._client, prefix))

    async def listen(self, name: str | None) -> None:
        await self._transport.listen()

    def unlisten(self, nonce: str, name: str | None) -> None:
        """A client has one watch stream, whatever it waits for."""
        self._transport.disarm(nonce)

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """A client that dies loses its tickets, and the tickets are watched."""

    def handle_of(self, nonce: str) -> Any:
        """The engine's handle of the ticket that was granted to this attempt; None: there is none."""
        return self._client.handle_of(nonce)

    async def _run(self, coroutine: TicketCoroutine[T]) -> T:
        return await trampoline.run_in_loop(coroutine, self._perform)
