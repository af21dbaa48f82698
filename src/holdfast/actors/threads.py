"""Actors for threads: the calls users make, and the threads that handle messages."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..client import Client
from ..core.lock_options import Duration
from ..errors import Conflict, Deadlock, EngineUnavailable, InvalidArgument, StaleToken
from ..events.address import DEFAULT_SCHEMA
from ..fencing.connections import Executes
from ..queue import Job, Queue
from ..queue.calls import get_call
from ..queue.store import Call, EventClock
from ..runtime.clock import boottime
from . import base
from .base import BaseSystem, check_ask_timeout, redo_pause
from .context import open_context
from .invocation import Invocation, failed
from .messages import kind_of_job
from .model import DeadLetter
from .replies import NO_REPLY, late, replies_namespace, reply_in

__all__ = ["System"]

logger = logging.getLogger("holdfast.actors")

T = TypeVar("T")


class System(BaseSystem):
    """Actors whose mailboxes are in ``queue``. All threads may share it.

    client: the client for locks that handlers find as ``context().client``; None: they need none.
    concurrency: how many messages ``run`` handles at once, each of another actor.
    lease: how long a message of a process that died waits until another handles it.
    keep_ids: for how long the ``id=`` of a message is remembered.
    """

    def __init__(
        self,
        client: Client | None,
        queue: Queue,
        *,
        concurrency: int = base.CONCURRENCY,
        lease: Duration = base.LEASE_SECONDS,
        keep_ids: Duration = base.KEEP_IDS_SECONDS,
        events_schema: str = DEFAULT_SCHEMA,
    ) -> None:
        if not isinstance(queue, Queue):
            raise InvalidArgument(
                "System(client, queue) takes a queue of holdfast.queue.connect(url); this is"
                f" {type(queue).__name__} (for a queue of asyncio, use holdfast.actors.aio)"
            )
        super().__init__(client, queue.namespace, concurrency, lease, keep_ids, events_schema)
        self._queue = queue
        self._store = queue._store
        self._replies = _Replies(queue)
        self._is_stopping = False
        self._running = threading.Lock()

    def __repr__(self) -> str:
        return f"<System of {', '.join(map(repr, self._definitions)) or 'no actors'} on {self._queue!r}>"

    # --- sending

    def tell(
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
            self._run(self._put_call(new), connection)

    def ask(
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
        new = self._new_message(kind, key, message, fields, id, True)
        job = self._run(self._put_call(new))
        return self._replies.wait_for(job, f"{message!r} to {kind} {key!r}", seconds)

    # --- looking

    def state(self, kind: str, key: str) -> dict[str, Any] | None:
        """The attributes as the last message has left them; None: there was none."""
        definition, address = self._state_address(kind, key)
        return self._attributes(definition, self._run(self._load_call(address)))

    def dead_letters(self, kind: str, limit: int = 100) -> list[DeadLetter]:
        """Messages whose attempts have all failed, the oldest first."""
        return [self._dead_letter(job) for job in self._queue.jobs("dead", kind_of_job(kind), limit)]

    # --- handling

    def run(self, *, until_idle: bool = False) -> None:
        """Handle messages until ``stop()``; then those that were begun are handled to their end.

        ``until_idle``: only those that are there, and what they send; not those that wait for another try.
        """
        kinds = self._job_kinds()
        if not self._running.acquire(blocking=False):
            raise InvalidArgument("this system runs already: raise its concurrency instead")
        try:
            self._install()
            with _Dispatcher(self, kinds) as dispatcher:
                dispatcher.handle_until_stopped(until_idle)
        finally:
            self._is_stopping = False
            self._running.release()

    def stop(self) -> None:
        """End ``run``, from any thread, an actor or a signal handler. If it has not begun: as it begins."""
        self._is_stopping = True

    def _handle(self, job: Job) -> None:
        for times in itertools.count():
            try:
                self._handle_once(job)
            except StaleToken as error:
                logger.warning("a message was handled too late, and changed nothing: %s", error)
            except (Conflict, Deadlock, EngineUnavailable) as error:
                pause = redo_pause(error, times)
                if pause is not None:
                    time.sleep(pause)
                    continue
                logger.warning("a message is left until its lease ends: %s", error)
            return

    def _handle_once(self, job: Job) -> None:
        try:
            message = self._received(job)
            definition, address = self._state_address(message.kind, message.key)
        except InvalidArgument as error:
            job.fail(error, final=True)
            return
        stored = self._run(self._load_call(address))
        try:
            self._check_attempts(job, definition)
            invocation = Invocation(definition, message, stored)
            with open_context(self._open_context(job, message, definition, invocation)) as context:
                outcome = invocation.outcome(context, invocation.call())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what a handler raises is the asker's, or the dead letter's
            found = failed(message, error)
            if found is None:
                self._run(self._fail_call(job, definition, error))
                return
            outcome = found
        self._run(self._commit_call(job, address, outcome))

    # --- inside

    def _install(self) -> None:
        if not self._is_installed:
            self._store.run(self._install_call())
            self._is_installed = True

    def _run(self, call: Call[T], connection: Executes | None = None) -> T:
        self._install()
        return self._store.run(call, connection)


class _Dispatcher:
    """The threads of one ``run``: a thread that has handled a message claims the next one.

    The thread stays counted in ``_busy`` while it claims, so ``_busy`` is 0 only when nothing is handled.
    """

    def __init__(self, system: System, kinds: list[str]) -> None:
        self._system = system
        self._kinds = kinds
        self._mutex = threading.Lock()
        self._freed = threading.Condition(self._mutex)
        self._busy = 0
        self._jobs: dict[int, Job] = {}
        self._is_closing = False
        self._closed = threading.Event()
        self._forgets = EventClock(30.0)
        self._pool = ThreadPoolExecutor(system.concurrency, thread_name_prefix="holdfast-actors")
        self._heartbeat = threading.Thread(target=self._extend, name="holdfast-actors-heartbeat", daemon=True)

    def __enter__(self) -> _Dispatcher:
        self._heartbeat.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Messages whose handling has begun are handled to their end, under their leases."""
        with self._freed:
            self._is_closing = True
            while self._busy:  # a thread that claims just now still hands its messages to the pool
                self._freed.wait(base.WAIT_SECONDS)
        self._pool.shutdown()
        self._closed.set()
        self._heartbeat.join()

    def handle_until_stopped(self, until_idle: bool) -> None:
        while not self._system._is_stopping:
            with self._mutex:
                was_idle, is_full = self._busy == 0, self._busy >= self._system.concurrency
            if is_full:
                self._wait_for_place()
                continue
            try:
                found = self._fill()
                if not found and until_idle and was_idle:
                    return
                if not found:
                    self._wait(until_idle)
            except EngineUnavailable as error:
                if until_idle:
                    raise
                logger.warning("the mailboxes cannot be read now: %s", error)
                time.sleep(base.WAIT_SECONDS)

    def _wait_for_place(self) -> None:
        with self._freed:
            if self._busy >= self._system.concurrency:
                self._freed.wait(base.WAIT_SECONDS)

    def _wait(self, until_idle: bool) -> None:
        if until_idle:
            with self._freed:
                if self._busy:
                    self._freed.wait(base.WAIT_SECONDS)
            return
        if self._forgets.is_due():
            self._system._run(self._system._forget_call())
        self._system._queue.wait(base.WAIT_SECONDS)

    def _fill(self, own_places: int = 0) -> int:
        """Claim as many messages as there are places; how many there were."""
        with self._mutex:
            places = 0 if self._is_closing else self._system.concurrency - self._busy + own_places
            self._busy += places - own_places
        jobs: list[Job] = []
        try:
            if places:
                jobs = self._system._queue.claim(self._kinds, limit=places, lease=self._system._lease)
        finally:
            with self._freed:
                self._busy -= places - len(jobs)
                self._jobs.update((job.id, job) for job in jobs)
                self._freed.notify_all()
        for job in jobs:
            self._pool.submit(self._handle, job)
        return len(jobs)

    def _handle(self, job: Job) -> None:
        try:
            self._system._handle(job)
        except Exception:
            logger.exception("a message is left until its lease ends")
        finally:
            with self._mutex:
                del self._jobs[job.id]
            self._next()

    def _next(self) -> None:
        """The next message of this mailbox is ready now, and no other worker was notified."""
        try:
            self._fill(own_places=1)
        except Exception as error:  # noqa: BLE001 - the thread that waits for messages gets the same error
            logger.warning("the mailboxes cannot be read now: %s", error)

    def _extend(self) -> None:
        while not self._closed.wait(self._system._lease / 3):
            with self._mutex:
                jobs = list(self._jobs.values())
            try:
                if jobs:
                    self._system._queue.extend_many(jobs)
            except Exception as error:  # noqa: BLE001 - the next time may succeed; a lost lease is refused at the commit
                logger.warning("leases of messages could not be extended: %s", error)


class _Replies:
    """Waits for replies: one of the waiting threads listens for all of them.

    The listening thread counts the notifications, so that a waiter does not miss a reply that is announced
    between its query and its wait.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._store = queue._store.sibling(replies_namespace(queue.namespace))
        self._notified = threading.Condition()
        self._count = 0
        self._is_listening = False

    def wait_for(self, job: int, what: str, seconds: float) -> Any:
        deadline = boottime() + seconds
        while True:
            with self._notified:
                seen = self._count
            reply = reply_in(self._queue._store.run(get_call(job)), what)
            if reply is not NO_REPLY:
                return reply
            left = deadline - boottime()
            if left <= 0:
                raise late(what, seconds)
            self._wait(seen, min(left, 1.0))

    def _wait(self, seen: int, seconds: float) -> None:
        with self._notified:
            if self._count != seen:
                return
            if self._is_listening:
                self._notified.wait(seconds)
                return
            self._is_listening = True
        try:
            self._store.wait(seconds)
        finally:
            with self._notified:
                self._is_listening = False
                self._count += 1
                self._notified.notify_all()
