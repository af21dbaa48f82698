"""The lease table for the asyncio driver; a file apart, so that threads never import asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ...engine_api import AdapterContext, Steps
from ...rules.requests import Reply, Request, Snapshot
from ...runtime import trampoline
from ...runtime.clock import boottime
from . import store
from .codec import decode_replies, decode_reply, function_result
from .connection import READABLE, PgConnection
from .connection_asyncio import AsyncConnectionPool, open_in_loop, run_generator, wait_ready
from .handshake import DatabaseContext
from .notifications import Effect, Open, RunOn, WaitForInput, WakeupRegistry, listen_for_wakeups
from .pool import COMMAND_CONNECTIONS_MAX
from .statements import Statements
from .store import Query

__all__ = ["NotificationTask", "PostgresAsyncio"]

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


class PostgresAsyncio:
    """One client's access to the table."""

    def __init__(self, context: DatabaseContext, hooks: AdapterContext) -> None:
        self._context = context
        self._statements = Statements(context.config.schema, context.namespace)
        self._pool = AsyncConnectionPool(context, hooks.io_timeout, COMMAND_CONNECTIONS_MAX)
        self._renewal_pool = AsyncConnectionPool(context, hooks.io_timeout, 1)
        """For the keeper alone: requests that hang do not keep it from renewing."""
        self._wakeups = WakeupRegistry(hooks.post)
        listen = partial(listen_for_wakeups, self._wakeups, self._statements, hooks.client)
        self._notifications = NotificationTask(context, self._pool, listen, hooks.io_timeout)

    @property
    def source(self) -> str:
        return self._context.source

    async def apply(self, name: str, request: Request) -> Reply:
        is_notified = self._wakeups.record_request(request)
        result = await self._pool.execute(self._statements.apply(name, request))
        reply = decode_reply(function_result(result), request)
        return self._wakeups.record_reply(name, request, reply, is_notified)

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        result = await self._pool.execute(self._statements.apply_in_order(steps, stop_when_refused))
        return decode_replies(function_result(result), [request for _, request in steps])

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        pool = self._renewal_pool
        return await trampoline.run_in_loop(
            store.renew_batch(self._statements, steps), lambda effect: pool.execute(effect.call)
        )

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        pool = self._pool
        return await trampoline.run_in_loop(
            store.list_names(self._statements, prefix), lambda effect: pool.execute(effect.call)
        )

    async def listen(self, name: str | None) -> None:
        """One channel serves all names: notifications are sent to clients."""
        self._notifications.start()

    def unlisten(self, nonce: str, name: str | None) -> None:
        """The channel stays: it serves all names."""
        self._wakeups.discard(nonce)

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """This engine does not know which clients are alive: leases expire."""

    async def close(self) -> None:
        await self._notifications.close()
        self._pool.close()
        self._renewal_pool.close()

    def forked(self) -> None:
        self._pool.detach_after_fork()
        self._renewal_pool.detach_after_fork()
        self._notifications.detach_after_fork()
