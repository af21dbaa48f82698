"""The records as they lie on the server, read without the help of the scripts that wrote them."""

from __future__ import annotations

import itertools
import json
import struct
from typing import Any

from holdfast.rules.record import EMPTY, Holder, Record, StoredValue, Tombstone, Waiter, Wants, Watcher

SCHEMA = 1
SIZES = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
FLOATS = {0xCA: ">f", 0xCB: ">d"}
TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
LISTS = {0xDC: ">H", 0xDD: ">I"}


def record_of(raw: bytes | None, value: bytes | None = None) -> Record:
    """What is stored under the two keys of a name."""
    if raw is None:
        return EMPTY._replace(value=value_of(value))
    schema, shape, kind, limit, declared, token, *rest = values_in(raw)
    assert schema == SCHEMA
    holders: list[Any] = []
    queue: list[Any] = []
    deadlines: list[float] = []
    turns: list[float] = []
    ended: list[Any] = []
    watchers: list[Any] = []
    if shape == 2:
        holders, queue, deadlines, turns, ended, watchers = rest
        assert queue or ended or watchers or len(holders) > 1, "there is a shorter form for this"
    elif shape == 1:
        holders = [rest]
    else:
        assert (shape, rest) == (0, [])
    return Record(
        kind.decode() if kind else None,
        token,
        tuple(holder_of(*fields) for fields in holders),
        tuple(itertools.starmap(waiter_of, itertools.zip_longest(queue, deadlines, turns))),
        limit,
        declared,
        value_of(value),
        tuple(Tombstone(e[0].decode(), e[1].decode(), e[2].decode(), e[3]) for e in ended),
        tuple(Watcher(w[0].decode(), w[1].decode(), w[2]) for w in watchers),
    )


def holder_of(
    nonce: bytes,
    since: float,
    expires_at: float,
    token: int,
    client: bytes,
    owner: bytes,
    mode: bytes,
    ttl: float,
    renews: bool,
    until: float | bool,
    metadata: bytes,
) -> Holder:
    return Holder(
        nonce.decode(),
        client.decode(),
        owner.decode(),
        mode.decode(),
        token,
        since,
        expires_at,
        ttl,
        renews,
        None if until is False else until,
        json.loads(metadata) if metadata else {},
    )


def waiter_of(raw: bytes, deadline: float, turn_at: float | None) -> Waiter:
    nonce, mode, client, owner, since, *claim = values_in(raw)
    who = nonce.decode(), client.decode(), owner.decode(), mode.decode()
    return Waiter(*who, since, deadline, turn_at, wants_of(*claim) if claim else None)


def wants_of(claim: bytes) -> Wants:
    _, _, _, ttl, renews, until, metadata = values_in(claim)
    assert until is False
    return Wants(ttl, renews, json.loads(metadata) if metadata else {})


def value_of(raw: bytes | None) -> StoredValue | None:
    if raw is None:
        return None
    schema, token, forget_at_us, data = values_in(raw)
    assert schema == SCHEMA
    return StoredValue(data, token, forget_at_us)


def values_in(raw: bytes) -> list[Any]:
    """The MessagePack values that follow each other."""
    values, at = [], 0
    while at < len(raw):
        value, at = _value(raw, at)
        values.append(value)
    return values


def _value(raw: bytes, at: int) -> tuple[Any, int]:
    mark = raw[at]
    at += 1
    if mark < 0x80:
        return mark, at
    if mark in SIZES or mark in FLOATS:
        return _number(raw, at, SIZES.get(mark) or FLOATS[mark])
    if mark in (0xC2, 0xC3):
        return mark == 0xC3, at
    if mark in TEXTS or 0xA0 <= mark < 0xC0:
        size, at = (mark & 0x1F, at) if mark < 0xC0 else _number(raw, at, TEXTS[mark])
        return raw[at : at + size], at + size
    if mark in LISTS or 0x90 <= mark < 0xA0:
        size, at = (mark & 0x0F, at) if mark < 0xA0 else _number(raw, at, LISTS[mark])
        items = []
        for _ in range(size):
            item, at = _value(raw, at)
            items.append(item)
        return items, at
    raise AssertionError(f"{mark:#x} is not written by any script")


def _number(raw: bytes, at: int, form: str) -> tuple[Any, int]:
    return struct.unpack_from(form, raw, at)[0], at + struct.calcsize(form)
