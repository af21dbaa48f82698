"""The SQL functions of the session engine, in Python.

Parameters and answers are encoded as the engine encodes them. A statement is a generator: it can be cancelled
between two of its steps. It writes rows in its last step, which ends with the transaction.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.rules.record import EMPTY, Holder, Record, StoredValue, Tombstone, Waiter
from holdfast.rules.requests import (
    Acquire,
    Break,
    Broken,
    Downgrade,
    Inspect,
    Release,
    Request,
    Snapshot,
    Withdraw,
)

from .servers import WALL_SECONDS
from .session_locks import Backend, SqlError, Steps, Want

if TYPE_CHECKING:
    from .sessions import SessionServer

__all__ = ["Functions", "Rows"]

BROKEN_SECONDS: Final = 3600.0


class Rows:
    """The result of a statement."""

    __slots__ = ("_rows", "ntuples")

    def __init__(self, *rows: tuple[bytes, ...]) -> None:
        self._rows = rows
        self.ntuples = len(rows)

    def get_value(self, row: int, column: int) -> bytes:
        return self._rows[row][column]


class HolderRow(NamedTuple):
    """A holder, as the row of a name has it."""

    nonce: str
    client: str
    owner: str
    mode: str
    token: int
    since: float
    ttl: float
    renews: bool
    until: float | None
    metadata: str | None
    backend: int
    process: Backend
    """The process itself, for the trace: process ids are used again."""


class Row(NamedTuple):
    """The row of one name."""

    kind: str
    token: int
    holders: tuple[HolderRow, ...] = ()
    ended: tuple[Tombstone, ...] = ()
    value: StoredValue | None = None


class TakeParameters(NamedTuple):
    """The parameters of a statement that takes a lock."""

    backend: int
    idle_ms: int | None
    name: str
    key: int
    nonce: str
    client: str
    owner: str
    kind: str
    mode: str
    ttl: float
    renews: bool
    max_hold: float | None
    metadata: str | None

    @property
    def shared(self) -> bool:
        return self.mode == "read"


class Functions:
    """The functions of the schema, and its tables."""

    def __init__(self, server: SessionServer) -> None:
        self._server = server
        self._locks = server.locks
        self._rows: dict[str, Row] = {}
        self._past: list[tuple[float, str, Row | None]] = []
        """(at, name, the row before): what a crash may undo."""
        self._waiters: dict[int, tuple[int, str, str, str]] = {}
        """Process → key, client, owner, mode."""
        self.names: dict[int, str] = {}
        """key → name."""
        self._owners: dict[tuple[Backend, int, bool], str] = {}
        """(process, key, shared) → nonce of the grant; a row has the last one only."""
        self._on_session: dict[str, Callable[..., Steps]] = {
            "take": self._take,
            "wait": self._wait,
            "release": self._release,
            "undo": self._undo,
            "beat": self._beat,
            "extend": self._extend,
            "downgrade": self._downgrade,
            "set_value": self._set_value,
        }
        self._anywhere: dict[str, Callable[..., Rows]] = {
            "gone": lambda _, name, nonce: _text(self._gone(_str(name), _str(nonce))),
            "look": lambda _, name, key: _text(self._look(_str(name), int(key))),
            "list": self._list,
            "break": self._break,
            "standing": self._standing,
            "end": self._end,
            "cancel": self._cancel,
        }

    # --- calls ------------------------------------------------------------------------------------

    def statement(self, backend: Backend, call: Any) -> tuple[Steps, str]:
        name = name_of(call)
        return self._run(self._on_session[name], backend, call.parameters), f"send {name}"

    def _run(self, function: Callable[..., Steps], backend: Backend, parameters: Sequence[Any]) -> Steps:
        if int(parameters[0]) != backend.pid:
            raise SqlError("HF001", "another server process answers")
        yield None
        answer: str | bool = yield from function(backend, *parameters)
        return Rows((b"\1" if answer else b"\0",)) if isinstance(answer, bool) else _text(answer)

    def at_once(self, call: Any) -> Rows:
        return self._anywhere[name_of(call)](*call.parameters)

    # --- rows -----------------------------------------------------------------------------------

    def _store(self, name: str, row: Row) -> None:
        self._past.append((self._server.world.now, name, self._rows.get(name)))
        self._rows[name] = row

    def forget(self, back_to: float) -> None:
        self._waiters.clear()
        while self._past and self._past[-1][0] > back_to:
            _, name, row = self._past.pop()
            if row is None:
                del self._rows[name]
            else:
                self._rows[name] = row

    def _now(self) -> float:
        return WALL_SECONDS + self._server.wall.read(self._server.world.now)

    def _live(self, row: Row | None, key: int) -> tuple[HolderRow, ...]:
        """The holders in the row that have the lock, according to the lock table."""
        if row is None:
            return ()
        standing = {(backend.pid, shared) for backend, shared in self._locks.holders(key)}
        return tuple([h for h in row.holders if (h.backend, h.mode == "read") in standing])

    # --- taking ---------------------------------------------------------------------------------

    def _take(self, backend: Backend, *parameters: Any) -> Steps:
        take = _take_parameters(parameters)
        waits = parameters[14] == b"t"
        self.names[take.key] = take.name
        backend.sets_idle_ms = take.idle_ms
        row = self._rows.get(take.name)
        if waits and row is not None and row.kind != take.kind:
            return _mismatch(row)
        if waits:
            self._record_waiter(backend, take, waits)
            yield Want(take.key, take.shared)
        elif not self._locks.take(backend, take.key, take.shared, wait=False):
            if row is not None and row.kind != take.kind:
                return _mismatch(row)
            return "B" + json.dumps([self._holders_as_json(self._live(row, take.key)), self._now()])
        else:
            self._record_waiter(backend, take, waits)
            yield None
        return self._grant(backend, take)

    def _record_waiter(self, backend: Backend, take: TakeParameters, waits: bool) -> None:
        nonce, client, owner, mode = take.nonce, take.client, take.owner, take.mode
        waiter = Waiter(nonce, client, owner, mode, 0.0, 0.0, None)
        request = Acquire(nonce, client, owner, take.kind, mode, take.ttl, waits)
        backend.taking = take.name, waiter, request

    def _wait(self, backend: Backend, *parameters: Any) -> Steps:
        take = _take_parameters(parameters)
        self._waiters[backend.pid] = take.key, take.client, take.owner, take.mode
        yield None
        answer: str = yield from self._take(backend, *parameters, b"t")
        return answer

    def _grant(self, backend: Backend, take: TakeParameters, request: Request | None = None) -> str:
        """The lock is taken: increment the token, and end the transaction."""
        now = self._now()
        row = self._rows.get(take.name) or Row(take.kind, 0)
        if row.kind != take.kind:
            self._locks.give(backend, take.key, take.shared)
            return _mismatch(row)
        token = self.mint(row)
        others: tuple[HolderRow, ...] = ()
        if take.shared:
            live = self._live(row, take.key)
            others = tuple([h for h in live if h.mode == "read" and h.backend != backend.pid])
        holder = HolderRow(
            take.nonce,
            take.client,
            take.owner,
            take.mode,
            token,
            now,
            take.ttl,
            take.renews,
            None if take.max_hold is None else now + take.max_hold,
            take.metadata,
            backend.pid,
            backend,
        )
        self._store(take.name, row._replace(token=token, holders=(*others, holder)))
        self._owners[backend, take.key, take.shared] = take.nonce
        if backend.sets_idle_ms is not None:
            backend.idle_ms = backend.sets_idle_ms
        if backend.taking is not None:
            request, backend.taking = backend.taking[2], None
        self._server.changed(take.name, request or Inspect())
        if take.shared:
            peers = [other.token for other in others]
            fields = [token, peers, take.kind, take.mode, take.ttl, take.max_hold, take.metadata]
            return "g" + json.dumps(fields)
        return f"G{token}" + ("" if take.max_hold is None else f" {take.max_hold!r}")

    def mint(self, row: Row) -> int:
        return max(row.token + 1, self._server.wall_us())

    # --- held locks -------------------------------------------------------------------------------

    def _release(self, backend: Backend, *parameters: Any) -> Steps:
        _, _, raw_name, raw_key, raw_nonce, raw_mode = parameters
        name, key, nonce = _str(raw_name), int(raw_key), _str(raw_nonce)
        held = self._give(backend, name, key, raw_mode == b"read", Release(nonce))
        yield None
        row = self._rows.get(name)
        if held and not (row is not None and any(e.nonce == nonce for e in row.ended)):
            return "D"
        return self._gone(name, nonce)

    def _give(self, backend: Backend, name: str, key: int, shared: bool, request: Request) -> bool:
        held = self._locks.give(backend, key, shared)
        if held:
            self._owners.pop((backend, key, shared), None)
            self._server.changed(name, request)
        return held

    def _gone(self, name: str, nonce: str) -> str:
        row = self._rows.get(name)
        for ended in row.ended if row is not None else ():
            if ended.nonce == nonce:
                return "X" + json.dumps([ended.reason, ended.note])
        return "X" + json.dumps(["expired", ""])

    def _undo(self, backend: Backend, *parameters: Any) -> Steps:
        _, raw_key, mode = parameters
        key, shared = int(raw_key), mode == b"read"
        other = self._locks.has(backend, key, not shared)
        if self._locks.has(backend, key, shared):
            nonce = self._owners.get((backend, key, shared), "")
            self._give(backend, self.names[key], key, shared, Withdraw(nonce))
        yield None
        return other

    def _beat(self, backend: Backend, *parameters: Any) -> Steps:
        _, idle_ms = parameters
        backend.sets_idle_ms = None if idle_ms is None else int(idle_ms)
        yield from ()
        return "D"

    def _extend(self, backend: Backend, *parameters: Any) -> Steps:
        _, idle_ms, _, raw_name, raw_nonce, ttl = parameters
        name, nonce = _str(raw_name), _str(raw_nonce)
        backend.sets_idle_ms = None if idle_ms is None else int(idle_ms)
        yield from ()
        row = self._rows.get(name)
        if row is None or all(holder.nonce != nonce for holder in row.holders):
            return self._gone(name, nonce)
        holders = [h._replace(ttl=max(h.ttl, float(ttl))) if h.nonce == nonce else h for h in row.holders]
        self._store(name, row._replace(holders=tuple(holders)))
        return "D"

    def _downgrade(self, backend: Backend, *parameters: Any) -> Steps:
        _, _, raw_name, raw_key, raw_nonce, raw_reader = parameters
        name, key = _str(raw_name), int(raw_key)
        nonce, reader = _str(raw_nonce), _str(raw_reader)
        row = self._rows.get(name)
        found = [
            h
            for h in (row.holders if row is not None else ())
            if h.backend == backend.pid and h.nonce in (nonce, reader)
        ]
        has_shared, has_exclusive = [self._locks.has(backend, key, shared) for shared in (True, False)]
        if not found or not (has_shared or has_exclusive):
            return self._gone(name, nonce)
        (holder,) = found
        lasts = None if holder.until is None else holder.until - self._now()
        if holder.nonce == reader:
            return "g" + json.dumps(
                [holder.token, None, "rwlock", "read", holder.ttl, lasts, holder.metadata]
            )
        if not has_shared:
            yield Want(key, True)
        take = TakeParameters(
            backend.pid,
            None,
            name,
            key,
            reader,
            holder.client,
            holder.owner,
            "rwlock",
            "read",
            holder.ttl,
            holder.renews,
            lasts,
            holder.metadata,
        )
        if not self._is_recorded(name, holder):
            return self._gone(name, nonce)  # it was broken meanwhile: in the server the row is locked
        answer = self._grant(backend, take, Downgrade(nonce, reader))
        if has_exclusive:
            self._give(backend, name, key, False, Downgrade(nonce, reader))
        return answer

    def _is_recorded(self, name: str, holder: HolderRow) -> bool:
        return holder in self._rows[name].holders

    def _set_value(self, backend: Backend, *parameters: Any) -> Steps:
        _, _, raw_name, raw_nonce, data, retention = parameters
        name, nonce = _str(raw_name), _str(raw_nonce)
        yield from ()
        row = self._rows.get(name)
        for holder in row.holders if row is not None else ():
            if row is not None and holder.nonce == nonce and holder.backend == backend.pid:
                until = int((self._now() + float(retention)) * 1e6)
                self._store(name, row._replace(value=StoredValue(data, holder.token, until)))
                self._server.changed(name, Inspect())
                return "D"
        return self._gone(name, nonce)

    # --- on any connection ----------------------------------------------------------------------

    def _holders_as_json(self, holders: Sequence[HolderRow]) -> list[dict[str, Any]] | None:
        now = self._now()
        rows = []
        for h in holders:
            expires_at = h.ttl + (now if h.renews else h.since)
            fields = {f: v for f, v in h._asdict().items() if f not in ("backend", "process")}
            fields["expires_at"] = expires_at if h.until is None else min(h.until, expires_at)
            rows.append(fields)
        return sorted(rows, key=lambda row: int(row["token"])) or None

    def _look(self, name: str, key: int) -> str:
        row, now = self._rows.get(name), self._now()
        queue = []
        for backend, _ in self._locks.waiting(key):
            known = self._waiters.get(backend.pid)
            if known is not None and known[0] == key:
                _, client, owner, mode = known
                since = {"since": now, "expires_at": now + 5.0, "turn_at": None}
                queue.append(
                    {"nonce": f"{backend.pid}", "client": client, "owner": owner, "mode": mode, **since}
                )
        value = None
        if row is not None and row.value is not None and row.value.forget_at_us > self._server.wall_us():
            value = [base64.b64encode(row.value.data).decode(), row.value.token, row.value.forget_at_us]
        token = 0 if row is None else row.token
        kind = None if row is None else row.kind
        live = self._holders_as_json(self._live(row, key))
        return "S" + json.dumps([kind, token, live, queue or None, 0, 0, value, None, None, now])

    def _list(self, *parameters: Any) -> Rows:
        _, prefix, after, count = parameters
        keys = {name: key for key, name in self.names.items()}
        names = [n for n in sorted(keys) if n.startswith(_str(prefix)) and n > _str(after)]
        return Rows(*((n.encode(), self._look(n, keys[n]).encode()) for n in names[: int(count)]))

    def _break(self, *parameters: Any) -> Rows:
        _, raw_name, raw_key, raw_token, reason = parameters
        name, key = _str(raw_name), int(raw_key)
        token = None if raw_token is None else int(raw_token)
        row = self._rows.get(name)
        victims = [h for h in self._live(row, key) if token is None or h.token == token]
        if row is None or not victims:
            return _text(json.dumps([None, None, []]))
        minted = self.mint(row)
        nonces = {victim.nonce for victim in victims}
        until = self._now() + BROKEN_SECONDS
        ended = tuple([Tombstone(nonce, "broken", _str(reason), until) for nonce in sorted(nonces)])
        left = tuple([h for h in row.holders if h.nonce not in nonces])
        holders = tuple([h for h in self._server.records[name].holders if h.nonce in nonces])
        self._store(name, row._replace(token=minted, holders=left, ended=(*row.ended, *ended)))
        self._server.changed(name, Break(token, _str(reason)), Broken(minted, holders))
        for victim in victims:
            for backend in list(self._server.backends.values()):
                if backend.client == victim.client:
                    backend.untold.append(victim.nonce)
                    self._server.notify(backend)
        return _text(json.dumps([minted, self._holders_as_json(victims), [v.backend for v in victims]]))

    def _standing(self, *parameters: Any) -> Rows:
        return Rows(*((struct.pack(">i", backend.pid),) for backend in self._still_holding(*parameters)))

    def _still_holding(self, _: bytes, name: bytes, key: bytes, backends: bytes) -> list[Backend]:
        """A process that is in the row as a holder has a new grant."""
        row, pids = self._rows.get(_str(name)), _numbers(backends)
        recorded = {h.backend for h in row.holders} if row is not None else set[int]()
        holding = {backend: None for backend, _ in self._locks.holders(int(key))}
        return [b for b in holding if b.pid in pids and b.pid not in recorded]

    def _end(self, *parameters: Any) -> Rows:
        standing = self._still_holding(*parameters)
        for backend in standing:
            self._server.end(backend, "terminating connection due to administrator command")
        return _number(len(standing))

    def _cancel(self, raw_key: bytes, raw_pid: bytes) -> Rows:
        key, pid = int(raw_key), int(raw_pid)
        known = [b for b, _ in (*self._locks.holders(key), *self._locks.waiting(key)) if b.pid == pid]
        for backend in known:
            self._server.cancel(backend)
        return _number(len(known))

    # --- records ----------------------------------------------------------------------------------

    def _holders(self, name: str) -> list[HolderRow]:
        """The holders that have the lock."""
        row = self._rows.get(name)
        keys = [key for key, known in self.names.items() if known == name]
        return [
            h
            for h in (row.holders if row is not None else ())
            for key in keys
            if h.process.alive and self._owners.get((h.process, key, h.mode == "read")) == h.nonce
        ]

    def tokens_of(self, backend: Backend) -> list[tuple[str, int]]:
        return [(name, h.token) for name in self._rows for h in self._holders(name) if h.process is backend]

    def touched(self, backend: Backend) -> None:
        """A heartbeat arrived: the ttl of each lock of the session counts from now."""
        for name in self._rows:
            if any(h.process is backend for h in self._holders(name)):
                self._server.changed(name, Inspect())

    def record(self, name: str, before: Record) -> Record:
        row = self._rows.get(name)
        holders = tuple(
            [
                Holder(
                    h.nonce,
                    h.client,
                    h.owner,
                    h.mode,
                    h.token,
                    0.0,
                    self._server.expires_at(h.process),
                    h.ttl,
                    h.renews,
                    h.until,
                    {},
                )
                for h in self._holders(name)
            ]
        )
        queue = tuple(self._queue(name))
        if row is None:
            return EMPTY._replace(queue=queue)
        return Record(
            row.kind,
            row.token,
            before.holders if holders == before.holders else holders,
            before.queue if queue == before.queue else queue,
            value=row.value,
        )

    def _queue(self, name: str) -> list[Waiter]:
        """First the processes that have the lock but no token yet."""
        taking = [b for b in self._server.backends.values() if b.taking is not None and b.taking[0] == name]
        places = [
            b for key, known in self.names.items() if known == name for b, _ in self._locks.waiting(key)
        ]
        there = [b for b in taking if b.wants is None]
        there += [b for b in places if b.taking is not None and b.taking[0] == name]
        return [b.taking[1] for b in there if b.taking is not None]

    def snapshot(self, name: str) -> Snapshot:
        return Snapshot(self.record(name, EMPTY), self._server.now())


def name_of(call: Any) -> str:
    """``holdfast_session_take_1`` is ``take``."""
    name: str = call.statement.name.decode()
    return name.removeprefix("holdfast_session_").removesuffix("_1")


def _take_parameters(parameters: Sequence[Any]) -> TakeParameters:
    backend, idle_ms, _, name, key, nonce, client, owner, kind, mode, ttl, renews, max_hold, metadata = (
        parameters[:14]
    )
    return TakeParameters(
        int(backend),
        None if idle_ms is None else int(idle_ms),
        _str(name),
        int(key),
        _str(nonce),
        _str(client),
        _str(owner),
        _str(kind),
        _str(mode),
        float(ttl),
        renews == b"t",
        None if max_hold is None else float(max_hold),
        None if metadata is None else _str(metadata),
    )


def _mismatch(row: Row) -> str:
    return "M" + json.dumps([row.kind, 0])


def _str(raw: bytes) -> str:
    return raw.decode()


def _text(answer: str) -> Rows:
    return Rows((answer.encode(),))


def _number(value: int) -> Rows:
    return Rows((struct.pack(">i", value),))


def _numbers(array: bytes) -> tuple[int, ...]:
    """An array of integers in the server's binary format."""
    count = struct.unpack(">i", array[12:16])[0] if len(array) > 12 else 0
    return tuple([struct.unpack(">i", array[24 + 8 * i : 28 + 8 * i])[0] for i in range(count)])
