"""A database server with sessions: connections that carry advisory locks for as long as they live.

Messages on a connection arrive once and in order, or the connection ends; either end may notice that late, or
never. A statement takes time, in steps: it can wait for a lock in the server's own queue, and it can be
cancelled between any two steps; a lock that it took stays then. Its writes count when it ends. The SQL
functions are in ``session_functions``, the advisory locks in ``session_locks``.

The state of a name is also traced as a record, so that the checkers of records check these traces too.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final

from holdfast.rules.record import EMPTY
from holdfast.rules.requests import Done, Inspect, Reply, Request, Withdraw

from .faults import Fault, inject
from .servers import Node
from .session_functions import Functions
from .session_locks import Backend, Locks, SqlError
from .trace import Changed, Forgot

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .world import Clock, World

__all__ = ["SESSION_KINDS", "Connection", "SessionServer", "inject_sessions"]

SESSION_KINDS: Final = ("cut", "terminate", "cancel")
"""A cut breaks all connections of a client; terminate ends one of its processes in the server; cancel has the
server cancel its statements, with the probability ``amount``, for ``duration``."""

CRASHES: Final = ("node crash", "node rollback")

STEP_SECONDS: Final = 0.001
"""How long most steps of a statement take at most."""

LONG_STEP_SECONDS: Final = 0.08
LONG_STEPS: Final = 0.04
"""The share of steps that take longer: a page is read, a row is locked."""

SIGNAL_SECONDS: Final = 0.002
CHECK_SECONDS: Final = 1.0
"""How often the server process of a waiter checks its client's connection."""

SEND_AGAIN_SECONDS: Final = 0.2
SEND_AGAIN_SECONDS_MAX: Final = 0.8
KEEPALIVE_SECONDS: Final = 10.0
"""How often the client's machine probes the connection."""

FIRST_PROCESS: Final = 100
"""Process ids begin here, also after a restart: they are used again."""

CANCELLED: Final = ("error", "57014", "canceling statement due to user request")
TERMINATED: Final = "terminating connection due to administrator command"
IDLE: Final = "terminating connection due to idle-session timeout"
RESET: Final = "Connection reset by peer"
TIMED_OUT: Final = "Connection timed out"


class Connection:
    """Both directions between a client and a process of the server, in order."""

    __slots__ = ("_latest", "backend", "client", "client_end", "is_open", "receive", "server")

    def __init__(self, server: SessionServer, client: SimulatedClient, receive: Callable[..., None]) -> None:
        self.server = server
        self.client = client
        self.receive = receive
        self.is_open = True
        """At the client's end."""
        self.backend: Backend | None = None
        self.client_end: Any = None
        """The client's own."""
        self._latest = [0.0, 0.0]

    def send(self, outward: bool, step: str, call: Callable[..., None], *arguments: Any) -> None:
        """Lost packets are sent again; a client's machine gives up after its time limit."""
        world = self.server.world
        arrives, hits = self._crossing(outward, world.now)
        for hit in hits:
            world.cover(hit if outward else f"{hit} of the reply", step)
        arrives = max(arrives, self._latest[outward])
        self._latest[outward] = arrives
        if outward and self.client.links[self.server].troubled:
            limit = world.now + self.client.io_seconds
            known, _ = self._crossing(False, arrives)
            if known > limit:
                world.at(limit, self._arrive, "over", TIMED_OUT)
            if arrives > limit and call != self.server.left:
                return
        world.at(arrives, self.server.reach, self, call, *arguments) if outward else world.at(
            arrives, call, *arguments
        )

    def _crossing(self, outward: bool, at: float) -> tuple[float, list[str]]:
        """When a message arrives, and the faults that delayed it."""
        link = self.client.links[self.server]
        if not link.troubled:
            return at + link.delay(), []
        delays, hits = link.fate(outward, at)
        pause = SEND_AGAIN_SECONDS
        while not delays:
            at += pause
            pause = min(pause * 2, SEND_AGAIN_SECONDS_MAX)
            delays, _ = link.fate(outward, at)
        return at + delays[0], hits

    def open(self, idle_ms: int) -> None:
        self.server.world.at(self.server.world.now + KEEPALIVE_SECONDS, self._probe)
        self.send(True, "session opens", self.server.connected, self, idle_ms)

    def send_statement(self, step: str, call: Any) -> None:
        self.send(True, step, self.server.said, self, call)

    def close(self) -> None:
        """From the client's end; the server is notified."""
        if self.is_open:
            self.is_open = False
            self.send(True, "session closes", self.server.left, self, False)

    def _probe(self) -> None:
        """The keep-alive of the machines, which goes on while the client is paused."""
        if self.is_open and self.client.alive:
            world = self.server.world
            if self.server.down == "silent":
                world.at(world.now + self.client.io_seconds, self._arrive, "over", TIMED_OUT)
            elif self.backend is None:
                self.reset()
            world.at(world.now + KEEPALIVE_SECONDS, self._probe)

    def tell(self, step: str, *message: Any) -> None:
        self.send(False, step, self._arrive, *message)

    def reset(self) -> None:
        """Tell the client that the connection does not exist at the server."""
        self.tell("session ends", "over", RESET)

    def _arrive(self, *message: Any) -> None:
        client = self.client
        if not self.is_open or not client.alive:
            if message[0] != "over":
                self.send(True, "session ends", self.server.left, self, True)
        elif client.paused_until > client.world.now:
            client.world.at(client.paused_until, self._arrive, *message)
        else:
            if message[0] == "over":
                self.server.cuts.append((client.world.now, client.id))
            self.receive(self, *message)


class SessionServer(Node):
    """Processes, their locks, and the tables; ``functions`` are what can be called."""

    def __init__(self, world: World, label: str, clock: Clock, wall: Clock) -> None:
        super().__init__(world, label, clock, wall)
        self.backends: dict[int, Backend] = {}
        self.locks = Locks(self._got_it)
        self.functions = Functions(self)
        self.severed: dict[tuple[str, int], float] = {}
        """(name, token) → when the server lost the session that held it, without a fault of its client."""
        self.cuts: list[tuple[float, str]] = []
        """(at, client) of all connections whose end a client noticed."""
        self.cancels: dict[str, tuple[float, float]] = {}
        """Client → until when its statements are cancelled, and with which probability."""
        self._chance = world.stream("server")
        self._next_process = FIRST_PROCESS

    # --- connections ----------------------------------------------------------------------------

    def reach(self, connection: Connection, call: Callable[..., None], *arguments: Any) -> None:
        """A message arrives; a machine that is down does not answer."""
        world = self.world
        if self.down == "silent":
            if call != self.left:
                world.at(world.now + connection.client.io_seconds, connection._arrive, "over", TIMED_OUT)
        elif self.down:
            connection.reset()
        elif self.hangs_until > world.now:
            world.at(self.hangs_until, self.reach, connection, call, *arguments)
        else:
            call(*arguments)

    def connected(self, connection: Connection, idle_ms: int) -> None:
        backend = Backend(self._next_process, connection)
        backend.idle_ms = idle_ms
        self._next_process += 1
        self.backends[backend.pid] = backend
        connection.backend = backend
        self._is_idle(backend)
        connection.tell("session opens", "hello", backend.pid)

    def said(self, connection: Connection, call: Any) -> None:
        backend = connection.backend
        if backend is None:
            connection.reset()
        elif backend.statement is not None:
            backend.inbox.append(call)
        else:
            self._begin(backend, call)

    def left(self, connection: Connection, broken: bool, looked: bool = False) -> None:
        """The client closed the connection or died. A busy process notices that at its next check."""
        backend = connection.backend
        if backend is None:
            return
        if backend.statement is None or looked:
            self.end(backend, "", severed=broken)
        else:
            self.world.at(
                self.world.now + CHECK_SECONDS, self.reach, connection, self.left, connection, broken, True
            )

    def end(self, backend: Backend, why: str, severed: bool = True) -> None:
        """End a session with its locks. ``severed``: its client could not know beforehand."""
        if not backend.alive:
            return
        if severed:
            for token in self.functions.tokens_of(backend):
                self.severed.setdefault(token, self.world.now)
        backend.alive = False
        backend.connection.backend = None
        del self.backends[backend.pid]
        keys = self.locks.end(backend)
        taking, backend.taking = backend.taking, None
        names = {self.functions.names[key]: None for key in keys}
        if taking is not None:
            names[taking[0]] = None
        for name in names:
            self.changed(name, Inspect())
        if why:
            backend.connection.tell("session ends", "over", why)

    # --- statements -----------------------------------------------------------------------------

    def _begin(self, backend: Backend, call: Any) -> None:
        backend.statement, backend.step = self.functions.statement(backend, call)
        backend.cancelled = False
        backend.sets_idle_ms = None
        self._later(backend)

    def _later(self, backend: Backend) -> None:
        chance = self._chance
        seconds = LONG_STEP_SECONDS if chance.random() < LONG_STEPS else STEP_SECONDS
        backend.turn += 1
        self.world.at(self.world.now + seconds * chance.random(), self._step, backend, backend.turn)

    def _step(self, backend: Backend, turn: int) -> None:
        if not backend.alive or backend.turn != turn or backend.statement is None:
            return
        if self.hangs_until > self.world.now:
            self.world.at(self.hangs_until, self._step, backend, turn)
            return
        if self._is_cancelled(backend):
            self._over(backend, CANCELLED)
            return
        try:
            wanted = next(backend.statement)
        except StopIteration as end:
            if backend.sets_idle_ms is not None:
                backend.idle_ms = backend.sets_idle_ms
            self._over(backend, ("answer", end.value))
        except SqlError as error:
            self._over(backend, ("error", error.sqlstate, str(error)))
        else:
            if wanted is None or self.locks.take(backend, wanted.key, wanted.shared, wait=True):
                self._later(backend)
            else:
                backend.wants = wanted
            if backend.taking is not None:
                self.changed(backend.taking[0], backend.taking[2])

    def _is_cancelled(self, backend: Backend) -> bool:
        until, probability = self.cancels.get(backend.client, (0.0, 0.0))
        if until > self.world.now and self._chance.random() < probability:
            backend.cancelled = True
            self.world.cover("cancel", backend.step)
        return backend.cancelled

    def _got_it(self, backend: Backend) -> None:
        """The process is granted the lock that it waited for."""
        backend.wants = None
        self._later(backend)

    def cancel(self, backend: Backend) -> None:
        """Send a signal, which may strike the next statement instead of the intended one."""
        delay = self._chance.random() * SIGNAL_SECONDS
        self.world.at(self.world.now + delay, self._signalled, backend)

    def _signalled(self, backend: Backend) -> None:
        if not backend.alive or backend.statement is None:
            return
        if self.hangs_until > self.world.now:
            self.world.at(self.hangs_until, self._signalled, backend)
            return
        backend.cancelled = True
        if backend.wants is not None:
            self._over(backend, CANCELLED)

    def _over(self, backend: Backend, message: tuple[Any, ...]) -> None:
        """A statement has ended with its transaction, successfully or not. Locks that it took stay."""
        backend.statement = None
        backend.turn += 1
        taking, backend.taking = backend.taking, None
        if backend.wants is not None:
            key, backend.wants = backend.wants.key, None
            self.locks.leave_queue(backend, key)
        if taking is not None:
            self.changed(taking[0], Withdraw(taking[1].nonce))
        backend.connection.tell(backend.step, *message)
        self._is_idle(backend)
        self.functions.touched(backend)
        if backend.inbox:
            self._begin(backend, backend.inbox.popleft())

    # --- idle sessions ----------------------------------------------------------------------------

    def _is_idle(self, backend: Backend) -> None:
        backend.idle_since = self.now()
        backend.idle_since_wall = self.wall.read(self.world.now)
        self.notify(backend)
        if backend.idle_ms:
            self._watch(backend, backend.turn)

    def expires_at(self, backend: Backend) -> float:
        """By the server's own clock; the idle time of a busy process has not begun."""
        if not backend.idle_ms:
            return inf
        since = backend.idle_since if backend.statement is None else self.now()
        return since + backend.idle_ms / 1000.0

    def _watch(self, backend: Backend, turn: int) -> None:
        """The timer depends on the wall clock, too: if that is set back, it waits longer."""
        if not backend.alive or backend.turn != turn or backend.statement is not None:
            return
        world, seconds = self.world, backend.idle_ms / 1000.0
        due = max(
            self.clock.when(backend.idle_since + seconds),
            self.wall.when(backend.idle_since_wall + seconds),
            self.hangs_until,
        )
        if due > world.now + 1e-9:
            world.at(due, self._watch, backend, turn)
        else:
            world.cover("idle", "session ends")
            self.end(backend, IDLE, severed=False)

    def notify(self, backend: Backend) -> None:
        if backend.statement is None:
            for nonce in backend.untold:
                backend.connection.tell("notification", "notification", nonce)
            backend.untold.clear()

    # --- faults -----------------------------------------------------------------------------------

    def crash(self, silent: bool, seconds: float, back_to: float) -> None:
        """All sessions are lost, and all writes since ``back_to``."""
        if self.down:
            return
        for backend in list(self.backends.values()):
            self.end(backend, "" if silent else RESET)
        self.locks.clear()
        self.functions.forget(back_to)
        if back_to < self.world.now:
            self.world.trace.append(Forgot(self.world.now, back_to))
        self._next_process = FIRST_PROCESS
        self.down = "silent" if silent else "refusing"
        self.world.at(self.world.now + seconds, self._start)

    def _start(self) -> None:
        self.down = ""

    def set_clock(self, seconds: float) -> None:
        """Set the wall clock. After a jump forward the server may take a session for idle."""
        self.wall.jump(seconds)
        for backend in list(self.backends.values()):
            silent = self.wall.read(self.world.now) - backend.idle_since_wall
            is_due = backend.idle_ms and silent >= backend.idle_ms / 1000.0
            if seconds > 0 and is_due and backend.statement is None and self._chance.random() < 0.5:
                self.end(backend, IDLE)

    def cut(self, client: SimulatedClient) -> None:
        """Break the connections of a client: each end notices it, if the packet arrives."""
        world = self.world
        for backend in [b for b in self.backends.values() if b.client == client.id]:
            connection = backend.connection
            link = client.links[self]
            for delay in link.fate(True, world.now)[0]:
                world.at(world.now + delay, self.reach, connection, self.left, connection, True)
            for delay in link.fate(False, world.now)[0]:
                world.at(world.now + delay, connection._arrive, "over", RESET)

    def terminate(self, client: SimulatedClient, which: int) -> None:
        mine = [backend for backend in self.backends.values() if backend.client == client.id]
        if mine:
            self.end(mine[which % len(mine)], TERMINATED)

    # --- records ----------------------------------------------------------------------------------

    def perform(self, op: Any) -> Any:
        """Execute a statement on a connection without locks, at once."""
        if hasattr(op.call, "statement"):
            return self.functions.at_once(op.call)
        return super().perform(op)

    def changed(self, name: str, request: Request, reply: Reply | None = None) -> None:
        """Trace a change of a record."""
        before = self.records.get(name, EMPTY)
        after = self.functions.record(name, before)
        if after != before or reply is not None:
            self.records[name] = after
            world = self.world
            world.trace.append(Changed(world.now, name, before, after, request, reply or Done(), ()))

    def look(self, name: str) -> Any:
        return self.functions.snapshot(name)


def inject_sessions(world: World, server: SessionServer, plan: list[Fault]) -> None:
    """Schedule these faults."""
    inject(world, [fault for fault in plan if fault.kind not in (*SESSION_KINDS, *CRASHES, "clock jump")])
    for fault in plan:
        if fault.kind in (*SESSION_KINDS, *CRASHES, "clock jump"):
            world.at(fault.at, _strike, world, server, fault)


def _strike(world: World, server: SessionServer, fault: Fault) -> None:
    if fault.kind in (*CRASHES, "clock jump"):
        for client in world.clients:
            client.cover_pending(fault.kind)
        if fault.kind == "clock jump":
            server.set_clock(fault.amount)
        else:
            lost = fault.amount if fault.kind == "node rollback" else 0.0
            server.crash(bool(fault.target % 2), fault.duration, world.now - lost)
        return
    client = world.clients[fault.target % len(world.clients)]
    if not client.alive:
        return
    if fault.kind == "cancel":
        server.cancels[client.id] = world.now + fault.duration, fault.amount
        return
    client.cover_pending(fault.kind)
    if fault.kind == "cut":
        server.cut(client)
    else:
        server.terminate(client, int(fault.amount))
