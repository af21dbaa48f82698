"""Engines of the tickets family, for asyncio; a file apart, so that threads never import asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from ..core.effects import Now
from ..engine_api import Steps
from ..protocols import tickets
from ..protocols.tickets import TicketClient, TicketCoroutine
from ..protocols.tickets.store import StoreOp, Wall
from ..rules.requests import Reply, Request, Snapshot
from ..runtime import trampoline
from ..runtime.clock import boottime, wall_seconds

__all__ = ["AsyncioStore", "TicketsAsyncio"]

T = TypeVar("T")


class AsyncioStore(Protocol):
    """An ordered store with sessions, for one client in one loop."""

    @property
    def source(self) -> str: ...

    async def perform(self, op: StoreOp) -> Any: ...

    async def listen(self) -> None: ...

    def disarm(self, nonce: str) -> None: ...

    async def close(self) -> None: ...

    def forked(self) -> None: ...


class TicketsAsyncio:
    """The asyncio driver's adapter."""

    __slots__ = ("_desk", "_perform", "_store", "close", "forked")

    def __init__(self, desk: TicketClient, store: AsyncioStore) -> None:
        self._desk = desk
        self._store = store
        self._perform: Callable[[StoreOp], Awaitable[Any]] = store.perform
        self.close = store.close
        self.forked = store.forked

    @property
    def source(self) -> str:
        return self._store.source

    async def apply(self, name: str, request: Request) -> Reply:
        return await self._run(tickets.apply(self._desk, name, request))

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return await self._run(tickets.apply_in_order(self._desk, steps, stop_when_refused))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return await self._run(tickets.renew_batch(self._desk, steps))

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return await self._run(tickets.list_names(self._desk, prefix))

    async def listen(self, name: str | None) -> None:
        await self._store.listen()

    def unlisten(self, nonce: str, name: str | None) -> None:
        """A client has one watch stream, whatever it waits for."""
        self._store.disarm(nonce)

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Who dies loses its tickets, and those are watched."""

    def handle_of(self, nonce: str) -> Any:
        """Where the ticket is that was granted to this attempt; None: it is over."""
        return self._desk.handle_of(nonce)

    async def _run(self, script: TicketCoroutine[T]) -> T:
        return await trampoline.run_in_loop(script, self._do)

    async def _do(self, op: Any) -> Any:
        if op.__class__ is Now:
            return boottime()
        return wall_seconds() if op.__class__ is Wall else await self._perform(op)
