"""Servers: machines that answer requests. A node keeps records; other servers run what they are asked to."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal

from holdfast.core.effects import Apply, ApplyInOrder, ListNames, NotApplied, OutcomeUnknown, RenewBatch
from holdfast.rules import handoff, transitions
from holdfast.rules.record import EMPTY, Record, is_idle
from holdfast.rules.requests import Inspect, Reply, Request, Snapshot, Wake

from .trace import Changed, Forgot

if TYPE_CHECKING:
    from .client import SimulatedClient, Task
    from .world import Clock, World

__all__ = ["Node", "Server"]

WALL_SECONDS: Final = 1_700_000_000.0
"""What the wall clock shows when the world begins."""

TIMED_OUT: Final = "no answer in time"


class Server:
    """Answers each request when it arrives; may be down, or hang for a while."""

    def __init__(self, world: World, label: str) -> None:
        self.world = world
        self.label = label
        self.down: Literal["", "refusing", "silent"] = ""
        self.hangs_until = -inf

    def arrive(
        self,
        client: SimulatedClient,
        task: Task,
        ticket: int,
        op: Any,
        gives_up_at: float,
        copy: bool = False,
    ) -> None:
        world = self.world
        now = world.now
        if self.hangs_until > now:
            world.cover("node hang", client.step(op))
            world.at(self.hangs_until, self.arrive, client, task, ticket, op, gives_up_at, copy)
            if gives_up_at < self.hangs_until:
                world.at(gives_up_at, client.deliver, task, ticket, None, OutcomeUnknown(TIMED_OUT))
            return
        if self.down:
            world.cover("node down", client.step(op))
            if self.down == "silent":
                world.at(max(gives_up_at, now), client.deliver, task, ticket, None, OutcomeUnknown(TIMED_OUT))
            else:
                delay = client.links[self].delay()
                world.at(now + delay, client.deliver, task, ticket, None, NotApplied("connection refused"))
            return
        if task.ticket != ticket or not client.alive:
            world.cover("copy" if copy else "late", client.step(op))
        link = client.links[self]
        if gives_up_at >= link.newest:
            link.newest = gives_up_at  # the same time after each was sent
        elif not copy:
            world.cover("overtaken", client.step(op))
        reply = self.perform(op)
        arrives = now + link.delay()
        if link.troubled:
            delays, hits = link.fate(False, now)
            for hit in hits:
                world.cover(hit + " of the reply", client.step(op))
            arrives = now + delays[0] if delays else inf
            for delay in delays[1:]:
                world.at(now + delay, client.deliver, task, ticket, reply, None)
        if arrives <= gives_up_at:
            world.at(arrives, client.deliver, task, ticket, reply, None)
        else:
            world.at(max(gives_up_at, now), client.deliver, task, ticket, None, OutcomeUnknown(TIMED_OUT))

    def perform(self, op: Any) -> Any:
        """An ``Ask``: run what was sent."""
        return op.call()


class Node(Server):
    """A store of records, moved by the rules as they stand, by the node's own clocks."""

    def __init__(
        self,
        world: World,
        label: str,
        clock: Clock,
        wall: Clock,
        hands_over: Literal["", "silently", "by message"] = "",
    ) -> None:
        super().__init__(world, label)
        self.hands_over = hands_over
        """By message: the successor is notified of its grant, and need not ask."""
        self.clock = clock
        self.wall = wall
        self.records: dict[str, Record] = {}
        self._rule = handoff.apply if hands_over else transitions.apply
        self._rule_in_order = transitions.apply_in_order

    def now(self) -> float:
        return self.clock.read(self.world.now)

    def wall_us(self) -> int:
        return int((WALL_SECONDS + self.wall.read(self.world.now)) * 1_000_000)

    def perform(self, op: Any) -> Any:
        if op.__class__ is Apply:
            return self.apply(op.name, op.request)
        if op.__class__ is RenewBatch:
            return [self.apply(name, request) for name, request in op.steps]
        if op.__class__ is ApplyInOrder:
            return self.apply_in_order(op)
        if op.__class__ is ListNames:
            return self.list_names(op.prefix)
        return super().perform(op)

    def apply(self, name: str, request: Request) -> Reply:
        record = self.records.get(name, EMPTY)
        step = self._rule(record, request, self.now(), self.wall_us())
        if step.record is not record or step.wake:
            self.store(name, record, request, step)
        return step.reply

    def store(self, name: str, before: Record, request: Request, step: transitions.Step) -> None:
        if step.record is not before:
            self.records[name] = step.record
            world = self.world
            world.trace.append(Changed(world.now, name, before, step.record, request, step.reply, step.wake))
        for wake in step.wake:
            self.wake(wake if self.hands_over == "by message" else wake._replace(handed=None))

    def apply_in_order(self, op: ApplyInOrder) -> list[Reply]:
        given = {name: self.records.get(name, EMPTY) for name, _ in op.steps}
        done = self._rule_in_order(given, op.steps, self.now(), self.wall_us(), op.stop_when_refused)
        for (name, request), step in zip(op.steps, done, strict=False):
            self.store(name, self.records.get(name, EMPTY), request, step)
        return [step.reply for step in done]

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        reported = []
        for name in sorted(self.records):
            if name.startswith(prefix):
                snapshot = self.look(name)
                if not (is_idle(snapshot.record) and snapshot.record.value is None):
                    reported.append((name, snapshot))
        return reported

    def look(self, name: str) -> Snapshot:
        reply = self._rule(self.records.get(name, EMPTY), Inspect(), self.now(), self.wall_us()).reply
        assert isinstance(reply, Snapshot)
        return reply

    def wake(self, wake: Wake) -> None:
        """A wake-up is a message like any other: it may be late, lost, or come twice."""
        world = self.world
        client = world.by_id.get(wake.client)
        if client is None or not client.alive:
            return
        link = client.links[self]
        if not link.troubled:
            world.at(world.now + link.delay(), client.woken, wake.nonce, wake.handed)
            return
        delays, hits = link.fate(False, world.now)
        for hit in hits:
            world.cover(hit, "wake-up")
        for delay in delays:
            world.at(world.now + delay, client.woken, wake.nonce, wake.handed)

    def forget(self, back_to: float = -inf) -> None:
        """Lose everything, or what changed since ``back_to``: a crash with nothing, or not all, on disk."""
        world = self.world
        if back_to == -inf:
            self.records.clear()
        else:
            for event in reversed(world.trace):
                if event.at < back_to or event.__class__ is Forgot:
                    break
                if isinstance(event, Changed):
                    self.records[event.name] = event.before
        world.trace.append(Forgot(world.now, back_to))
