"""One session of ZooKeeper: what it is told, and what it tells. Knows nothing of locks.

A session that is over stays over: for a new one there is a new link. While there is no connection nothing is
sent, for kazoo would keep it and send it later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from kazoo.protocol.states import KazooState, KeeperState

from ...core.effects import NotApplied
from ...errors import EngineUnavailable
from ...protocols.tickets.store import NoSession
from ...rules.record import Tombstone
from ...runtime.clock import boottime
from .dating import Dating
from .kazoo_client import Client
from .options import Options

__all__ = ["Answer", "Batch", "Link", "Listener"]

log = logging.getLogger("holdfast")


LEFT_ALONE: Final = 1 / 2
"""A client that holds something gives a sign of life after a third of its session at the latest."""


class Answer:
    """What became of one request. Filled in by kazoo."""

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
    """Requests sent back to back. ``notify`` is called when all are answered, perhaps twice."""

    __slots__ = ("_notify", "_times", "answers")

    def __init__(self, count: int, notify: Notify) -> None:
        self.answers = [Answer(self) for _ in range(count)]
        self._notify = notify
        self._times: list[None] = []

    def answered(self) -> None:
        self._times.append(None)  # one step, also for two threads at once
        if len(self._times) >= len(self.answers):
            self._notify(self.answers)


class Listener(Protocol):
    """Called in kazoo's thread; must not wait."""

    def link_up(self, link: Link) -> None: ...

    def link_over(self, link: Link) -> None: ...

    def is_used(self, link: Link) -> bool:
        """Something hangs on the session."""
        ...


class Link:
    """One session, from its first connection to its end."""

    def __init__(self, options: Options, seconds: float, patience: float, listener: Listener) -> None:
        self.dating = Dating()
        self.session = ""
        """Its id, once there is one."""
        self.generation = 0
        self.registered = False
        """Its node is there."""
        self.mail: dict[str, Tombstone] = {}
        """What others did to its tickets, by attempt, as far as it was read."""
        self.dead = False
        self._up = False
        self._past = False
        """Its time was over without a connection. Should a server take it on again, it is too late."""
        self._refused: EngineUnavailable | None = None
        self._places = ", ".join(options.hosts)
        self._failed: dict[str, str] = {}
        """Why there is no connection, by server: kept until there is one."""
        self._failures = 0
        self._servers = len(options.hosts)
        self._listener = listener
        self._waiting: list[Callable[[], object]] = []
        self._changing = threading.Lock()
        self._client = Client(options, seconds, min(patience, max(seconds / 3, 0.5)), self)
        self._client.add_listener(self._changed)

    def __repr__(self) -> str:
        return f"<Link session={self.session or None} up={self._up} dead={self.dead}>"

    @property
    def seconds(self) -> float:
        """How long the session lasts, as the servers gave it."""
        return self.dating.seconds

    def start(self) -> None:
        self._client.start_async()

    # --- what kazoo says, in its own thread

    def taken_on(self, session: int, seconds: float, sent: float) -> None:
        name = f"{session & ((1 << 64) - 1):x}"
        if self.session and name != self.session:
            return  # kazoo began another session by itself: that is not this one
        if self._past or self.is_past(sent):
            # Whoever leaned on it has given up, and may have ceased to clean up. So it ends here, though the
            # servers, which were away themselves perhaps, would go on with it.
            self._past = True
            return
        self.session = name
        self.dating.connected(sent, seconds)

    def not_connected(self, place: str, why: str) -> None:
        """After so many failures as there are servers, whoever waits is told: none can be had just now."""
        self._failed[place] = why
        self._failures += 1
        if self._failures >= self._servers:
            self._failures = 0
            self._tell_waiting()

    def may_ping(self) -> bool:
        """While nothing hangs on the session it may as well live on. What does is kept by the client itself:
        if that does nothing any more (its loop is blocked, its thread has died), kazoo shall not."""
        left_alone = boottime() - self.dating.last > self.seconds * LEFT_ALONE
        if left_alone and self._listener.is_used(self):
            return False
        self.dating.sent(boottime())
        return True

    def is_past(self, now: float) -> bool:
        return bool(self.session) and self.dating.age(now) > self.seconds

    def _changed(self, state: Any) -> None:
        if self.dead:
            return
        if state == KazooState.CONNECTED and self._comes_up():
            self._tell_waiting()
            self._listener.link_up(self)
        elif state == KazooState.SUSPENDED:
            self._up = False
            log.debug("holdfast: no connection to ZooKeeper")
        else:
            self._over()

    def _comes_up(self) -> bool:
        with self._changing:
            self._up = not self._past
        if self._up:
            self._failed.clear()
            self._failures = 0
        return self._up

    def _over(self) -> None:
        self._up, self.dead = False, True
        if self._client.client_state == KeeperState.AUTH_FAILED:
            self._refused = EngineUnavailable("ZooKeeper does not accept the user and the password")
            self._refused.nothing_was_sent = True
        self._tell_waiting()
        self._listener.link_over(self)

    def _tell_waiting(self) -> None:
        with self._changing:
            waiting, self._waiting = self._waiting, []
        for tell in waiting:
            tell()

    # --- what it is told

    def when_ready(self, tell: Callable[[], object]) -> None:
        """Call when it is connected, or over; at once if it is."""
        with self._changing:
            if not self._up and not self.dead:
                self._waiting.append(tell)
                return
        tell()

    def check(self) -> None:
        """Raise unless something can be sent."""
        if self._refused is not None:
            raise self._refused
        if self.dead:
            raise NoSession
        if not self._up:
            why = "; ".join(f"{place}: {told}" for place, told in self._failed.copy().items())
            raise NotApplied(
                f"ZooKeeper cannot be reached: {why or f'no answer in time from {self._places}'}"
            )

    def leave_past(self, now: float) -> bool:
        """If its time is over and there is no connection: let it be over, also for a server that is taking it
        on just now. What it carries need not be given back then, for it ends with it."""
        if self._up:
            return False
        with self._changing:
            if not self._up and self.is_past(now):
                self._past = True
            return self._past

    def send(self, requests: Sequence[Any], notify: Notify) -> None:
        """Send them back to back, without waiting."""
        self._client.submit(requests, Batch(len(requests), notify).answers)

    def doubt(self) -> None:
        """It did not answer in time: the connection may be silently dead."""
        self._client.sockets.hang_up()

    # --- its end

    def end(self, told: Callable[[], object]) -> None:
        """End the session, in a thread of its own, for that may take time. Tells when it is done."""
        self.dead = True
        self._tell_waiting()
        self._end(told)

    def go_silent(self) -> None:
        """End the connection and let the session live on for its time."""
        self.dead = True
        self._client.go_silent()
        self._end(lambda: None)

    def _end(self, told: Callable[[], object]) -> None:
        def work() -> None:
            try:
                self._client.end()
            except Exception:
                # What is left of it ends with the session.
                log.debug("holdfast: a connection to ZooKeeper did not end well", exc_info=True)
            finally:
                told()

        threading.Thread(target=work, name="holdfast-zookeeper-end", daemon=True).start()

    def let_go(self) -> None:
        """In the child of a fork: it is the parent's. Not a word to the server."""
        self.dead = True
        self._client.sockets.let_go()
