"""ZooKeeper for threads: performs the requests that the store awaits."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

from ...engine_api import AdapterContext
from ...protocols.tickets import TicketClient
from ...runtime.clock import boottime
from .config import Config
from .effects import RequestTimeoutError, SendRequests
from .keys import Paths
from .session import Answer
from .store import CLOSE_SECONDS, ZooKeeperStore

__all__ = ["ZooKeeperThreads"]

log = logging.getLogger("holdfast")


class _Reply:
    """Set once, perhaps twice, by kazoo's thread; waited for by one thread."""

    __slots__ = ("_lock", "answers")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.answers: list[Answer] = []

    def set(self, answers: list[Answer] | None = None) -> None:
        self.answers = answers or []
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def wait(self, seconds: float) -> bool:
        return self._lock.acquire(timeout=max(seconds, 0.0))


class ZooKeeperThreads:
    """The I/O of one client."""

    def __init__(self, config: Config, paths: Paths, context: AdapterContext, client: TicketClient) -> None:
        self.store = ZooKeeperStore(config, paths, context, client)
        self._closed = False
        self.disarm = self.store.pool.notifications.disarm

    @property
    def source(self) -> str:
        return self.store.source

    @staticmethod
    def perform(op: Any) -> list[Answer]:
        reply = _Reply()
        if op.__class__ is SendRequests:
            op.session.send(op.requests, reply.set)
            if not reply.wait(op.timeout):
                raise RequestTimeoutError
        else:
            op.session.notify_when_connected(reply.set)
            reply.wait(op.timeout)
        return reply.answers

    def listen(self) -> None:
        """A client with a session receives its notifications already."""

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        replies = []
        for session in self.store.pool.all():
            reply = _Reply()
            if session.session_id:  # otherwise no server has established it: there is nothing to wait for
                replies.append(reply)
            session.end(reply.set)
        ends_at = boottime() + CLOSE_SECONDS
        for reply in replies:
            if not reply.wait(ends_at - boottime()):
                log.debug("holdfast: a session of ZooKeeper was left to expire")

    def forked(self) -> None:
        """The connections belong to the parent process: detach from them without sending anything."""
        self._closed = True
        for session in self.store.pool.all():
            session.detach_after_fork()
