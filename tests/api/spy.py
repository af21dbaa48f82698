"""The memory engine with a spy: it records the requests, and fails on demand.

``spy.before`` and ``spy.after`` are called around every call to the engine. What they raise is what the
engine raised: ``Refused`` before (nothing happened), ``Unknown`` after (it happened, and the reply was lost).
Under asyncio what they return is awaited; under threads they may block.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import holdfast
import holdfast.aio
from contract.engines import Driver
from contract.harness import World
from holdfast import Client, Guarantees
from holdfast.engine_api import AdapterContext, AsyncioAdapter, Engine, Steps, ThreadsAdapter
from holdfast.engines import open_engine
from holdfast.rules.requests import Reply, Request, Snapshot

__all__ = ["Call", "Spy", "SpyWorld"]

T = TypeVar("T")


class Call(NamedTuple):
    """One call to the engine."""

    method: str
    """``apply``, ``tend``, ``list_names``, …"""
    asked: tuple[str, ...]
    """The kinds of requests in it: ``Acquire``, ``Renew``, …"""


def nothing(call: Call) -> None:
    """Let it pass."""


class Spy:
    """An engine, as a client sees it."""

    def __init__(self, url: str, namespace: str = "holdfast") -> None:
        self._engine: Engine = open_engine(url, namespace, {})
        self.calls: list[Call] = []
        self.before: Callable[[Call], Any] = nothing
        self.after: Callable[[Call], Any] = nothing
        self.linger = self._engine.linger
        self.session_bound = self._engine.session_bound

    def asked(self, *kinds: str) -> int:
        """How many calls had a request of one of these kinds in them."""
        return sum(1 for call in self.calls if set(kinds) & set(call.asked))

    @property
    def url(self) -> str:
        return self._engine.url

    @property
    def guarantees(self) -> Guarantees:
        return self._engine.guarantees

    def threads(self, hooks: AdapterContext) -> ThreadsAdapter:
        return _ThreadsSpy(self, self._engine.threads(hooks))

    def asyncio(self, hooks: AdapterContext) -> AsyncioAdapter:
        return _AsyncioSpy(self, self._engine.asyncio(hooks))


def _kinds(steps: Steps) -> tuple[str, ...]:
    return tuple(type(request).__name__ for _, request in steps)


class _ThreadsSpy:
    notification_reader = None

    def __init__(self, spy: Spy, inner: ThreadsAdapter) -> None:
        self._spy, self._inner = spy, inner
        self.watch_clients = inner.watch_clients
        self.listen, self.unlisten = inner.listen, inner.unlisten
        self.close, self.forked = inner.close, inner.forked

    @property
    def source(self) -> str:
        return self._inner.source

    def _do(self, call: Call, act: Callable[[], T]) -> T:
        self._spy.calls.append(call)
        self._spy.before(call)
        result = act()
        self._spy.after(call)
        return result

    def apply(self, name: str, request: Request) -> Reply:
        call = Call("apply", (type(request).__name__,))
        return self._do(call, lambda: self._inner.apply(name, request))

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        call = Call("apply_in_order", _kinds(steps))
        return self._do(call, lambda: self._inner.apply_in_order(steps, stop_when_refused))

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self._do(Call("tend", _kinds(steps)), lambda: self._inner.renew_batch(steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self._do(Call("list_names", ()), lambda: self._inner.list_names(prefix))


class _AsyncioSpy:
    def __init__(self, spy: Spy, inner: AsyncioAdapter) -> None:
        self._spy, self._inner = spy, inner
        self.watch_clients = inner.watch_clients
        self.listen, self.unlisten = inner.listen, inner.unlisten
        self.close, self.forked = inner.close, inner.forked

    @property
    def source(self) -> str:
        return self._inner.source

    async def _do(self, call: Call, act: Callable[[], Any]) -> Any:
        self._spy.calls.append(call)
        await _settled(self._spy.before(call))
        result = await act()
        await _settled(self._spy.after(call))
        return result

    async def apply(self, name: str, request: Request) -> Reply:
        call = Call("apply", (type(request).__name__,))
        return cast(Reply, await self._do(call, lambda: self._inner.apply(name, request)))

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        call = Call("apply_in_order", _kinds(steps))
        return cast(
            list[Reply], await self._do(call, lambda: self._inner.apply_in_order(steps, stop_when_refused))
        )

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return cast(
            list[Reply], await self._do(Call("tend", _kinds(steps)), lambda: self._inner.renew_batch(steps))
        )

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        call = Call("list_names", ())
        return cast(list[tuple[str, Snapshot]], await self._do(call, lambda: self._inner.list_names(prefix)))


async def _settled(result: Any) -> None:
    if inspect.isawaitable(result):
        await result


class SpyWorld(World):
    """A world whose clients, not its observer, go through a spy."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver, f"memory://{secrets.token_hex(8)}")
        self.spy = Spy(self.url, self.namespace)

    def _connect(self, namespace: str, io_timeout: float = 5.0, **options: Any) -> Client:
        if self.driver == "threads":
            return Client(self.spy, namespace, io_timeout)
        return cast(Client, holdfast.aio.AsyncClient(self.spy, namespace, io_timeout))

    async def __aexit__(self, *error: Any) -> None:
        self.spy.before = self.spy.after = nothing
        await super().__aexit__(*error)
