"""ZooKeeper for threads: performs what is sent."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, Final

from ...engine_api import AdapterContext
from ...protocols.tickets import TicketClient
from ...protocols.tickets.store import StoreOp
from ...runtime import trampoline
from ...runtime.clock import boottime
from .config import Config
from .keys import Paths
from .rpc import AwaitConnected, RequestTimeoutError, SendRequests
from .session import Answer
from .store import ZooKeeperStore

__all__ = ["CLOSE_SECONDS", "ZooKeeperThreads"]

log = logging.getLogger("holdfast")

CLOSE_SECONDS: Final = 1.0
"""How long the end of a client waits for its session to be ended; it expires by itself."""


class _Bell:
    """Rung once, perhaps twice."""

    __slots__ = ("_lock", "answers")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.answers: list[Answer] = []

    def ring(self, answers: list[Answer] | None = None) -> None:
        self.answers = answers or []
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def heard(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=max(seconds, 0.0))


class ZooKeeperThreads:
    """The store of one client."""

    def __init__(self, options: Config, paths: Paths, hooks: AdapterContext, client: TicketClient) -> None:
        self._store = ZooKeeperStore(options, paths, hooks, client)
        self._closed = False
        self.disarm = self._store.sessions.notifications.disarm

    @property
    def source(self) -> str:
        return self._store.source

    def perform(self, op: StoreOp) -> Any:
        return trampoline.run(self._store.script(op), self._do)

    def _do(self, step: Any) -> Any:
        return self._send(step) if step.__class__ is SendRequests else self._wait(step)

    @staticmethod
    def _send(step: SendRequests) -> list[Answer]:
        bell = _Bell()
        step.link.send(step.requests, bell.ring)
        if not bell.heard(step.timeout):
            raise RequestTimeoutError
        return bell.answers

    @staticmethod
    def _wait(step: AwaitConnected) -> None:
        bell = _Bell()
        step.link.notify_when_connected(bell.ring)
        bell.heard(step.timeout)

    def listen(self) -> None:
        """Whoever has a session hears what becomes of it."""

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        bells = []
        for link in self._store.sessions.all():
            bells.append(bell := _Bell())
            link.end(bell.ring)
        ends_at = boottime() + CLOSE_SECONDS
        for bell in bells:
            if not bell.heard(ends_at - boottime()):
                log.debug("holdfast: a session of ZooKeeper was left to expire")

    def forked(self) -> None:
        """The parent's connections are not ours: let go of them without a word."""
        self._closed = True
        for link in self._store.sessions.all():
            link.detach_after_fork()
