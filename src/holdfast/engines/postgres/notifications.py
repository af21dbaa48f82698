"""Receiving notifications on one connection that listens, whatever happens to that connection.

A coroutine for both drivers awaits what it needs; a thread (here) or a task (``asyncio``) performs it.

A wake-up is a notification on the client's own channel. Where none arrive (behind a transaction-pooling
proxy, or while the connection that listens is down) waiters poll, often at first and then less often.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import select
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Final, NamedTuple

from ...core.effects import TransientError
from ...errors import EngineUnavailable
from ...rules.requests import (
    Acquire,
    Adopt,
    Downgrade,
    Export,
    Granted,
    Queued,
    Release,
    Reply,
    Request,
    Unwatch,
    Watch,
    Withdraw,
)
from ...runtime import trampoline
from ...runtime.clock import boottime
from ...runtime.self_pipe import SelfPipe
from ...runtime.thread_join import join_thread
from .codec import decode_nonces
from .connection import READABLE, ConnectionLostError, PgConnection, PQGen, ServerError, run_generator
from .pool import ConnectionPool
from .statements import Statements, channel_of, notify
from .store import Query

__all__ = [
    "Effect",
    "ListenerThread",
    "NotificationThread",
    "Open",
    "RunOn",
    "WaitForInput",
    "WakeupRegistry",
    "listen_for_wakeups",
]

FIRST_POLL_SECONDS: Final = 0.05
POLL_BACKOFF: Final = 1.2
POLL_SECONDS_MAX: Final = 0.25
"""For the first waiter in the queue; those behind it poll less often."""

POSITION_FACTOR_MAX: Final = 4

log = logging.getLogger("holdfast")

PROBE_WAITS: Final = 4

PROBE_SECONDS: Final = 0.25
"""How long each wait for the probe takes."""

SILENCE_SECONDS: Final = 5.0
"""After so long without input a statement checks the connection: a dead one is silent, too."""

WATCH_POLL_SECONDS: Final = 0.5
"""How often watchers poll where no notification arrives."""

POLLS_PER_LEASE_CHECK: Final = 10

POLLS_BEFORE_RETRY: Final = 60
"""After so many polls without notifications a new connection is tried."""

FIRST_PAUSE_SECONDS: Final = 0.05

PAUSE_SECONDS_MAX: Final = 1.0

CLOSE_SECONDS: Final = 1.0


class WakeupRegistry:
    """The waiters of a client, and whether notifications reach it.

    Threads share it: each method takes a few atomic steps on dictionaries."""

    __slots__ = ("_held", "_polls", "_post", "_watching", "has_notifications")

    def __init__(self, post: Callable[[str], None]) -> None:
        self._post = post
        self._polls: dict[str, int] = {}
        """The nonces of waiters, and how often each has polled."""
        self._watching: set[str] = set()
        self._held: dict[str, str] = {}
        """Leases, nonce → name: one that is broken while no notification arrives has to be looked for."""
        self.has_notifications = False
        """Notifications arrive: a test message came through."""

    def record_request(self, request: Request) -> bool:
        """Before a request is sent; returns whether its wake-ups would arrive from that moment on."""
        if request.__class__ is Release:
            self._held.pop(request.nonce, None)
        elif isinstance(request, Acquire):
            if request.wait:
                self._polls.setdefault(request.nonce, 0)
        elif isinstance(request, Watch):
            self._watching.add(request.nonce)
        elif isinstance(request, Unwatch):
            self._watching.discard(request.nonce)
        elif isinstance(request, Withdraw | Export | Downgrade):
            self._held.pop(request.nonce, None)
        return self.has_notifications

    def record_reply(self, name: str, request: Request, reply: Reply, is_notified: bool) -> Reply:
        """Returns the reply to pass on: a waiter that would not be notified polls soon."""
        if reply.__class__ is Granted:
            if isinstance(request, Acquire | Adopt):
                self._held[request.nonce] = name
            elif isinstance(request, Downgrade):
                self._held[request.reader_nonce] = name
        if is_notified or not isinstance(reply, Queued) or not isinstance(request, Acquire):
            return reply
        polls = self._polls.get(request.nonce, 0)
        self._polls[request.nonce] = polls + 1
        soon = min(FIRST_POLL_SECONDS * POLL_BACKOFF ** min(polls, 50), POLL_SECONDS_MAX)
        soon *= 1 + min(reply.position, POSITION_FACTOR_MAX)
        return reply if reply.poll_after <= soon else reply._replace(poll_after=soon)

    def discard(self, nonce: str) -> None:
        self._polls.pop(nonce, None)
        self._watching.discard(nonce)

    def start_notifications(self) -> None:
        """Notifications arrive from now on. An earlier request may have missed one."""
        self.has_notifications = True
        self.wake_all()

    def stop_notifications(self) -> None:
        """Notifications no longer arrive: every waiter polls from now on."""
        if self.has_notifications:
            self.has_notifications = False
            self.wake_all()

    def wake_all(self) -> None:
        for nonce in [*self._polls, *self._watching]:
            self._post(nonce)

    def held(self) -> list[tuple[str, str]]:
        """The leases of this client, (name, nonce) each."""
        return [(name, nonce) for nonce, name in self._held.copy().items()]

    def wake_watchers(self) -> None:
        """A watcher learns of changes from notifications only: without them it has to look now and then."""
        for nonce in list(self._watching):
            self._post(nonce)

    def wake(self, nonce: str) -> None:
        self._post(nonce)


class Open(NamedTuple):
    """Open a connection."""

    def __await__(self) -> Generator[Open, PgConnection, PgConnection]:
        return (yield self)


class RunOn(NamedTuple):
    """Run a generator of a connection to its end, within ``io_timeout``."""

    connection: PgConnection
    generator: PQGen[Any]

    def __await__(self) -> Generator[RunOn, Any, Any]:
        return (yield self)


class WaitForInput(NamedTuple):
    """Wait so many seconds, or until the connection has input (then True)."""

    seconds: float
    connection: PgConnection | None = None

    def __await__(self) -> Generator[WaitForInput, bool, bool]:
        return (yield self)


Effect = Open | RunOn | Query | WaitForInput


async def listen_for_wakeups(wakeups: WakeupRegistry, statements: Statements, client: str) -> None:
    """Runs until it is closed."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        connection: PgConnection | None = None
        try:
            connection = await Open()
            await _listen(connection, wakeups, statements, channel_of(client))
            pause = FIRST_PAUSE_SECONDS
        except (TransientError, EngineUnavailable, ConnectionLostError, ServerError, TimeoutError) as error:
            log.debug("holdfast: notifications do not arrive: %s", error)
            wakeups.stop_notifications()
            await WaitForInput(pause)
            pause = min(pause * 2, PAUSE_SECONDS_MAX)
        except Exception:  # a bug must not end notifications for good
            log.exception("holdfast: notifications do not arrive for now: an unexpected error")
            wakeups.stop_notifications()
            await WaitForInput(PAUSE_SECONDS_MAX)
        finally:
            wakeups.stop_notifications()
            if connection is not None:
                connection.close()


async def _listen(
    connection: PgConnection, wakeups: WakeupRegistry, statements: Statements, channel: str
) -> None:
    if connection.is_pooled or not await _receives_notifications(connection, channel):
        # A proxy stands in between and does not pass notifications on.
        connection.close()
        for poll in range(POLLS_BEFORE_RETRY):
            await WaitForInput(WATCH_POLL_SECONDS)
            wakeups.wake_watchers()
            if poll % POLLS_PER_LEASE_CHECK == 0:
                await _check_leases(wakeups, statements)
        return
    wakeups.start_notifications()
    await _check_leases(wakeups, statements)
    while True:
        if not await WaitForInput(SILENCE_SECONDS, connection):
            await RunOn(connection, connection.execute_script("SELECT"))
        for nonce in connection.receive_notifications():
            wakeups.wake(nonce)


async def _check_leases(wakeups: WakeupRegistry, statements: Statements) -> None:
    """Wake the holders of leases that were broken without a notification: the keeper finds out why."""
    for call in statements.missing(wakeups.held()):
        for nonce in decode_nonces(await Query(call)):
            wakeups.wake(nonce)


async def _receives_notifications(connection: PgConnection, channel: str) -> bool:
    """Whether a notification that another connection sends on our channel arrives here."""
    await RunOn(connection, connection.execute_script(f'LISTEN "{channel}"'))
    probe = f"hear:{secrets.token_hex(16)}"  # any role may notify this channel, but none can guess this
    await Query(notify(channel, probe))
    for _ in range(PROBE_WAITS):
        if await WaitForInput(PROBE_SECONDS, connection) and probe in connection.receive_notifications():
            return True
    return False


# --- in a thread --------------------------------------------------------------------------------


class ListenerThread(ABC):
    """A thread that waits for input on sockets, started when it is first needed. A self-pipe wakes it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pipe: SelfPipe | None = None
        self._is_closed = False

    @abstractmethod
    def _work(self) -> None:
        """What the thread does until it is closed."""

    def start(self) -> None:
        """Returns at once."""
        if self._thread is not None:
            return
        with self._mutex:
            if self._thread is None and not self._is_closed:
                self._pipe = SelfPipe()
                self._thread = threading.Thread(target=self._run, name="holdfast-postgres", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        finally:
            with self._mutex:
                if self._pipe is not None:
                    self._pipe.close()

    def wake(self) -> None:
        if self._pipe is not None:
            with self._mutex:
                self._pipe.wake()

    def close(self) -> None:
        with self._mutex:
            self._is_closed = True
        self.wake()
        join_thread(self._thread, CLOSE_SECONDS)

    def detach_after_fork(self) -> None:
        """In the child of a fork: the thread is the parent's."""
        if self._pipe is not None:
            self._pipe.close()

    def _poller(self) -> select.poll:
        """Waits for the self-pipe; the caller registers what else to wait for."""
        poll = select.poll()
        if self._pipe is not None:
            poll.register(self._pipe.fileno(), READABLE)
        return poll


class _ClosedError(BaseException):
    """The thread was closed: its coroutine ends where it is."""


class NotificationThread(ListenerThread):
    """Receives the notifications for the threads of one client.

    Until the first notification has arrived, waiters poll.
    """

    def __init__(
        self, pool: ConnectionPool, listen: Callable[[], Coroutine[Any, Any, None]], io_timeout: float
    ) -> None:
        super().__init__()
        self._pool = pool
        self._listen = listen
        self._io_timeout = io_timeout
        self._connection: PgConnection | None = None

    def detach_after_fork(self) -> None:
        super().detach_after_fork()
        if self._connection is not None:
            self._connection.detach_after_fork()

    def _work(self) -> None:
        try:
            with contextlib.suppress(_ClosedError):
                trampoline.run(self._listen(), self._perform)
        except Exception:
            log.exception("holdfast: notifications no longer arrive; waiters poll")

    def _perform(self, effect: Effect) -> Any:
        if self._is_closed:
            raise _ClosedError
        ends_at = boottime() + self._io_timeout
        match effect:
            case WaitForInput(seconds, connection):
                return self._wait_for_input(seconds, connection)
            case RunOn(connection, generator):
                return run_generator(connection, generator, ends_at)
            case Query(call):
                return self._pool.execute(call)
            case Open():
                self._connection = self._pool.open_connection(ends_at)
                return self._connection

    def _wait_for_input(self, seconds: float, connection: PgConnection | None) -> bool:
        poll = self._poller()
        if connection is not None:
            poll.register(connection.fileno, READABLE)
        ready = poll.poll(seconds * 1000.0)
        return connection is not None and any(descriptor == connection.fileno for descriptor, _ in ready)
