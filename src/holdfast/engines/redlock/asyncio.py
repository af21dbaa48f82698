"""The Redlock engine for the asyncio driver. Threads never import this module."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from ...core.effects import NotApplied, Pause, TransientError
from ...engine_api import AdapterContext, Steps
from ...errors import EngineUnavailable
from ...protocols import quorum as family
from ...protocols.quorum import Answers, Broadcast, QuorumCoroutine
from ...rules.requests import Reply, Request, Snapshot
from ...runtime import trampoline
from ..resp.config import ServerConfig
from ..resp.connection_asyncio import RespStream, open_stream
from .config import RedlockConfig
from .errors import TLS_HINT, SameServerRefusal, same_server_error, tls_timeout_message
from .handshake import handshake_with_node
from .hinted_handoff import CLOSE_SECONDS, RETRY_SECONDS, HintedHandoff
from .keys import Keyspace
from .quorum import immediate_effects, quorum_of, source_of
from .requests import NodeRequest, PendingReply, requests_of

__all__ = ["RedlockAsyncio"]

T = TypeVar("T")
log = logging.getLogger("holdfast")

RECONNECT_SECONDS: Final = 0.1
RECONNECT_SECONDS_MAX: Final = 1.0
"""The pause after a connection failed. It doubles with every further failure."""

OnResult = Callable[[PendingReply], None]


class RedlockAsyncio:
    """The adapter of one client."""

    def __init__(self, config: RedlockConfig, space: Keyspace, context: AdapterContext) -> None:
        self.quorum = quorum_of(config, context)
        self._space = space
        self._node_seconds = config.node_seconds
        self._immediate_effects = immediate_effects(context)
        self._nodes = [
            _NodeConnection(each, context, self._add_hint, self._check_same_server) for each in config.nodes
        ]
        self._same_server = SameServerRefusal()
        """Set where two of the addresses are one server."""
        self._hints = HintedHandoff()
        self._handoff_task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def source(self) -> str:
        return source_of(self.quorum, self._space.namespace)

    async def apply(self, name: str, request: Request) -> Reply:
        return await self.run(family.apply(self.quorum, name, request))

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return await self.run(family.apply_in_order(self.quorum, steps, stop_when_refused))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return await self.run(family.renew_batch(self.quorum, steps))

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return await self.run(family.list_names(self.quorum, prefix))

    async def run(self, coroutine: QuorumCoroutine[T]) -> T:
        return await trampoline.run_in_loop(coroutine, self._perform)

    async def _perform(self, effect: Any) -> Any:
        if effect.__class__ is Broadcast:
            return await self._broadcast(effect)
        if effect.__class__ is Pause:
            await asyncio.sleep(effect.seconds)
            return None
        return self._immediate_effects[effect.__class__](effect)

    # --- broadcasts -------------------------------------------------------------------------------

    async def _broadcast(self, effect: Broadcast) -> Answers:
        """Ask the nodes. Returns once the answers are enough, or the time is up."""
        if self._closed:
            raise NotApplied("this client is closed")
        gather = _Gather(effect)
        try:
            for node, request in requests_of(self._space, effect, gather.answers, 0.0):
                gather.pending[node] = pending = PendingReply(request, node)
                self._nodes[node].send_request(pending, gather.add_result)
            await gather.wait()
        finally:  # a cancelled caller waits no longer, either
            for node, pending in list(gather.pending.items()):
                self._nodes[node].abandon(pending)
        self._same_server.check()
        return gather.answers.copy()  # later replies must not change it

    def _check_same_server(self, met: _NodeConnection) -> None:
        """Two addresses of one server are one vote."""
        for other in self._nodes:
            if other is not met and other.is_open and other.run_id == met.run_id:
                self._same_server.note(str(same_server_error(other.address, met.address)))
                met.close()
                return

    # --- hinted handoff ---------------------------------------------------------------------------

    def _add_hint(self, request: NodeRequest, node: int) -> None:
        if not self._closed and self._hints.add(request, node):
            self._start_handoff()

    def _start_handoff(self) -> None:
        if self._handoff_task is None or self._handoff_task.done():
            self._handoff_task = asyncio.get_running_loop().create_task(
                self._deliver_hints(), name="holdfast-handoff"
            )

    async def _deliver_hints(self) -> None:
        """Deliver hints until none is left."""
        pause = RETRY_SECONDS
        while True:
            await asyncio.sleep(pause)
            due = self._hints.next_broadcast(self._node_seconds)
            if due is None:
                return
            try:
                pause = self._hints.settle(await self._broadcast(due[0]), due[1], pause)
            except (TransientError, EngineUnavailable) as error:
                log.debug("holdfast: hinted handoff to nodes failed: %s", error)

    # --- notifications: nodes send none, so a waiter polls ----------------------------------------

    async def listen(self, name: str | None) -> None:
        """A waiter of this client is notified by the client. Other waiters poll."""

    def unlisten(self, nonce: str, name: str | None) -> None:
        """``listen`` has started nothing."""

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nodes report no dead client. Its leases expire."""

    # --- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        try:
            await self._deliver_before_close()
        finally:
            await self._close_nodes()

    async def _close_nodes(self) -> None:
        self._closed = True
        tasks = [
            task for task in (self._handoff_task, *(node.opening for node in self._nodes)) if task is not None
        ]
        for task in tasks:
            task.cancel()
        for node in self._nodes:
            node.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _deliver_before_close(self) -> None:
        """Claims that a node does not release now expire there."""
        due = self._hints.next_broadcast(min(self._node_seconds, CLOSE_SECONDS))
        if due is not None:
            with contextlib.suppress(TransientError, EngineUnavailable):
                await self._broadcast(due[0])

    def forked(self) -> None:
        for node in self._nodes:
            node.detach_after_fork()


class _Gather:
    """The answers to one broadcast that is under way."""

    __slots__ = ("_broadcast", "_decided", "answers", "pending")

    def __init__(self, effect: Broadcast) -> None:
        self._broadcast = effect
        self._decided: asyncio.Future[None] | None = None
        self.answers: Answers = {}
        self.pending: dict[int, PendingReply] = {}

    def add_result(self, pending: PendingReply) -> None:
        """A node has answered, or will not answer."""
        if self.pending.pop(pending.node, None) is None:
            return
        if not self.pending or self._broadcast.enough(self.answers):
            self._finish()

    def _finish(self) -> None:
        if self._decided is not None and not self._decided.done():
            self._decided.set_result(None)

    async def wait(self) -> None:
        if not self.pending or self._broadcast.enough(self.answers):
            return
        loop = asyncio.get_running_loop()
        self._decided = loop.create_future()
        timer = loop.call_later(self._broadcast.seconds, self._finish)
        try:
            await self._decided
        finally:
            timer.cancel()


class _NodeConnection:
    """One connection to one node, shared by all tasks. Requests arrive in their order."""

    def __init__(
        self,
        config: ServerConfig,
        context: AdapterContext,
        on_undelivered: Callable[[NodeRequest, int], None],
        on_connected: Callable[[_NodeConnection], None],
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
            self._stream.forget()


def _ignore_result(pending: PendingReply) -> None:
    """The caller does not wait any more."""
