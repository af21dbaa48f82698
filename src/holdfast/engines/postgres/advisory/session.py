"""A session: one connection, with the locks that it holds or waits for, and the query that is under way.

Advisory locks stack: a session that asks twice for a key gets it twice. So a session asks for a key once at
most. It may hold many keys. A session that waits in the server's queue does nothing else, since the statement
that waits blocks it.
"""

from __future__ import annotations

from typing import Any

from psycopg.pq.abc import PGresult

from ....rules.requests import Granted
from ..codec import Call
from ..connection import INTERRUPTED, ServerError

__all__ = ["LockAttempt", "PendingQuery", "Session"]


class PendingQuery:
    """A statement that was sent on a session. Another caller than its sender may see its result."""

    __slots__ = (
        "call",
        "error",
        "events",
        "generator",
        "idle_timeout_ms",
        "is_done",
        "nonce",
        "observers",
        "result",
    )

    def __init__(self, call: Call, nonce: str = "", idle_timeout_ms: int | None = None) -> None:
        self.call = call
        self.idle_timeout_ms = idle_timeout_ms
        """The idle timeout that the statement sets for the session; None: it sets none."""
        self.nonce = nonce
        """Posted when a statement ends that waits for a lock."""
        self.is_done = False
        self.result: PGresult | None = None
        self.error: Exception | None = None
        self.generator: Any = None
        self.events = 0
        """The generator, and the events it waits for: the driver's own."""
        self.observers: list[Any] = []
        """What awaits the result: the asyncio driver's own."""

    def finish(self, result: PGresult | None, error: Exception | None) -> None:
        self.result, self.error = result, error
        self.is_done = True

    def __repr__(self) -> str:
        return f"<PendingQuery {self.call.statement.name.decode()} is_done={self.is_done}>"


class Session:
    """One connection. Its locks live as long as it does."""

    __slots__ = (
        "_confirmed_idle_timeout_ms",
        "backend_pid",
        "close_reason",
        "connection",
        "current_query",
        "held",
        "idle_timeout_ms",
        "is_closed",
        "keys",
        "last_wait",
        "waiter",
    )

    def __init__(self, connection: Any, backend_pid: int) -> None:
        self.connection = connection
        """The driver's own."""
        self.backend_pid = backend_pid
        self.idle_timeout_ms = 0
        """After so long without a statement the server is to end the session; 0: never."""
        self._confirmed_idle_timeout_ms: int | None = None
        """The timeout that the server has; None: unknown, since a statement that sets it may have failed."""
        self.keys: dict[int, LockAttempt] = {}
        """The keys that the session holds or asks for, and for which attempt."""
        self.held: dict[str, LockAttempt] = {}
        self.waiter: LockAttempt | None = None
        """The attempt that the session waits for in the server's queue."""
        self.last_wait: tuple[str, str, str] | None = None
        """Name, owner and mode of the last wait, as the server knows them: they need not be sent again."""
        self.current_query: PendingQuery | None = None
        """The last statement that was sent."""
        self.is_closed = False
        self.close_reason = ""

    def __repr__(self) -> str:
        return f"<Session {self.backend_pid}, {len(self.keys)} keys, is_closed={self.is_closed}>"

    def discard_stale(self) -> None:
        """Drop entries of attempts that left the session: an interrupt can strike between any two steps."""
        if self.keys:
            for attempt in list(self.keys.values()):
                if attempt.session is not self:
                    self.release_key(attempt)
        if self.held:
            for nonce, attempt in list(self.held.items()):
                if attempt.session is not self:
                    del self.held[nonce]
        if self.waiter is not None and self.waiter.session is not self:
            self.waiter = None

    def release_key(self, attempt: LockAttempt) -> None:
        """The key of a reader that was to replace a writer goes back to that writer."""
        if self.keys.get(attempt.key) is attempt:
            if attempt.writer is not None and attempt.writer.session is self:
                self.keys[attempt.key] = attempt.writer
            else:
                del self.keys[attempt.key]

    def can_accept(self, key: int, alone: bool) -> bool:
        """Whether the session can ask for one more key; ``alone``: with no other key beside it."""
        return not (self.is_closed or self.waiter is not None or key in self.keys or (alone and self.keys))

    @property
    def unconfirmed_idle_timeout_ms(self) -> int | None:
        """The idle timeout that the next statement has to set; None: the server has it."""
        return None if self._confirmed_idle_timeout_ms == self.idle_timeout_ms else self.idle_timeout_ms

    def mark_idle_timeout_sent(self, idle_timeout_ms: int | None) -> None:
        """The sender may not wait for the result: until it is confirmed, the next statement sets it again."""
        if idle_timeout_ms is not None:
            self._confirmed_idle_timeout_ms = None

    def mark_idle_timeout_confirmed(self, idle_timeout_ms: int | None) -> None:
        if idle_timeout_ms is not None:
            self._confirmed_idle_timeout_ms = idle_timeout_ms

    def fail_unsent(self, query: PendingQuery) -> None:
        """An interrupt may have come before the query was sent: then nothing else will send it."""
        if self.current_query is not query and not query.is_done:
            query.finish(None, ServerError(INTERRUPTED, "the statement was not sent"))

    @property
    def is_busy(self) -> bool:
        return self.current_query is not None and not self.current_query.is_done


class LockAttempt:
    """One attempt of this client to take a lock, until it is released or withdrawn."""

    __slots__ = (
        "began",
        "grant",
        "is_unwanted",
        "key",
        "mode",
        "name",
        "nonce",
        "query",
        "session",
        "ttl",
        "writer",
    )

    def __init__(self, name: str, nonce: str, key: int, mode: str, ttl: float) -> None:
        self.name, self.nonce, self.key, self.mode, self.ttl = name, nonce, key, mode, ttl
        self.session: Session | None = None
        self.query: PendingQuery | None = None
        """The statement that asks for the lock, until its result was read."""
        self.began = 0.0
        """The local clock before that statement, or before a later heartbeat: the ttl counts from here."""
        self.grant: Granted | None = None
        self.is_unwanted = False
        """It was released, but the server did not confirm that: to be done when the server answers again."""
        self.writer: LockAttempt | None = None
        """The writer that this reader is to replace, in a downgrade."""

    @property
    def is_downgrading(self) -> bool:
        """Whether a reader was to replace it, and the outcome is not known yet."""
        session = self.session
        return session is not None and session.keys.get(self.key, self) is not self
