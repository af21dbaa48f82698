"""What is said to the server: every request as one call of a function, and its answer as a reply.

Names travel as bytes. Every other text is ASCII, since a database may have any encoding: what people wrote
(owners, metadata, reasons) is sent as JSON escapes, and so can hold any character.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple

from psycopg.pq.abc import PGresult

from ...engine_api import Steps
from ...rules.record import Holder, Record, StoredValue, Tombstone, Waiter, Watcher
from ...rules.requests import (
    Absent,
    Acquire,
    Adopt,
    Break,
    Broken,
    Busy,
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
    "INT4_OID",
    "PAGE",
    "TEXT",
    "Call",
    "Statement",
    "Statements",
    "answer_of",
    "array_of",
    "ascii_of",
    "batches",
    "channel_of",
    "escaped",
    "function",
    "holders_of",
    "listed",
    "nonces_of",
    "notify",
    "replies_of",
    "reply_of",
    "snapshot_of",
]

BINARY: Final = 1
TEXT: Final = 0

NAMED: Final = (BINARY, BINARY)
"""A namespace and a name come first."""

BATCH: Final = 500
"""How many leases are renewed in one transaction: others wait for their rows meanwhile."""

PAGE: Final = 1000

BYTEA_OID: Final = 17
INT4_OID: Final = 23
TEXT_OID: Final = 25
JSON_OID: Final = 114
FLOAT8_OID: Final = 701

_DONE: Final = Done()
_dumps = json.JSONEncoder(separators=(",", ":")).encode
_loads = json.JSONDecoder().decode
_new = tuple.__new__
_FLAGS: Final = (b"f", b"t")


class Statement(NamedTuple):
    """One statement of ours, and how its parameters are written."""

    name: bytes
    """Under which it is prepared."""
    text: bytes
    formats: tuple[int, ...]


class Call(NamedTuple):
    """A statement with its parameters."""

    statement: Statement
    parameters: Sequence[bytes | None]


class Statements:
    """All statements for one schema and namespace."""

    def __init__(self, schema: str, namespace: str) -> None:
        self._namespace = namespace.encode()
        self._acquire = function(schema, "acquire_1", (*NAMED, *[TEXT] * 12))
        self._release = function(schema, "release_1", (*NAMED, TEXT, TEXT))
        self._apply = function(schema, "apply_1", (*NAMED, TEXT, BINARY))
        self._apply_in_order = function(schema, "apply_in_order_1", (*NAMED, BINARY, TEXT))
        self._tend = function(schema, "tend_1", (*NAMED, BINARY, BINARY))
        self._missing = function(schema, "missing_1", (*NAMED, BINARY))
        self._list = function(schema, "list_1", (*NAMED, BINARY, TEXT), "SELECT * FROM")

    def apply(self, name: str, request: Request) -> Call:
        if request.__class__ is Acquire:
            return Call(self._acquire, self._acquiring(name, request))
        if request.__class__ is Release:
            nonce, linger = request
            return Call(
                self._release, (self._namespace, name.encode(), ascii_of(nonce), repr(linger).encode())
            )
        data = request.data if isinstance(request, SetValue) else None
        return Call(self._apply, (self._namespace, name.encode(), _told(request), data))

    def _acquiring(self, name: str, request: Acquire) -> Sequence[bytes | None]:
        nonce, client, owner, kind, mode, ttl, wait, fair, renews, max_hold, limit, metadata = request
        return (
            self._namespace,
            name.encode(),
            ascii_of(nonce),
            ascii_of(client),
            escaped(owner).encode(),
            kind.encode(),
            mode.encode(),
            repr(ttl).encode(),
            _FLAGS[wait],
            _FLAGS[fair],
            _FLAGS[renews],
            None if max_hold is None else repr(max_hold).encode(),
            str(limit).encode(),
            _dumps(metadata).encode() if metadata else None,
        )

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> Call:
        names = array_of(BYTEA_OID, [name.encode() for name, _ in steps])
        asks = array_of(JSON_OID, [_told(request) for _, request in steps])
        return Call(self._apply_in_order, (self._namespace, names, asks, _FLAGS[stop_when_refused]))

    def renew_batch(self, steps: Sequence[tuple[str, Renew | Refresh]]) -> Call:
        """Sorted by name, so that two batches lock rows in one order."""
        names = array_of(BYTEA_OID, [name.encode() for name, _ in steps])
        nonces = array_of(TEXT_OID, [ascii_of(request.nonce) for _, request in steps])
        ttls = array_of(
            FLOAT8_OID,
            [struct.pack(">d", request.ttl) if isinstance(request, Renew) else None for _, request in steps],
        )
        return Call(self._tend, (self._namespace, names, nonces, ttls))

    def list_names(self, prefix: str, after: str) -> Call:
        return Call(self._list, (self._namespace, prefix.encode(), after.encode(), str(PAGE).encode()))

    def missing(self, held: Sequence[tuple[str, str]]) -> Iterator[Call]:
        """Of these names and nonces, which are not there any more?"""
        for first in range(0, len(held), BATCH):
            batch = held[first : first + BATCH]
            names = array_of(BYTEA_OID, [name.encode() for name, _ in batch])
            nonces = array_of(TEXT_OID, [ascii_of(nonce) for _, nonce in batch])
            yield Call(self._missing, (self._namespace, names, nonces))


def function(schema: str, name: str, formats: Sequence[int], verb: str = "SELECT") -> Statement:
    """The schema's name was checked when it was given; no other text becomes part of a statement."""
    places = ", ".join(f"${number}" for number in range(1, len(formats) + 1))
    text = f"{verb} {schema}.{name}({places})"
    return Statement(f"holdfast_{name}".encode(), text.encode(), tuple(formats))


NOTIFY: Final = Statement(b"holdfast_notify", b"SELECT pg_notify($1, $2)", (TEXT, TEXT))


def channel_of(client: str) -> str:
    """Where wake-ups for a client are sent."""
    return f"holdfast_{client}"


def notify(channel: str, word: str) -> Call:
    return Call(NOTIFY, (channel.encode(), word.encode()))


def batches(steps: Steps) -> Iterator[list[tuple[int, tuple[str, Renew | Refresh]]]]:
    """The keeper's steps with their places, in the order of their names: so rows are always locked."""
    known = [
        (index, (name, request))
        for index, (name, request) in enumerate(steps)
        if isinstance(request, Renew | Refresh)
    ]
    known.sort(key=lambda one: (one[1][0].encode(), isinstance(one[1][1], Refresh)))
    for first in range(0, len(known), BATCH):
        yield known[first : first + BATCH]


# --- writing ------------------------------------------------------------------------------------


def ascii_of(text: str) -> bytes:
    """Ids are ours, and plain. One that is not matches nothing, whatever it is sent as."""
    return text.encode("ascii", "backslashreplace").replace(b"\0", b"?")


def escaped(text: str) -> str:
    return encode_basestring_ascii(text)[1:-1]


def _unescaped(text: str) -> str:
    return text if "\\" not in text else str(_loads(f'"{text}"'))


def array_of(oid: int, items: Sequence[bytes | None]) -> bytes:
    """A list in the server's binary format."""
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

_IDS: Final = ("nonce", "client", "reader_nonce")
_WRITTEN: Final = ("owner", "reason")


def _told(request: Request) -> bytes:
    """The request as JSON; its fields are those of the type ``ask``."""
    fields: dict[str, Any] = {"op": _OPERATIONS[request.__class__]}
    value: Any
    for field, value in zip(request._fields, request, strict=True):
        if field in _IDS:
            fields[field] = ascii_of(value).decode()
        elif field in _WRITTEN:
            fields[field] = escaped(value)
        elif field == "limit":
            fields["permits"] = value
        elif field == "metadata":
            fields[field] = _dumps(value) if value else None
        elif field != "data":
            fields[field] = value
    return _dumps(fields).encode()


# --- reading ------------------------------------------------------------------------------------


def answer_of(result: PGresult) -> bytes:
    """What a function returned."""
    return result.get_value(0, 0) or b"?"


def nonces_of(result: PGresult) -> list[str]:
    return [str(nonce) for nonce in _loads(answer_of(result).decode())]


def listed(result: PGresult) -> list[tuple[str, Snapshot]]:
    """One page of names."""
    return [
        ((result.get_value(row, 0) or b"").decode(), snapshot_of(result.get_value(row, 1) or b"?"))
        for row in range(result.ntuples)
    ]


def reply_of(answer: bytes, request: Request) -> Reply:
    """What an answer says: a letter, and what belongs to it."""
    letter = answer[0]
    if letter == _GRANTED and request.__class__ is Acquire:
        token, _, lasts = answer[1:].partition(b" ")
        _, _, _, kind, mode, ttl, _, _, _, _, _, metadata = request
        told = (int(token), (), kind, mode, ttl, float(lasts) if lasts else None, metadata, 0.0)
        return _new(Granted, told)
    if letter == _DONE_LETTER:
        return _DONE
    return _READERS[letter](_loads(answer[1:].decode()) if len(answer) > 1 else None)


def replies_of(answer: bytes, requests: Iterable[Request]) -> list[Reply]:
    """As many as there are: it may have ended with the first that was not granted."""
    told = _loads(answer.decode())
    return [reply_of(each.encode(), request) for each, request in zip(told, requests, strict=False)]


def snapshot_of(answer: bytes) -> Snapshot:
    return _snapshot(_loads(answer[1:].decode()))


def holders_of(told: list[dict[str, Any]] | None) -> tuple[Holder, ...]:
    return tuple([_holder(**each) for each in told]) if told else ()


def _holder(
    nonce: str,
    client: str,
    owner: str,
    mode: str,
    token: int,
    since: float,
    expires_at: float,
    ttl: float,
    renews: bool,
    until: float | None,
    metadata: str | None,
) -> Holder:
    return Holder(
        nonce,
        client,
        _unescaped(owner),
        mode,
        token,
        float(since),
        float(expires_at),
        float(ttl),
        renews,
        None if until is None else float(until),
        _metadata(metadata),
    )


def _metadata(told: str | None) -> Mapping[str, str]:
    return _loads(told) if told else {}


def _waiter(
    nonce: str, client: str, owner: str, mode: str, since: float, expires_at: float, turn_at: float | None
) -> Waiter:
    turn = None if turn_at is None else float(turn_at)
    return Waiter(nonce, client, _unescaped(owner), mode, float(since), float(expires_at), turn)


def _ended(nonce: str, reason: str, note: str, forget_at: float) -> Tombstone:
    return Tombstone(nonce, reason, _unescaped(note), float(forget_at))


def _watcher(nonce: str, client: str, expires_at: float) -> Watcher:
    return Watcher(nonce, client, float(expires_at))


def _granted(told: list[Any]) -> Granted:
    # Sessions tell no age: what they hold does not end with a time that would have to be counted from there.
    token, peers, kind, mode, ttl, lasts, metadata, *age = told
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


def _queued(told: list[Any]) -> Queued:
    position, poll_after, blockers = told
    return Queued(position, float(poll_after), tuple(blockers))


def _gone(told: list[Any]) -> Gone:
    reason, note = told
    return Gone(reason, _unescaped(note))


def _snapshot(told: list[Any]) -> Snapshot:
    kind, token, holders, queue, limit, declared, value, ended, watchers, now = told
    record = Record(
        kind,
        token,
        holders_of(holders),
        tuple([_waiter(**each) for each in queue or ()]),
        limit,
        declared,
        None if value is None else StoredValue(base64.b64decode(value[0]), value[1], value[2]),
        tuple([_ended(**each) for each in ended or ()]),
        tuple([_watcher(**each) for each in watchers or ()]),
    )
    return Snapshot(record, float(now))


_GRANTED: Final = ord("G")
_DONE_LETTER: Final = ord("D")

_READERS: Final[Mapping[int, Callable[[Any], Reply]]] = {
    ord("g"): _granted,
    ord("B"): lambda told: Busy(holders_of(told[0]), float(told[1])),
    ord("Q"): _queued,
    ord("W"): lambda told: Withdrawn(holders_of(told[0]), float(told[1])),
    ord("X"): _gone,
    ord("A"): lambda told: Absent(),
    ord("K"): lambda told: Broken(told[0], holders_of(told[1])),
    ord("M"): lambda told: Mismatch(told[0], told[1]),
    ord("E"): lambda told: Exhausted(),
    ord("S"): _snapshot,
}
