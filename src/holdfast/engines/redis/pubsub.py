"""Hearing of wake-ups: one connection that listens, in a Cluster one for each master that is listened to.

A wake-up that is published while nobody listens is gone. So whenever a connection is (back) in place,
everyone who waits is told to look for itself. That a connection is dead shows in an answer that does not
come: a quiet one is asked for a word from time to time, for sending succeeds as long as the kernel has room.

Every connection hears the client's own channel. In a Cluster there is a channel for each hash tag, too, in
the slot of the locks that it is about; whoever waits for a lock listens to that, at the server of the slot.

Anyone who may publish can send a message to a client's channel. What a message may say, and which of them are
believed, is in ``wakeups.py``.
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
from .routing import Router
from .topology import masters_of

__all__ = ["PING", "PubSub", "PubSubHost"]

QUIET_SECONDS: Final = 5.0
"""After this long without a word the server is asked for one; after as long again it is taken for dead."""

RETRY_SECONDS: Final = 0.05
RETRY_SECONDS_MAX: Final = 2.0

IDLE_CHANNELS_MAX: Final = 1000
"""So many sharded channels are kept though nobody waits there: who comes back need not subscribe again."""

PING: Final = pack_command(b"PING")

log = logging.getLogger("holdfast")


class Event(Protocol):
    """Something to wait for that happens once."""

    async def wait(self, seconds: float) -> bool: ...

    def set(self) -> None: ...


class SharedSubscriber(Protocol):
    """A connection that another than its own thread may read."""

    def read(self) -> list[Any]: ...

    def hang_up(self) -> None: ...


class PubSubHost(Protocol):
    """What a driver gives to those who listen."""

    async def discover(self) -> None:
        """Have the router know who serves what."""
        ...

    async def open_subscriber(self, address: Address) -> SubscriberConnection:
        """Connect and log in."""
        ...

    def start(self, work: Callable[[], Coroutine[Any, Any, None]], ended: Callable[[], None]) -> None:
        """Have it done beside everything else, until it ends by itself; ``ended`` is called when it has."""
        ...

    def make_event(self) -> Event: ...


class _Channel:
    """A sharded channel that somebody waits at."""

    __slots__ = ("error", "is_subscribed", "listeners", "may_have_missed", "name", "slot", "subscribed")

    def __init__(self, name: bytes, slot: int, gate: Event) -> None:
        self.name = name
        self.slot = slot
        self.listeners = 0
        self.is_subscribed = False
        self.may_have_missed = False
        """It was heard before, somewhere else: wake-ups may have been missed meanwhile."""
        self.error: Exception | None = None
        self.subscribed = gate
        """Opens when it is heard for the first time."""


class PubSubConnection:
    """One connection that listens, and is made anew whatever happens to it."""

    def __init__(
        self,
        ears: PubSub,
        hooks: AdapterContext,
        stage: PubSubHost,
        find: Callable[[], Awaitable[Address]],
        own_channel: bytes,
    ) -> None:
        self._pubsub = ears
        self._hooks = hooks
        self._notify = hooks.post
        self._host = stage
        self._find_address = find
        self._own_channel = own_channel
        self._connection: SubscriberConnection | None = None
        self._unconfirmed: deque[bytes] = deque()
        """Channels that are subscribed to and not confirmed yet, in their order."""
        self._is_subscribed = False
        self._failures = 0
        self.channels: dict[bytes, _Channel] = {}
        self.address: Address | None = None
        self.subscribed = stage.make_event()
        """Opens when it hears for the first time."""
        self._retry_now = stage.make_event()
        """Ends the pause after this try, also when it rings before that begins."""
        self.error: Exception | None = None
        self.closed = False
        self._is_running = False
        self._warned = False
        """Whether it was logged that this connection brought something that is no message of ours."""

    def start(self) -> None:
        """Unless it runs: whatever ended it, it begins again. The mutex of the ears is held."""
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
        """Until it is closed. Nothing else ends it: an error that nobody expected is logged."""
        while not self.closed:
            self._retry_now = self._host.make_event()
            try:
                await self._run_connection()
            except Exception as error:  # noqa: BLE001 - logged with its traceback in there
                self._log_unexpected(error)
            if not self.closed:
                await self._retry_now.wait(self._next_pause())

    async def _run_connection(self) -> None:
        """As long as one connection lasts."""
        try:
            await self._read_messages(await self._find_address())
        except (TransientError, EngineUnavailable) as trouble:
            self.error = trouble
        if not self.closed:
            await self._pubsub.connection_lost(self)

    def _log_unexpected(self, error: Exception) -> None:
        self.error = NotApplied(f"listening for wake-ups failed unexpectedly ({type(error).__name__})")
        if not self._failures:  # the first since it last worked
            log.error(
                "holdfast: listening for wake-ups failed unexpectedly; it is begun again", exc_info=error
            )

    def _next_pause(self) -> float:
        longest = min(RETRY_SECONDS * 2**self._failures, RETRY_SECONDS_MAX)
        self._failures = min(self._failures + 1, 10)
        return random.uniform(longest / 2, longest)

    async def _read_messages(self, address: Address) -> None:
        line = await self._host.open_subscriber(address)
        try:
            self._subscribe_all(line, address)
            asked_at: float | None = None
            while not self.closed:
                heard = await line.receive(QUIET_SECONDS)
                if heard:
                    asked_at = None
                    strays = [
                        stray for message in heard if (stray := self.handle_message(message)) is not None
                    ]
                    if strays:
                        await self._pubsub.relocate(self, strays)
                elif asked_at is not None and line.received_at < asked_at:
                    raise NotApplied(f"{address} has not said a word in {2 * QUIET_SECONDS:g} s")
                else:
                    asked_at = monotonic()
                    line.send(PING)
        finally:
            with self._pubsub.mutex:
                self._connection = None
            line.close()

    def _subscribe_all(self, line: SubscriberConnection, address: Address) -> None:
        with self._pubsub.mutex:
            self._is_subscribed = self._warned = False
            self.address = address
            self._unconfirmed = deque([self._own_channel, *self.channels])
            line.send(pack_command(b"SUBSCRIBE", self._own_channel))
            for name in self.channels:
                line.send(pack_command(b"SSUBSCRIBE", name))
            self._connection = line

    def add(self, channel: _Channel) -> None:
        """From now on hear this one, too. The mutex of the ears is held."""
        self.channels[channel.name] = channel
        if self._connection is not None:
            self._unconfirmed.append(channel.name)
            self._send_command(b"SSUBSCRIBE", channel.name)

    def remove(self, channel: _Channel) -> None:
        """The mutex of the ears is held."""
        if self.channels.pop(channel.name, None) is not None:
            self._send_command(b"SUNSUBSCRIBE", channel.name)

    def _send_command(self, what: bytes, channel: bytes) -> None:
        if self._connection is not None:
            with contextlib.suppress(NotApplied):  # a new connection begins with everything that is wanted
                self._connection.send(pack_command(what, channel))

    def subscribed_connection(self) -> SubscriberConnection | None:
        return self._connection if self._is_subscribed else None

    def retry_now(self) -> None:
        """Somebody wants to hear: do not pause."""
        if self.error is not None:
            self._retry_now.set()

    def close(self) -> None:
        self.closed = True
        self.hang_up()
        self._retry_now.set()

    def hang_up(self) -> None:
        """Begin anew, or, when it is closed, end."""
        line = self._connection
        if line is not None:
            line.hang_up()

    # --- what is heard --------------------------------------------------------------------------

    def handle_message(self, message: Any) -> _Channel | None:
        """A channel that is heard elsewhere now, if that is what the message says."""
        kind = message[0] if message.__class__ is list and message else None
        if kind == b"message" or kind == b"smessage":
            woken = self._pubsub.parser.parse(message)
            if woken is None:
                self._count_dropped()
            else:
                self._notify(*woken)
        elif isinstance(message, ReplyError):
            return self._subscription_failed(str(message))
        elif kind in (b"subscribe", b"ssubscribe"):
            self._confirm(message[1])
        elif kind == b"sunsubscribe":
            return self.channels.get(message[1])
        return None

    def _count_dropped(self) -> None:
        """What came is no message of ours: others may publish, too."""
        self._pubsub.dropped += 1
        if not self._warned:
            self._warned = True
            log.warning(
                "holdfast: a message to the channel of this client at %s cannot be read. It was dropped, and "
                "so are others like it (%d so far). Which users may publish there? See docs/redis.md",
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
            self._hooks.notify_all()

    def _subscription_failed(self, message: str) -> _Channel | None:
        """What could not be subscribed to: moved, or not for us."""
        with self._pubsub.mutex:
            channel = self.channels.get(self._unconfirmed.popleft()) if self._unconfirmed else None
        address = self.address or Address("", 0)
        sent = parse_redirection(message)
        if channel is None or sent is None:
            failure = error_for(message, address)
            if channel is not None:
                channel.error = failure
            raise failure
        self._pubsub.redirected(address, *sent)
        return channel


class PubSub:
    """All that one client hears with."""

    def __init__(
        self, router: Router, space: Keyspace, hooks: AdapterContext, stage: PubSubHost, takes: bool = True
    ) -> None:
        """``takes``: whether a lock that a message brings is taken without asking; not where replicas must
        have it."""
        self.parser = NotificationParser(hooks.client, sharded=space.sharded, takes=takes)
        self.dropped = 0
        """So many messages could not be read."""
        self._router = router
        self._space = space
        self._hooks = hooks
        self._host = stage
        self._own_channel = space.channel + hooks.client.encode()
        self._connections: dict[Address | None, PubSubConnection] = {}
        self._channels: dict[bytes, _Channel] = {}
        self._idle: dict[bytes, None] = {}
        """Channels at which nobody waits now, the longest ago first."""
        self._closed = False
        self.mutex = threading.RLock()

    # --- listening ------------------------------------------------------------------------------

    def start(self) -> None:
        """Hear what concerns the client as a whole; does not wait until it does."""
        with self.mutex:
            if self._closed:
                return
            if not self._connections:
                self._connection_to(next(iter(masters_of(self._router.masters)), None))
            for ear in self._connections.values():
                ear.start()

    async def listen(self, name: str) -> None:
        """Hear of this name. Returns when that is so, or was: after a break everyone is told to look."""
        if self._space.sharded:
            await self._listen_to_channel(name)
            return
        self.start()
        ear = self._connections.get(None)
        if ear is None:
            raise NotApplied("this client is closed")
        ear.retry_now()
        if not await ear.subscribed.wait(self._hooks.io_timeout):
            raise ear.error or NotApplied("the server does not confirm that it will send wake-ups")

    async def _listen_to_channel(self, name: str) -> None:
        channel_name = channel_of(self._space, self._hooks.client, name)
        with self.mutex:
            channel = self._channels.get(channel_name)
            if channel is None:
                slot = self._router.slot_of(name)
                address = self._router.server_of(slot)
                if self._closed:
                    raise NotApplied("this client is closed")
                channel = self._channels[channel_name] = _Channel(channel_name, slot, self._host.make_event())
                self._connection_to(address).add(channel)
            channel.listeners += 1
            self._idle.pop(channel_name, None)
            ear = next((each for each in self._connections.values() if channel_name in each.channels), None)
            if ear is not None:
                ear.start()
        if channel.is_subscribed:
            return
        if ear is not None:
            ear.retry_now()
        try:
            if await channel.subscribed.wait(self._hooks.io_timeout):
                return
        except BaseException:
            self._remove_listener(channel)
            raise
        self._remove_listener(channel)
        trouble = channel.error or (None if ear is None else ear.error)
        raise trouble or NotApplied("the cluster does not confirm that it will send wake-ups")

    def unlisten(self, name: str) -> None:
        """In a Cluster: one less waits at the channel of this name."""
        channel = self._channels.get(channel_of(self._space, self._hooks.client, name))
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
                for ear in self._connections.values():
                    ear.remove(oldest)

    def _connection_to(self, address: Address | None) -> PubSubConnection:
        """The ear at this server; None: at whatever server is the one. The mutex is held."""
        ear = self._connections.get(address)
        if ear is None:
            ear = PubSubConnection(
                self, self._hooks, self._host, self._address_finder(address), self._own_channel
            )
            self._connections[address] = ear
        ear.start()
        return ear

    def _address_finder(self, address: Address | None) -> Callable[[], Awaitable[Address]]:
        async def find() -> Address:
            if address is not None:
                return address
            await self._host.discover()
            return self._router.server_of(0)

        return find

    # --- for one who waits and listens itself ---------------------------------------------------

    def subscribed_connection(self) -> SubscriberConnection | None:
        """The connection that listens, if there is one for everything and it is well."""
        ear = self._connections.get(None)
        return None if ear is None or self._space.sharded else ear.subscribed_connection()

    def deliver(self, line: SharedSubscriber) -> bool:
        """Deliver what came on the connection; False: it broke, and its own thread will find out."""
        ear = self._connections.get(None)
        try:
            for message in line.read():
                if ear is not None:
                    ear.handle_message(message)
        except Exception as error:
            # The thread that listens makes it anew, and tells everyone to look. Of this thread somebody waits
            # for a lock, and whatever came to others is none of its concern.
            if not isinstance(error, TransientError | EngineUnavailable):
                log.exception("holdfast: listening for wake-ups failed unexpectedly; it is begun again")
            line.hang_up()
            return False
        return True

    # --- when servers change --------------------------------------------------------------------

    def redirected(self, asked: Address, for_good: bool, slot: int, to: Address) -> None:
        self._router.follow_redirection(asked, for_good, slot, to)

    async def connection_lost(self, ear: PubSubConnection) -> None:
        """Its connection is gone: another server may have what it listened to."""
        self._router.invalidate(ear.address)
        if self._space.sharded:
            await self.relocate(ear, list(ear.channels.values()))

    async def relocate(self, ear: PubSubConnection, channels: list[_Channel]) -> None:
        """Listen to these where they are now."""
        try:
            await self._host.discover()
        except (TransientError, EngineUnavailable):
            return  # nobody knows where: the next try will tell
        with self.mutex:
            if self._closed:
                return
            for channel in channels:
                ear.channels.pop(channel.name, None)
                if self._channels.get(channel.name) is channel:  # else nobody wants it any more
                    channel.may_have_missed = True
                    self._connection_to(self._router.masters[channel.slot] or ear.address).add(channel)
            self._close_if_unused(ear)

    def _close_if_unused(self, ear: PubSubConnection) -> None:
        """One whose server has no slots any more ends, if there is another to hear our own channel."""
        serving = set(self._router.masters)
        if ear.channels or ear.address in serving:
            return
        if len(self._connections) == 1:
            self._connection_to(next(address for address in serving if address is not None))
        self._connections = {address: each for address, each in self._connections.items() if each is not ear}
        ear.close()

    def check_address(self) -> None:
        """Who serves what was found out again: an ear at a server that is not the one any more moves."""
        if self._space.sharded:
            return
        ear = self._connections.get(None)
        if ear is not None and ear.address not in (None, self._router.home):
            ear.hang_up()

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        with self.mutex:
            ears = list(self._connections.values())
        for ear in ears:
            ear.close()
