"""What is watched, over one stream: which watcher belongs to whom, and what its events mean. No I/O here.

A watcher begins at the present and is confirmed by the server; only then whoever asked for it looks again.
Watchers that begin at an earlier revision would be served with a delay. When the stream ends or a watcher is
cancelled (compaction), it is made again, confirmed, and then its owner is woken once, to look again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ...protocols.tickets.store import EVERYTHING, Arm
from . import wire_pb2 as wire
from .codec import client_key_subject, is_eviction_note
from .keys import LIMIT, TICKETS, Keys, end_of

__all__ = ["CLIENT_EVENTS", "Registration", "WatchRegistry"]

CLIENT_EVENTS: Final = ""
"""In place of a nonce: what concerns the client as a whole."""

NO_PUTS: Final = (wire.WatchCreateRequest.NOPUT,)


class Range(NamedTuple):
    """What one watcher watches."""

    key: bytes
    end: bytes = b""
    filters: tuple[wire.WatchCreateRequest.FilterType, ...] = ()


class Registration:
    """One who wants to be woken, and the watchers that do it."""

    __slots__ = ("confirmed", "ids", "keys", "nonce", "ranges", "unconfirmed", "wakes")

    def __init__(self, nonce: str, ranges: tuple[Range, ...], keys: frozenset[bytes] | None) -> None:
        self.nonce = nonce
        self.ranges = ranges
        self.keys = keys
        """Only what happens to these concerns it; None: everything does."""
        self.ids: tuple[int, ...] = ()
        self.unconfirmed: set[int] = set()
        self.wakes = False
        """It missed something, perhaps: to be woken when its watchers are confirmed."""
        self.confirmed: Callable[[], None] = _nothing
        """Called when all of its watchers are in place."""


def _cancelling(ids: Iterable[int]) -> list[wire.WatchRequest]:
    return [wire.WatchRequest(cancel_request=wire.WatchCancelRequest(watch_id=each)) for each in ids]


def _nothing() -> None:
    """Nobody waits for it."""


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
        """An attempt of ours was ended from outside."""
        self._session_over = session_over
        self._lock = threading.Lock()
        self._armed: dict[str, Registration] = {}
        self._by_id: dict[int, Registration] = {}
        self._last_id = 0
        self.refusal = ""
        """Why the server last refused to watch something, if it did."""

    # --- who wants what

    def arm(self, op: Arm, confirmed: Callable[[], None]) -> list[wire.WatchRequest]:
        return self._add(Registration(op.nonce, *self._ranges(op)), confirmed)

    def watch_client(self, confirmed: Callable[[], None]) -> list[wire.WatchRequest]:
        start = self._keys.client(self._client)
        return self._add(Registration(CLIENT_EVENTS, (Range(start, end_of(start)),), None), confirmed)

    def _ranges(self, op: Arm) -> tuple[tuple[Range, ...], frozenset[bytes] | None]:
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

    def _add(self, armed: Registration, confirmed: Callable[[], None]) -> list[wire.WatchRequest]:
        with self._lock:
            requests = self._cancel(self._armed.pop(armed.nonce, None))
            armed.confirmed = confirmed
            self._armed[armed.nonce] = armed
            return requests + self._create(armed)

    def disarm(self, nonce: str) -> list[wire.WatchRequest]:
        with self._lock:
            return self._cancel(self._armed.pop(nonce, None))

    def _create(self, armed: Registration) -> list[wire.WatchRequest]:
        ids = tuple(range(self._last_id + 1, self._last_id + 1 + len(armed.ranges)))
        self._last_id += len(ids)
        armed.ids, armed.unconfirmed = ids, set(ids)
        for watch_id in ids:
            self._by_id[watch_id] = armed
        return [
            wire.WatchRequest(
                create_request=wire.WatchCreateRequest(
                    key=each.key, range_end=each.end, filters=each.filters, watch_id=watch_id
                )
            )
            for each, watch_id in zip(armed.ranges, ids, strict=True)
        ]

    def _create_again(self, armed: Registration) -> list[wire.WatchRequest]:
        """Whoever was never told that its watchers are in place looks when it is, without being woken."""
        armed.wakes = armed.wakes or not armed.unconfirmed
        return self._create(armed)

    def _cancel(self, armed: Registration | None) -> list[wire.WatchRequest]:
        if armed is None:
            return []
        for watch_id in armed.ids:
            self._by_id.pop(watch_id, None)
        return _cancelling(armed.ids)

    def restart(self) -> list[wire.WatchRequest]:
        """A new stream: everything is made again."""
        with self._lock:
            self._by_id.clear()
            requests = []
            for armed in self._armed.values():
                requests += self._create_again(armed)
            return requests

    # --- what the server says

    def handle_response(self, response: wire.WatchResponse) -> list[wire.WatchRequest]:
        """What follows from a response; returns what to ask for."""
        with self._lock:
            if response.canceled and response.watch_id < 0:
                self.refusal = response.cancel_reason
                return []
            armed = self._by_id.get(response.watch_id)
            if armed is None:
                return _cancelling((response.watch_id,)) if response.created else []  # nobody wants it
            if response.canceled:
                requests = self._cancel(armed)
                return requests + self._create_again(armed)
            completed = False
            if response.created:
                armed.unconfirmed.discard(response.watch_id)
                completed = not armed.unconfirmed
            wakes = armed.wakes and completed
            if completed:
                armed.wakes = False
        if completed:
            armed.confirmed()
        if armed.nonce == CLIENT_EVENTS:
            self._read(response.events)
        elif wakes or any(armed.keys is None or event.kv.key in armed.keys for event in response.events):
            self._post(armed.nonce)
        return []

    def _read(self, events: Iterable[wire.Event]) -> None:
        """Mail for the client."""
        start = len(self._keys.client(self._client))
        for event in events:
            which = client_key_subject(event.kv.key[start:])
            if isinstance(which, int) and event.type == wire.Event.DELETE:
                self._session_over(which)
            elif isinstance(which, str) and event.type == wire.Event.PUT and is_eviction_note(event.kv.value):
                self._ended(which)
