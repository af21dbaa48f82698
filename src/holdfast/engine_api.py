"""The interface of an engine: what a driver needs of it. An engine has one small adapter for each driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .model import Guarantees
from .rules.requests import Handoff, Reply, Request, Snapshot

__all__ = [
    "AdapterContext",
    "AsyncioAdapter",
    "Engine",
    "NotificationReader",
    "Notifier",
    "Steps",
    "ThreadsAdapter",
]

Steps = tuple[tuple[str, Request], ...]


class Notifier(Protocol):
    """Wakes a waiter of this client, with the grant if the lock was handed over to it."""

    def __call__(self, nonce: str, handoff: Handoff | None = None, /) -> None: ...


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What an adapter needs of its driver."""

    client: str
    """The id of this client: fresh for every client, and again for the child of a fork."""
    post: Notifier
    """Deliver a wake-up to a nonce of this client. May be called from any thread; never blocks."""
    notify_all: Callable[[], None]
    """Wake-ups may have been missed: wake every waiter, and check every lease. Callable as ``post`` is."""
    io_timeout: float
    is_keeper: Callable[[], bool] = lambda: False
    """Whether the keeper's thread is calling: renewals must not wait for the requests of other threads."""


class NotificationReader(Protocol):
    """Lets one waiting thread at a time read the engine's notifications itself, without a listener thread."""

    def try_acquire(self) -> bool:
        """This thread becomes the only reader. False: another thread reads, or there is nothing to read."""
        ...

    def read(self, seconds: float) -> bool:
        """Wait at most so long for notifications or for ``interrupt``; post each to its waiter.

        True: one was for the reading thread itself, which needs no post.
        """
        ...

    def interrupt(self) -> None:
        """End the present ``read``. May be called from any thread; never blocks."""
        ...

    def release(self) -> None:
        """This thread no longer reads, if it did."""
        ...


class ThreadsAdapter(Protocol):
    """Each call blocks until it is done. Raises NotApplied, OutcomeUnknown or EngineUnavailable."""

    @property
    def source(self) -> str:
        """Where the tokens come from: the same text for every client of one engine. Valid once connected."""
        ...

    def apply(self, name: str, request: Request) -> Reply: ...

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]: ...

    def renew_batch(self, steps: Steps) -> list[Reply]: ...

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]: ...

    def listen(self, name: str | None) -> None:
        """From now on deliver the notifications of this name.

        None: those of this client's leases; this starts the subscription, and does not wait where that takes
        time.
        """
        ...

    def unlisten(self, nonce: str, name: str | None) -> None:
        """End the subscription of this nonce to the name, and stop watching clients for it.

        ``name`` None: there was no subscription. Never blocks, never raises.
        """
        ...

    @property
    def notification_reader(self) -> NotificationReader | None:
        """How a waiting thread can read notifications itself, where it can. Valid after ``listen``."""
        ...

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Post to the nonce when one of these clients dies, where the engine notices that."""
        ...

    def close(self) -> None: ...

    def forked(self) -> None:
        """Called in the child of a fork: drop everything inherited, and send nothing to the engine."""
        ...


class AsyncioAdapter(Protocol):
    """The same for asyncio: whatever may take time is awaited."""

    @property
    def source(self) -> str: ...

    async def apply(self, name: str, request: Request) -> Reply: ...

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]: ...

    async def renew_batch(self, steps: Steps) -> list[Reply]: ...

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]: ...

    async def listen(self, name: str | None) -> None: ...

    def unlisten(self, nonce: str, name: str | None) -> None: ...

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None: ...

    async def close(self) -> None: ...

    def forked(self) -> None: ...


class Engine(Protocol):
    """One engine, as a URL names it. It makes adapters and does no I/O of its own."""

    @property
    def url(self) -> str:
        """The URL without its secrets, for logs and errors."""
        ...

    @property
    def guarantees(self) -> Guarantees: ...

    @property
    def linger(self) -> float:
        """How long a request can stay in flight after its caller gave up; 0 where it cannot."""
        ...

    @property
    def session_bound(self) -> bool:
        """A lease that is not renewed ends with the session of its client, not with its ttl."""
        ...

    def threads(self, context: AdapterContext) -> ThreadsAdapter: ...

    def asyncio(self, context: AdapterContext) -> AsyncioAdapter: ...
