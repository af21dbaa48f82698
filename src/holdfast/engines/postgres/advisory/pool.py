"""The sessions and lock attempts of one client.

The server decides between all attempts for a key, also between two of one client: they are on different
sessions, since a session asks for a key once at most.

Threads share a pool: what belongs together happens under its mutex, which is never held over I/O.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from ....core.effects import NotApplied
from ....rules.requests import Granted
from .session import LockAttempt, Session
from .statements import SessionStatements

__all__ = ["QUERY_CONNECTIONS_MAX", "SessionPermit", "SessionPool", "WaitQueue"]

QUERY_CONNECTIONS_MAX: Final = 2
"""How many connections without locks a client has, for queries."""

SESSIONS_MAX: Final = 20
"""How many sessions one client has at most, beside the connections of its queries."""

WAITERS_MAX: Final = 8
"""How many of them wait in the server's queue at most; further attempts wait in the client's queue."""

SESSIONS_FOR_LOAD: Final = 3
"""Up to so many sessions, one more is opened if those that fit are busy."""

SPARE_SESSIONS_MAX: Final = 2
"""How many sessions without a lock are kept."""


class SessionPermit:
    """Permission to open one more session, as long as anything refers to it."""

    __slots__ = ("__weakref__",)


class WaitQueue:
    """Attempts that want to wait in the server's queue: ``WAITERS_MAX`` do, the others wait here."""

    __slots__ = ("_mutex", "_post", "admitted", "nonces")

    def __init__(self, post: Callable[[str], None]) -> None:
        self._post = post
        self.nonces: deque[str] = deque()
        self.admitted: set[str] = set()
        """Attempts that wait in the server's queue, or are about to."""
        self._mutex = threading.RLock()  # a signal handler may call this while its own thread has it

    def admit(self, nonce: str) -> bool:
        """Whether an attempt may wait in the server's queue; otherwise it has a place here."""
        with self._mutex:
            if len(self.admitted) >= WAITERS_MAX or (self.nonces and self.nonces[0] != nonce):
                if nonce not in self.nonces:
                    self.nonces.append(nonce)
                return False
            if self.nonces:
                self.nonces.popleft()
            self.admitted.add(nonce)
        self.wake_first()
        return True

    def remove(self, nonce: str) -> None:
        if self.nonces:
            with self._mutex:
                if nonce in self.nonces:
                    self.nonces.remove(nonce)

    def wake_first(self) -> None:
        """The first attempt asks again, and finds out whether there is room."""
        if self.nonces:
            try:
                nonce = self.nonces[0]
            except IndexError:
                return
            self._post(nonce)


class SessionPool:
    """The sessions of one client, and its lock attempts by nonce."""

    def __init__(
        self,
        statements: SessionStatements,
        post: Callable[[str], None],
        close_connection: Callable[[Session], None],
        now: Callable[[], float],
        io_timeout: float,
    ) -> None:
        self.statements = statements
        self.now = now
        """The local clock."""
        self.post = post
        self._close_connection = close_connection
        self.io_timeout = io_timeout
        self.attempts: dict[str, LockAttempt] = {}
        self.sessions: list[Session] = []
        self.queue = WaitQueue(post)
        self.watching: set[str] = set()
        """Nonces that are woken now and then to look for changes."""
        self.broken: set[str] = set()
        """Nonces of this client that a notification said are broken."""
        self.unresponsive_until = 0.0
        """The server did not answer: until then it is not asked why a session ended."""
        self._permits: weakref.WeakSet[SessionPermit] = weakref.WeakSet()
        self._mutex = threading.RLock()  # a signal handler may call this while its own thread has it

    # --- sessions

    def reserve(self, attempt: LockAttempt, idle_timeout_ms: int, alone: bool) -> Session | SessionPermit:
        """A session for the attempt's key, or permission to open one. NotApplied, if there are too many."""
        with self._mutex:
            usable = []
            chosen: Session | None = None
            for session in self.sessions:
                session.discard_stale()
                if session.can_accept(attempt.key, alone):
                    usable.append(session)
                    # The session with the most keys, of those that fit and are not busy.
                    fits = not session.keys or session.idle_timeout_ms == idle_timeout_ms
                    if fits and not session.is_busy and (not chosen or len(session.keys) > len(chosen.keys)):
                        chosen = session
            if chosen is None:
                fitting = [s for s in usable if not s.keys or s.idle_timeout_ms == idle_timeout_ms]
                count = len(self.sessions) + len(self._permits)
                if count < SESSIONS_FOR_LOAD or (not fitting and count < SESSIONS_MAX):
                    permit = SessionPermit()
                    self._permits.add(permit)
                    return permit
                longer = [s for s in usable if s.idle_timeout_ms == 0 or s.idle_timeout_ms >= idle_timeout_ms]
                chosen = max(fitting or longer, key=lambda s: len(s.keys), default=None)
            if chosen is not None:
                self._assign(chosen, attempt, idle_timeout_ms, alone)
                return chosen
        raise NotApplied(f"all {SESSIONS_MAX} connections of this client hold this lock, ask for it, or wait")

    def release_permit(self, permit: Session | SessionPermit | None) -> None:
        """No session was opened with it."""
        if isinstance(permit, SessionPermit):
            with self._mutex:
                self._permits.discard(permit)

    @property
    def is_empty(self) -> bool:
        """There is no session, and none is being opened."""
        with self._mutex:
            return not self.sessions and not self._permits

    def add_session(
        self, permit: SessionPermit, session: Session, attempt: LockAttempt, idle_timeout_ms: int, alone: bool
    ) -> None:
        with self._mutex:
            self._permits.discard(permit)
            self.sessions.append(session)
            self._assign(session, attempt, idle_timeout_ms, alone)

    def _assign(self, session: Session, attempt: LockAttempt, idle_timeout_ms: int, alone: bool) -> None:
        if not session.keys:
            session.idle_timeout_ms = idle_timeout_ms
        attempt.session = session
        session.keys[attempt.key] = attempt
        if alone:
            session.waiter = attempt

    def extend_idle_timeout(self, session: Session, idle_timeout_ms: int) -> None:
        """The timeout is never made shorter: the session may have other locks."""
        with self._mutex:
            if session.idle_timeout_ms and (
                idle_timeout_ms == 0 or idle_timeout_ms > session.idle_timeout_ms
            ):
                session.idle_timeout_ms = idle_timeout_ms

    def close_session(self, session: Session, reason: str) -> None:
        """All locks of the session are lost: wake its holders and its waiter."""
        with self._mutex:
            if session.is_closed:
                return
            session.is_closed, session.close_reason = True, reason
            if session in self.sessions:
                self.sessions.remove(session)
            nonces = [*session.held]
            if session.waiter is not None:
                nonces.append(session.waiter.nonce)
        self._close_connection(session)
        for nonce in nonces:
            self.post(nonce)
        self.queue.wake_first()

    def take_spare_sessions(self) -> list[Session]:
        """Sessions that are not needed, removed from the pool: the caller closes them."""
        if len(self.sessions) <= SPARE_SESSIONS_MAX:
            return []
        with self._mutex:
            for session in self.sessions:
                session.discard_stale()
            empty = [s for s in self.sessions if not s.keys and not s.is_busy]
            surplus = empty[SPARE_SESSIONS_MAX:]
            for session in surplus:
                session.is_closed, session.close_reason = True, "it was not needed"
                self.sessions.remove(session)
        return surplus

    # --- attempts

    def record_grant(self, attempt: LockAttempt, grant: Granted) -> None:
        session = attempt.session
        self.queue.admitted.discard(attempt.nonce)
        attempt.grant, attempt.query = grant, None
        if session is not None:
            session.held[attempt.nonce] = attempt
            session.waiter = None
        self.queue.wake_first()

    def detach(self, attempt: LockAttempt) -> None:
        """Nothing of the attempt is on its session any more."""
        session, attempt.session, attempt.query, attempt.grant = attempt.session, None, None, None
        self.queue.admitted.discard(attempt.nonce)
        if session is not None:
            with self._mutex:
                session.held.pop(attempt.nonce, None)
                session.release_key(attempt)
                if session.waiter is attempt:
                    session.waiter = None
        self.queue.wake_first()

    def forget(self, attempt: LockAttempt) -> None:
        self.detach(attempt)
        self.attempts.pop(attempt.nonce, None)
        self.broken.discard(attempt.nonce)
        self.queue.remove(attempt.nonce)

    def prepare_downgrade(self, writer: LockAttempt, session: Session, nonce: str) -> LockAttempt:
        """Register the reader before the server is asked, so that an interrupted caller can release it.

        Until the outcome is known no other attempt asks for the key on this session.
        """
        reader = LockAttempt(writer.name, nonce, writer.key, "read", writer.ttl)
        reader.session, reader.writer = session, writer
        with self._mutex:
            self.attempts[nonce] = reader
            session.keys[reader.key] = reader
        return reader

    def complete_downgrade(self, reader: LockAttempt, writer: LockAttempt, grant: Granted) -> None:
        """The writer goes first: an interrupt in between leaves a reader that can be released."""
        self.forget(writer)
        reader.grant = grant
        if reader.session is not None:
            reader.session.held[reader.nonce] = reader

    def is_taken_by_this_client(self, attempt: LockAttempt) -> bool:
        """Whether another attempt of this client has or wants the key: then the server need not be tried."""
        for session in list(self.sessions):
            if attempt.key in session.keys:
                break
        else:
            return False
        with self._mutex:
            for session in self.sessions:
                session.discard_stale()
            others = [s.keys[attempt.key] for s in self.sessions if attempt.key in s.keys]
        return any(other.mode != "read" or attempt.mode != "read" for other in others)
