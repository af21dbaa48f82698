"""A small driver for the shipped scripts: one clock, a dictionary of records, failures as a test writes them.

Everything is deterministic and takes no time. A request reaches the records half-way between its being sent
and its being answered, so that others can come in between, as they do over a network. What the threads and
asyncio drivers do with mailboxes and bells is done here with the same rules.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar, cast

from holdfast.core.arguments import Spec
from holdfast.core.effects import (
    Apply,
    ApplyInOrder,
    Effect,
    Listen,
    ListNames,
    Nonce,
    NotApplied,
    Notify,
    Now,
    OutcomeUnknown,
    Pause,
    ProtocolCoroutine,
    RenewBatch,
    Signal,
    SleepUntil,
    TimerName,
    Unlisten,
    Wait,
)
from holdfast.errors import EngineUnavailable
from holdfast.protocols import records
from holdfast.protocols.client_state import ClientState, LeaseState
from holdfast.protocols.keeper import deadline_loop, renewal_loop
from holdfast.rules import handoff, transitions
from holdfast.rules.record import EMPTY, Record
from holdfast.rules.requests import Handoff, Inspect, Request, Snapshot, Wake
from holdfast.rules.transitions import Step, apply, apply_in_order

T = TypeVar("T")

LATENCY_SECONDS = 0.002
IO_TIMEOUT_SECONDS = 5.0
LINGER_SECONDS = 60.0

SPEC = Spec(
    name="x",
    kind="lock",
    mode="exclusive",
    ttl=30.0,
    timeout=None,
    fair=True,
    renew=True,
    max_hold=None,
    grace=0.0,
    if_lost="raise",
)


def a_spec(name: str = "x", **changes: Any) -> Spec:
    return replace(SPEC, name=name, **changes)


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one operation on the engine."""

    error: BaseException | None = None
    """Raised in place of a reply."""
    arrives: bool = True
    """Whether the request reaches the records."""
    arrives_in: float | None = None
    """How long it is under way; the reply, or the error, does not wait for it."""
    answered_in: float | None = None
    """How long the reply takes; infinity: for ever."""


REFUSED = Fault(NotApplied("refused"), arrives=False)
LOST_REQUEST = Fault(OutcomeUnknown("no answer"), arrives=False)
LOST_REPLY = Fault(OutcomeUnknown("no answer"))
DOWN = Fault(EngineUnavailable("down for good"), arrives=False)
HANGS = Fault(arrives=False, answered_in=float("inf"))


def late_copy(seconds: float) -> Fault:
    """The caller is told nothing; the request arrives all the same, later."""
    return Fault(OutcomeUnknown("no answer"), arrives_in=seconds)


def slow_reply(seconds: float) -> Fault:
    return Fault(answered_in=seconds)


EngineOp = Apply | ApplyInOrder | RenewBatch | ListNames
ENGINE_OPS = (Apply, ApplyInOrder, RenewBatch, ListNames)
Faults = Callable[[Effect], Fault | None]


@dataclass(eq=False)
class Task(Generic[T]):
    """One script under way."""

    client: Client
    script: ProtocolCoroutine[T]
    ops: list[Effect] = field(default_factory=list)
    faults: Faults | None = None
    interrupt_at: int | None = None
    """The number of the operation at which a KeyboardInterrupt comes."""
    interrupt_after: bool = False
    """It comes when the operation has been done already."""
    done: bool = False
    value: T | None = None
    error: BaseException | None = None
    ended_at: float = 0.0
    visit: int = 0
    """Counts up whenever it goes on, so that an old alarm does not wake it again."""

    @property
    def result(self) -> T:
        """What it returned; what it raised is raised here."""
        assert self.done, f"still under way: {self.ops[-3:]}"
        if self.error is not None:
            raise self.error
        return cast(T, self.value)

    def asked(self) -> list[Request]:
        return [op.request for op in self.ops if isinstance(op, Apply)]

    def round_trips(self) -> int:
        return sum(isinstance(op, ENGINE_OPS) for op in self.ops)


class Box:
    """Remembers one wake-up."""

    def __init__(self) -> None:
        self.posted = False
        self.brought: list[Handoff | None] = []
        """By the wake-ups since the last time."""
        self.waiter: Task[Any] | None = None

    def fetch(self) -> Handoff | None:
        """One that brought nothing asks to look, whatever others brought."""
        brought, self.brought = self.brought, []
        return None if not brought or None in brought else brought[-1]


class Client:
    """One process: its book, its keeper and timer, its mailboxes."""

    def __init__(self, world: World, name: str, linger: float) -> None:
        self.world, self.name = world, name
        self.alive, self.deaf = True, False
        self.told_after = 0.0
        """How long a wake-up is under way to it."""
        self.faults: Faults | None = None
        """For every script of this client, the keeper's too."""
        self.boxes: dict[str, Box] = {}
        self.bells: dict[TimerName, Box] = {"keeper": Box(), "timer": Box()}
        self.services: dict[TimerName, Task[None]] = {}
        self.rings: list[tuple[float, TimerName]] = []
        self.signals: list[tuple[float, LeaseState]] = []
        self.count = itertools.count(1)
        self.client_state = ClientState(
            name, IO_TIMEOUT_SECONDS, linger, self.ring, self.tell_time, self.new_nonce
        )

    def tell_time(self) -> float:
        self.world.pass_without_driver(Now())
        return self.world.now

    def new_nonce(self) -> str:
        self.world.pass_without_driver(Nonce())
        return f"{self.name}-{next(self.count)}"

    def ring(self, timer: TimerName) -> None:
        self.rings.append((self.world.now, timer))
        self.world.post(self.bells[timer])
        if timer not in self.services:
            script = renewal_loop if timer == "keeper" else deadline_loop
            self.services[timer] = self.world.start(self, script(self.client_state))

    def post(self, nonce: str, handed: Handoff | None = None) -> None:
        if nonce in self.boxes:
            self.boxes[nonce].brought.append(handed)
            self.world.post(self.boxes[nonce])
        else:
            self.client_state.wake_background(nonce)

    def start(self, script: ProtocolCoroutine[T], faults: Faults | None = None) -> Task[T]:
        return self.world.start(self, script, faults)

    def run(self, script: ProtocolCoroutine[T], faults: Faults | None = None) -> T:
        """Run a script to its end and return its result."""
        return self.world.finish(self.start(script, faults)).result

    def acquire(
        self, spec: Spec = SPEC, timeout: float | None = 0.0, faults: Faults | None = None
    ) -> LeaseState:
        state = self.run(records.acquire(self.client_state, spec, f"host/1/{self.name}", timeout), faults)
        assert isinstance(state, LeaseState)
        return state

    def die(self) -> None:
        """Nothing of it goes on, from one moment to the next."""
        self.alive = False

    def tended(self) -> list[tuple[tuple[str, Request], ...]]:
        keeper = self.services.get("keeper")
        return [] if keeper is None else [op.steps for op in keeper.ops if isinstance(op, RenewBatch)]


class World:
    """The clock, the records and everyone."""

    alive: ClassVar[list[World]] = []

    def __init__(self, linger: float = LINGER_SECONDS, hands_over: bool = False) -> None:
        self.now = 1000.0
        self.linger = linger
        self.rule = handoff.apply if hands_over else transitions.apply
        """Where locks are handed over, the wake-up brings them along."""
        self.records: dict[str, Record] = {}
        self.clients: dict[str, Client] = {}
        self._ready: deque[tuple[Task[Any], Any, BaseException | None]] = deque()
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._tasks: list[Task[Any]] = []
        self._running: Task[Any] | None = None
        World.alive.append(self)

    def end(self) -> None:
        """Nobody waits for what is under way: let each script end, whatever it still wants to do."""
        for task in self._tasks:
            while not task.done:
                try:
                    task.script.throw(SystemExit())
                except BaseException:
                    task.done = True

    def client(self, name: str) -> Client:
        self.clients[name] = client = Client(self, name, self.linger)
        return client

    # --- running -------------------------------------------------------------------------------

    def start(self, client: Client, script: ProtocolCoroutine[T], faults: Faults | None = None) -> Task[T]:
        task = Task(client, script, faults=faults)
        self._tasks.append(task)
        self._ready.append((task, None, None))
        return task

    def finish(self, task: Task[T], within: float = 10_000.0) -> Task[T]:
        """Let time pass until this script has ended."""
        ends_at = self.now + within
        while not task.done and self._go_on(ends_at):
            pass
        assert task.done, f"not done in {within} s: {task.ops[-5:]}"
        return task

    def pass_time(self, seconds: float) -> None:
        ends_at = self.now + seconds
        while self._go_on(ends_at):
            pass
        self.now = ends_at

    def _go_on(self, ends_at: float) -> bool:
        """One step of somebody; False: nothing more happens by then."""
        if self._ready:
            task, value, error = self._ready.popleft()
            self._resume(task, self._woken(task, value) if isinstance(value, Box) else value, error)
            return True
        if not self._alarms or self._alarms[0][0] > ends_at:
            return False
        at, _, act = heapq.heappop(self._alarms)
        self.now = max(self.now, at)
        act()
        return True

    @staticmethod
    def _woken(task: Task[Any], box: Box) -> Handoff | bool:
        """What the wake-ups brought that came before it goes on. With the lock, listening ends."""
        op, handed = task.ops[-1], box.fetch()
        if handed is not None and isinstance(op, Wait):
            task.client.boxes.pop(op.nonce, None)
        return handed or True

    def _resume(self, task: Task[Any], value: Any, error: BaseException | None) -> None:
        if not task.client.alive or task.done:
            return
        task.visit += 1
        self._running = task
        try:
            op = task.script.throw(error) if error is not None else task.script.send(value)
        except StopIteration as end:
            task.done, task.value, task.ended_at = True, end.value, self.now
            return
        except BaseException as raised:
            task.done, task.error, task.ended_at = True, raised, self.now
            return
        finally:
            self._running = None
        assert len(task.ops) < 20_000, f"it turns in circles: {task.ops[-6:]}"
        task.ops.append(op)
        self._perform(task, op)

    def pass_without_driver(self, op: Effect) -> None:
        """What a script asks of its book counts as an operation all the same: an interrupt may come here."""
        task = self._running
        if task is not None:
            task.ops.append(op)
            if task.interrupt_at == len(task.ops) - 1:
                raise KeyboardInterrupt

    def _then(self, task: Task[Any], value: Any = None, error: BaseException | None = None) -> None:
        self._ready.append((task, value, error))

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._alarms, (when, next(self._count), act))

    # --- operations ----------------------------------------------------------------------------

    def _perform(self, task: Task[Any], op: Effect) -> None:
        if task.interrupt_at == len(task.ops) - 1:
            self._interrupt(task, op)
        elif isinstance(op, ENGINE_OPS):
            self._ask(task, op)
        else:
            self._act(task, op)

    def _interrupt(self, task: Task[Any], op: Effect) -> None:
        if task.interrupt_after:
            if isinstance(op, ENGINE_OPS):
                self._carry_out(op)
            elif isinstance(op, Listen | Unlisten | Notify):
                self._mail(task.client, op)
        self._then(task, error=KeyboardInterrupt())

    def interrupt(self, task: Task[Any]) -> None:
        """Now, while it waits for something."""
        self._then(task, error=KeyboardInterrupt())

    def _ask(self, task: Task[Any], op: EngineOp) -> None:
        fault: Fault | None = None
        for faults in (task.faults, task.client.faults):
            fault = fault or (faults(op) if faults is not None else None)
        fault = fault or Fault()
        reply: list[Any] = []
        if fault.arrives:
            # The request arrives whatever becomes of the one who sent it.
            under_way = LATENCY_SECONDS / 2 if fault.arrives_in is None else fault.arrives_in
            self.at(self.now + under_way, lambda: reply.append(self._carry_out(op)))
        answered_in = LATENCY_SECONDS if fault.answered_in is None else fault.answered_in
        if answered_in < float("inf"):
            error = fault.error
            self.at(
                self.now + answered_in,
                lambda: self._then(task, None if error else reply[0], error),
            )

    def _carry_out(self, op: EngineOp) -> Any:
        wall_us = int(self.now * 1_000_000)
        if isinstance(op, Apply):
            return self._store(op.name, self.rule(self._record(op.name), op.request, self.now, wall_us))
        if isinstance(op, RenewBatch):
            return [self._carry_out(Apply(name, request)) for name, request in op.steps]
        if isinstance(op, ApplyInOrder):
            steps = apply_in_order(self.records, op.steps, self.now, wall_us, op.stop_when_refused)
            return [self._store(name, step) for (name, _), step in zip(op.steps, steps, strict=False)]
        names = sorted(name for name in self.records if name.startswith(op.prefix))
        return [(name, self.look(name)) for name in names]

    def _record(self, name: str) -> Record:
        return self.records.get(name, EMPTY)

    def _store(self, name: str, step: Step) -> Any:
        self.records[name] = step.record
        for wake in step.wake:
            self._deliver(wake)
        return step.reply

    def _deliver(self, wake: Wake) -> None:
        client = self.clients.get(wake.client)
        if client is None or not client.alive or client.deaf:
            return
        if client.told_after:
            self.at(self.now + client.told_after, lambda: client.post(wake.nonce, wake.handed))
        else:
            client.post(wake.nonce, wake.handed)

    def look(self, name: str = "x") -> Snapshot:
        snapshot = apply(self._record(name), Inspect(), self.now, 0).reply
        assert isinstance(snapshot, Snapshot)
        return snapshot

    def _act(self, task: Task[Any], op: Effect) -> None:
        client = task.client
        if isinstance(op, Now):
            self._then(task, self.now)
        elif isinstance(op, Nonce):
            self._then(task, f"{client.name}-{next(client.count)}")
        elif isinstance(op, Pause):
            self.at(self.now + op.seconds, lambda: self._then(task))
        elif isinstance(op, Wait):
            self._await(task, client.boxes[op.nonce], op.until)
        elif isinstance(op, SleepUntil):
            self._await(task, client.bells[op.timer], op.until)
        elif isinstance(op, Signal):
            client.signals.append((self.now, op.lease))
            op.lease.call_end_callbacks()
            for listener in op.lease.take_loss_callbacks():
                listener()
            self._then(task)
        else:
            assert isinstance(op, Listen | Unlisten | Notify)
            self._mail(client, op)
            self._then(task)

    @staticmethod
    def _mail(client: Client, op: Listen | Unlisten | Notify) -> None:
        if isinstance(op, Listen):
            client.boxes[op.nonce] = Box()
        elif isinstance(op, Unlisten):
            client.boxes.pop(op.nonce, None)
        else:
            client.post(op.nonce)

    def _await(self, task: Task[Any], box: Box, until: float | None) -> None:
        if box.posted:
            box.posted = False
            self._then(task, box)
            return
        box.waiter = task
        visit = task.visit

        def give_up() -> None:
            if task.visit == visit and box.waiter is task:
                box.waiter = None
                self._then(task, False)

        if until is not None:
            self.at(until, give_up)

    def post(self, box: Box) -> None:
        if box.waiter is None:
            box.posted = True
            return
        waiter, box.waiter = box.waiter, None
        self._then(waiter, box)

    # --- what a test wants to know -------------------------------------------------------------

    def holders(self, name: str = "x") -> list[str]:
        return [holder.nonce for holder in self.look(name).record.holders]

    def queue(self, name: str = "x") -> list[str]:
        return [waiter.nonce for waiter in self.look(name).record.queue]

    def is_free(self, name: str = "x") -> bool:
        return not self.holders(name) and not self.queue(name)


def once(fault: Fault, kind: type = object, times: int = 1) -> Faults:
    """The first operations on the engine whose request is of this kind go wrong."""
    left = [times]

    def faults(op: Effect) -> Fault | None:
        request = op.request if isinstance(op, Apply) else op
        if left[0] and isinstance(request, kind):
            left[0] -= 1
            return fault
        return None

    return faults


def always(fault: Fault, kind: type = object) -> Faults:
    return once(fault, kind, times=1_000_000)
