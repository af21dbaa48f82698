"""A few connections to each node, shared by all threads of a client."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Final

from ...core.effects import NotApplied
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ...protocols.quorum import Answers, Broadcast
from ...runtime.clock import boottime
from .config import RedlockConfig
from .errors import SameServerRefusal
from .hinted_handoff import HandoffThread
from .keys import Keyspace
from .routing import NodeConnections

__all__ = ["ConnectionPool"]

POOL_POLL_SECONDS: Final = 0.2
"""How often a thread that waits for connections checks whether an interrupt made others lose theirs."""


class ConnectionPool:
    """Sets of connections, one connection to each node, and the keeper's own sets.

    An interrupt can strike a thread between any two steps. So the pool knows its sets by weak references: a
    set that no thread has any more does not count.
    """

    def __init__(self, config: RedlockConfig, space: Keyspace, context: AdapterContext) -> None:
        self._config, self._space, self._client = config, space, context.client
        self._size_max = config.connections
        self._seconds = context.io_timeout
        self._idle: queue.SimpleQueue[NodeConnections] = queue.SimpleQueue()
        self._keeper_idle: list[NodeConnections] = []
        self._all: weakref.WeakSet[NodeConnections] = weakref.WeakSet()
        self._taken: weakref.WeakSet[NodeConnections] = weakref.WeakSet()
        self._mutex = threading.RLock()  # a signal handler may interrupt its own thread in here
        self._handoff = HandoffThread(self._open, self._read_late_replies, config.node_seconds)
        self._refusal = SameServerRefusal()
        self._closed = False

    def broadcast(self, op: Broadcast) -> Answers:
        if self._refusal.reason:
            self._refusal.check()
        try:
            connections = self._idle.get_nowait()
        except queue.Empty:
            connections = self._take()
        return self._broadcast_on(connections, op, self._idle.put)

    def broadcast_for_keeper(self, op: Broadcast) -> Answers:
        self._refusal.check()
        try:
            connections = self._keeper_idle.pop()
        except IndexError:
            connections = self._open_if_not_closed()
        return self._broadcast_on(connections, op, self._keeper_idle.append)

    def _broadcast_on(
        self, connections: NodeConnections, op: Broadcast, put_back: Callable[[NodeConnections], None]
    ) -> Answers:
        try:
            answers = connections.broadcast(op)
        except BaseException as error:
            with self._mutex:
                self._taken.discard(connections)  # it was closed, and the error may keep a reference for long
            if isinstance(error, EngineUnavailable):
                self._refusal.note(str(error))
            raise
        if self._closed:
            connections.close()
        else:
            put_back(connections)
        return answers

    def _take(self) -> NodeConnections:
        ends_at = boottime() + self._seconds
        while True:
            with self._mutex:
                if len(self._taken) < self._size_max:
                    connections = self._open_if_not_closed()
                    self._taken.add(connections)
                    return connections
            try:
                return self._idle.get(timeout=POOL_POLL_SECONDS)
            except queue.Empty:
                if boottime() >= ends_at:
                    raise NotApplied(f"all {self._size_max} connections to the nodes are busy") from None

    def _open_if_not_closed(self) -> NodeConnections:
        if self._closed:
            raise NotApplied("this client is closed")
        return self._open()

    def _open(self) -> NodeConnections:
        handoff = self._handoff
        connections = NodeConnections(
            self._config, self._space, self._client, self._seconds, handoff.add, handoff.read_late_replies
        )
        with self._mutex:
            self._all.add(connections)
        return connections

    # --- late replies -------------------------------------------------------------------------------

    def _read_late_replies(self) -> bool:
        """Read idle connections. Whether more replies are pending."""
        now = monotonic()
        with self._mutex:
            known = list(self._all)
        if not any(connections.is_pending() for connections in known):
            return False
        if any(connections.is_abandoned(now) for connections in known):
            self._read_keeper_replies(now)
            for _ in range(self._idle.qsize()):
                try:
                    connections = self._idle.get_nowait()
                except queue.Empty:
                    break
                if self._read_replies_of(connections, now):
                    self._idle.put(connections)
        return True

    def _read_keeper_replies(self, now: float) -> None:
        try:
            connections = self._keeper_idle.pop()
        except IndexError:
            return
        if self._read_replies_of(connections, now):
            if self._keeper_idle:
                connections.read_and_close()  # the keeper could not wait, and has another set now
            else:
                self._keeper_idle.append(connections)

    def _read_replies_of(self, connections: NodeConnections, now: float) -> bool:
        """Whether the set can be used again."""
        try:
            if connections.is_abandoned(now):
                connections.read_late_replies(now)
        except BaseException as error:
            with self._mutex:
                self._taken.discard(connections)
            if not isinstance(error, EngineUnavailable):
                raise
            self._refusal.note(str(error))
            return False
        if self._closed:
            connections.read_and_close()
        return not self._closed

    def close(self) -> None:
        self._closed = True
        self._handoff.stop()
        idle = list(self._keeper_idle)
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for connections in idle:
            connections.read_and_close()
        self._handoff.deliver_before_close()

    def detach_after_fork(self) -> None:
        """In the child of a fork no other thread exists, and a mutex may be locked for ever."""
        self._closed = True
        for connections in list(self._all):
            connections.detach_after_fork()
