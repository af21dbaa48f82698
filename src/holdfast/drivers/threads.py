"""The threads driver: coroutines run in the calling thread, the keeper and the timer in two of their own."""

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
from ..engine_api import AdapterContext, Engine, ThreadsAdapter
from ..errors import EngineUnavailable
from ..protocols import records, uncontended
from ..protocols.client_state import ClientState, HasCallbacks
from ..protocols.keeper import deadline_loop, renewal_loop
from ..protocols.locks import Caller, HasState, LockCore
from ..rules.requests import Handoff, Reply, Request
from ..runtime.clock import boottime
from ..runtime.connect_timeout import connect_timeout
from ..runtime.thread_join import join_thread
from ..runtime.wakeups import ThreadWakeup
from .base import BaseDriver

__all__ = ["ThreadsDriver"]

T = TypeVar("T")
L = TypeVar("L", bound=HasState)
log = logging.getLogger("holdfast")

CLOSE_SECONDS = 1.0
"""How long the end of a client waits for its threads, all together. One that waits for an engine that hangs
ends when its connection is closed, which comes next, or when its request does."""


class ThreadsDriver(BaseDriver[ThreadWakeup]):
    """Runs the protocols of one client on threads."""

    def __init__(self, engine: Engine, io_timeout: float, max_waiters: int = MAX_WAITERS) -> None:
        self.running_loop: Callable[[], object] = self._find_running_loop
        """The event loop that runs in this thread, if there is one: blocking would stop its tasks."""
        super().__init__(engine, io_timeout, max_waiters)

    def _reset(self) -> None:
        super()._reset()
        self._timer_wakeups = {"keeper": ThreadWakeup(), "timer": ThreadWakeup()}
        self._threads: dict[TimerName, threading.Thread] = {}
        self._starting = threading.Lock()
        client, new_nonce = self.client_state.client, self.client_state.new_nonce
        context = AdapterContext(client, self.post, self.notify_all, self._io_timeout, self._is_keeper)
        self.adapter: ThreadsAdapter = self._engine.threads(context)
        adapter = self.adapter
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
            SleepUntil: lambda op: self._timer_wakeups[op.timer].wait_until(op.until),
            Signal: lambda op: self.signal(op.lease),
        }

    # --- running coroutines ------------------------------------------------------------------------

    def _find_running_loop(self) -> object:
        """``running_loop`` while asyncio is not imported: without it no event loop runs."""
        asyncio = sys.modules.get("asyncio")
        if asyncio is None or not hasattr(asyncio, "_get_running_loop"):
            return None  # it may be being imported just now
        self.running_loop = asyncio._get_running_loop
        return self.running_loop()

    def mark_loop_warned(self) -> None:
        """The warning that a call blocks an event loop was given: once is enough."""
        self.running_loop = lambda: None

    def run(self, coroutine: ProtocolCoroutine[T], even_if_closed: bool = False) -> T:
        """Run a coroutine to its end. An interrupt is thrown into it wherever it comes, and it cleans up."""
        if self.closed and not even_if_closed:
            coroutine.close()
            raise records.closed_error()
        perform, adapter, send = self._perform, self.adapter, coroutine.send
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
                            op = coroutine.throw(error)
                        finally:
                            del error  # else this frame and its traceback keep each other alive
                    try:
                        if op.__class__ is Apply:  # every grant needs this one: the shortest path
                            if op.connect_seconds is None:
                                reply = adapter.apply(op.name, op.request)
                            else:
                                reply = self.apply_within(op.name, op.request, op.connect_seconds)
                        else:
                            reply = perform[op.__class__](op)
                    except BaseException as failure:  # noqa: BLE001 - the coroutine handles it
                        trouble = failure
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the value a coroutine returns is its T
            except BaseException as stray:
                if coroutine.cr_frame is None:  # type: ignore[attr-defined]  # ended with this very error
                    raise
                trouble = stray  # an interrupt in this very frame, between two effects

    def apply_within(self, name: str, request: Request, connect_seconds: float) -> Reply:
        """One request, with so many seconds to connect where there is no connection yet."""
        with connect_timeout(connect_seconds):
            return self.adapter.apply(name, request)

    # --- locks ------------------------------------------------------------------------------------

    def acquire(self, core: LockCore[L], caller: Caller, owner: str, timeout: float | None) -> L | None:
        """``acquire()``: a lease, or None if it was not granted in time."""
        return uncontended.acquire(self, core, caller, owner, timeout)

    def enter(self, core: LockCore[L], caller: Caller, owner: str) -> L:
        """``with``: a lease, or LockTimeout."""
        lease = uncontended.acquire(self, core, caller, owner, core.spec.timeout, entered=True)
        assert lease is not None  # noqa: S101 - else it raised LockTimeout
        return lease

    def release(self, core: LockCore[L], caller: Caller) -> None:
        """``release()``."""
        uncontended.release(self, core, caller)

    def leave(self, core: LockCore[L], caller: Caller, error: BaseException | None) -> None:
        """The end of ``with``, whose body ended with ``error``."""
        uncontended.release(self, core, caller, entered=True, error=error)

    # --- what a coroutine awaits ---------------------------------------------------------------------

    def _listen(self, op: Listen) -> None:
        self._wakeups[op.nonce] = wakeup = ThreadWakeup()
        if op.name is not None:
            self.adapter.listen(op.name)
            wakeup.name, wakeup.notification_reader = op.name, self.adapter.notification_reader

    def _wait(self, op: Wait) -> Handoff | bool:
        wakeup = self._awaited(op)
        return self._received(op, wakeup, wakeup.wait_until(op.until))

    # --- the keeper and the timer ---------------------------------------------------------------

    def _wake_timer(self, timer: TimerName) -> None:
        self._timer_wakeups[timer].post()
        if timer not in self._threads and not self.closed:
            self._start_timer(timer)

    def _start_timer(self, timer: TimerName) -> None:
        with self._starting:
            if timer in self._threads:
                return
            thread = threading.Thread(
                target=self._run_timer, args=(timer, self.client_state), name=f"holdfast-{timer}", daemon=True
            )
            self._threads[timer] = thread
        try:
            thread.start()
        except RuntimeError as error:  # no more threads can be started
            self._threads.pop(timer, None)
            self.client_state.mark_stopped(timer)
            self.client_state.reports.unexpected(f"starting the {timer} thread of a client", error)
            return
        self._listen_for_losses()

    def _is_keeper(self) -> bool:
        return threading.current_thread() is self._threads.get("keeper")

    def _run_timer(self, timer: TimerName, client_state: ClientState) -> None:
        try:
            self.run(
                (renewal_loop if timer == "keeper" else deadline_loop)(client_state), even_if_closed=True
            )
        except BaseException as error:  # noqa: BLE001 - the leases need this thread
            if not client_state.closing:
                self._restart_later(timer, client_state, error)

    def _restart_later(self, timer: TimerName, client_state: ClientState, error: BaseException) -> None:
        """A thread ended unexpectedly: start another in its place; until then nothing is granted."""
        client_state.mark_stopped(timer)
        client_state.reports.unexpected(
            f"running the {timer} thread of a client, which is started again", error
        )
        self._timer_wakeups[timer].wait(pause_seconds(self._failures))
        self._failures += 1
        self._threads.pop(timer, None)
        if not self.closed:
            self._start_timer(timer)

    def _listen_for_losses(self) -> None:
        """Have the engine report lost leases; where it cannot, the next renewal notices the loss."""
        try:
            self.adapter.listen(None)
        except (TransientError, EngineUnavailable):
            pass
        except Exception as error:  # noqa: BLE001 - the next renewal notices the loss as well
            self.client_state.reports.unexpected("listening for losses", error)

    def signal(self, state: HasCallbacks) -> None:
        """Report a loss, on a thread of its own, because a user's callback may take long."""
        state.call_end_callbacks()
        listeners = state.take_loss_callbacks()
        if listeners:
            thread = threading.Thread(target=_call_all, args=(listeners,), name="holdfast-loss", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                state.loss_callbacks[:0] = listeners  # no more threads can be started: the timer tries again
                raise

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Release every lease, end the threads and disconnect. Safe to call again."""
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
        for timer in self._timer_wakeups.values():
            timer.post()
        ends_at = boottime() + CLOSE_SECONDS
        for thread in list(self._threads.values()):
            join_thread(thread, max(ends_at - boottime(), 0.0))
        self.adapter.close()


def _call_all(listeners: list[Callable[[], object]]) -> None:
    for listener in listeners:
        try:
            listener()
        except Exception:
            log.exception("holdfast: an on_lost callback raised")
