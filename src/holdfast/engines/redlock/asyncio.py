"""Redlock for the asyncio driver; a file apart, so that threads never import asyncio."""

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
from .keys import Keyspace
from .quorum import CLOSE_SECONDS, RETRY_SECONDS, HintedHandoff, immediate_effects, quorum_of, source_of
from .requests import NodeRequest, PendingReply, requests_of

__all__ = ["RedlockAsyncio"]

T = TypeVar("T")
log = logging.getLogger("holdfast")

RECONNECT_SECONDS: Final = 0.1
RECONNECT_SECONDS_MAX: Final = 1.0
"""After a connection failed, the next one is tried so much later: ever longer."""

OnResult = Callable[[PendingReply], None]


class RedlockAsyncio:
    """One client's way to its nodes."""

    def __init__(self, settings: RedlockConfig, space: Keyspace, hooks: AdapterContext) -> None:
        self.quorum = quorum_of(settings, hooks)
        self._space = space
        self._node_seconds = settings.node_seconds
        self._immediate_effects = immediate_effects(hooks)
        self._nodes = [
            _NodeConnection(each, hooks, self._add_hint, self._check_same_server) for each in settings.nodes
        ]
        self._same_server = SameServerRefusal()
        """Which of them are one server, where it was found out."""
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

    async def run(self, script: QuorumCoroutine[T]) -> T:
        return await trampoline.run_in_loop(script, self._perform)

    async def _perform(self, op: Any) -> Any:
        if op.__class__ is Broadcast:
            return await self._broadcast(op)
        if op.__class__ is Pause:
            await asyncio.sleep(op.seconds)
            return None
        return self._immediate_effects[op.__class__](op)

    # --- several nodes at once --------------------------------------------------------------------

    async def _broadcast(self, op: Broadcast) -> Answers:
        """Ask, and go on as soon as the answers are enough, or the time is up."""
        if self._closed:
            raise NotApplied("this client is closed")
        gathering = _Gather(op)
        try:
            for node, question in requests_of(self._space, op, gathering.answers, 0.0):
                gathering.pending[node] = asking = PendingReply(question, node)
                self._nodes[node].send_request(asking, gathering.add_result)
            await gathering.wait()
        finally:  # also one who is cancelled waits for it no more
            for node, asking in list(gathering.pending.items()):
                self._nodes[node].abandon(asking)
        self._same_server.check()
        return gathering.answers.copy()  # what comes from now on is no answer to this any more

    def _check_same_server(self, met: _NodeConnection) -> None:
        """Two addresses of one server are one vote."""
        for other in self._nodes:
            if other is not met and other.is_open and other.run_id == met.run_id:
                self._same_server.note(str(same_server_error(other.address, met.address)))
                met.close()
                return

    # --- behind somebody's back -------------------------------------------------------------------

    def _add_hint(self, question: NodeRequest, node: int) -> None:
        if not self._closed and self._hints.add(question, node):
            self._start_handoff()

    def _start_handoff(self) -> None:
        if self._handoff_task is None or self._handoff_task.done():
            self._handoff_task = asyncio.get_running_loop().create_task(
                self._deliver_hints(), name="holdfast-teller"
            )

    async def _deliver_hints(self) -> None:
        """Tell nodes what they have not heard, as long as there is something."""
        pause = RETRY_SECONDS
        while True:
            await asyncio.sleep(pause)
            due = self._hints.next_broadcast(self._node_seconds)
            if due is None:
                return
            try:
                pause = self._hints.settle(await self._broadcast(due[0]), due[1], pause)
            except (TransientError, EngineUnavailable) as trouble:
                log.debug("holdfast: nodes could not be told what they missed: %s", trouble)

    # --- wake-ups: nodes tell nobody anything, so who waits looks by itself -----------------------

    async def listen(self, name: str | None) -> None:
        """Who waits in this client is woken by it; others look now and then."""

    def unlisten(self, nonce: str, name: str | None) -> None:
        """Nothing was begun."""

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody tells us that a client died: its claims run out."""

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
        """What nodes do not hear now they keep until it expires."""
        due = self._hints.next_broadcast(min(self._node_seconds, CLOSE_SECONDS))
        if due is not None:
            with contextlib.suppress(TransientError, EngineUnavailable):
                await self._broadcast(due[0])

    def forked(self) -> None:
        for node in self._nodes:
            node.detach_after_fork()


class _Gather:
    """One question under way."""

    __slots__ = ("_broadcast", "_decided", "answers", "pending")

    def __init__(self, op: Broadcast) -> None:
        self._broadcast = op
        self._decided: asyncio.Future[None] | None = None
        self.answers: Answers = {}
        self.pending: dict[int, PendingReply] = {}

    def add_result(self, asking: PendingReply) -> None:
        """A node has answered, or will not."""
        if self.pending.pop(asking.node, None) is None:
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
    """One connection to one node, shared by all tasks: what is asked arrives in its order."""

    def __init__(
        self,
        settings: ServerConfig,
        hooks: AdapterContext,
        unheard: Callable[[NodeRequest, int], None],
        met: Callable[[_NodeConnection], None],
    ) -> None:
        self.address = settings.addresses[0]
        self.run_id = ""
        """The life of the server in which the last connection was made; empty: there was none."""
        self.opening: asyncio.Task[None] | None = None
        self._settings = settings
        self._client = hooks.client
        self._seconds = hooks.io_timeout
        self._on_undelivered = unheard
        self._on_connected = met
        self._stream: RespStream | None = None
        self._next: dict[PendingReply, OnResult] = {}
        """What is sent as soon as there is a connection."""
        self._failures = 0
        self._retry_at = 0.0
        self._error = ""

    @property
    def is_open(self) -> bool:
        return self._stream is not None and self._stream.is_open

    def send_request(self, asking: PendingReply, heard: OnResult) -> None:
        """Send it, now or once connected; ``heard`` is told of its result."""
        loop = asyncio.get_running_loop()
        line = self._stream
        if line is not None and line.is_open:
            self._send(line, asking, asking.request.payload(self.run_id), heard)
        elif loop.time() < self._retry_at:
            self._failed(asking, NotApplied(self._error), heard)
        else:
            self._next[asking] = heard
            if self.opening is None:
                self.opening = loop.create_task(self._open())

    def abandon(self, asking: PendingReply) -> None:
        """Nobody waits for it any more. If it was not sent it never is."""
        if self._next.pop(asking, None) is not None:
            trouble = NotApplied(self._error or f"no connection to {self.address} in time")
            self._failed(asking, trouble, _ignore_result)

    def _send(self, line: RespStream, asking: PendingReply, payload: bytes, heard: OnResult) -> None:
        count = asking.reply_count - len(asking.replies)
        line.call_many(payload, count).add_done_callback(partial(self._reply_received, line, asking, heard))

    def _reply_received(
        self, line: RespStream, asking: PendingReply, heard: OnResult, future: asyncio.Future[list[Any]]
    ) -> None:
        trouble = None if future.cancelled() else future.exception()
        if isinstance(trouble, TransientError):
            self._error = str(trouble)
            self._failed(asking, trouble, heard)
            return
        if future.cancelled():
            return
        replies = future.result()
        if asking.reply_count == 1 and replies[0].__class__ is int:  # nearly always
            asking.request.answer_number(asking.node, replies[0])
            heard(asking)
            return
        for reply in replies:
            asking.add_reply(reply)
        again = asking.retry_payload(self.run_id)
        if again is not None and line.is_open:
            self._send(line, asking, again, heard)
            return
        asking.finish(self.address)
        if isinstance(asking.result, TransientError):
            self._on_undelivered(asking.request, asking.node)
        heard(asking)

    def _failed(self, asking: PendingReply, trouble: TransientError, heard: OnResult) -> None:
        asking.result = trouble
        self._on_undelivered(asking.request, asking.node)
        heard(asking)

    # --- connecting -------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._connect()
        except (TransientError, TimeoutError) as trouble:
            self._failures += 1
            pause = min(RECONNECT_SECONDS * 2 ** min(self._failures - 1, 10), RECONNECT_SECONDS_MAX)
            self._retry_at = asyncio.get_running_loop().time() + pause
            self._error = str(trouble) or self._timeout_message()
        finally:
            self.opening = None
            waiting, self._next = self._next, {}
            for asking, heard in waiting.items():
                if self._stream is not None and self._stream.is_open:
                    self._send(self._stream, asking, asking.request.payload(self.run_id), heard)
                else:
                    self._failed(asking, NotApplied(self._error), heard)

    async def _connect(self) -> None:
        try:
            line = await open_stream(RespStream, self.address, self._settings.tls, self._seconds)
        except EngineUnavailable as error:
            raise NotApplied(str(error)) from None
        try:
            login = self._settings.login
            run = await handshake_with_node(
                line, self._settings, (login.username, login.password), self._client
            )
        except NotApplied as error:
            broke = not line.is_open
            line.close()
            raise (
                NotApplied(f"{error}{TLS_HINT}") if broke and self._settings.tls is None else error
            ) from None
        except BaseException:
            line.close()
            raise
        self._stream, self.run_id, self._failures = line, run, 0
        self._on_connected(self)

    def _timeout_message(self) -> str:
        """It was connected to or not, and did not go on in time."""
        if self._settings.tls is not None:
            return tls_timeout_message(self.address, self._seconds)
        return f"no answer from {self.address} in {self._seconds:g} s"

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def detach_after_fork(self) -> None:
        if self._stream is not None:
            self._stream.forget()


def _ignore_result(asking: PendingReply) -> None:
    """Nobody waits for it any more."""
