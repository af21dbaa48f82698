"""The lease table for the threads driver."""

from __future__ import annotations

from functools import partial

from ...engine_api import AdapterContext, Steps
from ...rules.requests import Reply, Request, Snapshot
from ...runtime import trampoline
from . import store
from .codec import decode_replies, decode_reply, function_result
from .handshake import DatabaseContext
from .notifications import NotificationThread, WakeupRegistry, listen_for_wakeups
from .pool import COMMAND_CONNECTIONS_MAX, ConnectionPool
from .statements import Statements

__all__ = ["PostgresThreads"]


class PostgresThreads:
    """One client's access to the table."""

    def __init__(self, context: DatabaseContext, hooks: AdapterContext) -> None:
        self._context = context
        self._statements = Statements(context.config.schema, context.namespace)
        self._pool = ConnectionPool(context, hooks.io_timeout, COMMAND_CONNECTIONS_MAX)
        self._renewal_pool = ConnectionPool(context, hooks.io_timeout, 1)
        """For the keeper alone: requests that hang do not keep it from renewing."""
        self._wakeups = WakeupRegistry(hooks.post)
        listen = partial(listen_for_wakeups, self._wakeups, self._statements, hooks.client)
        self._notifications = NotificationThread(self._pool, listen, hooks.io_timeout)

    @property
    def source(self) -> str:
        return self._context.source

    def apply(self, name: str, request: Request) -> Reply:
        is_notified = self._wakeups.record_request(request)
        result = self._pool.execute(self._statements.apply(name, request))
        reply = decode_reply(function_result(result), request)
        return self._wakeups.record_reply(name, request, reply, is_notified)

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        result = self._pool.execute(self._statements.apply_in_order(steps, stop_when_refused))
        return decode_replies(function_result(result), [request for _, request in steps])

    def renew_batch(self, steps: Steps) -> list[Reply]:
        pool = self._renewal_pool
        return trampoline.run(
            store.renew_batch(self._statements, steps), lambda effect: pool.execute(effect.call)
        )

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        pool = self._pool
        return trampoline.run(
            store.list_names(self._statements, prefix), lambda effect: pool.execute(effect.call)
        )

    def listen(self, name: str | None) -> None:
        """One channel serves all names: notifications are sent to clients."""
        self._notifications.start()

    def unlisten(self, nonce: str, name: str | None) -> None:
        """The channel stays: it serves all names."""
        self._wakeups.discard(nonce)

    @property
    def notification_reader(self) -> None:
        """A thread receives the notifications of all waiters."""

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """This engine does not know which clients are alive: leases expire."""

    def close(self) -> None:
        self._notifications.close()
        self._pool.close()
        self._renewal_pool.close()

    def forked(self) -> None:
        self._pool.detach_after_fork()
        self._renewal_pool.detach_after_fork()
        self._notifications.detach_after_fork()
