"""etcd's keys and responses as the values of the tickets family."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import NamedTuple

from ...errors import EngineUnavailable
from ...protocols.tickets.codec import decode_config, decode_note, decode_ticket, decode_value
from ...rules.record import StoredValue, Tombstone
from ...rules.tickets import LockConfig, LockView, Ticket, ordered, token_at
from . import wire_pb2 as wire
from .keys import KIND, LIMIT, TICKETS, VALUE

__all__ = [
    "Handle",
    "client_key_subject",
    "counted_view_of",
    "is_eviction_note",
    "kind_bytes",
    "kvs_of",
    "ticket_of",
    "view_of",
]


class Handle(NamedTuple):
    """The key of a ticket, and its revisions."""

    key: bytes
    created: int
    version: int
    """The revision of its last change."""


@functools.cache
def kind_bytes(kind: str, declared: int) -> bytes:
    """The kind of a name. Always the same bytes, because transactions compare them."""
    return json.dumps([1, kind, declared], separators=(",", ":")).encode()


def ticket_of(kv: wire.KeyValue) -> Ticket:
    handle = Handle(kv.key, kv.create_revision, kv.mod_revision)
    return decode_ticket(kv.value, kv.create_revision, token_at(kv.create_revision), handle, kv.lease)


def kvs_of(responses: Iterable[wire.ResponseOp]) -> list[wire.KeyValue]:
    return [kv for response in responses for kv in response.response_range.kvs]


def client_key_subject(rest: bytes) -> int | str | None:
    """The subject of a key in a client's folder: a session, an attempt, or None for a foreign key."""
    what, _, which = rest.partition(b"/")
    if what == b"n" and which.isascii():
        return which.decode("ascii")
    try:
        return int(which, 16) if what == b"s" else None
    except ValueError:
        return None


def is_eviction_note(note: bytes) -> bool:
    """Whether another client ended the attempt. A note that cannot be decoded may say so: the attempt is
    checked."""
    try:
        return decode_note(note).reason != "withdrawn"
    except EngineUnavailable:
        return True


def counted_view_of(folder: bytes, responses: Iterable[wire.ResponseOp]) -> LockView:
    """``view_of``, with the number of further tickets where only some were read."""
    responses = list(responses)
    view = view_of(folder, kvs_of(responses))
    ranges = [response.response_range for response in responses]
    count = max([read.count for read in ranges if read.more], default=0)
    return view._replace(unlisted_count=count - len(view.tickets)) if count > len(view.tickets) else view


def view_of(folder: bytes, kvs: Iterable[wire.KeyValue]) -> LockView:
    """The view of a name, from the keys of its folder. A key outside of it is the note about the attempt."""
    kind: wire.KeyValue | None = None
    limit: LockConfig | None = None
    value: StoredValue | None = None
    note: Tombstone | None = None
    tickets: dict[bytes, Ticket] = {}
    start = len(folder)
    for kv in kvs:
        rest = kv.key[start:] if kv.key.startswith(folder) else None
        if rest is None:
            note = decode_note(kv.value)
        elif rest.startswith(TICKETS):
            tickets[kv.key] = ticket_of(kv)
        elif rest == KIND:
            kind = kv
        elif rest == LIMIT:
            limit = decode_config(kv.value)
        elif rest == VALUE:
            value = decode_value(kv.value)
    return LockView(
        config=None if kind is None else _settings(kind.value, limit),
        tickets=ordered(tuple(tickets.values())),
        value=value,
        newest_token=0 if kind is None else token_at(kind.mod_revision),
        note=note,
    )


def _settings(kind: bytes, limit: LockConfig | None) -> LockConfig:
    if limit is not None:
        return limit
    decoded = decode_config(kind[:-1] + b",0,0]")
    return decoded._replace(limit=decoded.declared)
