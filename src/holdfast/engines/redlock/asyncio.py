"""The Redlock engine for the asyncio driver. Threads never import this module."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, TypeVar

from ...core.effects import NotApplied, Pause, TransientError
from ...engine_api import AdapterContext, Steps
from ...errors import EngineUnavailable
from ...protocols import quorum as family
from ...protocols.quorum import Answers, Broadcast, QuorumCoroutine
from ...rules.requests import Reply, Request, Snapshot
from ...runtime import trampoline
from .config import RedlockConfig
from .connection_asyncio import NodeConnection
from .errors import SameServerRefusal, same_server_error
from .hinted_handoff import CLOSE_SECONDS, RETRY_SECONDS, HintedHandoff
from .keys import Keyspace
from .rpc import NodeRequest, PendingReply, requests_of
from .store import immediate_effects, quorum_of, source_of

__all__ = ["RedlockAsyncio"]

T = TypeVar("T")
log = logging.getLogger("holdfast")


class RedlockAsyncio:
    """The adapter of one client."""

    def __init__(self, config: RedlockConfig, space: Keyspace, context: AdapterContext) -> None:
        self.quorum = quorum_of(config, context)
        self._space = space
        self._node_seconds = config.node_seconds
        self._immediate_effects = immediate_effects(context)
        self._nodes = [
            NodeConnection(each, context, self._add_hint, self._check_same_server) for each in config.nodes
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

    def _check_same_server(self, met: NodeConnection) -> None:
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
