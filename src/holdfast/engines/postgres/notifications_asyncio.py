"""Receiving notifications in a task of the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ...runtime import trampoline
from ...runtime.clock import boottime
from .connection import READABLE, PgConnection
from .connection_asyncio import open_in_loop, run_generator, wait_ready
from .handshake import DatabaseContext
from .notifications import Effect, Open, RunOn, WaitForInput
from .pool_asyncio import AsyncConnectionPool
from .store import Query

__all__ = ["NotificationTask"]

log = logging.getLogger("holdfast")


class NotificationTask:
    """Receives the notifications for the tasks of one client.

    Until the first notification has arrived, waiters poll.
    """

    def __init__(
        self,
        context: DatabaseContext,
        pool: AsyncConnectionPool,
        listen: Callable[[], Coroutine[Any, Any, None]],
        io_timeout: float,
    ) -> None:
        self._context = context
        self._pool = pool
        self._listen = listen
        self._io_timeout = io_timeout
        self._task: asyncio.Task[None] | None = None
        self._connection: PgConnection | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="holdfast-postgres")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def detach_after_fork(self) -> None:
        if self._connection is not None:
            self._connection.detach_after_fork()

    async def _run(self) -> None:
        try:
            await trampoline.run_in_loop(self._listen(), self._perform)
        except Exception:
            log.exception("holdfast: notifications no longer arrive; waiters poll")

    async def _perform(self, effect: Effect) -> Any:
        ends_at = boottime() + self._io_timeout
        match effect:
            case WaitForInput(seconds, connection):
                if connection is None:
                    return await asyncio.sleep(seconds)
                return await wait_ready(connection.fileno, READABLE, seconds)
            case RunOn(connection, generator):
                return await run_generator(connection, generator, ends_at)
            case Query(call):
                return await self._pool.execute(call)
            case Open():
                self._connection = await open_in_loop(self._context, self._io_timeout, ends_at)
                return self._connection
