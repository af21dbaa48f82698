"""The asyncio driver: runs a script in the calling task; the keeper and the timer are tasks of the same loop.

So a loop that is blocked for longer than a ttl does not renew: what it could not have used it does not keep.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

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
from ..errors import EngineUnavailable, InvalidArgument
from ..protocols import records
from ..protocols.client_state import EXITS, ClientState, LeaseState
from ..protocols.keeper import deadline_loop, renewal_loop
from ..protocols.reporting import Reports
from ..rules.requests import Handoff
from ..runtime.clock import boottime
from ..runtime.connect_timeout import connect_timeout
from ..runtime.identity import attempt_names, new_client_id, owner_prefix
from ..runtime.wakeups_asyncio import LoopWakeup

__all__ = ["AsyncioDriver", "LossCancellation"]

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("holdfast")

RESTART_SECONDS = 0.05
"""A cancelled task is not started again sooner: a loop that ends cancels all its tasks, then it is closed."""


class AsyncioDriver:
    """Everything one client needs to run scripts on one event loop."""

    def __init__(self, engine: Engine, io_timeout: float, max_waiters: int = MAX_WAITERS) -> None:
        self._engine = engine
        self._io_timeout = io_timeout
        self._max_waiters = max_waiters
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        """All state that a fork must not inherit."""
        client = new_client_id()
        self.owner_prefix = owner_prefix()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._boxes: dict[str, LoopWakeup] = {}
        self._bells: dict[TimerName, LoopWakeup] = {}
        self._tasks: dict[TimerName, asyncio.Task[None]] = {}
        self._callbacks: set[asyncio.Task[Any]] = set()
        new_nonce = attempt_names(client)
        engine = self._engine
        self._falls = 0
        """So often one of the tasks has ended unexpectedly."""
        self.client_state = ClientState(
            client,
            self._io_timeout,
            engine.linger,
            self._ring,
            boottime,
            new_nonce,
            engine.session_bound,
            reports=Reports(engine.url),
            exits=(*EXITS, asyncio.CancelledError),
        )
        self.client_state.max_waiters = self._max_waiters
        hooks = AdapterContext(client, self.post, self.notify_all, self._io_timeout)
        self.adapter = adapter = self._engine.asyncio(hooks)
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
            SleepUntil: lambda op: self._bells[op.timer].wait_until(op.until),
        }

    @property
    def source(self) -> str:
        """Whose numbers our tokens are."""
        return self.adapter.source

    # --- running scripts ------------------------------------------------------------------------

    async def run(self, script: ProtocolCoroutine[T]) -> T:
        """Run a script to its end. A cancellation is thrown into it; a second one hurries its cleaning up."""
        try:
            self.bind()
        except BaseException:
            script.close()
            raise
        return await self._run(script)

    async def call(self, script: Callable[P, ProtocolCoroutine[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, with the script made only when it is run: the caller may be cancelled before that."""
        self.bind()
        return await self._run(script(*args, **kwargs))

    def bind(self) -> asyncio.AbstractEventLoop:
        """The loop this client belongs to: the one it is first used in."""
        if self.closed:
            raise records.closed()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._thread = threading.get_ident()
            self._bells = {"keeper": LoopWakeup(loop), "timer": LoopWakeup(loop)}
        elif self._loop is not loop:
            raise InvalidArgument(
                "this client belongs to another event loop: connect once in each loop (holdfast.aio.connect)"
            )
        return loop

    async def _run(self, script: ProtocolCoroutine[T]) -> T:
        adapter, send = self.adapter, script.send
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
                        op = script.throw(error)
                    finally:
                        del error  # else this frame and its traceback keep each other alive
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # the value a script returns is its T
            try:
                if op.__class__ is Apply:  # the one that every grant needs takes the shortest way
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
                if cancelled:
                    reply = None  # it is cleaning up already: let it end without waiting
                else:
                    cancelled, trouble = True, cancellation
            except BaseException as failure:  # noqa: BLE001 - the script decides what becomes of it
                trouble = failure

    async def _listen(self, op: Listen) -> None:
        self._boxes[op.nonce] = box = LoopWakeup(asyncio.get_running_loop())
        if op.name is not None:
            await self.adapter.listen(op.name)
            box.name = op.name

    def _unlisten(self, op: Unlisten | Wait) -> None:
        box = self._boxes.pop(op.nonce, None)
        self.adapter.unlisten(op.nonce, None if box is None else box.name)

    async def _wait(self, op: Wait) -> Handoff | bool:
        box = self._boxes[op.nonce]
        if op.blockers:
            self.adapter.watch_clients(op.nonce, op.blockers)
        woken = await box.wait_until(op.until)
        handed = box.fetch()
        if handed is None:
            return woken
        self._unlisten(op)
        return handed

    # --- wake-ups -------------------------------------------------------------------------------

    def post(self, nonce: str, handed: Handoff | None = None) -> None:
        """Wake whoever waits for this nonce, or have the keeper look at the lease of that name."""
        self._in_loop(self._post, nonce, handed)

    def _post(self, nonce: str, handed: Handoff | None) -> None:
        box = self._boxes.get(nonce)
        if box is not None:
            box.post(handed)
        else:
            self.client_state.wake_background(nonce)

    def notify_all(self) -> None:
        """Wake-ups may have been missed: everyone looks for itself, and the keeper at what is held."""
        self._in_loop(self._post_all)

    def _post_all(self) -> None:
        for box in list(self._boxes.values()):
            box.post()
        for nonce in list(self.client_state.leases):
            self.client_state.wake_background(nonce)

    def _ring(self, bell: TimerName) -> None:
        self._in_loop(self._ring_here, bell)

    def _ring_here(self, bell: TimerName) -> None:
        self._bells[bell].post()
        if bell not in self._tasks and not self.closed and self._loop is not None:
            self._tasks[bell] = self._loop.create_task(self._serve(bell), name=f"holdfast-{bell}")

    def _in_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        """Boxes belong to the loop: from another thread, or from nowhere, go through it."""
        if threading.get_ident() == self._thread:
            call(*arguments)
        elif self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:
                log.debug("holdfast: a wake-up for a loop that has just closed was dropped")

    async def _serve(self, bell: TimerName) -> None:
        try:
            await self._hear_of_losses()
            await self._run((renewal_loop if bell == "keeper" else deadline_loop)(self.client_state))
        except BaseException as error:
            if not self.closed:
                self._fell(bell, error)
            if isinstance(error, self.client_state.exits):
                raise

    def _fell(self, bell: TimerName, error: BaseException) -> None:
        """A task ended though nobody asked it to: another takes its place, and until then none acquires."""
        self.client_state.stopped(bell)
        if not isinstance(error, asyncio.CancelledError):
            told = f"running the {bell} task of a client, which is started again"
            self.client_state.reports.unexpected(told, error)
        elif self.client_state.leases:
            log.warning("holdfast: the %s task of a client was cancelled by others: started again", bell)
        self._tasks.pop(bell, None)
        if self._loop is not None:
            self._loop.call_later(max(pause_seconds(self._falls), RESTART_SECONDS), self._restart, bell)
        self._falls += 1

    def _restart(self, bell: TimerName) -> None:
        """Not where there is nothing to do: then it begins when it is needed. The loop may be ending."""
        client_state = self.client_state
        if bell in client_state.halted and not (
            client_state.leases or client_state.waiting or client_state.jobs
        ):
            client_state.runs(bell)
        elif bell in client_state.halted and not self.closed:
            self._ring_here(bell)

    async def _hear_of_losses(self) -> None:
        """Have the engine tell us what is taken from us; where it cannot, the next renewal finds out."""
        try:
            await self.adapter.listen(None)
        except (TransientError, EngineUnavailable):
            pass
        except Exception as error:  # noqa: BLE001 - no more than a short cut is lost
            self.client_state.reports.unexpected("listening for losses", error)

    def signal(self, state: LeaseState) -> None:
        """Tell of a loss, each listener in a turn of the loop of its own."""
        state.tell_onlookers()
        loop = asyncio.get_running_loop()
        for listener in state.fire():
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
        """Give back everything held, end the tasks, let go of the engine. Safe to call again."""
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

    def forked(self) -> None:
        """This is the child: it owns nothing, and begins anew when it is first used."""
        self.client_state.forked()
        self.adapter.forked()
        self._begin()


class LossCancellation:
    """Cancels the body of ``async with`` when its lease is lost, and takes the cancellation back at the end.

    Cancellations are counted: the one of ours is undone exactly once, and any other (of a time-out, a task
    group, a second cancel) stays in force and is what the caller sees.
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
        """The body ended with ``error``: what remains of it once our own cancellation is taken back."""
        task, self._task = self._task, None
        if not self._sent or task is None:
            return error
        if not isinstance(error, asyncio.CancelledError):
            # The body swallowed it, or ended before it arrived: fetch it if it is still on its way.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as late:
                if task.uncancel() > self._before:
                    return late
                return error
            task.uncancel()
            return error
        return error if task.uncancel() > self._before else None
