"""Engines that run in this process: a call succeeds at once or finds the store busy.

The store itself never waits while it is busy: the thread or the task sleeps and tries again. So another
process never blocks an event loop.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

from ..core.effects import NotApplied
from ..engine_api import AdapterContext, NotificationReader, Steps
from ..rules.requests import Reply, Request, Snapshot
from ..runtime.clock import boottime

__all__ = ["LocalAdapter", "LocalStore", "LocalThreads", "StoreBusyError"]

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

PAUSE_SECONDS_MIN = 0.0001
PAUSE_SECONDS_MAX = 0.002

BUSY_SECONDS = 0.5
"""After this long the protocol takes over: it knows how much time is left for further attempts."""

BUSY_ATTEMPTS_MIN = 50
"""The fewest attempts before that: on a busy machine half a second may pass before the process runs."""


class StoreBusyError(Exception):
    """Another process is writing at this moment. Nothing was changed."""


class LocalStore(Protocol):
    """One client's store. Every call may raise StoreBusyError or EngineUnavailable."""

    @property
    def source(self) -> str: ...

    def apply(self, name: str, request: Request) -> Reply: ...

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]: ...

    def renew_batch(self, steps: Steps) -> list[Reply]: ...

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]: ...

    def listen_in_thread(self) -> None:
        """Let a thread of the store deliver wake-ups, if that needs one."""
        ...

    def listen_in_loop(self, loop: asyncio.AbstractEventLoop) -> None: ...

    @property
    def notification_reader(self) -> NotificationReader | None: ...

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None: ...

    def unlisten(self, nonce: str, name: str | None) -> None: ...

    def close(self) -> None: ...

    def forked(self) -> None: ...


class LocalAdapter:
    """What both adapters share."""

    __slots__ = ("_context", "_store", "forked", "unlisten", "watch_clients")

    def __init__(self, store: LocalStore, context: AdapterContext) -> None:
        self._store = store
        self._context = context
        self.watch_clients = store.watch_clients
        self.unlisten = store.unlisten
        self.forked = store.forked

    @property
    def source(self) -> str:
        return self._store.source

    def _backoff(self) -> _Backoff:
        return _Backoff(boottime() + min(self._context.io_timeout, BUSY_SECONDS))


class _Backoff:
    """Growing random pauses, so that two processes that collide do not collide again."""

    __slots__ = ("_ends_at", "_longest", "_tries")

    def __init__(self, ends_at: float) -> None:
        self._ends_at = ends_at
        self._tries = 0
        self._longest = PAUSE_SECONDS_MIN

    def next(self) -> float:
        self._tries += 1
        if self._tries >= BUSY_ATTEMPTS_MIN and boottime() >= self._ends_at:
            raise NotApplied(
                "the database was busy all the time: is a process stopped in the middle of a write?"
            )
        self._longest = min(self._longest * 2, PAUSE_SECONDS_MAX)
        return random.uniform(0, self._longest)


class LocalThreads(LocalAdapter):
    """For the threads driver."""

    __slots__ = ()

    def apply(self, name: str, request: Request) -> Reply:
        try:
            return self._store.apply(name, request)
        except StoreBusyError:
            return self._retry_while_busy(lambda: self._store.apply(name, request))

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return self._retry_while_busy(lambda: self._store.apply_in_order(steps, stop_when_refused))

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self._retry_while_busy(lambda: self._store.renew_batch(steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self._retry_while_busy(lambda: self._store.list_names(prefix))

    def _retry_while_busy(self, call: Callable[[], T]) -> T:
        pauses = self._backoff()
        while True:
            try:
                return call()
            except StoreBusyError:
                time.sleep(pauses.next())

    def listen(self, name: str | None) -> None:
        try:
            self._store.listen_in_thread()
        except StoreBusyError:
            self._retry_while_busy(self._store.listen_in_thread)

    @property
    def notification_reader(self) -> NotificationReader | None:
        return self._store.notification_reader

    def close(self) -> None:
        self._store.close()
