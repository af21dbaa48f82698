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
from .config import RedlockSettings
from .keys import Space
from .node_connections import Bundle
from .quorum import (
    LAST_SECONDS,
    TELL_AGAIN_SECONDS,
    Debts,
    Refusal,
    at_once,
    quorum_of,
    source_of,
)
from .requests import Question

__all__ = ["RedlockThreads"]

T = TypeVar("T")
log = logging.getLogger("holdfast")

READ_SECONDS: Final = 0.03
"""How often connections that nobody uses are looked at while a node has yet to answer there."""

STAY_SECONDS: Final = 2.0
"""The thread that does that stays so long after it was last needed: starting one takes time."""

LOOK_SECONDS: Final = 0.2
"""One who waits for connections looks so often whether some were lost to an interrupt."""


class RedlockThreads:
    """One client's way to its nodes."""

    notification_reader = None

    def __init__(self, settings: RedlockSettings, space: Space, hooks: AdapterContext) -> None:
        self.quorum = quorum_of(settings, hooks)
        self._space = space
        self._bundles = _Bundles(settings, space, hooks)
        self._at_once = at_once(hooks)
        self._is_keeper = hooks.is_keeper
        self._here = threading.local()
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
            is_keeper = self._here.is_keeper
        except AttributeError:
            is_keeper = self._here.is_keeper = self._is_keeper()
        return trampoline.run(script, self._do_apart if is_keeper else self._do)

    def _do(self, op: Any) -> Any:
        return self._bundles.fan(op) if op.__class__ is Broadcast else self._do_here(op)

    def _do_apart(self, op: Any) -> Any:
        return self._bundles.fan_apart(op) if op.__class__ is Broadcast else self._do_here(op)

    def _do_here(self, op: Any) -> Any:
        if op.__class__ is Pause:
            time.sleep(op.seconds)
            return None
        return self._at_once[op.__class__](op)

    # --- wake-ups: nodes tell nobody anything, so who waits looks by itself -----------------------

    def listen(self, name: str | None) -> None:
        """Who waits in this client is woken by it; others look now and then."""

    def unlisten(self, nonce: str, name: str | None) -> None:
        """Nothing was begun."""

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody tells us that a client died: its claims run out."""

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        self._bundles.close()

    def forked(self) -> None:
        self._bundles.forget()


class _Bundles:
    """A few connections to each node, shared by all threads of a client.

    An interrupt can strike a thread between any two steps. So bundles are known by weak references: one that
    nobody has any more takes up no room.
    """

    def __init__(self, settings: RedlockSettings, space: Space, hooks: AdapterContext) -> None:
        self._settings, self._space, self._client = settings, space, hooks.client
        self._most = settings.connections
        self._seconds = hooks.io_timeout
        self._idle: queue.SimpleQueue[Bundle] = queue.SimpleQueue()
        self._apart: list[Bundle] = []
        self._known: weakref.WeakSet[Bundle] = weakref.WeakSet()
        self._taken: weakref.WeakSet[Bundle] = weakref.WeakSet()
        self._mutex = threading.RLock()  # a signal handler may come here while its own thread is here
        self._teller = _Teller(self._made, self._read_owed, settings.node_seconds)
        self._refusal = Refusal()
        self._closed = False

    def fan(self, op: Broadcast) -> Answers:
        if self._refusal.why:
            self._refusal.refuse()
        try:
            bundle = self._idle.get_nowait()
        except queue.Empty:
            bundle = self._take()
        return self._fan(bundle, op, self._idle.put)

    def fan_apart(self, op: Broadcast) -> Answers:
        self._refusal.refuse()
        try:
            bundle = self._apart.pop()
        except IndexError:
            bundle = self._new()
        return self._fan(bundle, op, self._apart.append)

    def _fan(self, bundle: Bundle, op: Broadcast, give_back: Callable[[Bundle], None]) -> Answers:
        try:
            answers = bundle.fan(op)
        except BaseException as error:
            with self._mutex:
                self._taken.discard(bundle)  # it was closed; who keeps the error may keep it for long
            if isinstance(error, EngineUnavailable):
                self._refusal.found(str(error))
            raise
        if self._closed:
            bundle.close()
        else:
            give_back(bundle)
        return answers

    def _take(self) -> Bundle:
        ends_at = boottime() + self._seconds
        while True:
            with self._mutex:
                if len(self._taken) < self._most:
                    bundle = self._new()
                    self._taken.add(bundle)
                    return bundle
            try:
                return self._idle.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if boottime() >= ends_at:
                    raise NotApplied(f"all {self._most} connections to the nodes are busy") from None

    def _new(self) -> Bundle:
        if self._closed:
            raise NotApplied("this client is closed")
        return self._made()

    def _made(self) -> Bundle:
        teller = self._teller
        bundle = Bundle(
            self._settings, self._space, self._client, self._seconds, teller.owe, teller.has_to_read
        )
        with self._mutex:
            self._known.add(bundle)
        return bundle

    # --- what nodes answer when nobody waits for it -------------------------------------------------

    def _read_owed(self) -> bool:
        """On connections that nobody uses now. Whether there is, or may be, more to come."""
        now = monotonic()
        with self._mutex:
            known = list(self._known)
        if not any(bundle.is_owed() for bundle in known):
            return False
        if any(bundle.is_left(now) for bundle in known):
            self._read_apart(now)
            for _ in range(self._idle.qsize()):
                try:
                    bundle = self._idle.get_nowait()
                except queue.Empty:
                    break
                if self._catch_up(bundle, now):
                    self._idle.put(bundle)
        return True

    def _read_apart(self, now: float) -> None:
        try:
            bundle = self._apart.pop()
        except IndexError:
            return
        if self._catch_up(bundle, now):
            if self._apart:
                bundle.end()  # the keeper could not wait, and has another now
            else:
                self._apart.append(bundle)

    def _catch_up(self, bundle: Bundle, now: float) -> bool:
        """Whether it can be used again."""
        try:
            if bundle.is_left(now):
                bundle.catch_up(now)
        except BaseException as error:
            with self._mutex:
                self._taken.discard(bundle)
            if not isinstance(error, EngineUnavailable):
                raise
            self._refusal.found(str(error))
            return False
        if self._closed:
            bundle.end()
        return not self._closed

    def close(self) -> None:
        self._closed = True
        self._teller.stop()
        idle = list(self._apart)
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for bundle in idle:
            bundle.end()
        self._teller.tell_for_the_last_time()

    def forget(self) -> None:
        """This is the child of a fork: nobody else is here, and mutexes may be locked for ever."""
        self._closed = True
        for bundle in list(self._known):
            bundle.forget()


class _Teller:
    """Tells nodes what they have not heard, and reads what they answer when nobody else does.

    On a thread that lives as long as there is something to tell or to read, and a little longer.
    """

    def __init__(
        self, new_bundle: Callable[[], Bundle], read_owed: Callable[[], bool], seconds: float
    ) -> None:
        self._new_bundle = new_bundle
        self._read_owed = read_owed
        self._seconds = seconds
        self._debts = Debts()
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None
        self._needed_until = 0.0
        self._stopped = threading.Lock()
        """Free once it is to stop."""
        self._stopped.acquire()
        self._is_over = False

    def owe(self, question: Question, node: int) -> None:
        if self._debts.add(question, node):
            self._start()

    def has_to_read(self) -> None:
        """A node has yet to answer, on a connection that may not be used again soon."""
        self._needed_until = monotonic() + STAY_SECONDS  # before we look for the thread: see _is_done
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._mutex:
            if not self._is_over and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._work, name="holdfast-teller", daemon=True)
                with contextlib.suppress(RuntimeError):  # the process is ending: they are told on closing
                    self._thread.start()  # should an interrupt come before it, the next one starts another

    def _work(self) -> None:
        bundle: Bundle | None = None
        pause = TELL_AGAIN_SECONDS
        try:
            while not self._stopped.acquire(timeout=pause):
                is_owed = self._read_owed()
                due = self._debts.due(self._seconds)
                if due is not None:
                    if bundle is None:
                        bundle = self._new_bundle()
                    pause = self._debts.settle(bundle.fan(due[0]), due[1], pause)
                    continue
                if bundle is not None:
                    bundle.close()
                    bundle = None
                if not is_owed and self._is_done():
                    return
                pause = READ_SECONDS
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
            self._leave()

    def _is_done(self) -> bool:
        """Whether this thread may end: from now on another is started when there is something to do."""
        with self._mutex:
            self._thread = None
            if monotonic() < self._needed_until or self._debts.due(self._seconds) is not None:
                self._thread = threading.current_thread()
            return self._thread is None

    def _leave(self) -> None:
        with self._mutex:
            if self._thread is threading.current_thread():
                self._thread = None

    def stop(self) -> None:
        with self._mutex:
            if self._is_over:
                return
            self._is_over = True
        self._stopped.release()
        join_thread(self._thread, LAST_SECONDS)

    def tell_for_the_last_time(self) -> None:
        """On the thread that closes the client. What nodes do not hear now they keep until it expires."""
        due = self._debts.due(min(self._seconds, LAST_SECONDS))
        if due is not None:
            bundle = self._new_bundle()
            with contextlib.suppress(EngineUnavailable), contextlib.closing(bundle):
                bundle.fan(due[0])
