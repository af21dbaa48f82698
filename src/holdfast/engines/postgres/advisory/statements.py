"""The statements of session locks: one call of a SQL function each, and the decoding of its result."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from psycopg.pq.abc import PGresult

from ....rules.record import Holder
from ....rules.requests import Acquire, Break, SetValue, Snapshot
from ..codec import (
    BINARY,
    FLAGS,
    INT4_OID,
    TEXT,
    Call,
    Statement,
    decode_holders,
    decode_snapshot,
    encode_array,
    encode_id,
    escape_text,
    function_result,
)
from ..statements import PAGE, CellStatements, function
from .keys import key_of, session_namespace

__all__ = [
    "LONGEST_IDLE_TIMEOUT_MS",
    "BreakResult",
    "SessionStatements",
    "decode_backends",
    "decode_break",
    "decode_flag",
    "decode_look",
    "idle_timeout_ms_of",
]

LONGEST_IDLE_TIMEOUT_MS: Final = 2**31 - 1

_ACQUIRE_FORMATS: Final = (TEXT, TEXT, BINARY, BINARY, *[TEXT] * 10)
_BACKENDS_FORMATS: Final = (BINARY, BINARY, TEXT, BINARY)


def idle_timeout_ms_of(ttl: float) -> int:
    """How long a session may be idle before the server ends it; 0: no limit, for a ttl beyond its range."""
    milliseconds = int(ttl * 1000.0) + 1
    return milliseconds if milliseconds <= LONGEST_IDLE_TIMEOUT_MS else 0


class SessionStatements:
    """All statements for one schema and namespace."""

    def __init__(self, schema: str, namespace: str) -> None:
        self._namespace = session_namespace(namespace)
        self.key = lru_cache(maxsize=1000)(lambda name: key_of(namespace, name))
        self._named = lru_cache(maxsize=1000)(lambda name: (name.encode(), _number(self.key(name))))
        self._encode_constant = lru_cache(maxsize=1000)(_encode_constant)
        self._take = function(schema, "session_take_1", (*_ACQUIRE_FORMATS, TEXT))
        self._wait = _procedure(schema, "session_wait_1", _ACQUIRE_FORMATS)
        self._release = function(schema, "session_release_1", (TEXT, BINARY, BINARY, TEXT, TEXT, TEXT))
        self._undo = function(schema, "session_undo_1", (TEXT, TEXT, TEXT))
        self._heartbeat = function(schema, "session_beat_1", (TEXT, TEXT))
        self._extend = function(schema, "session_extend_1", (TEXT, TEXT, BINARY, BINARY, TEXT, TEXT))
        self._downgrade = function(schema, "session_downgrade_1", (TEXT, BINARY, BINARY, TEXT, TEXT, TEXT))
        self._set_value = function(schema, "session_set_value_1", (TEXT, BINARY, BINARY, TEXT, BINARY, TEXT))
        self._gone = function(schema, "session_gone_1", (BINARY, BINARY, TEXT))
        self._look = function(schema, "session_look_1", (BINARY, BINARY, TEXT))
        self._list = function(schema, "session_list_1", (BINARY, BINARY, BINARY, TEXT), "SELECT * FROM")
        self._break = function(schema, "session_break_1", (BINARY, BINARY, TEXT, TEXT, TEXT))
        self.cells = CellStatements(schema, self._namespace)
        self._standing = function(schema, "session_standing_1", _BACKENDS_FORMATS, "SELECT * FROM")
        self._end = function(schema, "session_end_1", _BACKENDS_FORMATS)
        self._cancel = function(schema, "session_cancel_1", (TEXT, TEXT))

    # --- on the session that has the lock, or asks for it

    def take(
        self, backend_pid: int, idle_timeout_ms: int | None, name: str, request: Acquire, waits: bool
    ) -> Call:
        parameters = self._acquire_parameters(backend_pid, idle_timeout_ms, name, request)
        return Call(self._take, (*parameters, FLAGS[waits]))

    def wait(self, backend_pid: int, idle_timeout_ms: int | None, name: str, request: Acquire) -> Call:
        """Take the lock after a wait; clients that inspect the name see the waiter."""
        return Call(self._wait, self._acquire_parameters(backend_pid, idle_timeout_ms, name, request))

    def _acquire_parameters(
        self, backend_pid: int, idle_timeout_ms: int | None, name: str, request: Acquire
    ) -> tuple[bytes | None, ...]:
        nonce, client, owner, kind, mode, ttl, _, _, renews, max_hold, _, metadata = request
        return (
            _number(backend_pid),
            None if idle_timeout_ms is None else _number(idle_timeout_ms),
            self._namespace,
            *self._named(name),
            encode_id(nonce),
            *self._encode_constant(client, owner, kind, mode, ttl, renews, max_hold),
            json.dumps(dict(metadata)).encode() if metadata else None,
        )

    def release(self, backend_pid: int, name: str, nonce: str, mode: str) -> Call:
        named = (self._namespace, *self._named(name))
        return Call(self._release, (_number(backend_pid), *named, encode_id(nonce), mode.encode()))

    def undo(self, backend_pid: int, name: str, mode: str) -> Call:
        return Call(self._undo, (_number(backend_pid), _number(self.key(name)), mode.encode()))

    def heartbeat(self, backend_pid: int, idle_timeout_ms: int | None) -> Call:
        idle = None if idle_timeout_ms is None else _number(idle_timeout_ms)
        return Call(self._heartbeat, (_number(backend_pid), idle))

    def extend(
        self, backend_pid: int, idle_timeout_ms: int | None, name: str, nonce: str, ttl: float
    ) -> Call:
        idle = None if idle_timeout_ms is None else _number(idle_timeout_ms)
        named = (self._namespace, name.encode(), encode_id(nonce))
        return Call(self._extend, (_number(backend_pid), idle, *named, repr(ttl).encode()))

    def downgrade(self, backend_pid: int, name: str, nonce: str, reader_nonce: str) -> Call:
        named = (self._namespace, name.encode(), _number(self.key(name)))
        nonces = (encode_id(nonce), encode_id(reader_nonce))
        return Call(self._downgrade, (_number(backend_pid), *named, *nonces))

    def set_value(self, backend_pid: int, name: str, request: SetValue) -> Call:
        named = (self._namespace, name.encode(), encode_id(request.nonce))
        value = (request.data, repr(request.retention).encode())
        return Call(self._set_value, (_number(backend_pid), *named, *value))

    # --- on any connection

    def gone(self, name: str, nonce: str) -> Call:
        """Ask why a lock is gone."""
        return Call(self._gone, (self._namespace, name.encode(), encode_id(nonce)))

    def look(self, name: str) -> Call:
        return Call(self._look, (self._namespace, name.encode(), _number(self.key(name))))

    def list_names(self, prefix: str, after: str) -> Call:
        return Call(self._list, (self._namespace, prefix.encode(), after.encode(), _number(PAGE)))

    def break_lock(self, name: str, request: Break) -> Call:
        named = (self._namespace, name.encode(), _number(self.key(name)))
        token = None if request.token is None else _number(request.token)
        return Call(self._break, (*named, token, escape_text(request.reason).encode()))

    def still_holding(self, name: str, backends: Sequence[int]) -> Call:
        """Ask which of these server processes still hold a lock that was broken."""
        return Call(self._standing, (self._namespace, *self._named(name), _numbers(backends)))

    def terminate(self, name: str, backends: Sequence[int]) -> Call:
        """End those of these server processes that still hold a lock that was broken."""
        return Call(self._end, (self._namespace, *self._named(name), _numbers(backends)))

    def cancel(self, name: str, backend_pid: int) -> Call:
        """Cancel the wait of a server process."""
        return Call(self._cancel, (_number(self.key(name)), _number(backend_pid)))


def _encode_constant(
    client: str, owner: str, kind: str, mode: str, ttl: float, renews: bool, max_hold: float | None
) -> tuple[bytes | None, ...]:
    """The parameters that repeat when a client takes locks again and again."""
    return (
        encode_id(client),
        escape_text(owner).encode(),
        kind.encode(),
        mode.encode(),
        repr(ttl).encode(),
        FLAGS[renews],
        None if max_hold is None else repr(max_hold).encode(),
    )


def _procedure(schema: str, name: str, formats: Sequence[int]) -> Statement:
    places = ", ".join(f"${number}" for number in range(1, len(formats) + 1))
    text = f"CALL {schema}.{name}({places}, NULL)"
    return Statement(f"holdfast_{name}".encode(), text.encode(), tuple(formats))


def _number(value: int) -> bytes:
    return str(value).encode()


def _numbers(values: Sequence[int]) -> bytes:
    return encode_array(INT4_OID, [struct.pack(">i", value) for value in values])


class BreakResult(NamedTuple):
    token: int | None
    victims: tuple[Holder, ...]
    backends: tuple[int, ...]
    """The server processes of the victims."""


def decode_break(result: PGresult) -> BreakResult | None:
    """None: there are no more tokens."""
    answer = function_result(result)
    if answer == b"E":
        return None
    fields: list[Any] = json.loads(answer)
    token, victims, backends = fields
    return BreakResult(token, decode_holders(victims), tuple(backends))


def decode_backends(result: PGresult) -> tuple[int, ...]:
    """A number in each row, in the binary format."""
    rows = [result.get_value(row, 0) or b"" for row in range(result.ntuples)]
    return tuple(int.from_bytes(number, "big") for number in rows)


def decode_flag(result: PGresult) -> bool:
    """A boolean, in the binary format."""
    return result.get_value(0, 0) == b"\1"


def decode_look(result: PGresult) -> Snapshot:
    return decode_snapshot(function_result(result))
