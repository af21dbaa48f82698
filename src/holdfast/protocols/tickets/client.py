"""What one client of a tickets engine has to remember: its sessions, and its tickets by their attempts.

Threads share a desk: every method leans on single dict and attribute operations, which do not tear.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from ...core.deadlines import DRIFT, RENEW_AFTER
from ...rules.tickets import LockConfig, Ticket, Watched
from .store import SessionId

__all__ = ["LockAttempt", "Session", "TicketClient", "TicketCoroutine"]

T = TypeVar("T")

SETTINGS_KEPT: Final = 1000
"""Of so many names it is remembered what they are."""

TicketCoroutine = Coroutine[Any, Any, T]
"""What awaits operations of the store, the local clock and the wall clock."""


class Session:
    """One session of this client, and how long it can be relied on."""

    __slots__ = ("dead", "doubted", "generation", "heard_at", "id", "kept_at", "lasts", "seconds")

    def __init__(self, seconds: float, generation: int) -> None:
        self.seconds = seconds
        """As asked for."""
        self.generation = generation
        self.id: SessionId = None
        """None: not open yet."""
        self.lasts = seconds
        """As the engine gave it."""
        self.heard_at = 0.0
        """The local clock before the last sign of life was sent that was heard."""
        self.kept_at = 0.0
        """It lives on from then: that moment, or an earlier one if the engine says so."""
        self.dead = False
        self.doubted = False
        """Somebody says that it is over: ask."""

    def __repr__(self) -> str:
        return f"<Session {self.seconds:g} s, {self.generation}, dead={self.dead}>"

    def kept(self, sent: float, age: float = 0.0) -> None:
        self.heard_at = max(sent, self.heard_at)
        self.kept_at = max(sent - age, self.kept_at)
        self.doubted = False

    def is_due(self, now: float) -> bool:
        """Old enough for another sign of life."""
        return self.doubted or now - self.heard_at >= self.lasts * RENEW_AFTER

    def age(self, now: float, ttl: float) -> float:
        """How much of a ttl from now on it does not cover, were the engine's clock as fast as it may be."""
        return max((now - self.kept_at) - (self.lasts - ttl) * (1.0 - DRIFT), 0.0)


class LockAttempt:
    """One attempt of ours: the ticket that stands for it, or may."""

    __slots__ = (
        "armed",
        "asked_under",
        "behind",
        "entered",
        "kind",
        "mode",
        "name",
        "nonce",
        "place",
        "position",
        "session",
        "ticket",
        "ttl",
        "uncertain",
        "waited",
    )

    def __init__(self, name: str, nonce: str, kind: str, mode: str, ttl: float) -> None:
        self.name = name
        self.nonce = nonce
        self.kind = kind
        self.mode = mode
        self.ttl = ttl
        self.session: Session | None = None
        """What carries the ticket."""
        self.asked_under: Session | None = None
        """What carries a copy of the request to put it, should one arrive late."""
        self.entered = False
        """It was seen among the tickets."""
        self.place = 0
        self.position = 0
        """How many were before it in the queue when it was armed."""
        self.uncertain = False
        """A copy of it may be under way."""
        self.armed: Watched | None = None
        self.behind: Ticket | None = None
        """Of a mutex: the ticket that it is armed for."""
        self.waited = False
        self.ticket: Ticket | None = None
        """As it was granted."""


class TicketClient:
    """Everything one client has to remember."""

    def __init__(self, client: str, seconds_for: Callable[[float], float]) -> None:
        self.client = client
        self.seconds_for = seconds_for
        """The length of the session that carries leases of a ttl. May raise Unsupported."""
        self.mine: dict[str, LockAttempt] = {}
        self.watching: set[str] = set()
        """Nonces that hear of every change of a name."""
        self.settings: dict[str, LockConfig] = {}
        """What names were last seen to be: a guess that saves a round trip."""
        self.suspects: set[str] = set()
        """Tickets that may be gone: looked at with the next sign of life."""
        self.looked_at = 0
        """How far the looking at all tickets in turn has come."""
        self._sessions: dict[tuple[float, int], Session] = {}
        self._generation: dict[float, int] = {}

    def suspect(self, nonce: str) -> None:
        """Something happened to this ticket: look at it when the keeper comes. Post the nonce after this."""
        self.suspects.add(nonce)

    def session(self, seconds: float) -> Session:
        """The session of this length: the present one, or the next."""
        while True:
            generation = self._generation.get(seconds, 1)
            session = self._sessions.setdefault((seconds, generation), Session(seconds, generation))
            if not session.dead:
                return session
            # Several may come here at a time: all of them go on to the same one.
            self._generation[seconds] = generation + 1
            self._sessions.pop((seconds, generation), None)

    def open_sessions(self) -> list[Session]:
        return [s for s in list(self._sessions.values()) if s.id is not None and not s.dead]

    def lost(self, session: Session) -> None:
        """The session is gone, and every ticket of it."""
        session.dead = True
        for mine in list(self.mine.values()):
            if mine.session is session:
                mine.entered = False

    def over(self, session_id: SessionId) -> list[str]:
        """The engine says that a session ended. That may be old news: whoever hangs on it shall ask. Post to
        the nonces that this returns."""
        nonces = []
        for session in self.open_sessions():
            if session.id == session_id:
                session.doubted = True
                nonces += [mine.nonce for mine in list(self.mine.values()) if mine.session is session]
        return nonces

    def heard(self, session_id: SessionId, sent: float, age: float) -> None:
        """Something else that was sent served as a sign of life."""
        for session in self.open_sessions():
            if session.id is session_id:
                session.kept(sent, age)

    def disarmed(self, nonce: str) -> None:
        """The engine watches for this nonce no longer: what it watched for came, or it lost sight of it. Post
        the nonce after this: whoever waits has it armed again."""
        mine = self.mine.get(nonce)
        if mine is not None:
            mine.armed = None
        self.watching.discard(nonce)

    def learn(self, name: str, settings: LockConfig | None, declared: LockConfig) -> None:
        """What a name is, where that is not what anybody would guess."""
        if settings is None or settings == declared:
            self.settings.pop(name, None)
        else:
            if len(self.settings) >= SETTINGS_KEPT:
                self.settings.clear()
            self.settings[name] = settings

    def handle_of(self, nonce: str) -> Any:
        """The engine's handle of the ticket that was granted to this attempt; None: there is none."""
        mine = self.mine.get(nonce)
        return None if mine is None or mine.ticket is None else mine.ticket.handle

    def forget(self, nonce: str) -> None:
        self.mine.pop(nonce, None)
        self.suspects.discard(nonce)
