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

from .client import GIVING_BACK, SimulatedClient, Task
from .network import Link
from .nodes import Message, QuorumNode, step_of_batch
from .servers import WALL_SECONDS, Server
from .trace import Copied, LetGo
from .world import Clock, World

__all__ = ["QuorumClient"]

TELL_AGAIN_SECONDS: Final = 0.3
"""What is told behind somebody's back is told again so often: what a connection does by itself."""


class Gathering:
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
        self.runs: dict[int, str] = {}
        """Node → the life of the server in which our connection was made."""
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
        self._acts[Broadcast] = self._fan
        self._at_once[Random] = lambda op: self._chance.random()
        self.sending = (*self.sending, Broadcast)

    def step(self, op: Any) -> str:
        return step_of_batch(op.asks[0][1]) if op.__class__ is Broadcast and op.asks else super().step(op)

    def wall_us(self) -> int:
        return int((WALL_SECONDS + self.wall.read(self.world.now)) * 1_000_000)

    # --- one family upon the other --------------------------------------------------------------

    def start(self, script: ProtocolCoroutine[Any], label: str) -> Task:
        return super().start(self._over_quorum(script), label)

    async def _over_quorum(self, script: ProtocolCoroutine[Any]) -> Any:
        """Run a script of the records family, its requests answered by scripts of the quorum family."""
        value: Any = None
        trouble: BaseException | None = None
        while True:
            try:
                op: Any = script.send(value) if trouble is None else script.throw(trouble)
            except StopIteration as end:
                return end.value
            value, trouble = None, None
            try:
                value = await (self._answered(op) if op.__class__ in _ANSWERED else op)
            except BaseException as error:
                trouble = error

    async def _answered(self, op: Any) -> Any:
        if op.__class__ is Apply:
            return await self._apply_over_quorum(op)
        if op.__class__ is RenewBatch:
            return await family.renew_batch(self.quorum, op.steps)
        if op.__class__ is ApplyInOrder:
            for _, request in op.steps:
                self._asking(request)
            replies = await family.apply_in_order(self.quorum, op.steps, op.stop_when_refused)
            for (_, request), reply in zip(op.steps, replies, strict=False):
                self._replied(request, reply)
            return replies
        return await family.list_names(self.quorum, op.prefix)

    async def _apply_over_quorum(self, op: Apply) -> Reply:
        if op.request.__class__ in GIVING_BACK:
            how = op.request.__class__.__name__
            self.world.trace.append(LetGo(self.world.now, self.id, op.request.nonce, how))
        self._asking(op.request)
        reply = await family.apply(self.quorum, op.name, op.request)
        self._replied(op.request, reply)
        return reply

    def _asking(self, request: Any) -> None:
        if isinstance(request, Acquire):
            self.note("asks", request.nonce)

    def _replied(self, request: Any, reply: Any) -> None:
        if isinstance(request, Acquire) and isinstance(reply, Granted):
            owner = self.quorum.attempts[request.nonce].owner
            took = self.local() - self.sent[owner]
            self.note("decided", request.nonce, owner, reply.token, request.ttl, took)

    # --- several nodes at once ------------------------------------------------------------------

    def met(self, server: QuorumNode, run: str) -> None:
        self.runs[server.index] = run

    def _fan(self, task: Task, op: Broadcast) -> None:
        gathering = Gathering(task, op)
        for index, batch in op.asks:
            self._tell(gathering, index, self._message(batch, op, index))
            for _, request in batch:
                if isinstance(request, node.Acquire):
                    self.sent.setdefault(request.owner, self.local())
        if op.handoff_until is not None:
            self.world.at(self.world.now + TELL_AGAIN_SECONDS, self._tell_again, gathering)
        limit = self.world.now + op.seconds / self.clock.rate
        if op.enough(gathering.answers):
            limit = self.world.now
        self.world.at(limit, self._time_is_up, gathering)

    def _message(self, batch: Batch, op: Broadcast, index: int) -> Message:
        return Message(batch, op.member, self.runs.get(index, ""), self.world.now)

    def _tell(self, gathering: Gathering, index: int, message: Message) -> None:
        world = self.world
        server = self.nodes[index]
        link = self.links[server]
        delays = [link.delay()]
        if link.troubled:
            delays, hits = link.fate(True, world.now)
            for hit in hits:
                world.cover(hit, step_of_batch(message.batch))
        for copy, delay in enumerate(delays):
            answer = self._answers(gathering, index, message)
            world.at(world.now + delay, server.receive, self, message, answer, bool(copy))
        if len(delays) > 1:
            world.trace.append(Copied(world.now, gathering.op))

    def _answers(self, gathering: Gathering, index: int, message: Message) -> Callable[[Any], None]:
        return lambda answer: self._heard(gathering, index, answer)

    def _heard(self, gathering: Gathering, index: int, answer: Any) -> None:
        """An answer came, or the news that there will be none."""
        if not self.alive:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self._heard, gathering, index, answer)
            return
        if isinstance(answer, tuple):
            gathering.missing.discard(index)
        else:
            self.runs.pop(index, None)
        task = gathering.task
        if task.ticket != gathering.ticket or index in gathering.answers:
            return
        gathering.answers[index] = answer
        if len(gathering.answers) == len(gathering.op.asks) or gathering.op.enough(gathering.answers):
            self._advance(task, dict(gathering.answers), None)

    def _time_is_up(self, gathering: Gathering) -> None:
        task = gathering.task
        if task.ticket != gathering.ticket or not self.alive:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self._time_is_up, gathering)
            return
        self._advance(task, dict(gathering.answers), None)

    def _tell_again(self, gathering: Gathering) -> None:
        """Those who have not heard it are told again, until there is no point any more."""
        until = gathering.op.handoff_until
        if not self.alive or not gathering.missing or until is None or self.local() >= until:
            return
        if self.paused_until <= self.world.now:
            for index, batch in gathering.op.asks:
                if index in gathering.missing:
                    self._tell(gathering, index, self._message(batch, gathering.op, index))
        self.world.at(self.world.now + TELL_AGAIN_SECONDS, self._tell_again, gathering)


_ANSWERED: Final = (Apply, RenewBatch, ApplyInOrder, ListNames)
