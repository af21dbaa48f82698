"""One session of ZooKeeper: its requests, its connection states and its end. Knows nothing of locks.

A session that has ended stays ended; a new session is a new object. Without a connection nothing is sent,
because kazoo would keep the requests and send them later.

How long may a client rely on its session? The leader ends a session when it has received no keep-alive of the
client for the length of the session. But the client's keep-alives go to the server it is connected to, and
that server forwards them to the leader only twice in each tick. If the server dies before that, the leader
never learns of the last keep-alive. A server that has lost the leader even goes on answering for a while.

So a keep-alive counts when a later write over the same connection confirms it, sent a good part of a tick
afterwards: writes go through the leader and a majority. The connection keeps order, so whatever the server
told the leader in between arrived before the write. The client does not know the length of a tick. ZooKeeper
grants no session shorter than two ticks, so half a tick is at most a quarter of the session. A new connection
counts at once: the leader itself opens or renews the session.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from kazoo.protocol.states import KazooState, KeeperState

from ...core.effects import NotApplied
from ...errors import EngineUnavailable
from ...protocols.tickets.store import SessionEndedError
from ...rules.record import Tombstone
from ...runtime.clock import boottime
from .config import Config
from .connection import Client

__all__ = ["Answer", "Batch", "Session", "SessionClock", "SessionListener"]

CONFIRMATION_LAG: Final = 1 / 4
"""A keep-alive counts if a write sent at least this part of the session later was answered, too."""

RECORD_INTERVAL: Final = 1 / 64
"""Keep-alives closer together than this part of the session are recorded as one."""

log = logging.getLogger("holdfast")

PING_WITHOUT_RENEWAL: Final = 1 / 2
"""A client that holds something sends a keep-alive after a third of its session at the latest. If none came
for this part of the session, kazoo's pings no longer keep the session alive."""


class SessionClock:
    """One session, by the local clock of its client. All times are from before the sending. May be called
    from any thread."""

    __slots__ = ("_lock", "_sent", "base", "last", "seconds")

    def __init__(self) -> None:
        self.base = 0.0
        """The session's length counts from here."""
        self.last = 0.0
        """The last keep-alive whose reply was waited for."""
        self.seconds = 0.0
        self._sent: deque[float] = deque()
        self._lock = threading.Lock()

    def age(self, now: float) -> float:
        """The time since the last keep-alive that counts."""
        return max(now - self.base, 0.0)

    def connected(self, sent: float, seconds: float) -> None:
        """A connection was established for the session, with this length."""
        with self._lock:
            self._sent.clear()  # what the other server received may be lost with it
            self.seconds = seconds
            self.base = max(self.base, sent)
            self.last = max(self.last, sent)

    def sent(self, at: float) -> None:
        """A request or a ping is sent, over the current connection or a later one."""
        with self._lock:
            if not self._sent or at - self._sent[-1] >= self.seconds * RECORD_INTERVAL:
                self._sent.append(at)

    def wrote(self, at: float) -> None:
        """A write that was sent then was answered over the current connection."""
        confirmed = at - self.seconds * CONFIRMATION_LAG
        with self._lock:
            self.last = max(self.last, at)
            while self._sent and self._sent[0] <= confirmed:
                self.base = max(self.base, self._sent.popleft())


class Answer:
    """The outcome of one request. Set by kazoo."""

    __slots__ = ("_batch", "error", "value")

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.value: Any = None
        self.error: BaseException | None = None

    def set(self, value: Any = None) -> None:
        self.value = value
        self._batch.answered()

    def set_exception(self, error: BaseException) -> None:
        self.error = error
        self._batch.answered()


Notify = Callable[[list[Answer]], object]


class Batch:
    """Requests sent in one batch. ``notify`` is called when all are answered, perhaps twice."""

    __slots__ = ("_notify", "_times", "answers")

    def __init__(self, count: int, notify: Notify) -> None:
        self.answers = [Answer(self) for _ in range(count)]
        self._notify = notify
        self._times: list[None] = []

    def answered(self) -> None:
        self._times.append(None)  # atomic, also with two threads
        if len(self._times) >= len(self.answers):
            self._notify(self.answers)


class SessionListener(Protocol):
    """Called in kazoo's thread; must not block."""

    def session_connected(self, session: Session) -> None: ...

    def session_ended(self, session: Session) -> None: ...

    def is_used(self, session: Session) -> bool:
        """Whether tickets are attached to the session."""
        ...


class Session:
    """One session, from its first connection to its end."""

    def __init__(self, config: Config, seconds: float, timeout: float, listener: SessionListener) -> None:
        self.clock = SessionClock()
        self.session_id = ""
        """Its id, once it is established."""
        self.generation = 0
        self.registered = False
        """Its node exists."""
        self.notices: dict[str, Tombstone] = {}
        """Notices of other clients about its tickets, by attempt, as far as they were read."""
        self.is_ended = False
        self._is_connected = False
        self._expired = False
        """Its time ran out without a connection. If a server establishes it again, that is too late."""
        self._refused: EngineUnavailable | None = None
        self._servers_text = ", ".join(config.hosts)
        self._failed: dict[str, str] = {}
        """Why there is no connection, by server; cleared when there is one."""
        self._failures = 0
        self._servers = len(config.hosts)
        self._listener = listener
        self._waiting: list[Callable[[], object]] = []
        self._changing = threading.Lock()
        self._client = Client(config, seconds, min(timeout, max(seconds / 3, 0.5)), self)
        self._client.add_listener(self._state_changed)

    def __repr__(self) -> str:
        return f"<Link session={self.session_id or None} up={self._is_connected} dead={self.is_ended}>"

    @property
    def seconds(self) -> float:
        """The negotiated length of the session."""
        return self.clock.seconds

    def start(self) -> None:
        self._client.start_async()

    # --- called by kazoo, in its own thread

    def session_established(self, session_id: int, seconds: float, sent: float) -> None:
        name = f"{session_id & ((1 << 64) - 1):x}"
        if self.session_id and name != self.session_id:
            return  # kazoo established another session by itself
        if self._expired or self.has_expired(sent):
            # The attempts that relied on the session have given up, perhaps without cleaning up. So it ends
            # here, although the servers, which may have been away themselves, would continue it.
            self._expired = True
            return
        self.session_id = name
        self.clock.connected(sent, seconds)

    def connection_failed(self, server: str, why: str) -> None:
        """After as many failures as there are servers, wake the callers that wait: no server is reachable
        now."""
        self._failed[server] = why
        self._failures += 1
        if self._failures >= self._servers:
            self._failures = 0
            self._notify_waiting()

    def is_ping_allowed(self) -> bool:
        """A session without tickets may live on. For one with tickets the client sends keep-alives itself: if
        the client no longer does (its loop is blocked, its thread has died), kazoo must not keep it alive."""
        is_unrenewed = boottime() - self.clock.last > self.seconds * PING_WITHOUT_RENEWAL
        if is_unrenewed and self._listener.is_used(self):
            return False
        self.clock.sent(boottime())
        return True

    def has_expired(self, now: float) -> bool:
        return bool(self.session_id) and self.clock.age(now) > self.seconds

    def _state_changed(self, state: Any) -> None:
        if self.is_ended:
            return
        if state == KazooState.CONNECTED and self._mark_connected():
            self._notify_waiting()
            self._listener.session_connected(self)
        elif state == KazooState.SUSPENDED:
            self._is_connected = False
            log.debug("holdfast: no connection to ZooKeeper")
        else:
            self._mark_ended()

    def _mark_connected(self) -> bool:
        with self._changing:
            self._is_connected = not self._expired
        if self._is_connected:
            self._failed.clear()
            self._failures = 0
        return self._is_connected

    def _mark_ended(self) -> None:
        self._is_connected, self.is_ended = False, True
        if self._client.client_state == KeeperState.AUTH_FAILED:
            self._refused = EngineUnavailable("ZooKeeper does not accept the user and the password")
            self._refused.nothing_was_sent = True
        self._notify_waiting()
        self._listener.session_ended(self)

    def _notify_waiting(self) -> None:
        with self._changing:
            waiting, self._waiting = self._waiting, []
        for notify in waiting:
            notify()

    # --- requests

    def notify_when_connected(self, notify: Callable[[], object]) -> None:
        """Call ``notify`` when the session is connected or has ended; at once if it is."""
        with self._changing:
            if not self._is_connected and not self.is_ended:
                self._waiting.append(notify)
                return
        notify()

    def check(self) -> None:
        """Raise unless requests can be sent."""
        if self._refused is not None:
            raise self._refused
        if self.is_ended:
            raise SessionEndedError
        if not self._is_connected:
            why = "; ".join(f"{server}: {reason}" for server, reason in self._failed.copy().items())
            raise NotApplied(
                f"ZooKeeper cannot be reached: {why or f'no answer in time from {self._servers_text}'}"
            )

    def give_up_expired(self, now: float) -> bool:
        """If its time has run out without a connection, give the session up, also for a server that is
        establishing it just now. Its tickets need not be released then: they end with it."""
        if self._is_connected:
            return False
        with self._changing:
            if not self._is_connected and self.has_expired(now):
                self._expired = True
            return self._expired

    def send(self, requests: Sequence[Any], notify: Notify) -> None:
        """Send the requests in one batch, without waiting."""
        self._client.submit(requests, Batch(len(requests), notify).answers)

    def reconnect(self) -> None:
        """The server did not answer in time: the connection may be dead. Open another."""
        self._client.sockets.shutdown_socket()

    # --- its end

    def end(self, done: Callable[[], object]) -> None:
        """Close the session in a thread of its own, because that may take time. Calls ``done`` when done."""
        self.is_ended = True
        self._notify_waiting()
        self._end(done)

    def abandon(self) -> None:
        """Close the connection and let the session live on until it expires."""
        self.is_ended = True
        self._client.abandon()
        self._end(lambda: None)

    def _end(self, done: Callable[[], object]) -> None:
        def work() -> None:
            try:
                self._client.end()
            except Exception:
                # What is left of the connection ends with the session.
                log.debug("holdfast: a connection to ZooKeeper did not end well", exc_info=True)
            finally:
                done()

        threading.Thread(target=work, name="holdfast-zookeeper-end", daemon=True).start()

    def detach_after_fork(self) -> None:
        """In the child of a fork: the session is the parent's. Send nothing to the server."""
        self.is_ended = True
        self._client.sockets.detach_after_fork()
