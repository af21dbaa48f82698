"""Redlock for the threads driver: scatter and gather from the calling thread."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ...core.ops import Pause, Refused
from ...drivers.adapter import Hooks, Steps
from ...drivers.clock import boottime
from ...drivers.ending import wait_for_end
from ...errors import EngineUnavailable
from ...protocols import quorum as family
from ...protocols.quorum import Answers, Fan, QuorumScript
from ...rules.requests import Reply, Request, Snapshot
from .. import scripts
from .asking import Question
from .bundle import Bundle
from .keys import Space
from .running import (
    LAST_SECONDS,
    TELL_AGAIN_SECONDS,
    Debts,
    Refusal,
    at_once,
    quorum_of,
    source_of,
)
from .settings import RedlockSettings

__all__ = ["RedlockThreads"]

T = TypeVar("T")
log = logging.getLogger("holdfast")

LOOK_SECONDS: Final = 0.2
"""One who waits for connections looks so often whether some were lost to an interrupt."""


class RedlockThreads:
    """One client's way to its nodes."""

    hearing = None

    def __init__(self, settings: RedlockSettings, space: Space, hooks: Hooks) -> None:
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

    def tend(self, steps: Steps) -> list[Reply]:
        return self.run(family.tend(self.quorum, steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self.run(family.list_names(self.quorum, prefix))

    def run(self, script: QuorumScript[T]) -> T:
        """The keeper has connections of its own: what is held does not wait behind those who want it."""
        try:
            is_keeper = self._here.is_keeper
        except AttributeError:
            is_keeper = self._here.is_keeper = self._is_keeper()
        return scripts.run(script, self._do_apart if is_keeper else self._do)

    def _do(self, op: Any) -> Any:
        return self._bundles.fan(op) if op.__class__ is Fan else self._do_here(op)

    def _do_apart(self, op: Any) -> Any:
        return self._bundles.fan_apart(op) if op.__class__ is Fan else self._do_here(op)

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

    def __init__(self, settings: RedlockSettings, space: Space, hooks: Hooks) -> None:
        self._settings, self._space, self._client = settings, space, hooks.client
        self._most = settings.connections
        self._seconds = hooks.io_timeout
        self._idle: queue.SimpleQueue[Bundle] = queue.SimpleQueue()
        self._apart: list[Bundle] = []
        self._known: weakref.WeakSet[Bundle] = weakref.WeakSet()
        self._taken: weakref.WeakSet[Bundle] = weakref.WeakSet()
        self._mutex = threading.RLock()  # a signal handler may come here while its own thread is here
        self._teller = _Teller(self._made, settings.node_seconds)
        self._refusal = Refusal()
        self._closed = False

    def fan(self, op: Fan) -> Answers:
        if self._refusal.why:
            self._refusal.refuse()
        try:
            bundle = self._idle.get_nowait()
        except queue.Empty:
            bundle = self._take()
        return self._fan(bundle, op, self._idle.put)

    def fan_apart(self, op: Fan) -> Answers:
        self._refusal.refuse()
        bundle = self._apart.pop() if self._apart else self._new()
        return self._fan(bundle, op, self._apart.append)

    def _fan(self, bundle: Bundle, op: Fan, give_back: Callable[[Bundle], None]) -> Answers:
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
                    raise Refused(f"all {self._most} connections to the nodes are busy") from None

    def _new(self) -> Bundle:
        if self._closed:
            raise Refused("this client is closed")
        return self._made()

    def _made(self) -> Bundle:
        bundle = Bundle(self._settings, self._space, self._client, self._seconds, self._teller.owe)
        with self._mutex:
            self._known.add(bundle)
        return bundle

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
    """Tells nodes what they have not heard, on a thread that lives as long as there is something to tell."""

    def __init__(self, new_bundle: Callable[[], Bundle], seconds: float) -> None:
        self._new_bundle = new_bundle
        self._seconds = seconds
        self._debts = Debts()
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Lock()
        """Free once it is to stop."""
        self._stopped.acquire()
        self._is_over = False

    def owe(self, question: Question, node: int) -> None:
        if not self._debts.add(question, node):
            return
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
                with self._mutex:
                    due = self._debts.due(self._seconds)
                    if due is None:
                        self._thread = None  # who owes something from now on starts another
                        return
                if bundle is None:
                    bundle = self._new_bundle()
                pause = self._debts.settle(bundle.fan(due[0]), due[1], pause)
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

    def stop(self) -> None:
        with self._mutex:
            if self._is_over:
                return
            self._is_over = True
        self._stopped.release()
        wait_for_end(self._thread, LAST_SECONDS)

    def tell_for_the_last_time(self) -> None:
        """On the thread that closes the client. What nodes do not hear now they keep until it expires."""
        due = self._debts.due(min(self._seconds, LAST_SECONDS))
        if due is not None:
            bundle = self._new_bundle()
            with contextlib.suppress(EngineUnavailable), contextlib.closing(bundle):
                bundle.fan(due[0])
