"""Nodes of a quorum: independent servers that run the node's rule by clocks of their own, and may forget."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.core.effects import NotApplied, OutcomeUnknown
from holdfast.protocols.quorum.effects import Batch
from holdfast.rules import node

from .servers import WALL_SECONDS, Server
from .trace import Noted

if TYPE_CHECKING:
    from .quorum import QuorumClient
    from .world import Clock, World

__all__ = ["Message", "QuorumNode", "step_of_batch"]

PAGE: Final = 2
"""So few names in a page that there is more than one."""

RESET: Final = "the connection was reset"


class Message(NamedTuple):
    """A batch on its way, over a connection that was made in a certain life of the server."""

    batch: Batch
    member: str
    run: str
    """Empty: the connection is being made, to whatever life it meets."""
    sent: float


def step_of_batch(batch: Batch) -> str:
    """The step of a protocol that a message is, as the coverage table names it: by what it asks first."""
    return f"node's {batch[0][1].__class__.__name__}"


class QuorumNode(Server):
    """One node: its mark, its records, and the life it is in."""

    def __init__(self, world: World, index: int, wall: Clock, durable: bool) -> None:
        super().__init__(world, f"node{index}")
        self.index = index
        self.wall = wall
        self.durable = durable
        """Whether it remembers all it ever answered, and says so."""
        self.lives = 1
        self.mark = node.FRESH
        self.records: dict[str, node.NodeRecord] = {}
        self._past: list[tuple[float, node.Mark, dict[str, node.NodeRecord]]] = []
        """Before each change: what a disk that lags behind has kept."""

    @property
    def run(self) -> str:
        return f"r{self.index}x{self.lives}"

    def now_us(self) -> int:
        return int((WALL_SECONDS + self.wall.read(self.world.now)) * 1_000_000)

    # --- messages -------------------------------------------------------------------------------

    def receive(self, client: QuorumClient, message: Message, answer: Any, copy: bool = False) -> None:
        """``answer(reply)`` is called when the reply, or the news that there is none, is with the client."""
        world = self.world
        step = step_of_batch(message.batch)
        if self.hangs_until > world.now:
            world.cover("node hang", step)
            world.at(self.hangs_until, self.receive, client, message, answer, copy)
            return
        link = client.links[self]
        if self.down:
            world.cover("node down", step)
            if self.down == "refusing":
                world.at(world.now + link.delay(), answer, NotApplied("connection refused"))
            return
        if message.run and message.run != self.run:
            world.cover("node crash", step)
            world.at(world.now + link.delay(), answer, OutcomeUnknown(RESET))
            return
        if copy:
            world.cover("copy", step)
        elif message.sent < link.newest:
            world.cover("overtaken", step)
        link.newest = max(link.newest, message.sent)
        reply = self.answer(client, message)
        arrives: list[float] = [link.delay()]
        if link.troubled:
            arrives, hits = link.fate(False, world.now)
            for hit in hits:
                world.cover(hit + " of the reply", step)
        for delay in arrives:
            world.at(world.now + delay, answer, reply)

    def answer(self, client: QuorumClient, message: Message) -> tuple[Any, ...]:
        client.connected(self, self.run)
        expected = f"{message.member}/{self.run}"
        return tuple([self.ask(name, request, expected) for name, request in message.batch])

    # --- what the rule says ---------------------------------------------------------------------

    def ask(self, name: str, request: Any, expected: str) -> Any:
        if isinstance(request, node.DescribeNode):
            return node.NodeDescription(self.run, self.mark, self.durable)
        if isinstance(request, node.Prime | node.Start | node.Trust | node.Rejoin | node.Admit):
            self._store(node.change_mark(self.mark, request, self.run), {})
            return node.Marked(self.mark)
        if isinstance(request, node.RaiseFences):
            self._raise_fences(request)
            return node.Marked(self.mark)
        if isinstance(request, node.ListFences | node.List) and self.mark.ready != expected:
            return node.Unready(self.mark.ready)
        if isinstance(request, node.ListFences):
            return self._fences(request)
        if isinstance(request, node.List):
            return self._names(request)
        return self._apply(name, request, expected)

    def _apply(self, name: str, request: node.NodeRequest, expected: str) -> node.NodeReply:
        before = self.records.get(name, node.UNUSED)
        step = node.apply(self.mark, before, request, expected, self.now_us())
        if step.record is not before:
            self._store(step.mark, {name: step.record})
            self.world.trace.append(
                Noted(self.world.now, self.label, "stored", (name, request, step.reply, step.record))
            )
        return step.reply

    def _store(self, mark: node.Mark, records: dict[str, node.NodeRecord]) -> None:
        if not self.durable:
            known = {name: self.records.get(name, node.UNUSED) for name in records}
            self._past.append((self.world.now, self.mark, known))
        self.mark = mark
        self.records.update(records)

    def _raise_fences(self, request: node.RaiseFences) -> None:
        raised = {}
        for name, fence in request.fences:
            record = self.records.get(name, node.UNUSED)
            if fence > record.fence:
                raised[name] = record._replace(fence=fence)
        self._store(self.mark, raised)

    def _page(self, prefix: str, cursor: str) -> tuple[list[str], str]:
        names = sorted(name for name in self.records if name.startswith(prefix) and name > cursor)
        return names[:PAGE], names[PAGE - 1] if len(names) > PAGE else ""

    def _fences(self, request: node.ListFences) -> node.FencePage:
        names, cursor = self._page("", request.cursor)
        return node.FencePage(tuple((name, self.records[name].fence) for name in names), cursor)

    def _names(self, request: node.List) -> node.NamePage:
        names, cursor = self._page(request.prefix, request.cursor)
        now = self.now_us()
        found = tuple((name, node.settle(self.records[name], now)) for name in names)
        return node.NamePage(found, now, cursor)

    # --- what becomes of it ---------------------------------------------------------------------

    def stop(self, silent: bool) -> None:
        self.down = "silent" if silent else "refusing"

    def start(self) -> None:
        """Another life, with whatever it remembers."""
        self.down = ""
        self.lives += 1

    def expire(self) -> None:
        """All claims are over, as by a clock that was far ahead for a moment."""
        self.records = {name: record._replace(claim=None) for name, record in self.records.items()}

    def forget(self, back_to: float = -inf) -> None:
        """Lose everything, or what was stored since ``back_to``."""
        if back_to == -inf:
            self.mark, self.records = node.FRESH, {}
        while self._past and self._past[-1][0] >= back_to:
            _, mark, records = self._past.pop()
            if back_to > -inf:
                self.mark = mark
                self.records.update(records)
        self.world.trace.append(Noted(self.world.now, self.label, "forgot", (back_to,)))
