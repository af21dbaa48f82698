"""What is watched, over one stream: which watcher belongs to which attempt, and what its events mean.

A watcher starts at the current revision and is confirmed by the server; only then the attempt reads the
name again. (etcd serves watchers that start at an earlier revision with a delay.) When the stream ends or a
watcher is cancelled by a compaction, the watcher is created again and confirmed; then its owner is woken
once, to read again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple

from ...core.effects import NotApplied, OutcomeUnknown
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable
from ...protocols.tickets import TicketClient
from ...protocols.tickets.store import EVERYTHING
from . import wire_pb2 as wire
from .codec import client_key_subject, is_eviction_note
from .errors import AuthTokenError, server_message
from .keys import LIMIT, TICKETS, Keys, end_of
from .routing import ClusterChannel
from .rpc import Metadata, RpcError, WatchCall
from .store import EtcdStore

__all__ = ["CLIENT_EVENTS", "OpenWatchStream", "Receive", "Registration", "WatchRegistry", "Watcher"]

log = logging.getLogger("holdfast")

RETRY_DELAYS_SECONDS: Final = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Before the next stream is opened, by the number of failures in a row."""

CLIENT_EVENTS: Final = ""
"""In place of a nonce: the events about the client itself."""

NO_PUTS: Final = (wire.WatchCreateRequest.NOPUT,)


class Range(NamedTuple):
    """The range that one watcher watches."""

    key: bytes
    end: bytes = b""
    filters: tuple[wire.WatchCreateRequest.FilterType, ...] = ()


class Registration:
    """One nonce to wake, and its watchers."""

    __slots__ = ("confirmed", "ids", "keys", "nonce", "ranges", "unconfirmed", "wakes")

    def __init__(self, nonce: str, ranges: tuple[Range, ...], keys: frozenset[bytes] | None) -> None:
        self.nonce = nonce
        self.ranges = ranges
        self.keys = keys
        """Only changes of these keys wake it; None: every change does."""
        self.ids: tuple[int, ...] = ()
        self.unconfirmed: set[int] = set()
        self.wakes = False
        """It may have missed a change: wake it when its watchers are confirmed."""
        self.confirmed: Callable[[], None] = _nothing
        """Called when all its watchers are confirmed."""


def _cancelling(ids: Iterable[int]) -> list[wire.WatchRequest]:
    return [wire.WatchRequest(cancel_request=wire.WatchCancelRequest(watch_id=each)) for each in ids]


def _nothing() -> None:
    """No caller waits for the confirmation."""


class WatchRegistry:
    """All watchers of one client. May be used by several threads."""

    def __init__(
        self,
        keys: Keys,
        client: str,
        post: Callable[[str], None],
        ended: Callable[[str], None],
        session_over: Callable[[int], None],
    ) -> None:
        self._keys = keys
        self._client = client
        self._post = post
        self._ended = ended
        """An attempt of this client was ended from outside."""
        self._session_over = session_over
        self._lock = threading.Lock()
        self._registrations: dict[str, Registration] = {}
        self._by_id: dict[int, Registration] = {}
        self._last_id = 0
        self.refusal = ""
        """Why the server last refused a watch, if it did."""

    # --- what is to be watched

    def add(self, op: WatchCall, confirmed: Callable[[], None]) -> list[wire.WatchRequest]:
        return self._add(Registration(op.nonce, *self._ranges(op)), confirmed)

    def watch_client(self, confirmed: Callable[[], None]) -> list[wire.WatchRequest]:
        start = self._keys.client(self._client)
        return self._add(Registration(CLIENT_EVENTS, (Range(start, end_of(start)),), None), confirmed)

    def _ranges(self, op: WatchCall) -> tuple[tuple[Range, ...], frozenset[bytes] | None]:
        folder = self._keys.folder(op.name)
        if op.watched == EVERYTHING:
            return (Range(folder, end_of(folder)),), None
        keys = frozenset([ticket.handle.key for ticket in op.tickets])
        if not op.watched.limit and len(keys) == 1:
            filters = () if op.watched.turns else NO_PUTS
            return tuple([Range(key, b"", filters) for key in keys]), keys
        tickets = folder + TICKETS
        limit = folder + LIMIT
        return (Range(tickets, end_of(tickets), NO_PUTS), Range(limit)), keys | {limit}

    def _add(self, registration: Registration, confirmed: Callable[[], None]) -> list[wire.WatchRequest]:
        with self._lock:
            requests = self._cancel(self._registrations.pop(registration.nonce, None))
            registration.confirmed = confirmed
            self._registrations[registration.nonce] = registration
            return requests + self._create(registration)

    def disarm(self, nonce: str) -> list[wire.WatchRequest]:
        with self._lock:
            return self._cancel(self._registrations.pop(nonce, None))

    def _create(self, registration: Registration) -> list[wire.WatchRequest]:
        ids = tuple(range(self._last_id + 1, self._last_id + 1 + len(registration.ranges)))
        self._last_id += len(ids)
        registration.ids, registration.unconfirmed = ids, set(ids)
        for watch_id in ids:
            self._by_id[watch_id] = registration
        return [
            wire.WatchRequest(
                create_request=wire.WatchCreateRequest(
                    key=each.key, range_end=each.end, filters=each.filters, watch_id=watch_id
                )
            )
            for each, watch_id in zip(registration.ranges, ids, strict=True)
        ]

    def _create_again(self, registration: Registration) -> list[wire.WatchRequest]:
        """An attempt whose watchers were never confirmed reads when they are, without a wake-up."""
        registration.wakes = registration.wakes or not registration.unconfirmed
        return self._create(registration)

    def _cancel(self, registration: Registration | None) -> list[wire.WatchRequest]:
        if registration is None:
            return []
        for watch_id in registration.ids:
            self._by_id.pop(watch_id, None)
        return _cancelling(registration.ids)

    def restart(self) -> list[wire.WatchRequest]:
        """A new stream: create every watcher again."""
        with self._lock:
            self._by_id.clear()
            requests = []
            for registration in self._registrations.values():
                requests += self._create_again(registration)
            return requests

    # --- what the server sends

    def handle_response(self, response: wire.WatchResponse) -> list[wire.WatchRequest]:
        """Process a response; returns the requests to send."""
        with self._lock:
            if response.canceled and response.watch_id < 0:
                self.refusal = response.cancel_reason
                return []
            registration = self._by_id.get(response.watch_id)
            if registration is None:
                return _cancelling((response.watch_id,)) if response.created else []  # it was disarmed
            if response.canceled:
                requests = self._cancel(registration)
                return requests + self._create_again(registration)
            completed = False
            if response.created:
                registration.unconfirmed.discard(response.watch_id)
                completed = not registration.unconfirmed
            wakes = registration.wakes and completed
            if completed:
                registration.wakes = False
        if completed:
            registration.confirmed()
        if registration.nonce == CLIENT_EVENTS:
            self._read(response.events)
        elif wakes or any(
            registration.keys is None or event.kv.key in registration.keys for event in response.events
        ):
            self._post(registration.nonce)
        return []

    def _read(self, events: Iterable[wire.Event]) -> None:
        """Events about this client itself."""
        start = len(self._keys.client(self._client))
        for event in events:
            which = client_key_subject(event.kv.key[start:])
            if isinstance(which, int) and event.type == wire.Event.DELETE:
                self._session_over(which)
            elif isinstance(which, str) and event.type == wire.Event.PUT and is_eviction_note(event.kv.value):
                self._ended(which)


class SessionEvents:
    """Events about a client itself: its attempts that were ended from outside, its sessions that ended.
    Passes them to the TicketClient, then wakes the waiters and the keeper."""

    __slots__ = ("_client", "_context", "_store", "closed", "unread")

    def __init__(self, client: TicketClient, store: EtcdStore, context: AdapterContext) -> None:
        self._client = client
        self._store = store
        self._context = context
        self.unread = False
        """The watch was just set, perhaps again: earlier events must be read."""
        self.closed = False
        """The client ends its sessions itself: their end is no event."""

    def watched(self) -> None:
        self.unread = True

    def ended(self, nonce: str) -> None:
        self._client.suspect(nonce)
        self._context.post(nonce)

    def session_over(self, lease: int) -> None:
        if not self.closed:
            for nonce in self._client.session_reported_ended(lease):
                self._context.post(nonce)

    async def read(self) -> None:
        """Read what happened while no watch was set."""
        self.unread = False
        known = [session.id for session in self._client.open_sessions()]  # before the living ones are read
        ended, living = await self._store.missed_events()
        for nonce in ended:
            self.ended(nonce)
        for lease in known:
            if lease not in living:
                self.session_over(lease)


# --- the watcher: what it awaits


class OpenWatchStream(NamedTuple):
    """Open a stream of watch requests and responses on this connection. Raises RpcError."""

    connection: Any
    timeout: float
    metadata: Metadata

    def __await__(self) -> Generator[OpenWatchStream, Any, Any]:
        return (yield self)


class Receive(NamedTuple):
    """Wait for the next responses of the stream. Raises RpcError."""

    stream: Any

    def __await__(self) -> Generator[Receive, list[wire.WatchResponse], list[wire.WatchResponse]]:
        return (yield self)


class Pause(NamedTuple):
    """Wait this many seconds, or until the client is closed. Returns whether it is."""

    seconds: float

    def __await__(self) -> Generator[Pause, bool, bool]:
        return (yield self)


class Watcher:
    """The watch stream of one client. ``serve`` runs in a thread or in a task; everything else never waits
    and may be called from any thread (in asyncio: from the loop)."""

    def __init__(
        self, keys: Keys, context: AdapterContext, channel: ClusterChannel, events: SessionEvents
    ) -> None:
        self._channel = channel
        self._events = events
        self._registry = WatchRegistry(keys, context.client, context.post, events.ended, events.session_over)
        self._stream: Any = None
        self._connection: Any = None
        """The connection that the stream uses."""
        self._is_closed = False
        self._failures = 0

    def add(self, op: WatchCall, confirmed: Callable[[], None]) -> None:
        self._send(self._registry.add(op, confirmed))

    def not_confirmed(self) -> Exception:
        """The server did not confirm a watch in time."""
        if self._registry.refusal:
            return EngineUnavailable(f"etcd refuses to watch: {server_message(self._registry.refusal)}")
        self._channel.mark_unhealthy(self._connection)
        return NotApplied("etcd did not confirm a watch in time")

    def disarm(self, nonce: str) -> None:
        self._send(self._registry.disarm(nonce))

    def _send(self, requests: list[wire.WatchRequest]) -> None:
        """Without a stream nothing is lost: the next stream begins with everything that is wanted."""
        stream = self._stream
        if stream is not None:
            stream.send(requests)

    def interrupt(self) -> None:
        """The client uses another connection from now on: watch there."""
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def close(self) -> None:
        self._is_closed = True
        self.interrupt()

    async def serve(self) -> None:
        """One stream after another, until the client is closed."""
        self._registry.watch_client(self._events.watched)
        last = len(RETRY_DELAYS_SECONDS) - 1
        try:
            while not await Pause(RETRY_DELAYS_SECONDS[min(self._failures, last)]):
                self._failures += 1
                try:
                    await self._follow()
                except (NotApplied, OutcomeUnknown, EngineUnavailable, AuthTokenError) as error:
                    log.debug("holdfast: the watch stream of etcd ended: %s", error)
        except Exception:
            log.exception("holdfast: the watch stream of etcd ended; from now on each waiter polls")
            raise

    async def _follow(self) -> None:
        """One stream, from its beginning to its end."""
        channel = self._channel
        await channel.ready()
        connection = channel.connection()
        if self._is_closed:
            return
        metadata = (*channel.metadata(), ("hasleader", "true"))
        try:
            stream = await OpenWatchStream(connection, channel.timeout, metadata)
        except RpcError as error:
            raise channel.failure(connection, error) from None
        self._stream, self._connection = stream, connection
        try:
            if self._is_closed or channel.is_retired(connection):
                stream.cancel()
            await self._read(stream)
        except RpcError as error:
            if not self._is_closed:
                raise channel.failure(connection, error) from None
        finally:
            self._stream = None
            stream.close()

    async def _read(self, stream: Any) -> None:
        """Returns when the server has refused the token: the next stream has a new one."""
        registry = self._registry
        stream.send(registry.restart())
        while True:
            for response in await Receive(stream):
                self._failures = 0
                stream.send(registry.handle_response(response))
                if registry.refusal and self._channel.token_refused(registry.refusal):
                    registry.refusal = ""
                    return
            if self._events.unread:
                await self._events.read()
