"""The lease table for the asyncio driver; a file apart, so that threads never import asyncio."""

from __future__ import annotations

from functools import partial

from ...engine_api import AdapterContext, Steps
from ...rules.requests import Reply, Request, Snapshot
from ...runtime import trampoline
from . import store
from .codec import decode_replies, decode_reply, function_result
from .handshake import DatabaseContext
from .notifications import listen_for_wakeups
from .notifications_asyncio import NotificationTask
from .pool import COMMAND_CONNECTIONS_MAX
from .pool_asyncio import AsyncConnectionPool
from .statements import Statements
from .wakeups import WakeupRegistry

__all__ = ["PostgresAsyncio"]


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
