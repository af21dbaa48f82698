"""ZooKeeper for asyncio; a separate file, so that threads never import asyncio.

kazoo's thread reads the answers and passes them to the loop: no call needs a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from ...engine_api import AdapterContext
from ...protocols.tickets import TicketClient
from ...runtime.concurrency_limit import ConcurrencyLimit
from .config import Config
from .effects import AwaitConnected, RequestTimeoutError, SendRequests
from .keys import Paths
from .session import Answer
from .store import CLOSE_SECONDS, ZooKeeperStore

__all__ = ["ZooKeeperAsyncio"]

log = logging.getLogger("holdfast")


def _reply() -> tuple[asyncio.Future[Any], Callable[..., None]]:
    """A future, and a function that sets it from another thread, perhaps twice."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def set_in_loop(answers: list[Answer] | None) -> None:
        if not future.done():
            future.set_result(answers)

    def set_result(answers: list[Answer] | None = None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(set_in_loop, answers)

    return future, set_result


class ZooKeeperAsyncio:
    """The I/O of one client in one loop."""

    def __init__(self, config: Config, paths: Paths, context: AdapterContext, client: TicketClient) -> None:
        self.store = ZooKeeperStore(config, paths, context, client)
        self._limit = ConcurrencyLimit()
        self._closed = False
        self.disarm = self.store.pool.notifications.disarm

    @property
    def source(self) -> str:
        return self.store.source

    async def perform(self, op: Any) -> Any:
        return await (self._send(op) if op.__class__ is SendRequests else self._await_connected(op))

    async def _send(self, op: SendRequests) -> list[Answer]:
        async with self._limit.permit(op.urgent):
            op.session.check()  # once more: it may have ended while this request queued
            replied, set_result = _reply()
            op.session.send(op.requests, set_result)
            try:
                async with asyncio.timeout(op.timeout):
                    answers: list[Answer] = await replied
            except TimeoutError:
                raise RequestTimeoutError from None
            return answers

    @staticmethod
    async def _await_connected(op: AwaitConnected) -> None:
        connected, set_result = _reply()
        op.session.notify_when_connected(set_result)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(op.timeout):
                await connected

    async def listen(self) -> None:
        """A client with a session receives its notifications already."""

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        ended = []
        for session in self.store.pool.all():
            future, set_result = _reply()
            if session.session_id:  # otherwise no server has established it: there is nothing to wait for
                ended.append(future)
            session.end(set_result)
        if ended:
            _, pending = await asyncio.wait(ended, timeout=CLOSE_SECONDS)
            if pending:
                log.debug("holdfast: a session of ZooKeeper was left to expire")

    def forked(self) -> None:
        """The connections belong to the parent process: detach from them without sending anything."""
        self._closed = True
        for session in self.store.pool.all():
            session.detach_after_fork()
