"""The state of one client of a tickets engine: its sessions, and its tickets by attempt.

Threads share a TicketClient: every method uses single dict and attribute operations, which are atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from ...core.deadlines import DRIFT, RENEW_AFTER
from ...rules.tickets import LockConfig, Ticket, Watched
from .store import SessionId, TicketStore

__all__ = ["LockAttempt", "SessionState", "TicketClient", "TicketCoroutine"]

T = TypeVar("T")

CONFIGS_KEPT: Final = 1000
"""The configuration of at most this many names is remembered."""

TicketCoroutine = Coroutine[Any, Any, T]
"""A coroutine that awaits nothing but the store's own I/O."""


class SessionState:
    """One session of this client, and how long the client may rely on it."""

    __slots__ = (
        "alive_from",
        "confirmed_at",
        "dead",
        "generation",
        "granted_seconds",
        "id",
        "is_suspect",
        "seconds",
    )

    def __init__(self, seconds: float, generation: int) -> None:
        self.seconds = seconds
        """As requested."""
        self.generation = generation
        self.id: SessionId = None
        """None: not open yet."""
        self.granted_seconds = seconds
        """As the engine granted it."""
        self.confirmed_at = 0.0
        """The local time before the last confirmed keep-alive was sent."""
        self.alive_from = 0.0
        """The session's life counts from here: that moment, or an earlier one if the engine says so."""
        self.dead = False
        self.is_suspect = False
        """The engine reported its end: the next keep-alive asks."""

    def __repr__(self) -> str:
        return f"<Session {self.seconds:g} s, {self.generation}, dead={self.dead}>"

    def kept(self, sent: float, age: float = 0.0) -> None:
        self.confirmed_at = max(sent, self.confirmed_at)
        self.alive_from = max(sent - age, self.alive_from)
        self.is_suspect = False

    def is_due(self, now: float) -> bool:
        """Whether another keep-alive is due."""
        return self.is_suspect or now - self.confirmed_at >= self.granted_seconds * RENEW_AFTER

    def age(self, now: float, ttl: float) -> float:
        """How much of a ttl from now on the session does not cover, if the engine's clock is as fast as
        allowed."""
        return max((now - self.alive_from) - (self.granted_seconds - ttl) * (1.0 - DRIFT), 0.0)


class LockAttempt:
    """One attempt of this client, and its ticket, which may or may not exist."""

    __slots__ = (
        "behind",
        "create_session",
        "is_created",
        "is_uncertain",
        "kind",
        "mode",
        "name",
        "nonce",
        "order",
        "position",
        "session",
        "ticket",
        "ttl",
        "waited",
        "watch_set",
    )

    def __init__(self, name: str, nonce: str, kind: str, mode: str, ttl: float) -> None:
        self.name = name
        self.nonce = nonce
        self.kind = kind
        self.mode = mode
        self.ttl = ttl
        self.session: SessionState | None = None
        """The session that the ticket is attached to."""
        self.create_session: SessionState | None = None
        """The session under which a late copy of the create request would arrive."""
        self.is_created = False
        """The ticket was seen in the queue."""
        self.order = 0
        self.position = 0
        """How many waiters were before it when its watch was set."""
        self.is_uncertain = False
        """A copy of the create request may be under way."""
        self.watch_set: Watched | None = None
        self.behind: Ticket | None = None
        """Of a mutex: the ticket that is watched."""
        self.waited = False
        self.ticket: Ticket | None = None
        """The ticket as it was granted."""


class TicketClient:
    """The state of one client."""

    store: TicketStore
    """Set by the adapter that runs this client: a store needs its client first."""

    def __init__(
        self,
        client_id: str,
        seconds_for: Callable[[float], float],
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.client_id = client_id
        self.now = now
        """The local clock, by which deadlines are counted."""
        self.wall = wall
        """The wall clock, in seconds: for people, and for retentions."""
        self.seconds_for = seconds_for
        """The length of the session for leases of a ttl. May raise Unsupported."""
        self.attempts: dict[str, LockAttempt] = {}
        self.watching: set[str] = set()
        """Nonces with a watch for every change of a name."""
        self.configs: dict[str, LockConfig] = {}
        """The configuration that names had when last seen: a guess that saves a round trip."""
        self.suspects: set[str] = set()
        """Tickets that may no longer exist: checked with the next keep-alive."""
        self.next_checked = 0
        """The next ticket to check, where all tickets are checked in turn."""
        self._sessions: dict[tuple[float, int], SessionState] = {}
        self._generation: dict[float, int] = {}

    def suspect(self, nonce: str) -> None:
        """Something happened to this ticket: check it with the next renewal. Call this, then post the
        nonce."""
        self.suspects.add(nonce)

    def session(self, seconds: float) -> SessionState:
        """The session of this length: the current one, or the next if that has ended."""
        while True:
            generation = self._generation.get(seconds, 1)
            session = self._sessions.setdefault((seconds, generation), SessionState(seconds, generation))
            if not session.dead:
                return session
            # Several threads may be here at a time: all of them go on to the same session.
            self._generation[seconds] = generation + 1
            self._sessions.pop((seconds, generation), None)

    def open_sessions(self) -> list[SessionState]:
        return [s for s in list(self._sessions.values()) if s.id is not None and not s.dead]

    def session_lost(self, session: SessionState) -> None:
        """The session has ended, and every ticket attached to it is gone."""
        session.dead = True
        for attempt in list(self.attempts.values()):
            if attempt.session is session:
                attempt.is_created = False

    def session_reported_ended(self, session_id: SessionId) -> list[str]:
        """The engine reports that a session has ended. The report may be old, so every attempt attached to
        it asks again. Post to the nonces that this returns."""
        nonces = []
        for session in self.open_sessions():
            if session.id == session_id:
                session.is_suspect = True
                nonces += [
                    attempt.nonce for attempt in list(self.attempts.values()) if attempt.session is session
                ]
        return nonces

    def session_confirmed(self, session_id: SessionId, sent: float, age: float) -> None:
        """Another request served as a keep-alive."""
        for session in self.open_sessions():
            if session.id is session_id:
                session.kept(sent, age)

    def watch_ended(self, nonce: str) -> None:
        """The engine no longer watches for this nonce: the watch fired or was lost. Call this, then post the
        nonce: the waiter sets a new watch."""
        attempt = self.attempts.get(nonce)
        if attempt is not None:
            attempt.watch_set = None
        self.watching.discard(nonce)

    def learn(self, name: str, config: LockConfig | None, declared: LockConfig) -> None:
        """Remember the configuration of a name where it is not the declared one."""
        if config is None or config == declared:
            self.configs.pop(name, None)
        else:
            if len(self.configs) >= CONFIGS_KEPT:
                self.configs.clear()
            self.configs[name] = config

    def handle_of(self, nonce: str) -> Any:
        """The engine's handle of the ticket that was granted to this attempt; None: there is none."""
        attempt = self.attempts.get(nonce)
        return None if attempt is None or attempt.ticket is None else attempt.ticket.handle

    def forget(self, nonce: str) -> None:
        self.attempts.pop(nonce, None)
        self.suspects.discard(nonce)
