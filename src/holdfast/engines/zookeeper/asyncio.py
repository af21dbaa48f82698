"""ZooKeeper for asyncio; a file apart, so that threads never import asyncio.

kazoo's thread reads the answers and hands them to the loop: no call needs a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from ...engine_api import AdapterContext
from ...protocols.tickets import TicketClient
from ...protocols.tickets.store import StoreOp
from ...runtime import trampoline
from ...runtime.concurrency_limit import ConcurrencyLimit
from .config import Config
from .keys import Paths
from .rpc import AwaitConnected, RequestTimeoutError, SendRequests
from .session import Answer
from .store import ZooKeeperStore
from .threads import CLOSE_SECONDS

__all__ = ["ZooKeeperAsyncio"]

log = logging.getLogger("holdfast")


def _bell() -> tuple[asyncio.Future[Any], Callable[..., None]]:
    """A future, and what fulfils it from another thread; perhaps twice."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def fulfil(answers: list[Answer] | None) -> None:
        if not future.done():
            future.set_result(answers)

    def ring(answers: list[Answer] | None = None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(fulfil, answers)

    return future, ring


class ZooKeeperAsyncio:
    """The store of one client in one loop."""

    def __init__(self, options: Config, paths: Paths, hooks: AdapterContext, client: TicketClient) -> None:
        self._store = ZooKeeperStore(options, paths, hooks, client)
        self._turns = ConcurrencyLimit()
        self._closed = False
        self.disarm = self._store.sessions.notifications.disarm

    @property
    def source(self) -> str:
        return self._store.source

    async def perform(self, op: StoreOp) -> Any:
        return await trampoline.run_in_loop(self._store.script(op), self._do)

    async def _do(self, step: Any) -> Any:
        return await (self._send(step) if step.__class__ is SendRequests else self._wait(step))

    async def _send(self, step: SendRequests) -> list[Answer]:
        async with self._turns.permit(step.urgent):
            step.link.check()  # once more: it may have ended while we waited for our turn
            answered, ring = _bell()
            step.link.send(step.requests, ring)
            try:
                async with asyncio.timeout(step.timeout):
                    answers: list[Answer] = await answered
            except TimeoutError:
                raise RequestTimeoutError from None
            return answers

    @staticmethod
    async def _wait(step: AwaitConnected) -> None:
        ready, ring = _bell()
        step.link.notify_when_connected(ring)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(step.timeout):
                await ready

    async def listen(self) -> None:
        """Whoever has a session hears what becomes of it."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        ended = []
        for link in self._store.sessions.all():
            future, ring = _bell()
            ended.append(future)
            link.end(ring)
        if ended:
            _, pending = await asyncio.wait(ended, timeout=CLOSE_SECONDS)
            if pending:
                log.debug("holdfast: a session of ZooKeeper was left to expire")

    def forked(self) -> None:
        """The parent's connections are not ours: let go of them without a word."""
        self._closed = True
        for link in self._store.sessions.all():
            link.detach_after_fork()
