"""A connection to one node for asyncio, shared by all tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ...core.effects import NotApplied, TransientError
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ..resp.config import ServerConfig
from ..resp.connection_asyncio import RespStream, open_stream
from .errors import TLS_HINT, tls_timeout_message
from .handshake import handshake_with_node
from .rpc import NodeRequest, PendingReply

__all__ = ["NodeConnection"]

RECONNECT_SECONDS: Final = 0.1
RECONNECT_SECONDS_MAX: Final = 1.0
"""The pause after a connection failed. It doubles with every further failure."""

OnResult = Callable[[PendingReply], None]


class NodeConnection:
    """One connection to one node, shared by all tasks. Requests arrive in their order."""

    def __init__(
        self,
        config: ServerConfig,
        context: AdapterContext,
        on_undelivered: Callable[[NodeRequest, int], None],
        on_connected: Callable[[NodeConnection], None],
    ) -> None:
        self.address = config.addresses[0]
        self.run_id = ""
        """The run id of the server when the last connection was made; empty: there was none."""
        self.opening: asyncio.Task[None] | None = None
        self._config = config
        self._client = context.client
        self._seconds = context.io_timeout
        self._on_undelivered = on_undelivered
        self._on_connected = on_connected
        self._stream: RespStream | None = None
        self._next: dict[PendingReply, OnResult] = {}
        """Sent as soon as there is a connection."""
        self._failures = 0
        self._retry_at = 0.0
        self._error = ""

    @property
    def is_open(self) -> bool:
        return self._stream is not None and self._stream.is_open

    def send_request(self, pending: PendingReply, on_result: OnResult) -> None:
        """Send it, now or once connected; ``on_result`` is called with the result."""
        loop = asyncio.get_running_loop()
        stream = self._stream
        if stream is not None and stream.is_open:
            self._send(stream, pending, pending.request.payload(self.run_id), on_result)
        elif loop.time() < self._retry_at:
            self._failed(pending, NotApplied(self._error), on_result)
        else:
            self._next[pending] = on_result
            if self.opening is None:
                self.opening = loop.create_task(self._open())

    def abandon(self, pending: PendingReply) -> None:
        """The caller does not wait any more. A request that was not sent is never sent."""
        if self._next.pop(pending, None) is not None:
            error = NotApplied(self._error or f"no connection to {self.address} in time")
            self._failed(pending, error, _ignore_result)

    def _send(self, stream: RespStream, pending: PendingReply, payload: bytes, on_result: OnResult) -> None:
        count = pending.reply_count - len(pending.replies)
        stream.call_many(payload, count).add_done_callback(
            partial(self._reply_received, stream, pending, on_result)
        )

    def _reply_received(
        self,
        stream: RespStream,
        pending: PendingReply,
        on_result: OnResult,
        future: asyncio.Future[list[Any]],
    ) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, TransientError):
            self._error = str(error)
            self._failed(pending, error, on_result)
            return
        if future.cancelled():
            return
        replies = future.result()
        if pending.reply_count == 1 and replies[0].__class__ is int:  # nearly always
            pending.request.answer_number(pending.node, replies[0])
            on_result(pending)
            return
        for reply in replies:
            pending.add_reply(reply)
        again = pending.retry_payload(self.run_id)
        if again is not None and stream.is_open:
            self._send(stream, pending, again, on_result)
            return
        pending.finish(self.address)
        if isinstance(pending.result, TransientError):
            self._on_undelivered(pending.request, pending.node)
        on_result(pending)

    def _failed(self, pending: PendingReply, error: TransientError, on_result: OnResult) -> None:
        pending.result = error
        self._on_undelivered(pending.request, pending.node)
        on_result(pending)

    # --- connecting -------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._connect()
        except (TransientError, TimeoutError) as error:
            self._failures += 1
            pause = min(RECONNECT_SECONDS * 2 ** min(self._failures - 1, 10), RECONNECT_SECONDS_MAX)
            self._retry_at = asyncio.get_running_loop().time() + pause
            self._error = str(error) or self._timeout_message()
        finally:
            self.opening = None
            waiting, self._next = self._next, {}
            for pending, on_result in waiting.items():
                if self._stream is not None and self._stream.is_open:
                    self._send(self._stream, pending, pending.request.payload(self.run_id), on_result)
                else:
                    self._failed(pending, NotApplied(self._error), on_result)

    async def _connect(self) -> None:
        try:
            stream = await open_stream(RespStream, self.address, self._config.tls, self._seconds)
        except EngineUnavailable as error:
            raise NotApplied(str(error)) from None
        try:
            login = self._config.login
            run = await handshake_with_node(
                stream, self._config, (login.username, login.password), self._client
            )
        except NotApplied as error:
            broke = not stream.is_open
            stream.close()
            raise (
                NotApplied(f"{error}{TLS_HINT}") if broke and self._config.tls is None else error
            ) from None
        except BaseException:
            stream.close()
            raise
        self._stream, self.run_id, self._failures = stream, run, 0
        self._on_connected(self)

    def _timeout_message(self) -> str:
        """The node did not answer in time, connected or not."""
        if self._config.tls is not None:
            return tls_timeout_message(self.address, self._seconds)
        return f"no answer from {self.address} in {self._seconds:g} s"

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def detach_after_fork(self) -> None:
        if self._stream is not None:
            self._stream.detach_after_fork()


def _ignore_result(pending: PendingReply) -> None:
    """The caller does not wait any more."""
