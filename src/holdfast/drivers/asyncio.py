"""The asyncio driver: coroutines run in the calling task; the keeper and the timer are tasks of its loop.

A loop that is blocked for longer than a ttl therefore renews nothing: the leases it could not use expire.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

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
    OutcomeUnknown,
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
from ..engine_api import AdapterContext, AsyncioAdapter, Engine
from ..errors import EngineUnavailable, InvalidArgument
from ..protocols import records
from ..protocols.client_state import EXITS, HasCallbacks
from ..protocols.keeper import deadline_loop, renewal_loop
from ..rules.requests import Handoff
from ..runtime.clock import boottime
from ..runtime.connect_timeout import connect_timeout
from ..runtime.wakeups_asyncio import LoopWakeup
from .base import BaseDriver

__all__ = ["AsyncioDriver", "LossCancellation"]

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("holdfast")

RESTART_SECONDS = 0.05
"""A cancelled task is not restarted sooner: a loop that ends cancels all its tasks before it is closed."""


WAITS: Final = frozenset({Listen, Wait, Pause, SleepUntil})
"""These effects have no reply that a coroutine would rely on."""


class AsyncioDriver(BaseDriver[LoopWakeup]):
    """Runs the protocols of one client on one event loop."""

    exits = (*EXITS, asyncio.CancelledError)

    def __init__(self, engine: Engine, io_timeout: float, max_waiters: int = MAX_WAITERS) -> None:
        super().__init__(engine, io_timeout, max_waiters)

    def _reset(self) -> None:
        super()._reset()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._tasks: dict[TimerName, asyncio.Task[None]] = {}
        self._callbacks: set[asyncio.Task[Any]] = set()
        client, new_nonce = self.client_state.client, self.client_state.new_nonce
        context = AdapterContext(client, self.post, self.notify_all, self._io_timeout)
        self.adapter: AsyncioAdapter = self._engine.asyncio(context)
        adapter = self.adapter
        self._perform_at_once: dict[type, Callable[[Any], Any]] = {
            Now: lambda op: boottime(),
            Nonce: lambda op: new_nonce(),
            Unlisten: self._unlisten,
            Notify: lambda op: self.post(op.nonce),
            Signal: lambda op: self.signal(op.lease),
        }
        self._perform: dict[type, Callable[[Any], Coroutine[Any, Any, Any]]] = {
            ApplyInOrder: lambda op: adapter.apply_in_order(op.steps, op.stop_when_refused),
            RenewBatch: lambda op: adapter.renew_batch(op.steps),
            ListNames: lambda op: adapter.list_names(op.prefix),
            Listen: self._listen,
            Wait: self._wait,
            Pause: lambda op: asyncio.sleep(op.seconds),
            SleepUntil: lambda op: self._timer_wakeups[op.timer].wait_until(op.until),
        }

    # --- running coroutines ------------------------------------------------------------------------

    async def run(self, coroutine: ProtocolCoroutine[T]) -> T:
        """Run a coroutine to its end. A cancellation is thrown into it; after a second it no longer waits."""
        try:
            self.bind()
        except BaseException:
            coroutine.close()
            raise
        return await self._run(coroutine)

    async def call(
        self, coroutine: Callable[P, ProtocolCoroutine[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The same, with the coroutine made only when it is run: the caller may be cancelled before that."""
        self.bind()
        return await self._run(coroutine(*args, **kwargs))

    def bind(self) -> asyncio.AbstractEventLoop:
        """The event loop this client belongs to: the one in which it is first used."""
        if self.closed:
            raise records.closed_error()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._thread = threading.get_ident()
            self._timer_wakeups = {"keeper": LoopWakeup(loop), "timer": LoopWakeup(loop)}
        elif self._loop is not loop:
            raise InvalidArgument(
                "this client belongs to another event loop: connect once in each loop (holdfast.aio.connect)"
            )
        return loop

    async def _run(self, coroutine: ProtocolCoroutine[T]) -> T:
        adapter, send = self.adapter, coroutine.send
        trouble: BaseException | None = None
        cancelled = False
        reply: Any = None
        while True:
            try:
                op: Effect
                if trouble is None:
                    op = send(reply)
                else:
                    error, trouble = trouble, None
                    try:
                        op = coroutine.throw(error)
                    finally:
                        del error  # else this frame and its traceback keep each other alive
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the value a coroutine returns is its T
            try:
                if op.__class__ is Apply:  # every grant needs this one: the shortest path
                    if op.connect_seconds is None:
                        reply = await adapter.apply(op.name, op.request)
                    else:
                        with connect_timeout(op.connect_seconds):
                            reply = await adapter.apply(op.name, op.request)
                elif op.__class__ in self._perform_at_once:
                    reply = self._perform_at_once[op.__class__](op)
                else:
                    reply = await self._perform[op.__class__](op)
            except asyncio.CancelledError as cancellation:
                if not cancelled:
                    cancelled, trouble = True, cancellation
                elif op.__class__ in WAITS:
                    reply = None  # it is cleaning up already: it ends without waiting
                else:
                    trouble = OutcomeUnknown("the request was cancelled")
            except BaseException as failure:  # noqa: BLE001 - the coroutine handles it
                trouble = failure

    async def _listen(self, op: Listen) -> None:
        self._wakeups[op.nonce] = wakeup = LoopWakeup(asyncio.get_running_loop())
        if op.name is not None:
            await self.adapter.listen(op.name)
            wakeup.name = op.name

    async def _wait(self, op: Wait) -> Handoff | bool:
        wakeup = self._awaited(op)
        return self._received(op, wakeup, await wakeup.wait_until(op.until))

    # --- wake-ups -------------------------------------------------------------------------------

    def post(self, nonce: str, handoff: Handoff | None = None) -> None:
        """Wake the waiter of this nonce, or have the keeper check the lease of this nonce."""
        self._in_loop(super().post, nonce, handoff)

    def notify_all(self) -> None:
        """Wake-ups may have been missed: every waiter asks for itself, and the keeper checks every lease."""
        self._in_loop(super().notify_all)

    def _wake_timer(self, timer: TimerName) -> None:
        self._in_loop(self._wake_timer_here, timer)

    def _wake_timer_here(self, timer: TimerName) -> None:
        self._timer_wakeups[timer].post()
        if timer not in self._tasks and not self.closed and self._loop is not None:
            self._tasks[timer] = self._loop.create_task(self._run_timer(timer), name=f"holdfast-{timer}")

    def _in_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Wake-ups belong to the loop: another thread, or a caller outside any loop, goes through it."""
        if threading.get_ident() == self._thread:
            call(*arguments)
        elif self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:
                log.debug("holdfast: a wake-up for a loop that has just closed was dropped")

    async def _run_timer(self, timer: TimerName) -> None:
        client_state = self.client_state
        try:
            await self._listen_for_losses()
            await self._run((renewal_loop if timer == "keeper" else deadline_loop)(client_state))
        except BaseException as error:
            if client_state is not self.client_state:
                return  # in a forked child, to which the loop of its parent gave one more iteration
            if not self.closed:
                self._restart_later(timer, error)
            if isinstance(error, self.client_state.exits):
                raise

    def _restart_later(self, timer: TimerName, error: BaseException) -> None:
        """A task ended unexpectedly: start another in its place; until then nothing is granted."""
        self.client_state.mark_stopped(timer)
        if not isinstance(error, asyncio.CancelledError):
            detail = f"running the {timer} task of a client, which is started again"
            self.client_state.reports.unexpected(detail, error)
        elif self.client_state.leases:
            log.warning(
                "holdfast: the %s task of a client was cancelled from outside: it is started again", timer
            )
        self._tasks.pop(timer, None)
        if self._loop is not None:
            self._loop.call_later(max(pause_seconds(self._failures), RESTART_SECONDS), self._restart, timer)
        self._failures += 1

    def _restart(self, timer: TimerName) -> None:
        """Start the task again, unless it has no duty: the next one will start it. The loop may be ending."""
        client_state = self.client_state
        if timer in client_state.stopped_timers and not (
            client_state.leases or client_state.waiting or client_state.cleanup_tasks
        ):
            client_state.mark_running(timer)
        elif timer in client_state.stopped_timers and not self.closed:
            self._wake_timer_here(timer)

    async def _listen_for_losses(self) -> None:
        """Have the engine report lost leases; where it cannot, the next renewal notices the loss."""
        try:
            await self.adapter.listen(None)
        except (TransientError, EngineUnavailable):
            pass
        except Exception as error:  # noqa: BLE001 - the next renewal notices the loss as well
            self.client_state.reports.unexpected("listening for losses", error)

    def signal(self, state: HasCallbacks) -> None:
        """Report a loss, each callback in an iteration of the loop of its own."""
        state.call_end_callbacks()
        loop = asyncio.get_running_loop()
        for listener in state.take_loss_callbacks():
            loop.call_soon(self._call, listener)

    def _call(self, listener: Callable[[], object]) -> None:
        try:
            result = listener()
        except Exception:
            log.exception("holdfast: an on_lost callback raised")
            return
        if inspect.iscoroutine(result):
            task: asyncio.Task[Any] = asyncio.ensure_future(result)
            self._callbacks.add(task)
            task.add_done_callback(self._callback_ended)

    def _callback_ended(self, task: asyncio.Task[Any]) -> None:
        self._callbacks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("holdfast: an on_lost callback raised", exc_info=task.exception())

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Release every lease, end the tasks and disconnect. Safe to call again."""
        if self.closed:
            return
        if self._loop is not None:
            self.bind()
        self.closed = True
        try:
            await self._run(records.close(self.client_state))
        finally:
            self.client_state.closing = True
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            await self.adapter.close()


class LossCancellation:
    """Cancels the body of ``async with`` when its lease is lost, and takes the cancellation back at the end.

    Cancellations are counted: this one is undone exactly once, and any other (of a time-out, a task group, a
    second cancel) stays in force and reaches the caller.
    """

    __slots__ = ("_before", "_sent", "_task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task: asyncio.Task[Any] | None = task
        self._before = task.cancelling()
        self._sent = False

    def cancel(self) -> None:
        """The lease was lost. Called in the loop, never from within the body itself."""
        if self._task is not None and not self._sent:
            self._sent = True
            self._task.cancel("holdfast: the lock was lost")

    async def finish(self, error: BaseException | None) -> BaseException | None:
        """The body ended with ``error``: what remains of it once this cancellation is taken back."""
        task, self._task = self._task, None
        if not self._sent or task is None:
            return error
        if not isinstance(error, asyncio.CancelledError):
            # The body swallowed it, or ended before it arrived: receive it if it is still pending.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as late:
                if task.uncancel() > self._before:
                    return late
                return error
            task.uncancel()
            return error
        return error if task.uncancel() > self._before else None
