"""What one client of the session engine has to remember: its connections, and what it has or wants on each.

Session locks stack: whoever asks twice on one connection gets it twice. So a connection has or wants a key
once at most, and the server decides between all who want it, also between two of one client. Many keys may be
held on one connection; one who waits has a connection to itself, for a statement that waits holds it up.

Threads share a desk: what belongs together is done under its mutex, which is never held over I/O.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, NamedTuple, TypeVar

from psycopg.pq.abc import PGresult

from ....core.effects import NotApplied
from ....rules.requests import Granted
from ..link import INTERRUPTED, ServerError
from ..statements import Call
from .calls import Calls

__all__ = [
    "Ask",
    "Close",
    "Desk",
    "Ended",
    "Finish",
    "Glance",
    "Mine",
    "Op",
    "Open",
    "Rest",
    "Room",
    "Script",
    "Session",
    "Start",
    "Task",
]

T = TypeVar("T")

CONNECTIONS: Final = 20
"""How many one client has at most, beside those it looks with."""

WAITERS: Final = 8
"""How many of them wait at most; who comes then stands in line here."""

BUSY: Final = 3
"""So many are opened because those that are there have something to do."""

SPARE: Final = 2
"""How many without a lock are kept."""


class Ended(Exception):
    """The session was over before anything was sent."""


class Task:
    """A statement under way on a session. Who began it need not be the one who sees its end."""

    __slots__ = ("call", "done", "error", "idle_ms", "nonce", "onlookers", "result", "waits", "wants")

    def __init__(self, call: Call, nonce: str = "", idle_ms: int | None = None) -> None:
        self.call = call
        self.idle_ms = idle_ms
        """What it tells the server of the session's silence; None: nothing."""
        self.nonce = nonce
        """Posted at its end, if it is one that waits."""
        self.done = False
        self.result: PGresult | None = None
        self.error: Exception | None = None
        self.waits: Any = None
        self.wants = 0
        """What it waits for, and where it has got to: its driver's own."""
        self.onlookers: list[Any] = []
        """Who waits for its end: asyncio's own."""

    def end(self, result: PGresult | None, error: Exception | None) -> None:
        self.result, self.error = result, error
        self.done = True

    def __repr__(self) -> str:
        return f"<Task {self.call.statement.name.decode()} done={self.done}>"


class Session:
    """One connection. What it has lives as long as it does."""

    __slots__ = (
        "_told_ms",
        "backend",
        "current",
        "dead",
        "held",
        "idle_ms",
        "keys",
        "last_waiter",
        "line",
        "waiter",
        "why",
    )

    def __init__(self, line: Any, backend: int) -> None:
        self.line = line
        """The driver's own."""
        self.backend = backend
        self.idle_ms = 0
        """After so long without a sign of life the server is to end it; 0: never."""
        self._told_ms: int | None = None
        """What the server knows of it; None: nothing, or it may or may not have taken in what it was told."""
        self.keys: dict[int, Mine] = {}
        """What it has or wants, and for whom."""
        self.held: dict[str, Mine] = {}
        self.waiter: Mine | None = None
        """Whom it waits for: then it does nothing else."""
        self.last_waiter: tuple[str, str, str] | None = None
        """For which name, owner and mode it waited last, as the server knows: it need not be told again."""
        self.current: Task | None = None
        """The last statement that was sent."""
        self.dead = False
        self.why = ""

    def __repr__(self) -> str:
        return f"<Session {self.backend}, {len(self.keys)} keys, dead={self.dead}>"

    def prune(self) -> None:
        """An interrupt can strike between any two steps: what is of nobody any more takes up no room."""
        if self.keys:
            for mine in list(self.keys.values()):
                if mine.session is not self:
                    self.free(mine)
        if self.held:
            for nonce, mine in list(self.held.items()):
                if mine.session is not self:
                    del self.held[nonce]
        if self.waiter is not None and self.waiter.session is not self:
            self.waiter = None

    def free(self, mine: Mine) -> None:
        """Its key is to be had; of one that was to take a writer's place it is that writer's again."""
        if self.keys.get(mine.key) is mine:
            if mine.writer is not None and mine.writer.session is self:
                self.keys[mine.key] = mine.writer
            else:
                del self.keys[mine.key]

    def may_have(self, key: int, alone: bool) -> bool:
        """Whether one more can be asked for here."""
        return not (self.dead or self.waiter is not None or key in self.keys or (alone and self.keys))

    @property
    def untold_idle_ms(self) -> int | None:
        """What the server has yet to be told of its silence."""
        return None if self._told_ms == self.idle_ms else self.idle_ms

    def tell_idle_ms(self, idle_ms: int | None) -> None:
        """It is being told. Whoever asked may not wait for the answer: then the next tells it again."""
        if idle_ms is not None:
            self._told_ms = None

    def heard_idle_ms(self, idle_ms: int | None) -> None:
        """It was told."""
        if idle_ms is not None:
            self._told_ms = idle_ms

    def see_unsent(self, task: Task) -> None:
        """An interrupt may have come before it was sent: then nobody will."""
        if self.current is not task and not task.done:
            task.end(None, ServerError(INTERRUPTED, "it was not sent"))

    @property
    def is_busy(self) -> bool:
        return self.current is not None and not self.current.done


class Room:
    """Room for a session that is yet to be opened: as long as somebody has it."""

    __slots__ = ("__weakref__",)


class Mine:
    """One attempt of ours."""

    __slots__ = (
        "began",
        "grant",
        "key",
        "mode",
        "name",
        "nonce",
        "session",
        "task",
        "ttl",
        "unwanted",
        "writer",
    )

    def __init__(self, name: str, nonce: str, key: int, mode: str, ttl: float) -> None:
        self.name, self.nonce, self.key, self.mode, self.ttl = name, nonce, key, mode, ttl
        self.session: Session | None = None
        self.task: Task | None = None
        """What was asked, while its answer has not been looked at."""
        self.began = 0.0
        """The local clock before it was asked, or before a later sign of life: the ttl counts from here."""
        self.grant: Granted | None = None
        self.unwanted = False
        """It was given back, but the server did not say so: to be done when it answers again."""
        self.writer: Mine | None = None
        """Whose place it is to take, if it is a reader that a writer becomes."""

    @property
    def may_be_another(self) -> bool:
        """Whether a reader was to take its place, and nobody knows yet whether it has."""
        session = self.session
        return session is not None and session.keys.get(self.key, self) is not self


class Desk:
    """Everything one client has to remember."""

    def __init__(
        self,
        calls: Calls,
        post: Callable[[str], None],
        hang_up: Callable[[Session], None],
        now: Callable[[], float],
        io_timeout: float,
    ) -> None:
        self.calls = calls
        self.now = now
        """The local clock."""
        self.post = post
        self._hang_up = hang_up
        self.io_timeout = io_timeout
        self.mine: dict[str, Mine] = {}
        self.sessions: list[Session] = []
        self.watching: set[str] = set()
        """Nonces that want to hear of every change: they are woken now and then, and look."""
        self.told: set[str] = set()
        """Nonces of ours that were broken, as we were told."""
        self.line: deque[str] = deque()
        """Who waits for a connection to wait on."""
        self.mute_until = 0.0
        """The server did not answer: until then it is not asked what is only good to know."""
        self._waiting: set[str] = set()
        """Who has such a connection, or is about to."""
        self._rooms: weakref.WeakSet[Room] = weakref.WeakSet()
        self._mutex = threading.RLock()  # a signal handler may come here while its own thread is here

    # --- connections

    def reserve(self, mine: Mine, idle_ms: int, alone: bool) -> Session | Room:
        """A session for this key, or room to open one. Refused, if there are too many."""
        with self._mutex:
            usable = []
            chosen: Session | None = None
            for session in self.sessions:
                session.prune()
                if session.may_have(mine.key, alone):
                    usable.append(session)
                    # The fullest of those that fit and have nothing to do.
                    fits = not session.keys or session.idle_ms == idle_ms
                    if fits and not session.is_busy and (not chosen or len(session.keys) > len(chosen.keys)):
                        chosen = session
            if chosen is None:
                fitting = [s for s in usable if not s.keys or s.idle_ms == idle_ms]
                count = len(self.sessions) + len(self._rooms)
                if count < BUSY or (not fitting and count < CONNECTIONS):
                    room = Room()
                    self._rooms.add(room)
                    return room
                longer = [s for s in usable if s.idle_ms == 0 or s.idle_ms >= idle_ms]
                chosen = max(fitting or longer, key=lambda s: len(s.keys), default=None)
            if chosen is not None:
                self._give(chosen, mine, idle_ms, alone)
                return chosen
        raise NotApplied(f"all {CONNECTIONS} connections of this client hold or want this lock, or wait")

    def leave(self, room: Session | Room | None) -> None:
        """Nothing was opened there."""
        if isinstance(room, Room):
            with self._mutex:
                self._rooms.discard(room)

    @property
    def is_empty(self) -> bool:
        """There is no session, and none that is being opened."""
        with self._mutex:
            return not self.sessions and not self._rooms

    def opened(self, room: Room, session: Session, mine: Mine, idle_ms: int, alone: bool) -> None:
        with self._mutex:
            self._rooms.discard(room)
            self.sessions.append(session)
            self._give(session, mine, idle_ms, alone)

    def _give(self, session: Session, mine: Mine, idle_ms: int, alone: bool) -> None:
        if not session.keys:
            session.idle_ms = idle_ms
        mine.session = session
        session.keys[mine.key] = mine
        if alone:
            session.waiter = mine

    def lengthen(self, session: Session, idle_ms: int) -> None:
        """It may be silent for so long at least; never for less, others hang on it."""
        with self._mutex:
            if session.idle_ms and (idle_ms == 0 or idle_ms > session.idle_ms):
                session.idle_ms = idle_ms

    def lost(self, session: Session, why: str) -> None:
        """Everything on it is gone: have those look whom it concerns."""
        with self._mutex:
            if session.dead:
                return
            session.dead, session.why = True, why
            if session in self.sessions:
                self.sessions.remove(session)
            concerned = [*session.held]
            if session.waiter is not None:
                concerned.append(session.waiter.nonce)
        self._hang_up(session)
        for nonce in concerned:
            self.post(nonce)
        self.call_next()

    def spare(self) -> list[Session]:
        """Those that nobody needs, taken out: they are to be closed."""
        if len(self.sessions) <= SPARE:
            return []
        with self._mutex:
            for session in self.sessions:
                session.prune()
            empty = [s for s in self.sessions if not s.keys and not s.is_busy]
            surplus = empty[SPARE:]
            for session in surplus:
                session.dead, session.why = True, "it was not needed"
                self.sessions.remove(session)
        return surplus

    # --- attempts

    def granted(self, mine: Mine, grant: Granted) -> None:
        session = mine.session
        self._waiting.discard(mine.nonce)
        mine.grant, mine.task = grant, None
        if session is not None:
            session.held[mine.nonce] = mine
            session.waiter = None
        self.call_next()

    def part(self, mine: Mine) -> None:
        """Nothing of it is on its session any more."""
        session, mine.session, mine.task, mine.grant = mine.session, None, None, None
        self._waiting.discard(mine.nonce)
        if session is not None:
            with self._mutex:
                session.held.pop(mine.nonce, None)
                session.free(mine)
                if session.waiter is mine:
                    session.waiter = None
        self.call_next()

    def becoming(self, writer: Mine, session: Session, nonce: str) -> Mine:
        """The reader that is to take a writer's place, known before it is asked for: whoever is interrupted
        then has it given back, and until that is settled nobody else asks for the key on this session."""
        reader = Mine(writer.name, nonce, writer.key, "read", writer.ttl)
        reader.session, reader.writer = session, writer
        with self._mutex:
            self.mine[nonce] = reader
            session.keys[reader.key] = reader
        return reader

    def became(self, reader: Mine, writer: Mine, grant: Granted) -> None:
        """First the writer goes: an interrupt in between leaves a reader that is yet to be given back."""
        self.forget(writer)
        reader.grant = grant
        if reader.session is not None:
            reader.session.held[reader.nonce] = reader

    def move(self, mine: Mine) -> None:
        """Its session ended before anything was sent."""
        mine.session = mine.task = None

    def forget(self, mine: Mine) -> None:
        self.part(mine)
        self.mine.pop(mine.nonce, None)
        self.told.discard(mine.nonce)
        self.leave_line(mine.nonce)

    def in_our_own_way(self, mine: Mine) -> bool:
        """Whether another attempt of this client has or wants the key: then the server need not be tried."""
        for session in list(self.sessions):
            if mine.key in session.keys:
                break
        else:
            return False
        with self._mutex:
            for session in self.sessions:
                session.prune()
            others = [s.keys[mine.key] for s in self.sessions if mine.key in s.keys]
        return any(other.mode != "read" or mine.mode != "read" for other in others)

    # --- the line of those who wait for a connection

    def may_wait(self, nonce: str) -> bool:
        """Whether a connection is to be had for it; else it stands in line."""
        with self._mutex:
            if len(self._waiting) >= WAITERS or (self.line and self.line[0] != nonce):
                if nonce not in self.line:
                    self.line.append(nonce)
                return False
            if self.line:
                self.line.popleft()
            self._waiting.add(nonce)
        self.call_next()
        return True

    def leave_line(self, nonce: str) -> None:
        if self.line:
            with self._mutex:
                if nonce in self.line:
                    self.line.remove(nonce)

    def call_next(self) -> None:
        """Who is first in line asks again, and finds out whether there is room."""
        if self.line:
            try:
                nonce = self.line[0]
            except IndexError:
                return
            self.post(nonce)


# --- what a script awaits -----------------------------------------------------------------------


class Open(NamedTuple):
    """A new session, greeted. Raises Refused or EngineUnavailable."""

    def __await__(self) -> Generator[Open, Session, Session]:
        return (yield self)


class Start(NamedTuple):
    """Send a statement, once what was sent before it has ended. Raises Ended, or TimeoutError (not sent)."""

    session: Session
    task: Task
    seconds: float
    """How long that may take, counted from when it or the one before it began."""

    def __await__(self) -> Generator[Start, None, None]:
        return (yield self)


class Finish(NamedTuple):
    """Wait for its end, so long at most: False, if it was not seen. What it became is in the task."""

    session: Session
    task: Task
    seconds: float

    def __await__(self) -> Generator[Finish, bool, bool]:
        return (yield self)


class Glance(NamedTuple):
    """Whether the task of one who waits has ended; ``first``: it may at once, so let a moment pass."""

    session: Session
    task: Task
    first: bool

    def __await__(self) -> Generator[Glance, bool, bool]:
        return (yield self)


class Ask(NamedTuple):
    """A statement on a connection without locks. Raises Refused, Unknown or EngineUnavailable."""

    call: Call

    def __await__(self) -> Generator[Ask, PGresult, PGresult]:
        return (yield self)


class Rest(NamedTuple):
    """Let so many seconds pass."""

    seconds: float

    def __await__(self) -> Generator[Rest, None, None]:
        return (yield self)


class Close(NamedTuple):
    """End a session, with a word to the server."""

    session: Session

    def __await__(self) -> Generator[Close, None, None]:
        return (yield self)


Op = Open | Start | Finish | Glance | Ask | Rest | Close
Script = Coroutine[Any, Any, T]
