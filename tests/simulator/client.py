"""A simulated client process: the driver proper. It performs the operations of several scripts at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.core.effects import (
    Apply,
    ApplyInOrder,
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
from holdfast.protocols.client_state import EXITS, ClientState, LeaseState
from holdfast.protocols.keeper import deadline_loop, renewal_loop
from holdfast.protocols.reports import Reports
from holdfast.rules.requests import Acquire, Downgrade, Export, Handoff, Release, Stop, Withdraw
from holdfast.runtime.wakeups import Wakeup

from .network import Link
from .servers import TIMED_OUT, Node, Server
from .trace import Began, Copied, Crashed, LetGo, Moved, Noted, Stopped, Told
from .world import Clock

if TYPE_CHECKING:
    from .world import World

__all__ = ["Ask", "Crash", "Interrupted", "SimulatedClient", "SimulatedWakeup", "Task", "step_of"]

JUST_AFTER_SECONDS: Final = 1e-9
"""A clock is read a little after the moment one slept for: rounding must not make it a little before."""

GIVING_BACK: Final = (Release, Withdraw, Export, Downgrade, Stop)


class Interrupted(BaseException):
    """What a KeyboardInterrupt or a cancellation is elsewhere."""


class Crash(BaseException):
    """Ends the scripts of a client that is no more. Whatever they still want to do is not done."""


class Ask(NamedTuple):
    """Have another server run something when the request arrives there. For workers only."""

    server: Server
    what: str
    call: Callable[[], Any]

    def __await__(self) -> Any:
        return (yield self)


def step_of(op: Any) -> str:
    """The step of a protocol that an operation is, as the coverage table names it."""
    if op.__class__ is Apply:
        request = op.request
        if request.__class__ is Acquire:
            return "Acquire, queueing" if request.wait else "Acquire"
        return str(request.__class__.__name__)
    if op.__class__ is Ask:
        return str(op.what)
    if op.__class__ is SleepUntil:
        return f"{op.timer} dozes"
    return str(op.__class__.__name__)


class SimulatedWakeup(Wakeup):
    """Wakes one task of the simulation."""

    __slots__ = ("posted", "task")

    def __init__(self) -> None:
        super().__init__()
        self.posted = False
        self.task: Task | None = None


class Task:
    """A script under way."""

    __slots__ = ("cleaning", "countdown", "done", "label", "op", "script", "ticket", "wakeup")

    def __init__(self, script: ProtocolCoroutine[Any], label: str) -> None:
        self.script = script
        self.label = label
        self.ticket = 0
        """Changes whenever it goes on: what was meant for an earlier stop no longer reaches it."""
        self.op: Any = None
        """What it waits for; None: it is running, or has ended."""
        self.wakeup: SimulatedWakeup | None = None
        self.countdown = 0
        """Operations until an interrupt strikes; 0: none is coming."""
        self.cleaning = False
        """It was interrupted and is cleaning up."""
        self.done = False


class TracingBook(ClientState):
    """A book that tells of every grant."""

    __slots__ = ("tell",)

    tell: Callable[[LeaseState], None]

    def add(self, state: LeaseState) -> None:
        ClientState.add(self, state)
        self.tell(state)


class SimulatedReports(Reports):
    """What no engine should raise is a failure of the schedule."""

    __slots__ = ("_client",)

    def __init__(self, client: SimulatedClient) -> None:
        super().__init__()
        self._client = client

    def unexpected(self, what: str, error: BaseException) -> None:
        self._client.world.failures.append(f"{self._client.id} {what}: {error!r}")

    def warn(self, message: str) -> None:
        """Trouble is what a schedule is for."""

    inform = warn


class SimulatedClient:
    """One incarnation of a client process on its machine."""

    def __init__(
        self,
        world: World,
        machine: int,
        incarnation: int,
        clock: Clock,
        links: dict[Server, Link],
        io_timeout: float,
        linger: float,
        throws_again: bool,
    ) -> None:
        self.world = world
        self.machine = machine
        self.incarnation = incarnation
        self.id = f"c{machine}.{incarnation}"
        self.clock = clock
        self.wall = Clock(0.0, 1.0)
        """What stands on the wall, since the world began; a family that looks at it has its machine's."""
        self.links = links
        self.node: Node = world.node
        self.io_seconds = io_timeout / clock.rate
        self.throws_again = throws_again
        """A second interrupt is thrown into what is cleaning up, as on threads; else it only hurries it."""
        self.alive = True
        self.paused_until = 0.0
        self.tasks: dict[str, Task] = {}
        self._running: Task | None = None
        self.wakeups: dict[str, SimulatedWakeup] = {}
        self.timer_wakeups: dict[TimerName, SimulatedWakeup] = {
            "keeper": SimulatedWakeup(),
            "timer": SimulatedWakeup(),
        }
        self._nonces = 0
        self._states: dict[str, LeaseState] = {}
        self._deadlines: dict[str, float] = {}
        self._acts: dict[type, Callable[[Task, Any], None]] = {
            Apply: self._apply,
            RenewBatch: self._send,
            ApplyInOrder: self._apply,
            ListNames: self._send,
            Ask: self._send,
            Wait: self._wait,
            SleepUntil: self._sleep_until,
            Pause: self._pause,
        }
        self.sending: tuple[type, ...] = (Apply, RenewBatch, ApplyInOrder, ListNames, Ask)
        """Operations that may have been sent by the time an interrupt strikes."""
        self._at_once: dict[type, Callable[[Any], Any]] = {
            Now: lambda op: self.local(),
            Nonce: lambda op: self._new_nonce(),
            Listen: self._listen,
            Unlisten: self._unlisten,
            Notify: lambda op: self.post(op.nonce),
            Signal: self._signal,
        }
        self.client_state = TracingBook(
            self.id,
            io_timeout,
            linger,
            self.ring,
            self._tell_time_at_once,
            self._name_at_once,
            reports=SimulatedReports(self),
            exits=(*EXITS, Crash, Interrupted),
        )
        self.client_state.tell = self._granted
        world.by_id[self.id] = self

    def local(self) -> float:
        return self.clock.read(self.world.now)

    def note(self, what: str, *facts: Any) -> None:
        if self.alive:
            self.world.trace.append(Noted(self.world.now, self.id, what, facts))

    def step(self, op: Any) -> str:
        return step_of(op)

    # --- running scripts ------------------------------------------------------------------------

    def start(self, script: ProtocolCoroutine[Any], label: str) -> Task:
        task = Task(script, label)
        self.tasks[label] = task
        self.world.at(self.world.now, self.deliver, task, 0, None, None)
        return task

    def deliver(self, task: Task, ticket: int, reply: Any, trouble: BaseException | None) -> None:
        """Let a script go on, unless it has gone on already; after a pause if there is one."""
        if task.ticket != ticket or not self.alive:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self.deliver, task, ticket, reply, trouble)
            return
        self._advance(task, reply, trouble)

    def _advance(self, task: Task, reply: Any, trouble: BaseException | None) -> None:
        self._running = task
        task.ticket += 1
        tended = task.op.__class__ is RenewBatch
        task.op = None
        send, throw = task.script.send, task.script.throw
        acts, at_once, world = self._acts, self._at_once, self.world
        base, rate = self.clock.base, self.clock.rate
        try:
            while True:
                op: Any
                if trouble is None:
                    op = send(reply)
                else:
                    error, trouble = trouble, None
                    op = throw(error)
                kind = op.__class__
                if task.countdown:
                    task.countdown -= 1
                    if not task.countdown:
                        reply, trouble = self._strike(task, op)
                        continue
                if kind is Now:
                    reply = base + rate * world.now
                    continue
                act = acts.get(kind)
                if act is None:
                    try:
                        reply = at_once[kind](op)
                    except Exception as failure:
                        trouble = failure
                    continue
                task.op = op
                act(task, op)
                break
        except StopIteration:
            self._ended(task)
        except Interrupted:
            self._ended(task)
        except Exception as stray:
            self._ended(task)
            self.world.failures.append(f"{self.id} {task.label}: {stray!r}")
        self._running = None
        if tended:
            self._tell_deadlines()

    def _ended(self, task: Task) -> None:
        task.done = True
        task.op = None
        self.tasks.pop(task.label, None)

    def _strike(self, task: Task, op: Any) -> tuple[Any, BaseException | None]:
        """An interrupt comes while an operation is under way: a request may have been sent already."""
        self.world.cover("interrupt", self.step(op))
        if op.__class__ in self.sending:
            task.op = op
            self._acts[op.__class__](task, op)
            task.ticket += 1
            task.op = None
        act = self._at_once.get(op.__class__)
        if task.cleaning and not self.throws_again:
            return (act(op) if act is not None else None), None
        if op.__class__ is Unlisten and act is not None:
            act(op)  # one step of the interpreter: it comes before or after, and before was the step before
        task.cleaning = True
        return None, Interrupted()

    def interrupt(self, after: int) -> None:
        """Interrupt one of the workers: the one whose turn it is by the number."""
        workers = [task for label, task in self.tasks.items() if label.startswith("worker")]
        if not workers:
            return
        task = workers[after % len(workers)]
        after //= len(workers)
        if after > 0 or task.op is None:
            task.countdown = max(after, 1)
        elif self.paused_until <= self.world.now:
            self.world.cover("interrupt", self.step(task.op))
            if task.wakeup is not None:
                task.wakeup.task = None
                task.wakeup = None
            if task.cleaning and not self.throws_again:
                self._advance(task, None, None)
            else:
                task.cleaning = True
                self._advance(task, None, Interrupted())

    # --- operations that take time --------------------------------------------------------------

    def _apply(self, task: Task, op: Apply | ApplyInOrder) -> None:
        self.note_what_is_let_go(op)
        self._send(task, op)

    def note_what_is_let_go(self, op: Apply | ApplyInOrder) -> None:
        """From the moment it sends them, a client does not count on what these requests give back."""
        for request in [op.request] if isinstance(op, Apply) else [request for _, request in op.steps]:
            if isinstance(request, GIVING_BACK):
                how = type(request).__name__
                self.world.trace.append(LetGo(self.world.now, self.id, request.nonce, how))

    def _send(self, task: Task, op: Any) -> None:
        world = self.world
        now = world.now
        server = op.server if op.__class__ is Ask else self.node
        link = self.links[server]
        gives_up_at = now + self.io_seconds
        if not link.troubled:
            world.at(now + link.delay(), server.arrive, self, task, task.ticket, op, gives_up_at)
            return
        delays, hits = link.fate(True, now)
        for hit in hits:
            world.cover(hit, self.step(op))
        for copy, delay in enumerate(delays):
            world.at(now + delay, server.arrive, self, task, task.ticket, op, gives_up_at, bool(copy))
        if len(delays) > 1:
            world.trace.append(Copied(now, op))
        if not delays or now + delays[0] > gives_up_at:
            world.at(gives_up_at, self.deliver, task, task.ticket, None, OutcomeUnknown(TIMED_OUT))

    def _pause(self, task: Task, op: Pause) -> None:
        self.world.at(
            self.world.now + op.seconds / self.clock.rate, self.deliver, task, task.ticket, None, None
        )

    def _wait(self, task: Task, op: Wait) -> None:
        self._await_wakeup(task, self.wakeups[op.nonce], op.until)

    def _sleep_until(self, task: Task, op: SleepUntil) -> None:
        self._await_wakeup(task, self.timer_wakeups[op.timer], op.until)

    def _await_wakeup(self, task: Task, wakeup: SimulatedWakeup, until: float | None) -> None:
        now = self.world.now
        if wakeup.posted:
            self.world.at(now, self._opened, task, task.ticket, wakeup)
            return
        wakeup.task = task
        task.wakeup = wakeup
        if until is not None:
            when = max(self.clock.when(until) + JUST_AFTER_SECONDS, now)
            self.world.at(when, self._opened, task, task.ticket, wakeup)

    def _opened(self, task: Task, ticket: int, wakeup: SimulatedWakeup) -> None:
        """A wake-up came, or it was waited for long enough."""
        if task.ticket != ticket or not self.alive:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, self._opened, task, ticket, wakeup)
            return
        posted, wakeup.posted, wakeup.task, task.wakeup = wakeup.posted, False, None, None
        handoff = wakeup.fetch()
        if handoff is not None:
            self._unlisten(task.op)
        self._advance(task, handoff or posted, None)

    # --- operations at once ---------------------------------------------------------------------

    def _new_nonce(self) -> str:
        self._nonces += 1
        return f"{self.id}-{self._nonces:x}"

    def _tell_time_at_once(self) -> float:
        self._pass_without_driver(Now)
        return self.local()

    def _name_at_once(self) -> str:
        self._pass_without_driver(Nonce)
        return self._new_nonce()

    def _pass_without_driver(self, kind: type) -> None:
        """What a script asks of its book is an operation all the same: an interrupt may strike here."""
        task = self._running
        if task is not None and task.countdown:
            task.countdown -= 1
            if not task.countdown:
                self.world.cover("interrupt", kind.__name__)
                if self.throws_again or not task.cleaning:
                    task.cleaning = True
                    raise Interrupted

    def _listen(self, op: Listen) -> None:
        if op.name is not None and self.node.down == "refusing":
            self.world.cover("node down", "Listen")
            raise NotApplied("connection refused")
        self.wakeups[op.nonce] = SimulatedWakeup()

    def _unlisten(self, op: Unlisten | Wait) -> None:
        self.wakeups.pop(op.nonce, None)

    def _signal(self, op: Signal) -> None:
        state: LeaseState = op.lease
        self.world.trace.append(Told(self.world.now, self.id, state, state.reason or ""))
        state.call_end_callbacks()
        for listener in state.take_loss_callbacks():
            listener()

    def woken(self, nonce: str, handoff: Handoff | None = None) -> None:
        """A wake-up arrived from the node."""
        if self.alive:
            if self.paused_until > self.world.now:
                self.world.at(self.paused_until, self.woken, nonce, handoff)
            else:
                self.post(nonce, handoff)

    def post(self, nonce: str, handoff: Handoff | None = None) -> None:
        wakeup = self.wakeups.get(nonce)
        if wakeup is None:
            self.client_state.wake_background(nonce)
        else:
            wakeup.post(handoff)
            self._open(wakeup)

    def _open(self, wakeup: SimulatedWakeup) -> None:
        wakeup.posted = True
        if wakeup.task is not None:
            self.world.at(self.world.now, self._opened, wakeup.task, wakeup.task.ticket, wakeup)

    def ring(self, timer: TimerName) -> None:
        if not self.alive:
            return
        self._open(self.timer_wakeups[timer])
        if timer not in self.tasks and not self.client_state.closing:
            self.start(
                renewal_loop(self.client_state) if timer == "keeper" else deadline_loop(self.client_state),
                timer,
            )

    # --- what it relies on ----------------------------------------------------------------------

    def _granted(self, state: LeaseState) -> None:
        if not self.alive:
            return
        deadline = self.clock.when(state.deadline)
        if self._states.get(state.nonce) is not state:
            self._states[state.nonce] = state
            self._deadlines[state.nonce] = state.deadline
            self.world.trace.append(Began(self.world.now, self.id, state, deadline, state.token))
            state.end_callbacks.append(lambda: self._over(state))
        else:
            self._tell_deadline(state)

    def _over(self, state: LeaseState) -> None:
        if state.ended is not None and self.alive:
            self.world.trace.append(LetGo(self.world.now, self.id, state.nonce, state.ended))

    def _tell_deadlines(self) -> None:
        for state in self.client_state.leases.values():
            self._tell_deadline(state)

    def _tell_deadline(self, state: LeaseState) -> None:
        if self._deadlines.get(state.nonce) != state.deadline:
            self._deadlines[state.nonce] = state.deadline
            self.world.trace.append(
                Moved(self.world.now, self.id, state.nonce, self.clock.when(state.deadline))
            )

    # --- what becomes of the process ------------------------------------------------------------

    def cover_pending(self, fault: str) -> None:
        for task in self.tasks.values():
            if task.op is not None:
                self.world.cover(fault, self.step(task.op))

    def pause(self, seconds: float) -> None:
        """Nothing moves, nothing is delivered; the clock runs on."""
        until = self.world.now + seconds
        if until > self.paused_until:
            self.cover_pending("pause")
            self.paused_until = until
            self.world.trace.append(Stopped(self.world.now, self.id, until))

    def crash(self) -> None:
        """Everything vanishes, without a word to anyone."""
        self.cover_pending("crash")
        self.world.trace.append(Crashed(self.world.now, self.id))
        self.alive = False
        self.world.past.append(self)
        self.dispose()

    def dispose(self) -> None:
        """Let go of all scripts: none of them does anything any more."""
        self.alive = False
        for task in list(self.tasks.values()):
            task.ticket += 1
            try:
                while True:
                    task.script.throw(Crash())
            except (Crash, StopIteration):
                pass
        self.tasks.clear()
