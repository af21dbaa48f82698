"""ASGI middleware: a request that changes something runs in a guarded transaction of the database it changes.

With a connection that blocks (sqlite3, psycopg), the transaction begins and ends in threads: to begin it may
mean to wait for another worker's. They are two pools, so that requests that wait to begin cannot keep the one
they wait for from its commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from ..errors import StaleToken
from .http import (
    MAX_BODY_BYTES,
    SAFE_METHODS,
    Presented,
    Problem,
    body_too_large,
    read_headers,
    stale_problem,
)
from .sql import transaction
from .wsgi import CONNECTION, FENCE, FIRST_ERROR_STATUS, RolledBack, check_options, is_guarded, resource_of

__all__ = ["FencingMiddleware", "HeldResponse", "read_body", "refuse", "replayed"]

THREADS: Final = 8
"""In each of the two pools, which a worker process has when it first needs them."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Connecting = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]


class FencingMiddleware:
    """Refuses stale holders, and commits what the application writes before its response starts.

        def connect():
            return closing(sqlite3.connect("shop.db", check_same_thread=False))

        app = FencingMiddleware(app, connect, resource=lambda scope: scope["path"])

    ``connection`` gives a context manager for each guarded request, with ``async with`` (a psycopg
    ``AsyncConnectionPool``'s ``connection``) or ``with``. The application writes through
    ``scope["holdfast.connection"]``; ``scope["holdfast.fence"]`` is what was presented. Everything else is as
    ``WSGIFencingMiddleware`` has it. What an application does after its response (background tasks) still
    runs within the transaction.
    """

    def __init__(
        self,
        app: Application,
        connection: Callable[[], Connecting],
        *,
        resource: str | Callable[[Scope], str] | None = None,
        unguarded_methods: Collection[str] = SAFE_METHODS,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        check_options(connection, resource, unguarded_methods, max_body_bytes)
        self._app = app
        self._connection = connection
        self._resource = resource
        self._unguarded_methods = frozenset(method.upper() for method in unguarded_methods)
        self._max_body_bytes = max_body_bytes
        self._threads = _Threads()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_guarded(scope["method"], self._unguarded_methods):
            await self._app(scope, receive, send)
            return
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        presented = read_headers(headers, resource_of(self._resource, scope))
        if isinstance(presented, Problem):
            await refuse(presented, send)
            return
        body = await read_body(receive, self._max_body_bytes)
        if body is None:
            return
        if isinstance(body, Problem):
            await refuse(body, send)
            return
        response = HeldResponse()
        try:
            async with self._transaction(presented) as connection:
                await self._app(
                    {**scope, CONNECTION: connection, FENCE: presented},
                    replayed(body, receive),
                    response.take,
                )
                if response.status() >= FIRST_ERROR_STATUS:
                    raise RolledBack
        except StaleToken as error:
            await refuse(stale_problem(error), send)
            return
        except RolledBack:
            pass
        for message in response.messages:
            await send(message)

    @asynccontextmanager
    async def _transaction(self, presented: Presented) -> AsyncIterator[Any]:
        connecting = self._connection()
        if isinstance(connecting, AbstractAsyncContextManager):
            awaited = import_module(f"{__package__}.aio").transaction
            async with connecting as connection, awaited(connection, presented.grant, presented.resource):
                yield connection
        else:
            async with self._threads.entered(_guarded(connecting, presented)) as connection:
                yield connection


@contextmanager
def _guarded(connecting: AbstractContextManager[Any], presented: Presented) -> Iterator[Any]:
    with connecting as connection, transaction(connection, presented.grant, presented.resource):
        yield connection


@dataclass
class _Threads:
    """Enters and leaves context managers that block."""

    begins: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "fencing-begin"))
    ends: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(THREADS, "fencing-end"))

    @asynccontextmanager
    async def entered(self, manager: AbstractContextManager[Any]) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        entering = self.begins.submit(manager.__enter__)
        try:
            value = await asyncio.shield(asyncio.wrap_future(entering))
        except asyncio.CancelledError as cancelled:
            self._leave_when_entered(entering, manager, cancelled)
            raise
        try:
            yield value
        except BaseException as error:
            leave = loop.run_in_executor(self.ends, manager.__exit__, type(error), error, error.__traceback__)
            if not await asyncio.shield(leave):
                raise
        else:
            await asyncio.shield(loop.run_in_executor(self.ends, manager.__exit__, None, None, None))

    def _leave_when_entered(
        self, entering: Future[Any], manager: AbstractContextManager[Any], cause: BaseException
    ) -> None:
        """The thread cannot be interrupted; what it begins is rolled back as soon as it has.

        The thread itself sees to that: the loop may be closed by then.
        """

        def leave(done: Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.ends.submit(manager.__exit__, type(cause), cause, None)

        entering.add_done_callback(leave)


@dataclass
class HeldResponse:
    """What the application answers, held back until its work is committed."""

    messages: list[Message] = field(default_factory=list)

    async def take(self, message: Message) -> None:
        self.messages.append(message)

    def status(self) -> int:
        for message in self.messages:
            if message["type"] == "http.response.start":
                return int(message["status"])
        raise RuntimeError("the application ended without a response")


async def read_body(receive: Receive, most: int) -> bytes | Problem | None:
    """The whole body; None if the client left before its end."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            return body_too_large(most)
        if not message.get("more_body", False):
            return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """The request again, for the application: its body was read before."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


async def refuse(problem: Problem, send: Send) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in problem.headers()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": problem.body})
