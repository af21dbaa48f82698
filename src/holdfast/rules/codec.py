"""Records as text. The schema number lets old and new clients share one engine while a fleet upgrades."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from .record import Ended, Holder, Record, StoredValue, Waiter, Watcher

__all__ = ["SCHEMA", "SchemaTooNew", "decode", "encode"]

SCHEMA: Final = 1

_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_loads = json.JSONDecoder().decode


class SchemaTooNew(Exception):
    """The record was written by a newer Holdfast than this one can read."""


def encode(record: Record) -> str:
    value: list[Any] | None = None
    if record.value is not None:
        value = [
            base64.b64encode(record.value.data).decode("ascii"),
            record.value.token,
            record.value.forget_at_us,
        ]
    return _dumps([SCHEMA, *record[:6], value, *record[7:]])


def decode(text: str) -> Record:
    """The record; a ValueError if it is none."""
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
        tuple([Waiter(*w) for w in queue]),
        limit,
        declared,
        None if value is None else StoredValue(base64.b64decode(value[0]), value[1], value[2]),
        tuple([Ended(*e) for e in ended]),
        tuple([Watcher(*w) for w in watchers]),
    )


def _fields(parsed: Any) -> list[Any]:
    """The ten fields; a newer schema may have more, and is named before anything else goes wrong."""
    if isinstance(parsed, list) and parsed and isinstance(parsed[0], int):
        if parsed[0] > SCHEMA:
            raise SchemaTooNew(
                f"record of schema {parsed[0]}, this version reads up to {SCHEMA}: upgrade holdfast"
            )
        if len(parsed) == 10:
            return parsed
    raise ValueError("not a record of Holdfast")
