"""Notifications by Pub/Sub: one subscribed connection, in a Cluster one to each master that has channels.

A message that is published while the connection is down is lost. So every time a connection is subscribed
(again), all waiters of the client are notified and ask the server. A dead connection shows by a missing
reply: after a quiet time the client sends PING, because sending succeeds for as long as the kernel has room.

Every connection subscribes to the client's own channel. In a Cluster there is also one sharded channel for
each hash tag, in the slot of the locks that it is about. A waiter subscribes to that channel at the server of
the slot.

Every user who may publish can send a message to a client's channel. ``notifications.py`` says what a message
may contain and which messages are believed.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from time import monotonic
from typing import Any, Final, Protocol

from hiredis import ReplyError

from ...core.effects import NotApplied, TransientError
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ..resp.codec import pack_command
from ..resp.config import Address
from ..resp.connection import SubscriberConnection
from .errors import error_for, parse_redirection
from .keys import Keyspace, channel_of
from .notifications import NotificationParser
from .topology import Topology, masters_of

__all__ = ["PING", "PubSub", "PubSubHost"]

QUIET_SECONDS: Final = 5.0
"""After this long without a message the client sends PING; after as long again the connection counts as
dead."""

RETRY_SECONDS: Final = 0.05
RETRY_SECONDS_MAX: Final = 2.0

IDLE_CHANNELS_MAX: Final = 1000
"""The number of sharded channels that stay subscribed without a waiter: the next waiter need not
subscribe."""

PING: Final = pack_command(b"PING")

log = logging.getLogger("holdfast")


class Event(Protocol):
    """An event that is set once."""

    async def wait(self, seconds: float) -> bool: ...

    def set(self) -> None: ...


class SharedSubscriber(Protocol):
    """A subscribed connection that a waiting thread may read."""

    def read(self) -> list[Any]: ...

    def shutdown(self) -> None: ...


class PubSubHost(Protocol):
    """What ``PubSub`` needs of its driver."""

    async def discover(self) -> None:
        """Bring the topology up to date."""
        ...

    async def open_subscriber(self, address: Address) -> SubscriberConnection:
        """Connect and log in."""
        ...

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None]) -> None:
        """Run ``work`` in the background until it returns, then call ``ended``."""
        ...

    def make_event(self) -> Event: ...


class _Channel:
    """A sharded channel with waiters."""

    __slots__ = ("error", "is_subscribed", "listeners", "may_have_missed", "name", "slot", "subscribed")

    def __init__(self, name: bytes, slot: int, subscribed: Event) -> None:
        self.name = name
        self.slot = slot
        self.listeners = 0
        self.is_subscribed = False
        self.may_have_missed = False
        """It was subscribed before, at another server: messages may have been lost since then."""
        self.error: Exception | None = None
        self.subscribed = subscribed
        """Set at the first confirmation."""


class PubSubConnection:
    """One subscribed connection, which is replaced whatever happens to it."""

    def __init__(
        self,
        pubsub: PubSub,
        context: AdapterContext,
        host: PubSubHost,
        find_address: Callable[[], Awaitable[Address]],
        own_channel: bytes,
    ) -> None:
        self._pubsub = pubsub
        self._context = context
        self._notify = context.post
        self._host = host
        self._find_address = find_address
        self._own_channel = own_channel
        self._connection: SubscriberConnection | None = None
        self._unconfirmed: deque[bytes] = deque()
        """Channels whose subscription is not confirmed yet, in their order."""
        self._is_subscribed = False
        self._failures = 0
        self.channels: dict[bytes, _Channel] = {}
        self.address: Address | None = None
        self.subscribed = host.make_event()
        """Set when all channels are confirmed for the first time."""
        self._retry_now = host.make_event()
        """Ends the pause after this try, also when it is set before the pause begins."""
        self.error: Exception | None = None
        self.closed = False
        self._is_running = False
        self._warned = False
        """Whether a message that cannot be parsed was logged for this connection."""

    def start(self) -> None:
        """Start the loop unless it runs, whatever ended it before. The caller holds the mutex."""
        if not self._is_running and not self.closed:
            self._is_running = True
            try:
                self._host.start(self.run, self._ended)
            except BaseException:
                self._is_running = False
                raise

    def _ended(self) -> None:
        self._is_running = False

    async def run(self) -> None:
        """Run until ``close``. An unexpected error is logged and does not end the loop."""
        while not self.closed:
            self._retry_now = self._host.make_event()
            try:
                await self._run_connection()
            except Exception as error:  # noqa: BLE001 - _log_unexpected logs it
                self._log_unexpected(error)
            if not self.closed:
                await self._retry_now.wait(self._next_pause())

    async def _run_connection(self) -> None:
        """One connection, from opening it to its end."""
        try:
            await self._read_messages(await self._find_address())
        except (TransientError, EngineUnavailable) as error:
            self.error = error
        if not self.closed:
            await self._pubsub.connection_lost(self)

    def _log_unexpected(self, error: Exception) -> None:
        self.error = NotApplied(f"reading notifications failed unexpectedly ({type(error).__name__})")
        if not self._failures:  # log the first failure of a series only
            log.error(
                "holdfast: reading notifications failed unexpectedly; the connection is replaced",
                exc_info=error,
            )

    def _next_pause(self) -> float:
        longest = min(RETRY_SECONDS * 2**self._failures, RETRY_SECONDS_MAX)
        self._failures = min(self._failures + 1, 10)
        return random.uniform(longest / 2, longest)

    async def _read_messages(self, address: Address) -> None:
        subscriber = await self._host.open_subscriber(address)
        try:
            self._subscribe_all(subscriber, address)
            asked_at: float | None = None
            while not self.closed:
                messages = await subscriber.receive(QUIET_SECONDS)
                if messages:
                    asked_at = None
                    moved = [
                        channel
                        for message in messages
                        if (channel := self.handle_message(message)) is not None
                    ]
                    if moved:
                        await self._pubsub.relocate(self, moved)
                elif asked_at is not None and subscriber.received_at < asked_at:
                    raise NotApplied(f"{address} has not answered in {2 * QUIET_SECONDS:g} s")
                else:
                    asked_at = monotonic()
                    subscriber.send(PING)
        finally:
            with self._pubsub.mutex:
                self._connection = None
            subscriber.close()

    def _subscribe_all(self, subscriber: SubscriberConnection, address: Address) -> None:
        with self._pubsub.mutex:
            self._is_subscribed = self._warned = False
            self.address = address
            self._unconfirmed = deque([self._own_channel, *self.channels])
            subscriber.send(pack_command(b"SUBSCRIBE", self._own_channel))
            for name in self.channels:
                subscriber.send(pack_command(b"SSUBSCRIBE", name))
            self._connection = subscriber

    def add(self, channel: _Channel) -> None:
        """Subscribe to one more channel. The caller holds the mutex."""
        self.channels[channel.name] = channel
        if self._connection is not None:
            self._unconfirmed.append(channel.name)
            self._send_command(b"SSUBSCRIBE", channel.name)

    def remove(self, channel: _Channel) -> None:
        """Unsubscribe from a channel. The caller holds the mutex."""
        if self.channels.pop(channel.name, None) is not None:
            self._send_command(b"SUNSUBSCRIBE", channel.name)

    def _send_command(self, what: bytes, channel: bytes) -> None:
        if self._connection is not None:
            with contextlib.suppress(NotApplied):  # the next connection subscribes to all channels
                self._connection.send(pack_command(what, channel))

    def subscribed_connection(self) -> SubscriberConnection | None:
        return self._connection if self._is_subscribed else None

    def retry_now(self) -> None:
        """A waiter needs the connection: end the pause."""
        if self.error is not None:
            self._retry_now.set()

    def close(self) -> None:
        self.closed = True
        self.shutdown()
        self._retry_now.set()

    def shutdown(self) -> None:
        """End the connection. The loop opens another one unless it is closed."""
        subscriber = self._connection
        if subscriber is not None:
            subscriber.shutdown()

    # --- messages -------------------------------------------------------------------------------

    def handle_message(self, message: Any) -> _Channel | None:
        """Handle one message. Returns the channel if the message says that it moved to another server."""
        kind = message[0] if message.__class__ is list and message else None
        if kind == b"message" or kind == b"smessage":
            notification = self._pubsub.parser.parse(message)
            if notification is None:
                self._count_dropped()
            else:
                self._notify(*notification)
        elif isinstance(message, ReplyError):
            return self._subscription_failed(str(message))
        elif kind in (b"subscribe", b"ssubscribe"):
            self._confirm(message[1])
        elif kind == b"sunsubscribe":
            return self.channels.get(message[1])
        return None

    def _count_dropped(self) -> None:
        """Another user may have published a message that cannot be parsed."""
        self._pubsub.dropped += 1
        if not self._warned:
            self._warned = True
            log.warning(
                "holdfast: a message to the channel of this client at %s cannot be parsed and was dropped "
                "(%d so far; later ones are not logged). Which users may publish there? See docs/redis.md",
                self.address,
                self._pubsub.dropped,
            )

    def _confirm(self, name: bytes) -> None:
        missed = False
        with self._pubsub.mutex:
            if self._unconfirmed:
                self._unconfirmed.popleft()
            channel = self.channels.get(name)
            if channel is not None:
                missed, channel.may_have_missed, channel.is_subscribed, channel.error = (
                    channel.may_have_missed,
                    False,
                    True,
                    None,
                )
                channel.subscribed.set()
            if not self._unconfirmed and not self._is_subscribed:
                self._is_subscribed = missed = True
        if missed:
            self._failures = 0
            self.error = None
            self.subscribed.set()
            self._context.notify_all()

    def _subscription_failed(self, message: str) -> _Channel | None:
        """The first unconfirmed channel moved, or the user may not subscribe to it."""
        with self._pubsub.mutex:
            channel = self.channels.get(self._unconfirmed.popleft()) if self._unconfirmed else None
        address = self.address or Address("", 0)
        sent = parse_redirection(message)
        if channel is None or sent is None:
            failure = error_for(message, address)
            if channel is not None:
                channel.error = failure
            raise failure
        self._pubsub.follow_redirection(address, *sent)
        return channel


class PubSub:
    """All subscriptions of one client."""

    def __init__(
        self,
        topology: Topology,
        space: Keyspace,
        context: AdapterContext,
        host: PubSubHost,
        accepts_grants: bool = True,
    ) -> None:
        """``accepts_grants``: a grant in a message is believed. False where replicas must have it first."""
        self.parser = NotificationParser(context.client, sharded=space.sharded, accepts_grants=accepts_grants)
        self.dropped = 0
        """How many messages could not be parsed."""
        self._topology = topology
        self._space = space
        self._context = context
        self._host = host
        self._own_channel = space.channel + context.client.encode()
        self._connections: dict[Address | None, PubSubConnection] = {}
        self._channels: dict[bytes, _Channel] = {}
        self._idle: dict[bytes, None] = {}
        """Channels without a waiter, in the order in which their last waiter left."""
        self._closed = False
        self.mutex = threading.RLock()

    # --- subscribing ----------------------------------------------------------------------------

    def start(self) -> None:
        """Subscribe to the client's own channel. Does not wait for the confirmation."""
        with self.mutex:
            if self._closed:
                return
            if not self._connections:
                self._connection_to(next(iter(masters_of(self._topology.masters)), None))
            for connection in self._connections.values():
                connection.start()

    async def listen(self, name: str) -> None:
        """Returns once notifications of this name arrive. After a break all waiters are notified."""
        if self._space.sharded:
            await self._listen_to_channel(name)
            return
        self.start()
        connection = self._connections.get(None)
        if connection is None:
            raise NotApplied("this client is closed")
        connection.retry_now()
        if not await connection.subscribed.wait(self._context.io_timeout):
            raise connection.error or NotApplied("the server does not confirm the subscription")

    async def _listen_to_channel(self, name: str) -> None:
        channel_name = channel_of(self._space, self._context.client, name)
        with self.mutex:
            channel = self._channels.get(channel_name)
            if channel is None:
                slot = self._topology.slot_of(name)
                address = self._topology.server_of(slot)
                if self._closed:
                    raise NotApplied("this client is closed")
                channel = self._channels[channel_name] = _Channel(channel_name, slot, self._host.make_event())
                self._connection_to(address).add(channel)
            channel.listeners += 1
            self._idle.pop(channel_name, None)
            connection = next(
                (each for each in self._connections.values() if channel_name in each.channels), None
            )
            if connection is not None:
                connection.start()
        if channel.is_subscribed:
            return
        if connection is not None:
            connection.retry_now()
        try:
            if await channel.subscribed.wait(self._context.io_timeout):
                return
        except BaseException:
            self._remove_listener(channel)
            raise
        self._remove_listener(channel)
        error = channel.error or (None if connection is None else connection.error)
        raise error or NotApplied("the cluster does not confirm the subscription")

    def unlisten(self, name: str) -> None:
        """In a Cluster: one waiter less for the channel of this name."""
        channel = self._channels.get(channel_of(self._space, self._context.client, name))
        if channel is not None:
            self._remove_listener(channel)

    def _remove_listener(self, channel: _Channel) -> None:
        with self.mutex:
            channel.listeners -= 1
            if channel.listeners:
                return
            self._idle[channel.name] = None
            if len(self._idle) > IDLE_CHANNELS_MAX:
                oldest = self._channels.pop(next(iter(self._idle)))
                del self._idle[oldest.name]
                for connection in self._connections.values():
                    connection.remove(oldest)

    def _connection_to(self, address: Address | None) -> PubSubConnection:
        """The connection to this server; None: to the one server. The caller holds the mutex."""
        connection = self._connections.get(address)
        if connection is None:
            connection = PubSubConnection(
                self, self._context, self._host, self._address_finder(address), self._own_channel
            )
            self._connections[address] = connection
        connection.start()
        return connection

    def _address_finder(self, address: Address | None) -> Callable[[], Awaitable[Address]]:
        async def find() -> Address:
            if address is not None:
                return address
            await self._host.discover()
            return self._topology.server_of(0)

        return find

    # --- for a waiter that reads notifications itself -------------------------------------------

    def subscribed_connection(self) -> SubscriberConnection | None:
        """The connection that brings all notifications, while it is subscribed; None in a Cluster."""
        connection = self._connections.get(None)
        return None if connection is None or self._space.sharded else connection.subscribed_connection()

    def deliver(self, subscriber: SharedSubscriber) -> bool:
        """Deliver the messages that have arrived. False: the connection broke, and its own thread replaces
        it."""
        connection = self._connections.get(None)
        try:
            for message in subscriber.read():
                if connection is not None:
                    connection.handle_message(message)
        except Exception as error:
            # The thread of the connection replaces it and notifies all waiters. The calling thread waits for
            # a lock: an error in a message for another waiter must not reach it.
            if not isinstance(error, TransientError | EngineUnavailable):
                log.exception(
                    "holdfast: reading notifications failed unexpectedly; the connection is replaced"
                )
            subscriber.shutdown()
            return False
        return True

    # --- when servers change --------------------------------------------------------------------

    def follow_redirection(self, asked: Address, is_permanent: bool, slot: int, to: Address) -> None:
        self._topology.follow_redirection(asked, is_permanent, slot, to)

    async def connection_lost(self, connection: PubSubConnection) -> None:
        """The connection is gone. Another server may have its channels now."""
        self._topology.invalidate(connection.address)
        if self._space.sharded:
            await self.relocate(connection, list(connection.channels.values()))

    async def relocate(self, connection: PubSubConnection, channels: list[_Channel]) -> None:
        """Subscribe to these channels at the servers that have them now."""
        try:
            await self._host.discover()
        except (TransientError, EngineUnavailable):
            return  # unknown: the next connection tries again
        with self.mutex:
            if self._closed:
                return
            for channel in channels:
                connection.channels.pop(channel.name, None)
                if self._channels.get(channel.name) is channel:  # otherwise it was dropped as idle
                    channel.may_have_missed = True
                    self._connection_to(self._topology.masters[channel.slot] or connection.address).add(
                        channel
                    )
            self._close_if_unused(connection)

    def _close_if_unused(self, connection: PubSubConnection) -> None:
        """Close a connection whose server has no slots any more, once another one has the client's own
        channel."""
        serving = set(self._topology.masters)
        if connection.channels or connection.address in serving:
            return
        if len(self._connections) == 1:
            self._connection_to(next(address for address in serving if address is not None))
        self._connections = {
            address: each for address, each in self._connections.items() if each is not connection
        }
        connection.close()

    def check_address(self) -> None:
        """After a discovery: leave a server that is not the one any more."""
        if self._space.sharded:
            return
        connection = self._connections.get(None)
        if connection is not None and connection.address not in (None, self._topology.home):
            connection.shutdown()

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        with self.mutex:
            connections = list(self._connections.values())
        for connection in connections:
            connection.close()
