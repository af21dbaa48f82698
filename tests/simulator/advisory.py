"""The session engine for the simulation driver: the shipped scripts, over connections in virtual time.

It does what the other two drivers do with these operations; where they differ, machines take after one or the
other. Only for tests.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from holdfast.core.effects import Apply, ApplyInOrder, Listen, ListNames, NotApplied, RenewBatch, Unlisten
from holdfast.engines.postgres.advisory import desk as told
from holdfast.engines.postgres.advisory import holding, requests
from holdfast.engines.postgres.advisory.beginning import NEW_IDLE_MS
from holdfast.engines.postgres.advisory.calls import Calls
from holdfast.engines.postgres.advisory.desk import (
    Ask,
    Close,
    Desk,
    Ended,
    Finish,
    Glance,
    Open,
    Rest,
    Session,
    Start,
)
from holdfast.engines.postgres.link import INTERRUPTED, LinkLost, ServerError
from holdfast.rules.requests import Watch

from .client import GIVING_BACK, SimulatedWakeup, Task
from .session_functions import Rows, name_of
from .sessions import Connection, SessionServer
from .trace import LetGo
from .translating import Hurried, TranslatingClient

__all__ = ["SessionsClient"]

SESSION_OPS: Final = (Open, Start, Finish, Glance, Ask, Rest, Close)

AT_ONCE_SECONDS: Final = 0.001
TICK_SECONDS: Final = 0.25

SWALLOWED: Final = 1
"""An interrupt came while its answer was read: nobody will know what it was."""


class Line:
    """The client's end of a connection, and who wants to say something there."""

    __slots__ = ("connection", "opens", "session", "turns")

    def __init__(self, connection: Connection, opens: tuple[Task, int]) -> None:
        self.connection = connection
        self.opens: tuple[Task, int] | None = opens
        """Who asked for it, until it is there."""
        self.session: Session | None = None
        self.turns: deque[tuple[Task, int, Start]] = deque()


class SessionsClient(TranslatingClient):
    """One incarnation of a client process."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.desk = Desk(
            Calls("holdfast", "simulated"), self.post, self._hang_up, self.local, self.client_state.io_timeout
        )
        self._lines: list[Line] = []
        self._ticks = False
        self._chance = self.world.stream("driver", self.machine, self.incarnation)
        self._asking = self.sending
        self._acts[Open] = self._open_session
        self._acts[Start] = self._start
        self._acts[Finish] = lambda task, op: self._await_end(task, op.task, op.seconds)
        self._acts[Glance] = self._glance
        self._acts[Ask] = self._send
        self._acts[Rest] = lambda task, op: self._deliver_in(op.seconds, task, True)
        self._acts[Close] = self._close
        self._at_once[Listen] = self._hear_of
        self._at_once[Unlisten] = self._stop_hearing_of

    @property
    def server(self) -> SessionServer:
        assert isinstance(self.node, SessionServer)
        return self.node

    def step(self, op: Any) -> str:
        if isinstance(op, Start):
            return f"say {name_of(op.task.call)}"
        if isinstance(op, Finish | Glance):
            return f"hear {name_of(op.task.call)}"
        if isinstance(op, Ask):
            return f"ask {name_of(op.call)}"
        if isinstance(op, Open):
            return "session opens"
        if isinstance(op, Close):
            return "session closes"
        return super().step(op)

    # --- what an adapter does -------------------------------------------------------------------

    async def _answer(self, op: Any) -> Any:
        if op.__class__ is Apply:
            if op.request.__class__ in GIVING_BACK:
                how = op.request.__class__.__name__
                self.world.trace.append(LetGo(self.world.now, self.id, op.request.nonce, how))
            if op.request.__class__ is Watch and not self._ticks:
                self._ticks = True
                self._tick()
            return await requests.apply(self.desk, op.name, op.request)
        if op.__class__ is RenewBatch:
            return await holding.renew_batch(self.desk, op.steps)
        if op.__class__ is ApplyInOrder:
            return await requests.apply_in_order(self.desk, op.steps, op.stop_when_refused)
        if op.__class__ is ListNames:
            return await holding.list_names(self.desk, op.prefix)
        return await op

    def _hear_of(self, op: Listen) -> None:
        self.boxes[op.nonce] = SimulatedWakeup()

    def _stop_hearing_of(self, op: Unlisten) -> None:
        self.boxes.pop(op.nonce, None)
        self.desk.watching.discard(op.nonce)

    def _tick(self) -> None:
        """Those look who watch a name."""
        if self.alive:
            if self.paused_until <= self.world.now:
                for nonce in list(self.desk.watching):
                    self.post(nonce)
            self.world.at(self.world.now + TICK_SECONDS, self._tick)

    # --- running --------------------------------------------------------------------------------

    def _advance(self, task: Task, reply: Any, trouble: BaseException | None) -> None:
        if reply is None and trouble is None and task.op.__class__ in SESSION_OPS:
            trouble = Hurried()  # interrupted while it cleans up
        super()._advance(task, reply, trouble)
        if task.label == "keeper":
            self._tell_deadlines()

    def _strike(self, task: Task, op: Any) -> tuple[Any, BaseException | None]:
        """An interrupt comes before it is done, or after; and one that strikes a thread may do so while it
        reads an answer."""
        done = self._chance.random() < 0.5
        self.sending = (*self._asking, *SESSION_OPS) if done else self._asking
        reply, trouble = super()._strike(task, op)
        if isinstance(op, Start | Finish | Glance) and self.throws_again and self._chance.random() < 0.3:
            op.task.wants = SWALLOWED
        return reply, trouble

    def _deliver_in(
        self, seconds: float, task: Task, reply: Any, trouble: BaseException | None = None
    ) -> None:
        """By the local clock."""
        when = self.world.now + max(seconds, 0.0) / self.clock.rate
        self.world.at(when, self.deliver, task, task.ticket, reply, trouble)

    # --- sessions -------------------------------------------------------------------------------

    def _open_session(self, task: Task, op: Open) -> None:
        connection = Connection(self.server, self, self._heard)
        line = connection.line = Line(connection, (task, task.ticket))
        self._lines.append(line)
        connection.open(NEW_IDLE_MS)
        self.world.at(self.world.now + self.io_seconds, self._not_opened, line)

    def _not_opened(self, line: Line) -> None:
        if line.session is None and self.alive:
            if self.paused_until > self.world.now:
                self.world.at(self.paused_until, self._not_opened, line)
            else:
                self._cannot_open(line, "no answer in time")

    def _cannot_open(self, line: Line, why: str) -> None:
        line.connection.close()
        self._drop(line)
        if line.opens is not None:
            (task, ticket), line.opens = line.opens, None
            self.deliver(task, ticket, None, NotApplied(f"PostgreSQL cannot be reached: {why}"))

    def _drop(self, line: Line) -> None:
        if line in self._lines:
            self._lines.remove(line)

    def _session_opened(self, line: Line, pid: int) -> None:
        if line.opens is None:
            return
        (task, ticket), line.opens = line.opens, None
        if task.ticket != ticket:
            line.connection.close()  # who wanted it was interrupted
            self._drop(line)
            return
        line.session = Session(line, pid)
        self.deliver(task, ticket, line.session, None)

    def _hang_up(self, session: Session) -> None:
        line: Line = session.line
        line.connection.close()
        self._drop(line)
        current = session.current
        if self.throws_again and current is not None and not current.done:
            self._statement_ended(session, current, None, LinkLost("the connection was closed"))

    def _close(self, task: Task, op: Close) -> None:
        self._hang_up(op.session)
        self._deliver_in(0.0, task, True)

    # --- statements -----------------------------------------------------------------------------

    def _start(self, task: Task, op: Start) -> None:
        line: Line = op.session.line
        if op.session.is_busy or line.turns:
            line.turns.append((task, task.ticket, op))
            self._deliver_in(op.seconds, task, None, TimeoutError())
        else:
            self._begin(task, task.ticket, op)

    def _begin(self, task: Task, ticket: int, op: Start) -> None:
        session, statement, _ = op
        connection: Connection = session.line.connection
        at = self.world.now
        if session.dead or not connection.is_open:
            self.world.at(at, self.deliver, task, ticket, None, Ended(session.why or "it ended"))
            return
        session.current = statement
        connection.say(self.step(op), statement.call)
        self.world.at(at, self.deliver, task, ticket, True, None)

    def _await_end(self, task: Task, statement: told.Task, seconds: float) -> None:
        session_of(task.op).see_unsent(statement)
        if statement.done:
            self._deliver_in(0.0, task, True)
        else:
            statement.onlookers.append((task, task.ticket))
            self._deliver_in(seconds, task, False)

    def _glance(self, task: Task, op: Glance) -> None:
        self._await_end(task, op.task, AT_ONCE_SECONDS if op.first else 0.0)

    def _statement_ended(
        self, session: Session, statement: told.Task, result: Rows | None, error: Exception | None
    ) -> None:
        if statement.wants == SWALLOWED and not isinstance(error, LinkLost):
            result, error = None, ServerError(INTERRUPTED, "a signal came in the middle of it")
        statement.end(result, error)  # type: ignore[arg-type]  # a result as far as anybody looks at it
        if isinstance(error, LinkLost) and not self.throws_again:
            self.desk.lost(session, str(error))  # a loop hears it; a thread that asks finds out by itself
        watched = [(task, ticket) for task, ticket in statement.onlookers if task.ticket == ticket]
        if statement.nonce and not watched:
            self.desk.post(statement.nonce)
        for task, ticket in watched:
            self.world.at(self.world.now, self.deliver, task, ticket, True, None)
        line: Line = session.line
        while line.turns and not session.is_busy:
            task, ticket, op = line.turns.popleft()
            if task.ticket == ticket:
                self._begin(task, ticket, op)

    # --- what comes -----------------------------------------------------------------------------

    def _heard(self, connection: Connection, kind: str, *facts: Any) -> None:
        line: Line = connection.line
        if kind == "hello":
            self._session_opened(line, *facts)
        elif line.session is None:
            self._cannot_open(line, *facts)
        elif kind == "over":
            self._session_over(connection, line.session, *facts)
        elif kind == "told":
            self._told(*facts)
        elif line.session.current is not None and not line.session.current.done:
            result = facts[0] if kind == "answer" else None
            error = ServerError(*facts) if kind == "error" else None
            self._statement_ended(line.session, line.session.current, result, error)

    def _session_over(self, connection: Connection, session: Session, why: str) -> None:
        connection.is_open = False
        current = session.current
        if current is not None and not current.done:
            self._statement_ended(session, current, None, LinkLost(why))
        elif not self.throws_again or session.waiter is not None or session.held:
            self.desk.lost(session, why)  # of one that nobody needs a thread hears when it wants it

    def _told(self, nonce: str) -> None:
        if nonce in self.desk.mine and nonce not in self.desk.told:
            self.desk.told.add(nonce)
            self.desk.post(nonce)

    def crash(self) -> None:
        super().crash()
        for line in self._lines:
            line.connection.close()


def session_of(op: Any) -> Session:
    session: Session = op.session
    return session
