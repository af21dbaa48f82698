"""What threads and asyncio share of a connection: what it can do, and how a message is packed.

Everything that is not on the path of every request (greeting, discovery, redirections, listening) is written
once, as coroutines over these interfaces. With asyncio they are awaited; with threads the methods below block
and never suspend, so that ``at_once`` runs such a coroutine to its end by starting it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from ..redis.config import Address

__all__ = ["Connection", "Event", "ServerConnections", "SubscriberConnection", "pack_command", "run_sync"]

T = TypeVar("T")


class Connection(Protocol):
    """A connection on which requests are answered in order."""

    address: Address

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        """Send, and return that many replies; error replies are ``hiredis.ReplyError`` values.

        Raises Refused (nothing was sent) or Unknown; after either the connection is closed.
        """
        ...

    def close(self) -> None: ...


class SubscriberConnection(Connection, Protocol):
    """A connection that was turned over to wake-ups."""

    received_at: float
    """When something last came, by ``time.monotonic``."""

    async def receive(self, seconds: float) -> list[Any]:
        """What was pushed since, as soon as there is something; empty: nothing came in time."""
        ...

    def send(self, payload: bytes) -> None:
        """Without waiting for an answer, which comes through ``receive``. From any thread."""
        ...

    def hang_up(self) -> None:
        """From any thread: whoever receives here is told that it broke."""
        ...


class ServerConnections(Protocol):
    """Connections to servers, opened as they are needed."""

    async def exchange(self, address: Address, payload: bytes, count: int) -> list[Any]:
        """As ``Line.exchange``, on one of the connections to this server."""
        ...

    async def exchange_blocking(self, address: Address, payload: bytes, count: int) -> list[Any]:
        """The same for what may keep its connection busy for long: it keeps nobody else from an answer."""
        ...

    async def ask_sentinel(self, address: Address, payload: bytes) -> Any:
        """One question to a Sentinel, on a connection of its own."""
        ...

    def drop(self, address: Address) -> None:
        """Close the connections to this server, also those that listen: it is not what it was."""
        ...


class Event(Protocol):
    """Something to wait for that happens once."""

    async def wait(self, seconds: float) -> bool: ...

    def set(self) -> None: ...


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends: everything that it awaits blocks instead."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # what a coroutine returns is its T
    coroutine.close()
    raise RuntimeError("a coroutine of the threads adapter suspended")


def pack_command(*parts: bytes) -> bytes:
    """One command in the server's protocol."""
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])
