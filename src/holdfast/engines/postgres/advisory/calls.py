"""What is said to the server about session locks: one call of a function each, and what it answers."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from psycopg.pq.abc import PGresult

from ....rules.record import Holder
from ....rules.requests import Acquire, Break, SetValue, Snapshot
from ..statements import (
    BINARY,
    INT4_OID,
    PAGE,
    TEXT,
    Call,
    Statement,
    answer_of,
    array_of,
    ascii_of,
    escaped,
    function,
    holders_of,
    snapshot_of,
)
from .keys import key_of, session_namespace

__all__ = ["LONGEST_IDLE_MS", "Breaking", "Calls", "backends_of", "broken_of", "flag_of", "idle_ms_of"]

LONGEST_IDLE_MS: Final = 2**31 - 1

_FLAGS: Final = (b"f", b"t")
_ASKED: Final = (TEXT, TEXT, BINARY, BINARY, *[TEXT] * 10)


def idle_ms_of(ttl: float) -> int:
    """How long a session may be silent before the server ends it; 0: for ever, where it cannot count on."""
    milliseconds = int(ttl * 1000.0) + 1
    return milliseconds if milliseconds <= LONGEST_IDLE_MS else 0


class Calls:
    """All calls for one schema and namespace."""

    def __init__(self, schema: str, namespace: str) -> None:
        self._namespace = session_namespace(namespace)
        self.key = lru_cache(maxsize=1000)(lambda name: key_of(namespace, name))
        self._named = lru_cache(maxsize=1000)(lambda name: (name.encode(), _number(self.key(name))))
        self._wanted = lru_cache(maxsize=1000)(_wanted)
        self._take = function(schema, "session_take_1", (*_ASKED, TEXT))
        self._wait = _procedure(schema, "session_wait_1", _ASKED)
        self._release = function(schema, "session_release_1", (TEXT, BINARY, BINARY, TEXT, TEXT, TEXT))
        self._undo = function(schema, "session_undo_1", (TEXT, TEXT, TEXT))
        self._beat = function(schema, "session_beat_1", (TEXT, TEXT))
        self._extend = function(schema, "session_extend_1", (TEXT, TEXT, BINARY, BINARY, TEXT, TEXT))
        self._downgrade = function(schema, "session_downgrade_1", (TEXT, BINARY, BINARY, TEXT, TEXT, TEXT))
        self._set_value = function(schema, "session_set_value_1", (TEXT, BINARY, BINARY, TEXT, BINARY, TEXT))
        self._gone = function(schema, "session_gone_1", (BINARY, BINARY, TEXT))
        self._look = function(schema, "session_look_1", (BINARY, BINARY, TEXT))
        self._list = function(schema, "session_list_1", (BINARY, BINARY, BINARY, TEXT), "SELECT * FROM")
        self._break = function(schema, "session_break_1", (BINARY, BINARY, TEXT, TEXT, TEXT))
        asked = (BINARY, BINARY, TEXT, BINARY)
        self._standing = function(schema, "session_standing_1", asked, "SELECT * FROM")
        self._end = function(schema, "session_end_1", (BINARY, BINARY, TEXT, BINARY))
        self._cancel = function(schema, "session_cancel_1", (TEXT, TEXT))

    # --- on the connection that has the lock, or is to have it

    def taking(self, backend: int, idle_ms: int | None, name: str, ask: Acquire, waits: bool) -> Call:
        return Call(self._take, (*self._asked(backend, idle_ms, name, ask), _FLAGS[waits]))

    def waiting(self, backend: int, idle_ms: int | None, name: str, ask: Acquire) -> Call:
        """The same for one who waits, and is told to those who look."""
        return Call(self._wait, self._asked(backend, idle_ms, name, ask))

    def _asked(self, backend: int, idle_ms: int | None, name: str, ask: Acquire) -> tuple[bytes | None, ...]:
        nonce, client, owner, kind, mode, ttl, _, _, renews, max_hold, _, metadata = ask
        return (
            _number(backend),
            None if idle_ms is None else _number(idle_ms),
            self._namespace,
            *self._named(name),
            ascii_of(nonce),
            *self._wanted(client, owner, kind, mode, ttl, renews, max_hold),
            json.dumps(dict(metadata)).encode() if metadata else None,
        )

    def release(self, backend: int, name: str, nonce: str, mode: str) -> Call:
        asked = (_number(backend), self._namespace, *self._named(name), ascii_of(nonce), mode.encode())
        return Call(self._release, asked)

    def undo(self, backend: int, name: str, mode: str) -> Call:
        return Call(self._undo, (_number(backend), _number(self.key(name)), mode.encode()))

    def beat(self, backend: int, idle_ms: int | None) -> Call:
        return Call(self._beat, (_number(backend), None if idle_ms is None else _number(idle_ms)))

    def extend(self, backend: int, idle_ms: int | None, name: str, nonce: str, ttl: float) -> Call:
        idle = None if idle_ms is None else _number(idle_ms)
        named = (self._namespace, name.encode(), ascii_of(nonce))
        return Call(self._extend, (_number(backend), idle, *named, repr(ttl).encode()))

    def downgrade(self, backend: int, name: str, nonce: str, reader: str) -> Call:
        key = _number(self.key(name))
        named = (self._namespace, name.encode(), key)
        return Call(self._downgrade, (_number(backend), *named, ascii_of(nonce), ascii_of(reader)))

    def set_value(self, backend: int, name: str, ask: SetValue) -> Call:
        named = (self._namespace, name.encode(), ascii_of(ask.nonce))
        return Call(self._set_value, (_number(backend), *named, ask.data, repr(ask.retention).encode()))

    # --- on any connection

    def gone(self, name: str, nonce: str) -> Call:
        return Call(self._gone, (self._namespace, name.encode(), ascii_of(nonce)))

    def look(self, name: str) -> Call:
        return Call(self._look, (self._namespace, name.encode(), _number(self.key(name))))

    def list_names(self, prefix: str, after: str) -> Call:
        return Call(self._list, (self._namespace, prefix.encode(), after.encode(), _number(PAGE)))

    def breaking(self, name: str, ask: Break) -> Call:
        token = None if ask.token is None else _number(ask.token)
        key = _number(self.key(name))
        return Call(self._break, (self._namespace, name.encode(), key, token, escaped(ask.reason).encode()))

    def standing(self, name: str, backends: Sequence[int]) -> Call:
        return Call(self._standing, (self._namespace, *self._named(name), _numbers(backends)))

    def end(self, name: str, backends: Sequence[int]) -> Call:
        return Call(self._end, (self._namespace, *self._named(name), _numbers(backends)))

    def cancel(self, name: str, backend: int) -> Call:
        return Call(self._cancel, (_number(self.key(name)), _number(backend)))


def _wanted(
    client: str, owner: str, kind: str, mode: str, ttl: float, renews: bool, max_hold: float | None
) -> tuple[bytes | None, ...]:
    """What one who locks again and again says each time."""
    return (
        ascii_of(client),
        escaped(owner).encode(),
        kind.encode(),
        mode.encode(),
        repr(ttl).encode(),
        _FLAGS[renews],
        None if max_hold is None else repr(max_hold).encode(),
    )


def _procedure(schema: str, name: str, formats: Sequence[int]) -> Statement:
    places = ", ".join(f"${number}" for number in range(1, len(formats) + 1))
    text = f"CALL {schema}.{name}({places}, NULL)"
    return Statement(f"holdfast_{name}".encode(), text.encode(), tuple(formats))


def _number(value: int) -> bytes:
    return str(value).encode()


def _numbers(values: Sequence[int]) -> bytes:
    return array_of(INT4_OID, [struct.pack(">i", value) for value in values])


class Breaking(NamedTuple):
    """What became of an attempt to break a lock."""

    token: int | None
    victims: tuple[Holder, ...]
    backends: tuple[int, ...]


def broken_of(result: PGresult) -> Breaking | None:
    """None: there are no more tokens."""
    answer = answer_of(result)
    if answer == b"E":
        return None
    told: list[Any] = json.loads(answer)
    token, victims, backends = told
    return Breaking(token, holders_of(victims), tuple(backends))


def backends_of(result: PGresult) -> tuple[int, ...]:
    """A number in each row, in the binary format."""
    rows = [result.get_value(row, 0) or b"" for row in range(result.ntuples)]
    return tuple(int.from_bytes(number, "big") for number in rows)


def flag_of(result: PGresult) -> bool:
    """Yes or no, in the binary format."""
    return result.get_value(0, 0) == b"\1"


def look_of(result: PGresult) -> Snapshot:
    return snapshot_of(answer_of(result))
