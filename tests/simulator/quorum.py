"""A simulated client whose engine is a quorum: the shipped scripts of both families, one upon the other.

Its messages overtake each other, so nodes have to remember what to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.core.effects import Apply, ApplyInOrder, ListNames, ProtocolCoroutine, RenewBatch
from holdfast.protocols import quorum as family
from holdfast.protocols.quorum import Answers, Broadcast, Quorum, Random
from holdfast.protocols.quorum.effects import Batch
from holdfast.rules import node
from holdfast.rules.requests import Acquire, Granted, Reply

from .client import SimulatedClient, Task
from .network import Link
from .nodes import Message, QuorumNode, step_of_batch
from .servers import WALL_SECONDS, Server
from .trace import Copied
from .world import Clock, World

__all__ = ["QuorumClient"]

HANDOFF_SECONDS: Final = 0.3
"""A message that a connection sends by itself is repeated this often."""


class Gather:
    """One ``Fan`` under way."""

    __slots__ = ("answers", "missing", "op", "task", "ticket")

    def __init__(self, task: Task, op: Broadcast) -> None:
        self.task = task
        self.op = op
        self.ticket = task.ticket
        self.answers: Answers = {}
        self.missing = {index for index, _ in op.asks}


class QuorumClient(SimulatedClient):
    """One incarnation of a client process; its requests go to several nodes."""

    def __init__(
        self,
        world: World,
        machine: int,
        incarnation: int,
        clock: Clock,
        wall: Clock,
        links: dict[Server, Link],
        nodes: Sequence[QuorumNode],
        io_timeout: float,
        linger: float,
        throws_again: bool,
        node_seconds: float = 0.05,
        drift: float = 0.01,
    ) -> None:
        super().__init__(world, machine, incarnation, clock, links, io_timeout, linger, throws_again)
        self.nodes = tuple(nodes)
        self.wall = wall
        self.run_ids: dict[int, str] = {}
        """Node → the run id of its server when this client connected."""
        self.sent: dict[str, float] = {}
        """Owner → when its first request was sent, by the local clock."""
        self.quorum = Quorum(
            client=self.id,
            labels=tuple(each.label for each in self.nodes),
            node_seconds=node_seconds,
            drift=drift,
            retry_seconds=0.2,
            jitter_seconds=0.2,
            linger=linger,
            now=self._tell_time_at_once,
            wall_us=self.wall_us,
        )
        self._chance = world.stream("chance", machine, incarnation)
        self._acts[Broadcast] = self._broadcast
        self._at_once[Random] = lambda op: self._chance.random()
        self.sending = (*self.sending, Broadcast)

    def step(self, op: Any) -> str:
        return step_of_batch(op.asks[0][1]) if op.__class__ is Broadcast and op.asks else super().step(op)

    def wall_us(self) -> int:
        return int((WALL_SECONDS + self.wall.read(self.world.now)) * 1_000_000)

    # --- one family upon the other --------------------------------------------------------------

    def start(self, script: ProtocolCoroutine[Any], label: str) -> Task:
        return super().start(self._run_over_quorum(script), label)

    async def _run_over_quorum(self, coroutine: ProtocolCoroutine[Any]) -> Any:
        """Run a coroutine of the records family, its requests answered by coroutines of the quorum family."""
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                op: Any = coroutine.send(value) if error is None else coroutine.throw(error)
            except StopIteration as end:
                return end.value
            value, error = None, None
            try:
                value = await (self._perform_over_quorum(op) if op.__class__ in _ANSWERED else op)
            except BaseException as failure:
                error = failure

    async def _perform_over_quorum(self, op: Any) -> Any:
        if op.__class__ is Apply:
            return await self._apply_over_quorum(op)
        if op.__class__ is RenewBatch:
            return await family.renew_batch(self.quorum, op.steps)
        if op.__class__ is ApplyInOrder:
            self.note_what_is_let_go(op)
            for _, request in op.steps:
                self._note_request(request)
            replies = await family.apply_in_order(self.quorum, op.steps, op.stop_when_refused)
            for (_, request), reply in zip(op.steps, replies, strict=False):
                self._note_reply(request, reply)
            return replies
        return await family.list_names(self.quorum, op.prefix)

    async def _apply_over_quorum(self, op: Apply) -> Reply:
        self.note_what_is_let_go(op)
        self._note_request(op.request)
        reply = await family.apply(self.quorum, op.name, op.request)
        self._note_reply(op.request, reply)
        return reply

    def _note_request(self, request: Any) -> None:
        if isinstance(request, Acquire):
            self.note("asks", request.nonce)

    def _note_reply(self, request: Any, reply: Any) -> None:
        if isinstance(request, Acquire) and isinstance(reply, Granted):
            owner = self.quorum.attempts[request.nonce].owner
            took = self.local() - self.sent[owner]
            self.note("decided", request.nonce, owner, reply.token, request.ttl, took)

    # --- several nodes at once ------------------------------------------------------------------

    def connected(self, server: QuorumNode, run_id: str) -> None:
        self.run_ids[server.index] = run_id

    def _broadcast(self, task: Task, op: Broadcast) -> None:
        gather = Gather(task, op)
        for index, batch in op.asks:
            self._send_to_node(gather, index, self._message(batch, op, index))
            for _, request in batch:
                if isinstance(request, node.Acquire):
                    self.sent.setdefault(request.owner, self.local())
        if op.handoff_until is not None:
            self.world.at(self.world.now + HANDOFF_SECONDS, self._deliver_hints, gather)
        limit = self.world.now + op.seconds / self.clock.rate
        if op.enough(gather.answers):
            limit = self.world.now
        self.world.at(limit, self._end_round, gather)

    def _message(self, batch: Batch, op: Broadcast, index: int) -> Message:
        return Message(batch, op.member, self.run_ids.get(index, ""), self.world.now)

    def _send_to_node(self, gather: Gather, index: int, message: Message) -> None:
        world = self.world
        server = self.nodes[index]
        link = self.links[server]
        delays = [link.delay()]
        if link.troubled:
            delays, hits = link.fate(True, world.now)
            for hit in hits:
                world.cover(hit, step_of_batch(message.batch))
        for copy, delay in enumerate(delays):
            answer = self._on_answer(gather, index, message)
            world.at(world.now + delay, server.receive, self, message, answer, bool(copy))
        if len(delays) > 1:
            world.trace.append(Copied(world.now, gather.op))

    def _on_answer(self, gather: Gather, index: int, message: Message) -> Callable[[Any], None]:
        return lambda answer: self._receive(gather, index, answer)

    def _receive(self, gather: Gather, index: int, answer: Any) -> None:
        """An answer came, or the report that there will be none."""
        if not self.alive:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self._receive, gather, index, answer)
            return
        if isinstance(answer, tuple):
            gather.missing.discard(index)
        else:
            self.run_ids.pop(index, None)
        task = gather.task
        if task.ticket != gather.ticket or index in gather.answers:
            return
        gather.answers[index] = answer
        if len(gather.answers) == len(gather.op.asks) or gather.op.enough(gather.answers):
            self._advance(task, dict(gather.answers), None)

    def _end_round(self, gather: Gather) -> None:
        task = gather.task
        if task.ticket != gather.ticket or not self.alive:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self._end_round, gather)
            return
        self._advance(task, dict(gather.answers), None)

    def _deliver_hints(self, gather: Gather) -> None:
        """Hinted handoff: send again to nodes that did not get the request, until its time is over."""
        until = gather.op.handoff_until
        if not self.alive or not gather.missing or until is None or self.local() >= until:
            return
        if self.paused_until <= self.world.now:
            for index, batch in gather.op.asks:
                if index in gather.missing:
                    self._send_to_node(gather, index, self._message(batch, gather.op, index))
        self.world.at(self.world.now + HANDOFF_SECONDS, self._deliver_hints, gather)


_ANSWERED: Final = (Apply, RenewBatch, ApplyInOrder, ListNames)
