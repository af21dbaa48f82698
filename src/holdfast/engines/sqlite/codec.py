"""Records as text. The schema number lets old and new clients share one engine while a fleet upgrades.

The text is JSON. If there are waiters, the holders are on the second line, and each waiter has its own line
from the fourth on. So ``shortcuts`` finds them without decoding the rest.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from ...rules.record import Holder, Record, StoredValue, Tombstone, Waiter, Wants, Watcher

__all__ = [
    "ENDING",
    "QUEUE_ENDING",
    "SCHEMA",
    "SchemaTooNew",
    "beginning_of",
    "decode",
    "encode",
    "encode_holder",
    "encode_waiter",
    "quoted",
]

SCHEMA: Final = 2

_BEGINNING: Final = f"[{SCHEMA},"

ENDING: Final = "],0,0,null,[],[]]"
"""The end of the text, after the waiters, of a lock without value, tombstones and watchers."""

QUEUE_ENDING: Final = f"\n{ENDING}"

_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
quoted = json.encoder.encode_basestring
_loads = json.JSONDecoder().decode


class SchemaTooNew(Exception):
    """The record was written by a newer Holdfast than this one can read."""


def beginning_of(kind: str | None) -> str:
    """The beginning of a text, up to the token."""
    return f"{_BEGINNING}{'null' if kind is None else quoted(kind)},"


def encode(record: Record) -> str:
    """As JSON, formatted by hand for speed: every grant encodes a record."""
    kind, token, holders, queue, limit, declared, value, ended, watchers = record
    what = "null" if kind is None else quoted(kind)
    held = ",".join(map(encode_holder, holders)) if holders else ""
    if not queue and value is None and not ended and not watchers:
        return f"{_BEGINNING}{what},{token},[{held}],[],{limit},{declared},null,[],[]]"
    if queue:
        waiting = "\n,".join(map(encode_waiter, queue))
        both = f"[\n{held}\n],[\n{waiting}\n]"
    else:
        both = f"[{held}],[]"
    return (
        f"{_BEGINNING}{what},{token},{both},{limit},{declared},"
        f"{'null' if value is None else _value(value)},{_dumps(ended)},{_dumps(watchers)}]"
    )


def encode_holder(holder: Holder) -> str:
    nonce, client, owner, mode, token, since, expires_at, ttl, renews, until, metadata = holder
    return (
        f"[{quoted(nonce)},{quoted(client)},{quoted(owner)},{quoted(mode)},{token},{since!r},{expires_at!r},"
        f"{ttl!r},{'true' if renews else 'false'},{'null' if until is None else repr(until)},"
        f"{_dumps(metadata) if metadata else '{}'}]"
    )


def encode_waiter(waiter: Waiter) -> str:
    nonce, client, owner, mode, since, expires_at, turn_at, wants = waiter
    return (
        f"[{quoted(nonce)},{quoted(client)},{quoted(owner)},{quoted(mode)},{since!r},{expires_at!r},"
        f"{'null' if turn_at is None else repr(turn_at)},{'null' if wants is None else _wants(wants)}]"
    )


def _wants(wants: Wants) -> str:
    ttl, renews, metadata = wants
    return f"[{ttl!r},{'true' if renews else 'false'},{_dumps(metadata) if metadata else '{}'}]"


def _value(value: StoredValue) -> str:
    return f'["{base64.b64encode(value.data).decode("ascii")}",{value.token},{value.forget_at_us}]'


def decode(text: str) -> Record:
    """The record. Raises ValueError for any other text."""
    try:
        return _record(*_fields(_loads(text)))
    except (TypeError, IndexError, KeyError, RecursionError) as error:
        raise ValueError("not a record of Holdfast") from error


def _record(
    _: int,
    kind: str | None,
    token: int,
    holders: list[Any],
    queue: list[Any],
    limit: int,
    declared: int,
    value: list[Any] | None,
    ended: list[Any],
    watchers: list[Any],
) -> Record:
    return Record(
        kind,
        token,
        tuple([Holder(*h) for h in holders]),
        tuple([_waiter(*w) for w in queue]),
        limit,
        declared,
        None if value is None else StoredValue(base64.b64decode(value[0]), value[1], value[2]),
        tuple([Tombstone(*e) for e in ended]),
        tuple([Watcher(*w) for w in watchers]),
    )


def _waiter(*fields: Any) -> Waiter:
    """The waiters of the first schema have one field less."""
    if len(fields) == 8 and fields[7] is not None:
        return Waiter(*fields[:7], Wants(*fields[7]))
    return Waiter(*fields)


def _fields(parsed: Any) -> list[Any]:
    """The ten fields. A newer schema may have more, so the schema is checked first."""
    if isinstance(parsed, list) and parsed and isinstance(parsed[0], int):
        if parsed[0] > SCHEMA:
            raise SchemaTooNew(
                f"record of schema {parsed[0]}, this version reads up to {SCHEMA}: upgrade holdfast"
            )
        if len(parsed) == 10:
            return parsed
    raise ValueError("not a record of Holdfast")
