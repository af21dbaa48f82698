"""Tickets, configurations, values and notes as bytes, with a schema number for later versions."""

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
    """``token`` and ``order``: where they do not follow from the ticket's creation (a downgraded writer).

    Formatted by hand, because every grant encodes one.
    """
    _, _, nonce, client, owner, kind, mode, ttl, since, max_hold, metadata = ticket[:11]
    held = "null" if max_hold is None else repr(max_hold)
    return (
        f"[{SCHEMA},{_quote(nonce)},{_quote(client)},{_quote(owner)},{_quote(kind)},{_quote(mode)},{ttl!r},"
        f"{since!r},{held},{_dumps(metadata) if metadata else '{}'},"
        f"{token},{order}]"
    ).encode()


def decode_ticket(data: bytes, order: int, token: int, handle: Any = None, session: Any = None) -> Ticket:
    """``order`` and ``token``: as they follow from the ticket's creation."""
    nonce, client, owner, kind, mode, ttl, since, max_hold, metadata, own_token, own_place = _fields(data, 11)
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
        max_hold,
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
    """The fields after the schema number. Raises EngineUnavailable for anything Holdfast did not write."""
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
    raise EngineUnavailable("Holdfast did not write what is stored there: use another prefix or namespace")
