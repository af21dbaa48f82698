"""The threads driver: runs a script in the calling thread, and the keeper and the timer in two of its own."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..core.arguments import MAX_WAITERS
from ..core.deadlines import pause_seconds
from ..core.effects import (
    Apply,
    ApplyInOrder,
    Effect,
    Listen,
    ListNames,
    Nonce,
    Notify,
    Now,
    Pause,
    ProtocolCoroutine,
    RenewBatch,
    Signal,
    SleepUntil,
    TimerName,
    TransientError,
    Unlisten,
    Wait,
)
from ..engine_api import AdapterContext, Engine
from ..errors import EngineUnavailable
from ..protocols import records, uncontended
from ..protocols.client_state import ClientState, LeaseState
from ..protocols.keeper import deadline_loop, renewal_loop
from ..protocols.locks import HasState, LockCore, Who
from ..protocols.reporting import Reports
from ..rules.requests import Handoff, Reply, Request
from ..runtime.clock import boottime
from ..runtime.connect_timeout import connect_timeout
from ..runtime.identity import attempt_names, new_client_id, owner_prefix
from ..runtime.thread_join import join_thread
from ..runtime.wakeups import ThreadWakeup

__all__ = ["ThreadsDriver"]

T = TypeVar("T")
L = TypeVar("L", bound=HasState)
log = logging.getLogger("holdfast")

CLOSE_SECONDS = 2.0


class ThreadsDriver:
    """Everything one client needs to run scripts on threads."""

    def __init__(self, engine: Engine, io_timeout: float, max_waiters: int = MAX_WAITERS) -> None:
        self._engine = engine
        self._io_timeout = io_timeout
        self._max_waiters = max_waiters
        self.closed = False
        self.running_loop: Callable[[], object] = self._look_for_loop
        """The event loop that runs in this thread, if one does: blocking would stop everything else there."""
        self._begin()

    def _begin(self) -> None:
        """All state that a fork must not inherit."""
        client = new_client_id()
        self.owner_prefix = owner_prefix()
        self._boxes: dict[str, ThreadWakeup] = {}
        self._bells: dict[TimerName, ThreadWakeup] = {"keeper": ThreadWakeup(), "timer": ThreadWakeup()}
        self._threads: dict[TimerName, threading.Thread] = {}
        self._starting = threading.Lock()
        self._falls = 0
        """So often one of the threads has ended unexpectedly."""
        new_nonce = attempt_names(client)
        engine = self._engine
        self.client_state = ClientState(
            client,
            self._io_timeout,
            engine.linger,
            self._ring,
            boottime,
            new_nonce,
            engine.session_bound,
            reports=Reports(engine.url),
        )
        self.client_state.max_waiters = self._max_waiters
        hooks = AdapterContext(client, self.post, self.notify_all, self._io_timeout, self._is_keeper)
        self.adapter = adapter = self._engine.threads(hooks)
        self._perform: dict[type, Callable[[Any], Any]] = {
            Now: lambda op: boottime(),
            Nonce: lambda op: new_nonce(),
            ApplyInOrder: lambda op: adapter.apply_in_order(op.steps, op.stop_when_refused),
            RenewBatch: lambda op: adapter.renew_batch(op.steps),
            ListNames: lambda op: adapter.list_names(op.prefix),
            Listen: self._listen,
            Unlisten: self._unlisten,
            Wait: self._wait,
            Notify: lambda op: self.post(op.nonce),
            Pause: lambda op: time.sleep(op.seconds),
            SleepUntil: lambda op: self._bells[op.timer].wait_until(op.until),
            Signal: lambda op: self.signal(op.lease),
        }

    @property
    def source(self) -> str:
        """Whose numbers our tokens are."""
        return self.adapter.source

    # --- running scripts ------------------------------------------------------------------------

    def _look_for_loop(self) -> object:
        """``running_loop`` until somebody imports asyncio: where nobody did there is none."""
        asyncio = sys.modules.get("asyncio")
        if asyncio is None or not hasattr(asyncio, "_get_running_loop"):
            return None  # it may be being imported just now
        self.running_loop = asyncio._get_running_loop
        return self.running_loop()

    def warned(self) -> None:
        """The caller was told that it blocks an event loop: once is enough."""
        self.running_loop = lambda: None

    def run(self, script: ProtocolCoroutine[T], even_if_closed: bool = False) -> T:
        """Run a script to its end. An interrupt is thrown into it wherever it comes: the script cleans up."""
        if self.closed and not even_if_closed:
            script.close()
            raise records.closed()
        perform, adapter, send = self._perform, self.adapter, script.send
        trouble: BaseException | None = None
        reply: Any = None
        while True:
            try:
                while True:
                    op: Effect
                    if trouble is None:
                        op = send(reply)
                    else:
                        error, trouble = trouble, None
                        try:
                            op = script.throw(error)
                        finally:
                            del error  # else this frame and its traceback keep each other alive
                    try:
                        if op.__class__ is Apply:  # the one that every grant needs takes the shortest way
                            if op.connect_seconds is None:
                                reply = adapter.apply(op.name, op.request)
                            else:
                                reply = self.apply_within(op.name, op.request, op.connect_seconds)
                        else:
                            reply = perform[op.__class__](op)
                    except BaseException as failure:  # noqa: BLE001 - the script decides what becomes of it
                        trouble = failure
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the value a script returns is its T
            except BaseException as stray:
                if script.cr_frame is None:  # type: ignore[attr-defined]  # ended with this very error
                    raise
                trouble = stray  # came between two operations: an interrupt in this very frame

    def apply_within(self, name: str, request: Request, connect_seconds: float) -> Reply:
        """One request, with so many seconds to connect where there is no connection yet."""
        with connect_timeout(connect_seconds):
            return self.adapter.apply(name, request)

    # --- locks ------------------------------------------------------------------------------------

    def acquire(self, core: LockCore[L], who: Who, owner: str, timeout: float | None) -> L | None:
        """``acquire()``: a lease, or None if it was not granted in time."""
        return uncontended.acquire(self, core, who, owner, timeout)

    def enter(self, core: LockCore[L], who: Who, owner: str) -> L:
        """``with``: a lease, or LockTimeout."""
        lease = uncontended.acquire(self, core, who, owner, core.spec.timeout, entered=True)
        assert lease is not None  # noqa: S101 - else it raised LockTimeout
        return lease

    def release(self, core: LockCore[L], who: Who) -> None:
        """``release()``."""
        uncontended.give_back(self, core, who)

    def leave(self, core: LockCore[L], who: Who, error: BaseException | None) -> None:
        """The end of ``with``, whose body ended with ``error``."""
        uncontended.give_back(self, core, who, entered=True, error=error)

    # --- what a script awaits ---------------------------------------------------------------------

    def _listen(self, op: Listen) -> None:
        self._boxes[op.nonce] = box = ThreadWakeup()
        if op.name is not None:
            self.adapter.listen(op.name)
            box.name, box.notification_reader = op.name, self.adapter.notification_reader

    def _unlisten(self, op: Unlisten | Wait) -> None:
        box = self._boxes.pop(op.nonce, None)
        self.adapter.unlisten(op.nonce, None if box is None else box.name)

    def _wait(self, op: Wait) -> Handoff | bool:
        box = self._boxes[op.nonce]
        if op.blockers:
            self.adapter.watch_clients(op.nonce, op.blockers)
        woken = box.wait_until(op.until)
        handed = box.fetch()
        if handed is None:
            return woken
        self._unlisten(op)
        return handed

    # --- wake-ups -------------------------------------------------------------------------------

    def post(self, nonce: str, handed: Handoff | None = None) -> None:
        """Wake whoever waits for this nonce, or have the keeper look at the lease of that name."""
        box = self._boxes.get(nonce)
        if box is not None:
            box.post(handed)
        else:
            self.client_state.wake_background(nonce)

    def notify_all(self) -> None:
        """Wake-ups may have been missed: everyone looks for itself, and the keeper at what is held."""
        for box in list(self._boxes.values()):
            box.post()
        for nonce in list(self.client_state.leases):
            self.client_state.wake_background(nonce)

    def _ring(self, bell: TimerName) -> None:
        self._bells[bell].post()
        if bell not in self._threads and not self.closed:
            self._start(bell)

    def _start(self, bell: TimerName) -> None:
        with self._starting:
            if bell in self._threads:
                return
            thread = threading.Thread(
                target=self._serve, args=(bell, self.client_state), name=f"holdfast-{bell}", daemon=True
            )
            self._threads[bell] = thread
        try:
            thread.start()
        except RuntimeError as error:  # there can be no more threads
            self._threads.pop(bell, None)
            self.client_state.stopped(bell)
            self.client_state.reports.unexpected(f"starting the {bell} thread of a client", error)
            return
        self._hear_of_losses()

    def _is_keeper(self) -> bool:
        return threading.current_thread() is self._threads.get("keeper")

    def _serve(self, bell: TimerName, client_state: ClientState) -> None:
        try:
            self.run((renewal_loop if bell == "keeper" else deadline_loop)(client_state), even_if_closed=True)
        except BaseException as error:  # noqa: BLE001 - whatever it is, what is held needs this thread
            if not client_state.closing:
                self._fell(bell, client_state, error)

    def _fell(self, bell: TimerName, client_state: ClientState, error: BaseException) -> None:
        """A thread ended though nobody asked it to: another takes its place, and until then none acquires."""
        client_state.stopped(bell)
        client_state.reports.unexpected(
            f"running the {bell} thread of a client, which is started again", error
        )
        self._bells[bell].wait(pause_seconds(self._falls))
        self._falls += 1
        self._threads.pop(bell, None)
        if not self.closed:
            self._start(bell)

    def _hear_of_losses(self) -> None:
        """Have the engine tell us what is taken from us; where it cannot, the next renewal finds out."""
        try:
            self.adapter.listen(None)
        except (TransientError, EngineUnavailable):
            pass
        except Exception as error:  # noqa: BLE001 - no more than a short cut is lost
            self.client_state.reports.unexpected("listening for losses", error)

    def signal(self, state: LeaseState) -> None:
        """Tell of a loss: on a thread of its own, for a user's callback may take its time."""
        state.tell_onlookers()
        listeners = state.fire()
        if listeners:
            thread = threading.Thread(target=_call_all, args=(listeners,), name="holdfast-loss", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                state.listeners[:0] = listeners  # there can be no more threads: it is tried again
                raise

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back everything held, end the threads, let go of the engine. Safe to call again."""
        if self.closed:
            return
        self.closed = True
        try:
            self.run(records.close(self.client_state), even_if_closed=True)
        finally:
            self.stop()

    def stop(self) -> None:
        self.closed = True
        self.client_state.closing = True
        for bell in self._bells.values():
            bell.post()
        for thread in list(self._threads.values()):
            join_thread(thread, CLOSE_SECONDS)
        self.adapter.close()

    def forked(self) -> None:
        """This is the child: it owns nothing, and begins anew when it is first used."""
        self.client_state.forked()
        self.adapter.forked()
        self._begin()


def _call_all(listeners: list[Callable[[], object]]) -> None:
    for listener in listeners:
        try:
            listener()
        except Exception:
            log.exception("holdfast: an on_lost callback raised")
