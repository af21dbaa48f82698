"""The threads driver: runs a script in the calling thread, and the keeper and the timer in two of its own."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ..core.arguments import MAX_WAITERS
from ..core.deadlines import CONNECT_SECONDS_MIN, pause_seconds
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
from ..errors import EngineUnavailable, HoldfastError, NotHeld
from ..protocols import locks, records
from ..protocols.client_state import ClientState, LeaseState
from ..protocols.keeper import deadline_loop, renewal_loop
from ..protocols.locks import Entry, HasState, LockCore, Who
from ..protocols.reporting import Reports
from ..rules.requests import Done, Granted, Handoff, Reply
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
                                with connect_timeout(op.connect_seconds):
                                    reply = adapter.apply(op.name, op.request)
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

    # --- the short way --------------------------------------------------------------------------
    #
    # Mostly one request is all there is to taking a lock, and to giving it back. So the driver makes that one
    # itself, between the same steps that the scripts take, and begins a script only where it is not all: half
    # of the time between an answer and the next request would be spent on setting up scripts. What is more, a
    # server that has been asked again by the time it has answered has not gone to sleep.

    def acquire(
        self, core: LockCore[L], who: Who, owner: str, timeout: float | None, entered: bool = False
    ) -> L | None:
        """``run(locking.acquire(…))``."""
        client_state, spec = core.client_state, core.spec
        if self.closed or core.reentrant or client_state.halted:
            return self.run(locks.acquire(core, who, owner, timeout, entered))
        if core.may_deadlock:
            core.refuse_deadlock(who, timeout)
        nonce = client_state.new_nonce()
        attempt: records.Attempt | None = None
        try:
            sent = boottime()
            outcome: records.Outcome | None = None
            if records.asks_at_once(client_state, spec, timeout):
                try:
                    request = records.asking(client_state, spec, owner, nonce)
                    if timeout is None or timeout >= client_state.io_timeout:
                        outcome = self.adapter.apply(spec.name, request)
                    else:
                        with connect_timeout(max(timeout, CONNECT_SECONDS_MIN)):
                            outcome = self.adapter.apply(spec.name, request)
                except TransientError as trouble:
                    outcome = trouble
                if outcome.__class__ is Granted:
                    outcome = state = records.granted(client_state, spec, nonce, owner, outcome, sent)
                    if client_state.halted:
                        client_state.check_kept()
                    if records.is_in_time(client_state, state):
                        lease = core.wrap(state)
                        core.enter(who, lease, entered)
                        # As in the script, nothing is called from here to the caller's next instruction.
                        return lease
            attempt = records.Attempt(client_state, spec, owner, nonce)
            begun = locks.Begun(attempt, sent, outcome)
            return self.run(locks.acquire(core, who, owner, timeout, entered, begun), even_if_closed=True)
        except BaseException as error:
            if (attempt is None or not attempt.is_under_way) and not records.never_sent(error):
                self.run(locks.interrupted(core, owner, nonce), even_if_closed=True)
            raise

    def enter(self, core: LockCore[L], who: Who, owner: str) -> L:
        """``run(locking.enter(…))``."""
        lease = self.acquire(core, who, owner, core.spec.timeout, entered=True)
        assert lease is not None  # noqa: S101 - else it raised LockTimeout
        return lease

    def release(self, core: LockCore[L], who: Who) -> None:
        """``run(locking.release(…))``."""
        if self.closed:
            self.run(locks.release(core, who))
        else:
            self._give_back(core, who, False, None)

    def leave(self, core: LockCore[L], who: Who, error: BaseException | None) -> None:
        """``run(locking.leave(…))``."""
        if self.closed or core.reentrant:
            self.run(locks.leave(core, who, error))
        else:
            self._give_back(core, who, True, error)

    def _give_back(self, core: LockCore[L], who: Who, entered: bool, error: BaseException | None) -> None:
        """With one request. Where that is not all there is to it, the script takes over."""
        mine: list[Entry[L]] = []
        try:
            leaving: locks.Leaving[L] | None = None
            try:
                entry = core.claim(who, mine, entered)
            except NotHeld:
                pass  # what to say of that, the script knows
            else:
                if not entered:
                    core.spend(entry, who)
                if not core.leave(entry):
                    if entry.spent is not None and entry.spent() is not entry.who():
                        raise locks.not_held(entry.lease._state)
                    return
                state = entry.lease._state
                outcome: Reply | Exception | None = None
                if state.ended is None and state.loss(boottime()) is None:
                    try:
                        outcome = self.adapter.apply(state.name, records.releasing(core.client_state, state))
                        if outcome.__class__ is Done:
                            records.released(core.client_state, state)
                            return
                    except (TransientError, HoldfastError) as trouble:
                        outcome = trouble
                leaving = locks.Leaving(mine, entry, outcome)
            if entered:
                self.run(locks.leave(core, who, error, leaving), even_if_closed=True)
            else:
                self.run(locks.release(core, who, leaving), even_if_closed=True)
        except BaseException:
            if mine:
                self.run(locks.finish_leaving(core, mine), even_if_closed=True)
            raise
        finally:
            mine.clear()

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
