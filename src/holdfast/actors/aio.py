"""Actors for asyncio: the calls of ``holdfast.actors``, the same names, awaited.

What a call does and raises is described at the call of the same name there. The methods of an actor may be
``async`` or plain; a plain handler that runs long keeps the loop from extending the leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
from typing import Any, TypeVar

from ..aio import AsyncClient
from ..core.lock_options import Duration
from ..errors import Conflict, Deadlock, EngineUnavailable, InvalidArgument, StaleToken
from ..events.address import DEFAULT_SCHEMA
from ..fencing.connections import Executes
from ..queue.aio import AsyncJob, AsyncQueue
from ..queue.calls import get_call
from ..queue.store import Call, EventClock
from ..runtime.clock import boottime
from . import base
from .base import BaseSystem, check_ask_timeout, redo_pause
from .context import Context, context, open_context
from .invocation import Invocation, failed
from .messages import kind_of_job
from .model import DeadLetter, MessageFailed, Rejected
from .replies import NO_REPLY, late, replies_namespace, reply_in

__all__ = ["AsyncSystem", "Context", "DeadLetter", "MessageFailed", "Rejected", "System", "context"]

logger = logging.getLogger("holdfast.actors")

T = TypeVar("T")


class AsyncSystem(BaseSystem):
    """Actors whose mailboxes are in ``queue``, one of ``holdfast.queue.aio``. It belongs to one loop.

    client: the client for locks that handlers find as ``context().client``; None: they need none.
    concurrency: how many messages ``run`` handles at once, each of another actor.
    lease: how long a message of a process that died waits until another handles it.
    keep_ids: for how long the ``id=`` of a message is remembered.
    """

    _may_await = True

    def __init__(
        self,
        client: AsyncClient | None,
        queue: AsyncQueue,
        *,
        concurrency: int = base.CONCURRENCY,
        lease: Duration = base.LEASE_SECONDS,
        keep_ids: Duration = base.KEEP_IDS_SECONDS,
        events_schema: str = DEFAULT_SCHEMA,
    ) -> None:
        if not isinstance(queue, AsyncQueue):
            raise InvalidArgument(
                "System(client, queue) takes a queue of holdfast.queue.aio.connect(url); this is"
                f" {type(queue).__name__} (for a queue of threads, use holdfast.actors)"
            )
        super().__init__(client, queue.namespace, concurrency, lease, keep_ids, events_schema)
        self._queue = queue
        self._store = queue._store
        self._replies = _Replies(queue)
        self._stopping = asyncio.Event()
        self._is_running = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<AsyncSystem of {', '.join(map(repr, self._definitions)) or 'no actors'} on {self._queue!r}>"

    # --- sending

    async def tell(
        self,
        kind: str,
        key: str,
        message: str,
        /,
        *,
        id: str | None = None,
        connection: Executes | None = None,
        **fields: Any,
    ) -> None:
        """Put a message into the mailbox of an actor, which handles it after the messages that are there.

        Two with the same ``id`` to the same actor are one: the second is dropped, also after the first was
        handled. With a ``connection`` to the same database: in the transaction that is open there. Sent by a
        handler, it is committed with what the handler does.
        """
        new = self._new_tell(kind, key, message, fields, id)
        if connection is not None or not self._joins_message(new):
            await self._run(self._put_call(new), connection)

    async def ask(
        self,
        kind: str,
        key: str,
        message: str,
        /,
        *,
        id: str | None = None,
        timeout: Duration = base.ASK_SECONDS,
        **fields: Any,
    ) -> Any:
        """Put a message into the mailbox, and wait for what its handler returns, which is committed by then.

        ``Rejected`` if the handler has refused it; ``MessageFailed`` if it raised something else, which is
        not tried again, for the caller knows; ``LockTimeout`` (a ``TimeoutError``) if no reply came in time:
        the message stays, and asking again with the same ``id`` waits for its reply.
        """
        seconds = check_ask_timeout(timeout)
        self._check_may_ask()
        self._check_loop()
        new = self._new_message(kind, key, message, fields, id, True)
        job = await self._run(self._put_call(new))
        return await self._replies.wait_for(job, f"{message!r} to {kind} {key!r}", seconds)

    # --- looking

    async def state(self, kind: str, key: str) -> dict[str, Any] | None:
        """The attributes as the last message has left them; None: there was none."""
        definition, address = self._state_address(kind, key)
        return self._attributes(definition, await self._run(self._load_call(address)))

    async def dead_letters(self, kind: str, limit: int = 100) -> list[DeadLetter]:
        """Messages whose attempts have all failed, the oldest first."""
        found = await self._queue.jobs("dead", kind_of_job(kind), limit)
        return [self._dead_letter(job) for job in found]

    # --- handling

    async def run(self, *, until_idle: bool = False) -> None:
        """Handle messages until ``stop()``; then those that were begun are handled to their end. A
        cancellation ends these too: they are handled again when their leases end.

        ``until_idle``: only those that are there, and what they send; not those that wait for another try.
        """
        kinds = self._job_kinds()
        self._check_loop()
        if self._is_running:
            raise InvalidArgument("this system runs already: raise its concurrency instead")
        self._is_running = True
        try:
            await self._install()
            await _Dispatcher(self, kinds).handle_until(self._stopping, until_idle)
        finally:
            self._stopping.clear()
            self._is_running = False

    def stop(self) -> None:
        """End ``run``, from a task, an actor or a signal handler of the loop. If it has not begun: as it
        begins."""
        self._stopping.set()

    async def _handle(self, job: AsyncJob) -> None:
        for times in itertools.count():
            try:
                await self._handle_once(job)
            except StaleToken as error:
                logger.warning("a message was handled too late, and changed nothing: %s", error)
            except (Conflict, Deadlock, EngineUnavailable) as error:
                pause = redo_pause(error, times)
                if pause is not None:
                    await asyncio.sleep(pause)
                    continue
                logger.warning("a message is left until its lease ends: %s", error)
            return

    async def _handle_once(self, job: AsyncJob) -> None:
        try:
            message = self._received(job)
            definition, address = self._state_address(message.kind, message.key)
        except InvalidArgument as error:
            await job.fail(error, final=True)
            return
        stored = await self._run(self._load_call(address))
        try:
            self._check_attempts(job, definition)
            invocation = Invocation(definition, message, stored)
            with open_context(self._open_context(job, message, definition, invocation)) as opened:
                reply = invocation.call()
                if inspect.isawaitable(reply):
                    reply = await reply
                outcome = invocation.outcome(opened, reply)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            found = failed(message, error)
            if found is None:
                await self._run(self._fail_call(job, definition, error))
                return
            outcome = found
        await self._run(self._commit_call(job, address, outcome))

    # --- inside

    def _check_loop(self) -> None:
        """What wakes its tasks belongs to the loop of the first use."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            raise InvalidArgument("this system belongs to another event loop: make one in this loop")

    async def _install(self) -> None:
        if not self._is_installed:
            await self._store.run(self._install_call())
            self._is_installed = True

    async def _run(self, call: Call[T], connection: Executes | None = None) -> T:
        await self._install()
        return await self._store.run(call, connection)


System = AsyncSystem


class _Dispatcher:
    """The tasks of one ``run``, one for each message."""

    def __init__(self, system: AsyncSystem, kinds: list[str]) -> None:
        self._system = system
        self._kinds = kinds
        self._tasks: dict[asyncio.Task[None], AsyncJob] = {}
        self._forgets = EventClock(30.0)

    async def handle_until(self, stopping: asyncio.Event, until_idle: bool) -> None:
        heartbeat = asyncio.create_task(self._extend())
        stopped = asyncio.create_task(stopping.wait())
        waiting: asyncio.Task[bool] | None = None
        try:
            while not stopping.is_set():
                was_idle = not self._tasks
                try:
                    found = await self._fill()
                except EngineUnavailable as error:
                    if until_idle:
                        raise
                    logger.warning("the mailboxes cannot be read now: %s", error)
                    found = 0
                if until_idle and not found and not self._tasks:
                    if was_idle:
                        break
                    continue  # a message that ended during the claim may have let in the next one
                if found and len(self._tasks) < self._system.concurrency:
                    continue
                if waiting is None and not until_idle and len(self._tasks) < self._system.concurrency:
                    waiting = asyncio.create_task(self._wait())
                events: set[asyncio.Task[Any]] = {stopped, *self._tasks}
                if waiting is not None:
                    events.add(waiting)
                done, _ = await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
                if waiting in done:
                    waiting = None
            if self._tasks:  # messages that have begun are handled to their end, under their leases
                await asyncio.wait(set(self._tasks))
        finally:
            await _cancelled({heartbeat, stopped, *self._tasks})
            if waiting is not None:
                await asyncio.wait({waiting})

    async def _fill(self) -> int:
        """Claim as many messages as there are places; how many there were."""
        places = self._system.concurrency - len(self._tasks)
        if places <= 0:
            return 0
        jobs = await self._system._queue.claim(self._kinds, limit=places, lease=self._system._lease)
        for job in jobs:
            task = asyncio.create_task(self._handle(job))
            self._tasks[task] = job
            task.add_done_callback(self._tasks.pop)
        return len(jobs)

    async def _handle(self, job: AsyncJob) -> None:
        try:
            await self._system._handle(job)
        except Exception:
            logger.exception("a message is left until its lease ends")

    async def _wait(self) -> bool:
        try:
            if self._forgets.is_due():
                await self._system._run(self._system._forget_call())
            return await self._system._queue.wait(base.WAIT_SECONDS)
        except EngineUnavailable as error:
            logger.warning("the mailboxes cannot be read now: %s", error)
            await asyncio.sleep(base.WAIT_SECONDS)
            return False

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(self._system._lease / 3)
            try:
                if self._tasks:
                    await self._system._queue.extend_many(list(self._tasks.values()))
            except Exception as error:  # noqa: BLE001 - the next time may succeed; a lost lease is refused at the commit
                logger.warning("leases of messages could not be extended: %s", error)


def _is_being_cancelled() -> bool:
    """Whether the current task is cancelled, and not only something that it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task


class _Replies:
    """Waits for replies: one task listens for all callers of ``ask``.

    A caller takes the event before its query, so that it does not miss a reply that is announced between
    the query and the wait.
    """

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue = queue
        self._store = queue._store.sibling(replies_namespace(queue.namespace))
        self._notified = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None

    async def wait_for(self, job: int, what: str, seconds: float) -> Any:
        deadline = boottime() + seconds
        while True:
            notified = self._notified
            reply = reply_in(await self._queue._store.run(get_call(job)), what)
            if reply is not NO_REPLY:
                return reply
            left = deadline - boottime()
            if left <= 0:
                raise late(what, seconds)
            if self._listener is None and not notified.is_set():
                self._listener = asyncio.create_task(self._listen())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, 1.0)):
                    await notified.wait()

    async def _listen(self) -> None:
        """Run once for all callers; continues if the caller that began it is cancelled."""
        try:
            await self._store.wait(1.0)
        except Exception as error:  # noqa: BLE001 - the waiting callers poll
            logger.warning("replies are not announced now: %s", error)
            await asyncio.sleep(0.1)
        finally:
            self._listener = None
            notified, self._notified = self._notified, asyncio.Event()
            notified.set()
