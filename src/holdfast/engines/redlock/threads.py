"""Redlock for the threads driver: scatter and gather from the calling thread."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any, Final, TypeVar

from ...core.effects import NotApplied, Pause
from ...engine_api import AdapterContext, Steps
from ...errors import EngineUnavailable
from ...protocols import quorum as family
from ...protocols.quorum import Answers, Broadcast, QuorumCoroutine
from ...rules.requests import Reply, Request, Snapshot
from ...runtime import trampoline
from ...runtime.clock import boottime
from ...runtime.thread_join import join_thread
from .config import RedlockConfig
from .errors import SameServerRefusal
from .keys import Keyspace
from .node_connections import NodeConnections
from .quorum import CLOSE_SECONDS, RETRY_SECONDS, HintedHandoff, immediate_effects, quorum_of, source_of
from .requests import NodeRequest

__all__ = ["RedlockThreads"]

T = TypeVar("T")
log = logging.getLogger("holdfast")

LATE_REPLY_POLL_SECONDS: Final = 0.03
"""How often connections that nobody uses are looked at while a node has yet to answer there."""

IDLE_THREAD_SECONDS: Final = 2.0
"""The thread that does that stays so long after it was last needed: starting one takes time."""

POOL_POLL_SECONDS: Final = 0.2
"""One who waits for connections looks so often whether some were lost to an interrupt."""


class RedlockThreads:
    """One client's way to its nodes."""

    notification_reader = None

    def __init__(self, settings: RedlockConfig, space: Keyspace, hooks: AdapterContext) -> None:
        self.quorum = quorum_of(settings, hooks)
        self._space = space
        self._pool = _ConnectionPool(settings, space, hooks)
        self._immediate_effects = immediate_effects(hooks)
        self._is_keeper = hooks.is_keeper
        self._thread_local = threading.local()
        """Whether this thread is the keeper, once that was asked: it stays what it is."""

    @property
    def source(self) -> str:
        return source_of(self.quorum, self._space.namespace)

    def apply(self, name: str, request: Request) -> Reply:
        return self.run(family.apply(self.quorum, name, request))

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return self.run(family.apply_in_order(self.quorum, steps, stop_when_refused))

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self.run(family.renew_batch(self.quorum, steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self.run(family.list_names(self.quorum, prefix))

    def run(self, script: QuorumCoroutine[T]) -> T:
        """The keeper has connections of its own: what is held does not wait behind those who want it."""
        try:
            is_keeper = self._thread_local.is_keeper
        except AttributeError:
            is_keeper = self._thread_local.is_keeper = self._is_keeper()
        return trampoline.run(script, self._perform_for_keeper if is_keeper else self._perform)

    def _perform(self, op: Any) -> Any:
        return self._pool.broadcast(op) if op.__class__ is Broadcast else self._perform_local(op)

    def _perform_for_keeper(self, op: Any) -> Any:
        return self._pool.broadcast_for_keeper(op) if op.__class__ is Broadcast else self._perform_local(op)

    def _perform_local(self, op: Any) -> Any:
        if op.__class__ is Pause:
            time.sleep(op.seconds)
            return None
        return self._immediate_effects[op.__class__](op)

    # --- wake-ups: nodes tell nobody anything, so who waits looks by itself -----------------------

    def listen(self, name: str | None) -> None:
        """Who waits in this client is woken by it; others look now and then."""

    def unlisten(self, nonce: str, name: str | None) -> None:
        """Nothing was begun."""

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody tells us that a client died: its claims run out."""

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        self._pool.close()

    def forked(self) -> None:
        self._pool.detach_after_fork()


class _ConnectionPool:
    """A few connections to each node, shared by all threads of a client.

    An interrupt can strike a thread between any two steps. So bundles are known by weak references: one that
    nobody has any more takes up no room.
    """

    def __init__(self, settings: RedlockConfig, space: Keyspace, hooks: AdapterContext) -> None:
        self._settings, self._space, self._client = settings, space, hooks.client
        self._size_max = settings.connections
        self._seconds = hooks.io_timeout
        self._idle: queue.SimpleQueue[NodeConnections] = queue.SimpleQueue()
        self._keeper_idle: list[NodeConnections] = []
        self._all: weakref.WeakSet[NodeConnections] = weakref.WeakSet()
        self._taken: weakref.WeakSet[NodeConnections] = weakref.WeakSet()
        self._mutex = threading.RLock()  # a signal handler may come here while its own thread is here
        self._handoff = HandoffThread(self._open, self._read_late_replies, settings.node_seconds)
        self._refusal = SameServerRefusal()
        self._closed = False

    def broadcast(self, op: Broadcast) -> Answers:
        if self._refusal.reason:
            self._refusal.check()
        try:
            bundle = self._idle.get_nowait()
        except queue.Empty:
            bundle = self._take()
        return self._broadcast_on(bundle, op, self._idle.put)

    def broadcast_for_keeper(self, op: Broadcast) -> Answers:
        self._refusal.check()
        try:
            bundle = self._keeper_idle.pop()
        except IndexError:
            bundle = self._open_if_not_closed()
        return self._broadcast_on(bundle, op, self._keeper_idle.append)

    def _broadcast_on(
        self, bundle: NodeConnections, op: Broadcast, give_back: Callable[[NodeConnections], None]
    ) -> Answers:
        try:
            answers = bundle.broadcast(op)
        except BaseException as error:
            with self._mutex:
                self._taken.discard(bundle)  # it was closed; who keeps the error may keep it for long
            if isinstance(error, EngineUnavailable):
                self._refusal.note(str(error))
            raise
        if self._closed:
            bundle.close()
        else:
            give_back(bundle)
        return answers

    def _take(self) -> NodeConnections:
        ends_at = boottime() + self._seconds
        while True:
            with self._mutex:
                if len(self._taken) < self._size_max:
                    bundle = self._open_if_not_closed()
                    self._taken.add(bundle)
                    return bundle
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
        teller = self._handoff
        bundle = NodeConnections(
            self._settings, self._space, self._client, self._seconds, teller.add, teller.read_late_replies
        )
        with self._mutex:
            self._all.add(bundle)
        return bundle

    # --- what nodes answer when nobody waits for it -------------------------------------------------

    def _read_late_replies(self) -> bool:
        """On connections that nobody uses now. Whether there is, or may be, more to come."""
        now = monotonic()
        with self._mutex:
            known = list(self._all)
        if not any(bundle.is_pending() for bundle in known):
            return False
        if any(bundle.is_abandoned(now) for bundle in known):
            self._read_keeper_replies(now)
            for _ in range(self._idle.qsize()):
                try:
                    bundle = self._idle.get_nowait()
                except queue.Empty:
                    break
                if self._read_replies_of(bundle, now):
                    self._idle.put(bundle)
        return True

    def _read_keeper_replies(self, now: float) -> None:
        try:
            bundle = self._keeper_idle.pop()
        except IndexError:
            return
        if self._read_replies_of(bundle, now):
            if self._keeper_idle:
                bundle.read_and_close()  # the keeper could not wait, and has another now
            else:
                self._keeper_idle.append(bundle)

    def _read_replies_of(self, bundle: NodeConnections, now: float) -> bool:
        """Whether it can be used again."""
        try:
            if bundle.is_abandoned(now):
                bundle.read_late_replies(now)
        except BaseException as error:
            with self._mutex:
                self._taken.discard(bundle)
            if not isinstance(error, EngineUnavailable):
                raise
            self._refusal.note(str(error))
            return False
        if self._closed:
            bundle.read_and_close()
        return not self._closed

    def close(self) -> None:
        self._closed = True
        self._handoff.stop()
        idle = list(self._keeper_idle)
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for bundle in idle:
            bundle.read_and_close()
        self._handoff.deliver_before_close()

    def detach_after_fork(self) -> None:
        """This is the child of a fork: nobody else is here, and mutexes may be locked for ever."""
        self._closed = True
        for bundle in list(self._all):
            bundle.detach_after_fork()


class HandoffThread:
    """Tells nodes what they have not heard, and reads what they answer when nobody else does.

    On a thread that lives as long as there is something to tell or to read, and a little longer.
    """

    def __init__(
        self, new_bundle: Callable[[], NodeConnections], read_owed: Callable[[], bool], seconds: float
    ) -> None:
        self._open_connections = new_bundle
        self._read_late_replies = read_owed
        self._seconds = seconds
        self._hints = HintedHandoff()
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None
        self._needed_until = 0.0
        self._stopped = threading.Lock()
        """Free once it is to stop."""
        self._stopped.acquire()
        self._is_stopped = False

    def add(self, question: NodeRequest, node: int) -> None:
        if self._hints.add(question, node):
            self._start()

    def read_late_replies(self) -> None:
        """A node has yet to answer, on a connection that may not be used again soon."""
        self._needed_until = monotonic() + IDLE_THREAD_SECONDS  # before we look for the thread: see _is_done
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._mutex:
            if not self._is_stopped and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._work, name="holdfast-teller", daemon=True)
                with contextlib.suppress(RuntimeError):  # the process is ending: they are told on closing
                    self._thread.start()  # should an interrupt come before it, the next one starts another

    def _work(self) -> None:
        bundle: NodeConnections | None = None
        pause = RETRY_SECONDS
        try:
            while not self._stopped.acquire(timeout=pause):
                is_owed = self._read_late_replies()
                due = self._hints.next_broadcast(self._seconds)
                if due is not None:
                    if bundle is None:
                        bundle = self._open_connections()
                    pause = self._hints.settle(bundle.broadcast(due[0]), due[1], pause)
                    continue
                if bundle is not None:
                    bundle.close()
                    bundle = None
                if not is_owed and self._is_done():
                    return
                pause = LATE_REPLY_POLL_SECONDS
        except EngineUnavailable as trouble:
            log.debug("holdfast: nodes could not be told what they missed: %s", trouble)
        except Exception:
            log.exception(
                "holdfast: a thread that tells nodes what they missed ended; what they keep expires"
            )
            raise
        finally:
            if bundle is not None:
                bundle.close()
            self._unregister()

    def _is_done(self) -> bool:
        """Whether this thread may end: from now on another is started when there is something to do."""
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
        self._stopped.release()
        join_thread(self._thread, CLOSE_SECONDS)

    def deliver_before_close(self) -> None:
        """On the thread that closes the client. What nodes do not hear now they keep until it expires."""
        due = self._hints.next_broadcast(min(self._seconds, CLOSE_SECONDS))
        if due is not None:
            bundle = self._open_connections()
            with contextlib.suppress(EngineUnavailable), contextlib.closing(bundle):
                bundle.broadcast(due[0])
