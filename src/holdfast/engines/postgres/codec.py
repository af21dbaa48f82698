"""Values as the bytes of statements and results: requests, replies, and the types that they are made of.

Names travel as bytes. Every other text is ASCII, since a database may have any encoding: texts of users
(owners, metadata, reasons) are sent as JSON escapes, and so can hold any character.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple

from psycopg.pq.abc import PGresult

from ...rules.record import Holder, Record, StoredValue, Tombstone, Waiter, Watcher
from ...rules.requests import (
    Absent,
    Acquire,
    Adopt,
    Break,
    Broken,
    Busy,
    CellState,
    Done,
    Downgrade,
    Exhausted,
    Export,
    Gone,
    Granted,
    Inspect,
    Mismatch,
    Queued,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Resize,
    SetValue,
    Snapshot,
    Stop,
    Unwatch,
    Watch,
    Withdraw,
    Withdrawn,
)

__all__ = [
    "BINARY",
    "BYTEA_OID",
    "FLAGS",
    "FLOAT8_OID",
    "INT4_OID",
    "JSON_OID",
    "TEXT",
    "TEXT_OID",
    "Call",
    "Statement",
    "decode_holders",
    "decode_nonces",
    "decode_page",
    "decode_replies",
    "decode_reply",
    "decode_snapshot",
    "encode_array",
    "encode_id",
    "encode_json",
    "encode_request",
    "escape_text",
    "function_result",
]

BINARY: Final = 1
TEXT: Final = 0

BYTEA_OID: Final = 17
INT4_OID: Final = 23
TEXT_OID: Final = 25
JSON_OID: Final = 114
FLOAT8_OID: Final = 701

FLAGS: Final = (b"f", b"t")
"""The text format of a boolean."""

encode_json = json.JSONEncoder(separators=(",", ":")).encode
_decode_json = json.JSONDecoder().decode
_new = tuple.__new__
_DONE: Final = Done()


class Statement(NamedTuple):
    """One statement of ours, and the formats of its parameters."""

    name: bytes
    """The name under which it is prepared."""
    text: bytes
    formats: tuple[int, ...]


class Call(NamedTuple):
    """A statement with its parameters."""

    statement: Statement
    parameters: Sequence[bytes | None]


# --- encoding -----------------------------------------------------------------------------------


def encode_id(text: str) -> bytes:
    """Our ids are plain ASCII. Any other text matches none of them, however it is sent."""
    return text.encode("ascii", "backslashreplace").replace(b"\0", b"?")


def escape_text(text: str) -> str:
    return encode_basestring_ascii(text)[1:-1]


def encode_array(oid: int, items: Sequence[bytes | None]) -> bytes:
    """A one-dimensional array in the server's binary format."""
    if not items:
        return struct.pack(">iiI", 0, 0, oid)
    head = struct.pack(">iiIii", 1, int(None in items), oid, len(items), 1)
    return head + b"".join(
        struct.pack(">i", -1) if item is None else struct.pack(">i", len(item)) + item for item in items
    )


_OPERATIONS: Final[Mapping[type, str]] = {
    Acquire: "acquire",
    Release: "release",
    Withdraw: "withdraw",
    Renew: "renew",
    Refresh: "refresh",
    Stop: "stop",
    Export: "export",
    Adopt: "adopt",
    Downgrade: "downgrade",
    Break: "break",
    SetValue: "set_value",
    Resize: "resize",
    Watch: "watch",
    Unwatch: "unwatch",
    Inspect: "inspect",
}

_ID_FIELDS: Final = ("nonce", "client", "reader_nonce")
_TEXT_FIELDS: Final = ("owner", "reason")


def encode_request(request: Request) -> bytes:
    """The request as JSON; its fields are those of the SQL type ``ask_1``."""
    fields: dict[str, Any] = {"op": _OPERATIONS[request.__class__]}
    value: Any
    for field, value in zip(request._fields, request, strict=True):
        if field in _ID_FIELDS:
            fields[field] = encode_id(value).decode()
        elif field in _TEXT_FIELDS:
            fields[field] = escape_text(value)
        elif field == "limit":
            fields["permits"] = value
        elif field == "metadata":
            fields[field] = encode_json(value) if value else None
        elif field != "data":
            fields[field] = value
    return encode_json(fields).encode()


# --- decoding -----------------------------------------------------------------------------------


def function_result(result: PGresult) -> bytes:
    """The value that a function returned."""
    return result.get_value(0, 0) or b"?"


def decode_nonces(result: PGresult) -> list[str]:
    return [str(nonce) for nonce in _decode_json(function_result(result).decode())]


def decode_page(result: PGresult) -> list[tuple[str, Snapshot]]:
    """One page of names."""
    return [
        ((result.get_value(row, 0) or b"").decode(), decode_snapshot(result.get_value(row, 1) or b"?"))
        for row in range(result.ntuples)
    ]


def decode_reply(answer: bytes, request: Request) -> Reply:
    """A letter says which reply it is; its fields follow."""
    letter = answer[0]
    if letter == _GRANTED and request.__class__ is Acquire:
        token, _, lasts = answer[1:].partition(b" ")
        _, _, _, kind, mode, ttl, _, _, _, _, _, metadata = request
        fields = (int(token), (), kind, mode, ttl, float(lasts) if lasts else None, metadata, 0.0)
        return _new(Granted, fields)
    if letter == _DONE_LETTER:
        return _DONE
    return _DECODERS[letter](_decode_json(answer[1:].decode()) if len(answer) > 1 else None)


def decode_replies(answer: bytes, requests: Iterable[Request]) -> list[Reply]:
    """As many replies as the server gave: it may have stopped at the first that was not granted."""
    answers = _decode_json(answer.decode())
    return [decode_reply(each.encode(), request) for each, request in zip(answers, requests, strict=False)]


def decode_snapshot(answer: bytes) -> Snapshot:
    return _snapshot(_decode_json(answer[1:].decode()))


def decode_holders(holders: list[dict[str, Any]] | None) -> tuple[Holder, ...]:
    return tuple([_holder(each) for each in holders]) if holders else ()


def _holder(fields: dict[str, Any]) -> Holder:
    until = fields["until"]
    decoded = {
        **{name: float(fields[name]) for name in ("since", "expires_at", "ttl")},
        "owner": _unescape(fields["owner"]),
        "until": None if until is None else float(until),
        "metadata": _metadata(fields["metadata"]),
    }
    return Holder(**{**fields, **decoded})


def _unescape(text: str) -> str:
    return text if "\\" not in text else str(_decode_json(f'"{text}"'))


def _metadata(text: str | None) -> Mapping[str, str]:
    return _decode_json(text) if text else {}


def _waiter(
    nonce: str, client: str, owner: str, mode: str, since: float, expires_at: float, turn_at: float | None
) -> Waiter:
    turn = None if turn_at is None else float(turn_at)
    return Waiter(nonce, client, _unescape(owner), mode, float(since), float(expires_at), turn)


def _tombstone(nonce: str, reason: str, note: str, forget_at: float) -> Tombstone:
    return Tombstone(nonce, reason, _unescape(note), float(forget_at))


def _watcher(nonce: str, client: str, expires_at: float) -> Watcher:
    return Watcher(nonce, client, float(expires_at))


def _cell_state(version: int, swapped: bool, data: str | None) -> CellState:
    return CellState(version, None if data is None else base64.b64decode(data), swapped)


def _granted(fields: list[Any]) -> Granted:
    # The advisory engine sends no age: its grants do not end at a time that would be counted from one.
    token, peers, kind, mode, ttl, lasts, metadata, *age = fields
    return Granted(
        token,
        tuple(peers or ()),
        kind,
        mode,
        float(ttl),
        None if lasts is None else float(lasts),
        _metadata(metadata),
        float(*age),
    )


def _queued(fields: list[Any]) -> Queued:
    position, poll_after, blockers = fields
    return Queued(position, float(poll_after), tuple(blockers))


def _gone(fields: list[Any]) -> Gone:
    reason, note = fields
    return Gone(reason, _unescape(note))


def _snapshot(fields: list[Any]) -> Snapshot:
    kind, token, holders, queue, limit, declared, value, ended, watchers, now = fields
    record = Record(
        kind,
        token,
        decode_holders(holders),
        tuple([_waiter(**each) for each in queue or ()]),
        limit,
        declared,
        None if value is None else StoredValue(base64.b64decode(value[0]), value[1], value[2]),
        tuple([_tombstone(**each) for each in ended or ()]),
        tuple([_watcher(**each) for each in watchers or ()]),
    )
    return Snapshot(record, float(now))


_GRANTED: Final = ord("G")
_DONE_LETTER: Final = ord("D")

_DECODERS: Final[Mapping[int, Callable[[Any], Reply]]] = {
    ord("g"): _granted,
    ord("B"): lambda fields: Busy(decode_holders(fields[0]), float(fields[1])),
    ord("Q"): _queued,
    ord("W"): lambda fields: Withdrawn(decode_holders(fields[0]), float(fields[1])),
    ord("X"): _gone,
    ord("A"): lambda fields: Absent(),
    ord("K"): lambda fields: Broken(fields[0], decode_holders(fields[1])),
    ord("M"): lambda fields: Mismatch(fields[0], fields[1]),
    ord("E"): lambda fields: Exhausted(),
    ord("C"): lambda fields: _cell_state(*fields),
    ord("S"): _snapshot,
}
