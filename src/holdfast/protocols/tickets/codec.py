"""Tickets, settings, values and notes as bytes. By the schema number old and new clients share one engine."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from ...errors import EngineUnavailable
from ...rules.record import StoredValue, Tombstone
from ...rules.tickets import LockConfig, Ticket

__all__ = [
    "decode_config",
    "decode_note",
    "decode_ticket",
    "decode_value",
    "encode_config",
    "encode_note",
    "encode_ticket",
    "encode_value",
]

SCHEMA: Final = 1

_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_quote = json.encoder.encode_basestring


def encode_ticket(ticket: Ticket, token: int = 0, order: int = 0) -> bytes:
    """``token`` and ``place``: where they do not follow from when it was put (a writer turned reader).

    Put together by hand: it is on the path of every grant.
    """
    _, _, nonce, client, owner, kind, mode, ttl, since, lasts, metadata = ticket[:11]
    return (
        f"[{SCHEMA},{_quote(nonce)},{_quote(client)},{_quote(owner)},{_quote(kind)},{_quote(mode)},{ttl!r},"
        f"{since!r},{'null' if lasts is None else repr(lasts)},{_dumps(metadata) if metadata else '{}'},"
        f"{token},{order}]"
    ).encode()


def decode_ticket(data: bytes, order: int, token: int, handle: Any = None, session: Any = None) -> Ticket:
    """``place`` and ``token``: as they follow from when it was put."""
    nonce, client, owner, kind, mode, ttl, since, lasts, metadata, own_token, own_place = _fields(data, 11)
    return Ticket(
        own_place or order,
        own_token or token,
        nonce,
        client,
        owner,
        kind,
        mode,
        ttl,
        since,
        lasts,
        metadata,
        handle,
        session,
    )


def encode_config(config: LockConfig) -> bytes:
    return _dumps([SCHEMA, config.kind, config.declared, config.limit, config.admitted_through]).encode()


def decode_config(data: bytes) -> LockConfig:
    return LockConfig(*_fields(data, 4))


def encode_value(value: StoredValue) -> bytes:
    text = base64.b64encode(value.data).decode("ascii")
    return _dumps([SCHEMA, text, value.token, value.forget_at_us]).encode()


def decode_value(data: bytes) -> StoredValue:
    text, token, forget_at_us = _fields(data, 3)
    return StoredValue(base64.b64decode(text), token, forget_at_us)


def encode_note(ended: Tombstone) -> bytes:
    return _dumps([SCHEMA, *ended]).encode()


def decode_note(data: bytes) -> Tombstone:
    return Tombstone(*_fields(data, 4))


def _fields(data: bytes, count: int) -> list[Any]:
    """The fields after the schema number; whatever else stands there is told as what it is."""
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, list) and parsed and isinstance(parsed[0], int):
        if parsed[0] > SCHEMA:
            raise EngineUnavailable(
                f"a newer Holdfast wrote here (schema {parsed[0]}, this one reads up to {SCHEMA}): upgrade it"
            )
        if len(parsed) == count + 1:
            return parsed[1:]
    raise EngineUnavailable("what stands there was not written by Holdfast: use another prefix or namespace")
