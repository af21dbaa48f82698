"""Input that arrives on sessions while no thread waits for it: grants, notifications, ends of sessions."""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable
from typing import Final

from ....runtime.clock import boottime
from ....runtime.exclusive_reader import PollExclusiveReader
from ..connection import READABLE, ConnectionLostError
from ..notifications import ListenerThread
from .pool import SessionPool
from .session import PendingQuery, Session

__all__ = ["SessionListener", "SessionReader", "record_broken"]

log = logging.getLogger("holdfast")

TICK_SECONDS: Final = 0.25
"""How often the listener looks which sessions to read, and wakes the watchers."""


def record_broken(pool: SessionPool, nonces: list[str]) -> None:
    """Notifications say that these locks were broken."""
    for nonce in nonces:
        if nonce in pool.attempts and nonce not in pool.broken:
            pool.broken.add(nonce)
            pool.post(nonce)


class SessionListener(ListenerThread):
    """The thread that reads the sessions that no other thread reads."""

    def __init__(self, pool: SessionPool, read: Callable[[Session], bool]) -> None:
        super().__init__()
        self._pool = pool
        self._read = read
        self._closing = threading.Event()

    def close(self) -> None:
        self._closing.set()
        super().close()

    def _work(self) -> None:
        while not self._is_closed:
            try:
                self._tick()
            except Exception:
                log.exception("holdfast: sessions are not read for now: an unexpected error")
                self._closing.wait(TICK_SECONDS)

    def _tick(self) -> None:
        """Read the sessions that there are now, until it is time to look again which there are."""
        pipe = self._pipe
        if pipe is None:
            return
        poll = self._poller()
        sessions = self._sessions(poll)
        ends_at = boottime() + TICK_SECONDS
        while not self._is_closed:
            left = max(ends_at - boottime(), 0.0)
            is_idle = self._pool.is_empty and not self._pool.watching
            ready = poll.poll(None if is_idle else left * 1000.0)
            was_woken = False
            for descriptor, _ in ready:
                if descriptor == pipe.fileno():
                    pipe.clear()
                    was_woken = True
                elif not self._read(sessions[descriptor]) or sessions[descriptor].is_closed:
                    poll.unregister(descriptor)  # another thread reads it; the next tick looks again
            if was_woken or not ready or boottime() >= ends_at:
                break
        for nonce in list(self._pool.watching):
            self._pool.post(nonce)

    def _sessions(self, poll: select.poll) -> dict[int, Session]:
        """Sessions with a waiter or a holder, except those that a waiter reads itself."""
        found: dict[int, Session] = {}
        for session in list(self._pool.sessions):
            if session.waiter is None and not session.held:
                continue
            if session.connection.is_read_by_waiter and session.is_busy:
                continue
            try:
                descriptor = session.connection.pg.fileno
            except ConnectionLostError as lost:
                self._pool.close_session(session, str(lost))
                continue
            found[descriptor] = session
            poll.register(descriptor, READABLE)
        return found


class SessionReader(PollExclusiveReader):
    """Lets one thread that waits in the server's queue read its grant itself.

    The waiter has a session to itself. While its own thread reads it, the listener leaves it alone.
    """

    __slots__ = ("_session", "_thread_local", "_wake_listener")

    def __init__(self, wake_listener: Callable[[], None]) -> None:
        super().__init__()
        self._wake_listener = wake_listener
        """Has the listener read the sessions that no thread reads itself."""
        self._thread_local = threading.local()
        self._session: Session | None = None

    def expect(self, session: Session, query: PendingQuery) -> None:
        """This thread is about to wait for the end of the query."""
        self._thread_local.expected = session, query

    def try_acquire(self) -> bool:
        expected: tuple[Session, PendingQuery] | None = getattr(self._thread_local, "expected", None)
        if expected is None:
            return False  # the attempt waits in the client's queue
        session, query = expected
        if session.is_closed or query.is_done or session.current_query is not query:
            return False  # it has been posted already
        if not self._claim():
            self._wake_listener()
            return False
        try:
            self._wait_for(session.connection.pg.fileno)
        except (ConnectionLostError, ValueError):
            return False  # the session ended, or the client was closed: then this thread is posted to
        self._session = session
        session.connection.is_read_by_waiter = True
        return True

    def _receive(self, fd: int) -> bool:
        """The input is not read here: this thread reads it when it polls the result."""
        return True

    def _released(self) -> None:
        if self._session is not None:
            self._session.connection.is_read_by_waiter = False
            self._session = None
