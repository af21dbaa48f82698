"""What a driver needs of an engine. An engine brings one small adapter for each driver."""

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
    """Wakes one who waits, with the lock if it was handed over."""

    def __call__(self, nonce: str, handoff: Handoff | None = None, /) -> None: ...


@dataclass(frozen=True, slots=True)
class AdapterContext:
    """What an adapter needs of its driver."""

    client: str
    """The id of this client: fresh for every client, and again for the child of a fork."""
    post: Notifier
    """Deliver a wake-up to a nonce of this client. May be called from any thread; never blocks."""
    notify_all: Callable[[], None]
    """Wake-ups may have been missed: wake everyone who waits, look at all that is held. As ``post``."""
    io_timeout: float
    is_keeper: Callable[[], bool] = lambda: False
    """Whether it is the keeper who asks, on a thread of its own. What is held must not wait for others."""


class NotificationReader(Protocol):
    """Lets one waiting thread at a time hear wake-ups itself, instead of being told by a listening thread."""

    def take(self) -> bool:
        """From now on this thread hears and no other; False: another does, or there is nothing to hear."""
        ...

    def hear(self, seconds: float) -> bool:
        """Wait for messages, or for the bell, for at most so long; post what came, to whomever.

        True: it came for the one who hears, who need not be posted to.
        """
        ...

    def ring(self) -> None:
        """Have the one who hears look up. May be called from any thread; never blocks."""
        ...

    def give_back(self) -> None:
        """This thread no longer hears, if it did."""
        ...


class ThreadsAdapter(Protocol):
    """Each call blocks until it is done. Raises Refused, Unknown or EngineUnavailable."""

    @property
    def source(self) -> str:
        """Whose numbers the tokens are: the same for every client of one engine. Valid once connected."""
        ...

    def apply(self, name: str, request: Request) -> Reply: ...

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]: ...

    def renew_batch(self, steps: Steps) -> list[Reply]: ...

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]: ...

    def listen(self, name: str | None) -> None:
        """From now on deliver wake-ups of this name.

        None: those of what this client holds; begun here, and not waited for where that would take time.
        """
        ...

    def unlisten(self, nonce: str, name: str | None) -> None:
        """Nobody waits with this nonce any more: no client is watched for it, one less listens to the name.

        None: the name was not listened to. Never blocks, never raises.
        """
        ...

    @property
    def notification_reader(self) -> NotificationReader | None:
        """A shorter way for wake-ups, where there is one. Valid after ``listen``."""
        ...

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Post to the nonce when one of these clients dies, where that can be noticed."""
        ...

    def close(self) -> None: ...

    def forked(self) -> None:
        """This is the child of a fork: let go of everything inherited without a word to the engine."""
        ...


class AsyncioAdapter(Protocol):
    """The same for asyncio: what may take time is awaited."""

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
    """One engine as a URL names it. Makes adapters; does no I/O of its own."""

    @property
    def url(self) -> str:
        """The URL without its secrets: fit for logs and errors."""
        ...

    @property
    def guarantees(self) -> Guarantees: ...

    @property
    def linger(self) -> float:
        """How long a request can be under way after its caller gave up; 0 where it cannot."""
        ...

    @property
    def session_bound(self) -> bool:
        """What nobody renews ends with the session of its client, not with its ttl."""
        ...

    def threads(self, context: AdapterContext) -> ThreadsAdapter: ...

    def asyncio(self, context: AdapterContext) -> AsyncioAdapter: ...
