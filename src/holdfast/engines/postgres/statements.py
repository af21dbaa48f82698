"""The statements of the lease table: every request is one call of a SQL function."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from ...engine_api import Steps
from ...rules.requests import Acquire, ReadCell, Refresh, Release, Renew, Request, SetValue, SwapCell
from .codec import (
    BINARY,
    BYTEA_OID,
    FLAGS,
    FLOAT8_OID,
    JSON_OID,
    TEXT,
    TEXT_OID,
    Call,
    Statement,
    encode_array,
    encode_id,
    encode_json,
    encode_request,
    escape_text,
)

__all__ = ["PAGE", "CellStatements", "Statements", "channel_of", "function", "notify", "renewal_batches"]

NAMED: Final = (BINARY, BINARY)
"""The first two parameters: namespace and name."""

BATCH: Final = 500
"""How many leases one transaction renews. Other transactions wait for their rows meanwhile."""

PAGE: Final = 1000


class Statements:
    """All statements for one schema and namespace."""

    def __init__(self, schema: str, namespace: str) -> None:
        self._namespace = namespace.encode()
        self._acquire = function(schema, "acquire_1", (*NAMED, *[TEXT] * 12))
        self._release = function(schema, "release_1", (*NAMED, TEXT, TEXT))
        self._apply = function(schema, "apply_1", (*NAMED, TEXT, BINARY))
        self._apply_in_order = function(schema, "apply_in_order_1", (*NAMED, BINARY, TEXT))
        self._renew_batch = function(schema, "tend_1", (*NAMED, BINARY, BINARY))
        self._missing = function(schema, "missing_1", (*NAMED, BINARY))
        self.cells = CellStatements(schema, self._namespace)
        self._list = function(schema, "list_1", (*NAMED, BINARY, TEXT), "SELECT * FROM")

    def apply(self, name: str, request: Request) -> Call:
        if request.__class__ is Acquire:
            return Call(self._acquire, self._acquire_parameters(name, request))
        if request.__class__ is Release:
            nonce, linger = request
            return Call(
                self._release, (self._namespace, name.encode(), encode_id(nonce), repr(linger).encode())
            )
        if isinstance(request, ReadCell | SwapCell):
            return self.cells.apply(name, request)
        data = request.data if isinstance(request, SetValue) else None
        return Call(self._apply, (self._namespace, name.encode(), encode_request(request), data))

    def _acquire_parameters(self, name: str, request: Acquire) -> Sequence[bytes | None]:
        nonce, client, owner, kind, mode, ttl, wait, fair, renews, max_hold, limit, metadata = request
        return (
            self._namespace,
            name.encode(),
            encode_id(nonce),
            encode_id(client),
            escape_text(owner).encode(),
            kind.encode(),
            mode.encode(),
            repr(ttl).encode(),
            FLAGS[wait],
            FLAGS[fair],
            FLAGS[renews],
            None if max_hold is None else repr(max_hold).encode(),
            str(limit).encode(),
            encode_json(metadata).encode() if metadata else None,
        )

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> Call:
        names = encode_array(BYTEA_OID, [name.encode() for name, _ in steps])
        requests = encode_array(JSON_OID, [encode_request(request) for _, request in steps])
        return Call(self._apply_in_order, (self._namespace, names, requests, FLAGS[stop_when_refused]))

    def renew_batch(self, steps: Sequence[tuple[str, Renew | Refresh]]) -> Call:
        """``steps`` are sorted by name, so that two batches lock rows in one order."""
        names = encode_array(BYTEA_OID, [name.encode() for name, _ in steps])
        nonces = encode_array(TEXT_OID, [encode_id(request.nonce) for _, request in steps])
        ttls = encode_array(
            FLOAT8_OID,
            [struct.pack(">d", request.ttl) if isinstance(request, Renew) else None for _, request in steps],
        )
        return Call(self._renew_batch, (self._namespace, names, nonces, ttls))

    def list_names(self, prefix: str, after: str) -> Call:
        return Call(self._list, (self._namespace, prefix.encode(), after.encode(), str(PAGE).encode()))

    def missing(self, held: Sequence[tuple[str, str]]) -> Iterator[Call]:
        """Ask which of these leases, (name, nonce) each, the server no longer has."""
        for first in range(0, len(held), BATCH):
            batch = held[first : first + BATCH]
            names = encode_array(BYTEA_OID, [name.encode() for name, _ in batch])
            nonces = encode_array(TEXT_OID, [encode_id(nonce) for _, nonce in batch])
            yield Call(self._missing, (self._namespace, names, nonces))


class CellStatements:
    """The statements of cells, for one schema and namespace."""

    def __init__(self, schema: str, namespace: bytes) -> None:
        self._namespace = namespace
        self._read = function(schema, "read_cell_1", NAMED)
        self._swap = function(schema, "swap_cell_1", (*NAMED, TEXT, BINARY))

    def apply(self, name: str, request: ReadCell | SwapCell) -> Call:
        if isinstance(request, ReadCell):
            return Call(self._read, (self._namespace, name.encode()))
        expected = str(request.expected).encode()
        return Call(self._swap, (self._namespace, name.encode(), expected, request.data))


def function(schema: str, name: str, formats: Sequence[int], verb: str = "SELECT") -> Statement:
    """The schema's name was checked when it was given; no other text becomes part of a statement."""
    places = ", ".join(f"${number}" for number in range(1, len(formats) + 1))
    text = f"{verb} {schema}.{name}({places})"
    return Statement(f"holdfast_{name}".encode(), text.encode(), tuple(formats))


NOTIFY: Final = Statement(b"holdfast_notify", b"SELECT pg_notify($1, $2)", (TEXT, TEXT))


def channel_of(client: str) -> str:
    """The channel on which a client is notified."""
    return f"holdfast_{client}"


def notify(channel: str, payload: str) -> Call:
    return Call(NOTIFY, (channel.encode(), payload.encode()))


def renewal_batches(steps: Steps) -> Iterator[list[tuple[int, tuple[str, Renew | Refresh]]]]:
    """The keeper's steps with their indexes, sorted by name: rows are always locked in that order."""
    renewals = [
        (index, (name, request))
        for index, (name, request) in enumerate(steps)
        if isinstance(request, Renew | Refresh)
    ]
    renewals.sort(key=lambda each: (each[1][0].encode(), isinstance(each[1][1], Refresh)))
    for first in range(0, len(renewals), BATCH):
        yield renewals[first : first + BATCH]
