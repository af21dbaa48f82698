"""Hinted handoff: releases and repairs that a node has not received are sent to it again, in the background.

On threads the same background thread reads replies that came after their caller had gone on.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, NamedTuple

from ...errors import EngineUnavailable
from ...protocols.quorum import Answers, Broadcast
from ...protocols.quorum.effects import Batch
from ...runtime.clock import boottime
from ...runtime.thread_join import join_thread
from ...runtime.wakeups import ThreadWakeup
from .routing import NodeConnections
from .rpc import NodeRequest

__all__ = ["CLOSE_SECONDS", "RETRY_SECONDS", "HandoffThread", "HintedHandoff"]

log = logging.getLogger("holdfast")

RETRY_SECONDS: Final = 0.01
RETRY_SECONDS_MAX: Final = 0.3
"""The pause before the next delivery. It doubles while no node answers."""

CLOSE_SECONDS: Final = 0.2
"""How long a client that is closed still tries to deliver."""

LATE_REPLY_POLL_SECONDS: Final = 0.03
"""How often idle connections are read while replies are pending on them."""

IDLE_THREAD_SECONDS: Final = 2.0
"""How long the thread stays after it was last needed, because starting a thread takes time."""


class _Hint(NamedTuple):
    """A batch for one node, to be delivered before a moment of the local clock."""

    number: int
    node: int
    batch: Batch
    member: str
    until: float


class HintedHandoff:
    """The batches that nodes have not received. Threads share it."""

    __slots__ = ("_hints", "_numbers")

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._hints: dict[int, _Hint] = {}

    def add(self, request: NodeRequest, node: int) -> bool:
        """Keep a request that a node may not have received. Whether it is to be delivered later."""
        if request.handoff_until is None:
            return False
        number = next(self._numbers)
        self._hints[number] = _Hint(number, node, request.batch, request.member, request.handoff_until)
        return True

    def next_broadcast(self, seconds: float) -> tuple[Broadcast, dict[int, list[int]]] | None:
        """A broadcast with everything to deliver, and the numbers of the hints by node; None: nothing is
        left."""
        now = boottime()
        asks: dict[int, list[tuple[str, Any]]] = {}
        numbers: dict[int, list[int]] = {}
        member = ""
        for hint in list(self._hints.values()):
            if hint.until <= now:
                self._hints.pop(hint.number, None)
                continue
            asks.setdefault(hint.node, []).extend(hint.batch)
            numbers.setdefault(hint.node, []).append(hint.number)
            member = hint.member
        if not asks:
            return None
        batches = tuple([(node, tuple(batch)) for node, batch in asks.items()])
        return Broadcast(batches, lambda answers: False, seconds, member), numbers

    def settle(self, answers: Answers, numbers: dict[int, list[int]], pause: float) -> float:
        """Drop the hints of nodes that answered. Returns the pause before the next round, from the one
        before."""
        delivered = [node for node, answer in answers.items() if isinstance(answer, tuple)]
        for node in delivered:
            for number in numbers[node]:
                self._hints.pop(number, None)
        return RETRY_SECONDS if delivered else min(pause * 2, RETRY_SECONDS_MAX)


class HandoffThread:
    """Delivers hints and reads late replies, on a thread that lives while there is something to do."""

    def __init__(
        self,
        open_connections: Callable[[], NodeConnections],
        read_late_replies: Callable[[], bool],
        seconds: float,
    ) -> None:
        self._open_connections = open_connections
        self._read_late_replies = read_late_replies
        self._seconds = seconds
        self._hints = HintedHandoff()
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None
        self._needed_until = 0.0
        self._stop = ThreadWakeup()
        self._is_stopped = False

    def add(self, request: NodeRequest, node: int) -> None:
        if self._hints.add(request, node):
            self._start()

    def read_late_replies(self) -> None:
        """A reply is pending on a connection that may not be used again soon."""
        self._needed_until = (
            monotonic() + IDLE_THREAD_SECONDS
        )  # before the check for the thread: see _is_done
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._mutex:
            if not self._is_stopped and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._work, name="holdfast-handoff", daemon=True)
                with contextlib.suppress(RuntimeError):  # the process is ending: closing delivers
                    self._thread.start()  # after an interrupt here the next call starts another

    def _work(self) -> None:
        connections: NodeConnections | None = None
        pause = RETRY_SECONDS
        try:
            while not self._stop.wait(pause):
                has_pending = self._read_late_replies()
                delivery = self._hints.next_broadcast(self._seconds)
                if delivery is not None:
                    if connections is None:
                        connections = self._open_connections()
                    pause = self._hints.settle(connections.broadcast(delivery[0]), delivery[1], pause)
                    continue
                if connections is not None:
                    connections.close()
                    connections = None
                if not has_pending and self._is_done():
                    return
                pause = LATE_REPLY_POLL_SECONDS
        except EngineUnavailable as error:
            log.debug("holdfast: hinted handoff to nodes failed: %s", error)
        except Exception:
            log.exception(
                "holdfast: the thread of hinted handoff failed; claims that it did not release expire"
            )
            raise
        finally:
            if connections is not None:
                connections.close()
            self._unregister()

    def _is_done(self) -> bool:
        """Whether this thread may end. From then on the next call of ``add`` starts another one."""
        with self._mutex:
            self._thread = None
            if monotonic() < self._needed_until or self._hints.next_broadcast(self._seconds) is not None:
                self._thread = threading.current_thread()
            return self._thread is None

    def _unregister(self) -> None:
        with self._mutex:
            if self._thread is threading.current_thread():
                self._thread = None

    def stop(self) -> None:
        with self._mutex:
            if self._is_stopped:
                return
            self._is_stopped = True
        self._stop.post()
        join_thread(self._thread, CLOSE_SECONDS)

    def deliver_before_close(self) -> None:
        """On the thread that closes the client. Claims that a node does not release now expire there."""
        delivery = self._hints.next_broadcast(min(self._seconds, CLOSE_SECONDS))
        if delivery is not None:
            connections = self._open_connections()
            with contextlib.suppress(EngineUnavailable), contextlib.closing(connections):
                connections.broadcast(delivery[0])
