"""The session engine for the simulation driver: the shipped coroutines, over connections in virtual time.

It performs their effects as the other two drivers do; where those differ, some machines behave like threads
and the others like an event loop.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from holdfast.core.effects import Apply, ApplyInOrder, Listen, ListNames, NotApplied, RenewBatch, Unlisten
from holdfast.engines.postgres.advisory import store
from holdfast.engines.postgres.advisory.effects import (
    AwaitResult,
    CloseSession,
    OpenSession,
    PollResult,
    Query,
    SendQuery,
    SessionEndedError,
    Sleep,
)
from holdfast.engines.postgres.advisory.handshake import NEW_SESSION_IDLE_TIMEOUT_MS
from holdfast.engines.postgres.advisory.notifications import record_broken
from holdfast.engines.postgres.advisory.pool import SessionPool
from holdfast.engines.postgres.advisory.session import PendingQuery, Session
from holdfast.engines.postgres.advisory.statements import SessionStatements
from holdfast.engines.postgres.connection import INTERRUPTED, ConnectionLostError, ServerError
from holdfast.rules.requests import Watch

from .client import SimulatedWakeup, Task
from .session_functions import Rows, name_of
from .sessions import Connection, SessionServer
from .translating import Hurried, TranslatingClient

__all__ = ["SessionsClient"]

SESSION_EFFECTS: Final = (
    OpenSession,
    SendQuery,
    AwaitResult,
    PollResult,
    Query,
    Sleep,
    CloseSession,
)

FIRST_POLL_SECONDS: Final = 0.001
TICK_SECONDS: Final = 0.25

SWALLOWED: Final = 1
"""An interrupt came while the answer was read: it is lost."""


class ClientEnd:
    """The client's end of a connection, and the queries that wait to be sent there."""

    __slots__ = ("connection", "opener", "session", "unsent")

    def __init__(self, connection: Connection, opener: tuple[Task, int]) -> None:
        self.connection = connection
        self.opener: tuple[Task, int] | None = opener
        """The task that opens it, until it is open."""
        self.session: Session | None = None
        self.unsent: deque[tuple[Task, int, SendQuery]] = deque()


class SessionsClient(TranslatingClient):
    """One incarnation of a client process."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.pool = SessionPool(
            SessionStatements("holdfast", "simulated"),
            self.post,
            self._close_connection,
            self.local,
            self.client_state.io_timeout,
        )
        self._ends: list[ClientEnd] = []
        self._is_ticking = False
        self._chance = self.world.stream("driver", self.machine, self.incarnation)
        self._sending_effects = self.sending
        self._acts[OpenSession] = self._open_session
        self._acts[SendQuery] = self._send_query
        self._acts[AwaitResult] = lambda task, op: self._await_result(task, op.query, op.seconds)
        self._acts[PollResult] = self._poll_result
        self._acts[Query] = self._send
        self._acts[Sleep] = lambda task, op: self._deliver_in(op.seconds, task, True)
        self._acts[CloseSession] = self._close
        self._at_once[Listen] = self._start_listening
        self._at_once[Unlisten] = self._stop_listening

    @property
    def server(self) -> SessionServer:
        assert isinstance(self.node, SessionServer)
        return self.node

    def step(self, op: Any) -> str:
        if isinstance(op, SendQuery):
            return f"send {name_of(op.query.call)}"
        if isinstance(op, AwaitResult | PollResult):
            return f"await {name_of(op.query.call)}"
        if isinstance(op, Query):
            return f"query {name_of(op.call)}"
        if isinstance(op, OpenSession):
            return "session opens"
        if isinstance(op, CloseSession):
            return "session closes"
        return super().step(op)

    # --- what an adapter does -------------------------------------------------------------------

    async def _answer(self, op: Any) -> Any:
        if op.__class__ is Apply:
            self.note_what_is_let_go(op)
            if op.request.__class__ is Watch and not self._is_ticking:
                self._is_ticking = True
                self._tick()
            return await store.apply(self.pool, op.name, op.request)
        if op.__class__ is RenewBatch:
            return await store.renew_batch(self.pool, op.steps)
        if op.__class__ is ApplyInOrder:
            self.note_what_is_let_go(op)
            return await store.apply_in_order(self.pool, op.steps, op.stop_when_refused)
        if op.__class__ is ListNames:
            return await store.list_names(self.pool, op.prefix)
        return await op

    def _start_listening(self, op: Listen) -> None:
        self.wakeups[op.nonce] = SimulatedWakeup()

    def _stop_listening(self, op: Unlisten) -> None:
        self.wakeups.pop(op.nonce, None)
        self.pool.watching.discard(op.nonce)

    def _tick(self) -> None:
        """Wake the watchers."""
        if self.alive:
            if self.paused_until <= self.world.now:
                for nonce in list(self.pool.watching):
                    self.post(nonce)
            self.world.at(self.world.now + TICK_SECONDS, self._tick)

    # --- running --------------------------------------------------------------------------------

    def _advance(self, task: Task, reply: Any, trouble: BaseException | None) -> None:
        if reply is None and trouble is None and task.op.__class__ in SESSION_EFFECTS:
            trouble = Hurried()  # interrupted during its clean-up
        super()._advance(task, reply, trouble)
        if task.label == "keeper":
            self._tell_deadlines()

    def _strike(self, task: Task, op: Any) -> tuple[Any, BaseException | None]:
        """An interrupt comes before an effect is performed, or after; it may strike a thread that reads
        an answer."""
        done = self._chance.random() < 0.5
        self.sending = (*self._sending_effects, *SESSION_EFFECTS) if done else self._sending_effects
        reply, trouble = super()._strike(task, op)
        if (
            isinstance(op, SendQuery | AwaitResult | PollResult)
            and self.throws_again
            and self._chance.random() < 0.3
        ):
            op.query.events = SWALLOWED
        return reply, trouble

    def _deliver_in(
        self, seconds: float, task: Task, reply: Any, trouble: BaseException | None = None
    ) -> None:
        """By the local clock."""
        when = self.world.now + max(seconds, 0.0) / self.clock.rate
        self.world.at(when, self.deliver, task, task.ticket, reply, trouble)

    # --- sessions -------------------------------------------------------------------------------

    def _open_session(self, task: Task, op: OpenSession) -> None:
        connection = Connection(self.server, self, self._receive)
        end = connection.client_end = ClientEnd(connection, (task, task.ticket))
        self._ends.append(end)
        connection.open(NEW_SESSION_IDLE_TIMEOUT_MS)
        self.world.at(self.world.now + self.io_seconds, self._not_opened, end)

    def _not_opened(self, end: ClientEnd) -> None:
        if end.session is None and self.alive:
            if self.paused_until > self.world.now:
                self.world.at(self.paused_until, self._not_opened, end)
            else:
                self._cannot_open(end, "no answer in time")

    def _cannot_open(self, end: ClientEnd, why: str) -> None:
        end.connection.close()
        self._drop(end)
        if end.opener is not None:
            (task, ticket), end.opener = end.opener, None
            self.deliver(task, ticket, None, NotApplied(f"PostgreSQL cannot be reached: {why}"))

    def _drop(self, end: ClientEnd) -> None:
        if end in self._ends:
            self._ends.remove(end)

    def _session_opened(self, end: ClientEnd, pid: int) -> None:
        if end.opener is None:
            return
        (task, ticket), end.opener = end.opener, None
        if task.ticket != ticket:
            end.connection.close()  # its opener was interrupted
            self._drop(end)
            return
        end.session = Session(end, pid)
        self.deliver(task, ticket, end.session, None)

    def _close_connection(self, session: Session) -> None:
        end: ClientEnd = session.connection
        end.connection.close()
        self._drop(end)
        current = session.current_query
        if self.throws_again and current is not None and not current.is_done:
            self._query_ended(session, current, None, ConnectionLostError("the connection was closed"))

    def _close(self, task: Task, op: CloseSession) -> None:
        self._close_connection(op.session)
        self._deliver_in(0.0, task, True)

    # --- statements -----------------------------------------------------------------------------

    def _send_query(self, task: Task, op: SendQuery) -> None:
        end: ClientEnd = op.session.connection
        if op.session.is_busy or end.unsent:
            end.unsent.append((task, task.ticket, op))
            self._deliver_in(op.seconds, task, None, TimeoutError())
        else:
            self._begin(task, task.ticket, op)

    def _begin(self, task: Task, ticket: int, op: SendQuery) -> None:
        session, query, _ = op
        connection: Connection = session.connection.connection
        at = self.world.now
        if session.is_closed or not connection.is_open:
            self.world.at(
                at, self.deliver, task, ticket, None, SessionEndedError(session.close_reason or "it ended")
            )
            return
        session.current_query = query
        connection.send_statement(self.step(op), query.call)
        self.world.at(at, self.deliver, task, ticket, True, None)

    def _await_result(self, task: Task, query: PendingQuery, seconds: float) -> None:
        session_of(task.op).fail_unsent(query)
        if query.is_done:
            self._deliver_in(0.0, task, True)
        else:
            query.observers.append((task, task.ticket))
            self._deliver_in(seconds, task, False)

    def _poll_result(self, task: Task, op: PollResult) -> None:
        self._await_result(task, op.query, FIRST_POLL_SECONDS if op.first else 0.0)

    def _query_ended(
        self, session: Session, query: PendingQuery, result: Rows | None, error: Exception | None
    ) -> None:
        if query.events == SWALLOWED and not isinstance(error, ConnectionLostError):
            result, error = None, ServerError(INTERRUPTED, "a signal interrupted the statement")
        query.finish(result, error)  # type: ignore[arg-type]  # has the methods of a result that are used
        if isinstance(error, ConnectionLostError) and not self.throws_again:
            # A loop notices the end of a connection; a thread that sends on it finds out by itself.
            self.pool.close_session(session, str(error))
        observers = [(task, ticket) for task, ticket in query.observers if task.ticket == ticket]
        if query.nonce and not observers:
            self.pool.post(query.nonce)
        for task, ticket in observers:
            self.world.at(self.world.now, self.deliver, task, ticket, True, None)
        end: ClientEnd = session.connection
        while end.unsent and not session.is_busy:
            task, ticket, op = end.unsent.popleft()
            if task.ticket == ticket:
                self._begin(task, ticket, op)

    # --- messages -------------------------------------------------------------------------------

    def _receive(self, connection: Connection, kind: str, *facts: Any) -> None:
        end: ClientEnd = connection.client_end
        if kind == "hello":
            self._session_opened(end, *facts)
        elif end.session is None:
            self._cannot_open(end, *facts)
        elif kind == "over":
            self._session_over(connection, end.session, *facts)
        elif kind == "notification":
            record_broken(self.pool, list(facts))
        elif end.session.current_query is not None and not end.session.current_query.is_done:
            result = facts[0] if kind == "answer" else None
            error = ServerError(*facts) if kind == "error" else None
            self._query_ended(end.session, end.session.current_query, result, error)

    def _session_over(self, connection: Connection, session: Session, why: str) -> None:
        connection.is_open = False
        current = session.current_query
        if current is not None and not current.is_done:
            self._query_ended(session, current, None, ConnectionLostError(why))
        elif not self.throws_again or session.waiter is not None or session.held:
            # Threads notice the end of a session without locks when they next use it.
            self.pool.close_session(session, why)

    def crash(self) -> None:
        super().crash()
        for end in self._ends:
            end.connection.close()


def session_of(op: Any) -> Session:
    session: Session = op.session
    return session
