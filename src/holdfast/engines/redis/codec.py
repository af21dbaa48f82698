"""Requests as calls of scripts, and the replies of scripts as replies of the rule. No I/O here.

The last argument of a script about an attempt is the attempt's nonce. The bytes before it are the same each
time an owner acquires or releases the same lock. ``encode_packed`` keeps these bytes.

The caller knows the terms of a new grant from its own request. So the script replies with the token alone.
Only where there is more (shared holders, ``max_hold``, a repeated request) the reply has all fields.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from ...rules.record import (
    RETENTION_SECONDS,
    Holder,
    Record,
    StoredValue,
    Tombstone,
    Waiter,
    Watcher,
    is_brief,
)
from ...rules.requests import (
    Absent,
    Acquire,
    Adopt,
    Break,
    Broken,
    Busy,
    CellState,
    Done,
    Downgrade,
    Exhausted,
    Export,
    Gone,
    Granted,
    Inspect,
    Mismatch,
    Queued,
    ReadCell,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Resize,
    SetValue,
    Snapshot,
    Stop,
    SwapCell,
    Unwatch,
    Watch,
    Withdraw,
    Withdrawn,
)
from ..resp.codec import bulk, encode_text, msgpack_boolean, msgpack_double, msgpack_integer, msgpack_text
from ..resp.scripts import Script
from .keys import Keyspace, key_of, slot_of, value_key_of

__all__ = [
    "BATCH_KEYS_MAX",
    "Batch",
    "Command",
    "decode",
    "decode_all",
    "encode",
    "encode_in_order",
    "encode_packed",
    "encode_renew_batch",
    "pack",
]

BATCH_KEYS_MAX: Final = 500
"""A batch of more keys would delay the server's other clients for more than a millisecond or two."""

PREFIXES_MAX: Final = 10_000
"""The number of command prefixes kept for one keyspace."""

Steps = Sequence[tuple[str, Request]]

_new = tuple.__new__
_DONE: Final = Done()
_SIZES: Final = [b"$%d\r\n" % size for size in range(100)]
_DOUBLE: Final = struct.Struct(">d")
_RETENTION_MS: Final = int(RETENTION_SECONDS * 1000)


class Command(NamedTuple):
    """One call of a script."""

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]


class Batch(NamedTuple):
    """One call for some of the steps. Its replies belong to the steps at ``places``, in this order."""

    command: Command
    places: tuple[int, ...]


# --- requests -----------------------------------------------------------------------------------


def encode(space: Keyspace, name: str, request: Request) -> Command:
    """The call that applies this request to the record of this name."""
    kind, arguments = _ENCODERS[request.__class__]
    return Command(space.scripts[kind], _keys(space, name, request), arguments(request))


def _keys(space: Keyspace, name: str, request: Request) -> tuple[bytes, ...]:
    """The value has a key of its own, so that other requests need not read it."""
    if isinstance(request, ReadCell | SwapCell):
        return (value_key_of(space, name),)
    if isinstance(request, SetValue | Watch | Inspect):
        return key_of(space, name), value_key_of(space, name)
    return (key_of(space, name),)


def encode_in_order(space: Keyspace, steps: Steps, stop_when_refused: bool) -> Command:
    """One call for several names. In a Cluster all of them must be in one slot: see ``slot_of``."""
    keys: list[bytes] = []
    args = [_flag(stop_when_refused)]
    for name, request in steps:
        kind, arguments = _ENCODERS[request.__class__]
        its_keys, its_args = _keys(space, name, request), arguments(request)
        keys += its_keys
        args += (kind.encode(), b"%d" % len(its_keys), b"%d" % len(its_args), *its_args)
    return Command(space.scripts["apply_in_order"], tuple(keys), tuple(args))


def encode_renew_batch(space: Keyspace, steps: Steps) -> list[Batch]:
    """The keeper's renewals and refreshes in as few calls as the slots of a Cluster and the batch size
    allow."""
    groups: dict[int, list[int]] = {}
    for place, (name, _) in enumerate(steps):
        groups.setdefault(slot_of(space, name) if space.sharded else 0, []).append(place)
    batches = []
    for places in groups.values():
        for start in range(0, len(places), BATCH_KEYS_MAX):
            some = tuple(places[start : start + BATCH_KEYS_MAX])
            batches.append(Batch(_encode_batch(space, [steps[place] for place in some]), some))
    return batches


def _encode_batch(space: Keyspace, steps: Steps) -> Command:
    """Two arguments for each step: its ttl (empty for a refresh) and its nonce."""
    args: list[bytes] = []
    for _, request in steps:
        if isinstance(request, Renew):
            args += (_number(request.ttl), encode_text(request.nonce))
        elif isinstance(request, Refresh):
            args += (b"", encode_text(request.nonce))
        else:
            raise TypeError(f"{type(request).__name__} is neither a renewal nor a refresh")
    return Command(
        space.scripts["renew_batch"], tuple([key_of(space, name) for name, _ in steps]), tuple(args)
    )


def pack(command: Command) -> bytes:
    """The bytes of ``EVALSHA`` with all keys and arguments."""
    script, keys, args = command
    parts = (b"EVALSHA", script.sha1, b"%d" % len(keys), *keys, *args)
    return b"*%d\r\n" % len(parts) + b"".join([bulk(part) for part in parts])


def encode_packed(space: Keyspace, name: str, request: Request) -> bytes:
    """``pack(command(…))``, fast where only the nonce differs from an earlier request."""
    shape: object
    if request.__class__ is Acquire and not request[11]:
        shape = name, request[1:11]
    elif request.__class__ is Release:
        shape = name, request[1]
    else:
        return pack(encode(space, name, request))
    beginning = space.command_prefixes.get(shape) or _remember_prefix(
        space, shape, encode(space, name, request)
    )
    nonce = request[0].encode("utf-8", "surrogatepass")
    size = len(nonce)
    return b"".join((beginning, _SIZES[size] if size < 100 else b"$%d\r\n" % size, nonce, b"\r\n"))


def _remember_prefix(space: Keyspace, shape: object, command: Command) -> bytes:
    whole = pack(command)
    beginning = whole[: len(whole) - len(bulk(command.args[-1]))]
    if len(space.command_prefixes) >= PREFIXES_MAX:
        space.command_prefixes.clear()
    space.command_prefixes[shape] = beginning
    return beginning


def _number(number: float | None) -> bytes:
    return b"" if number is None else repr(number).encode()


def _linger(linger: float) -> bytes:
    return _number(linger) if linger else b"0"


def _flag(flag: bool) -> bytes:
    return b"1" if flag else b"0"


def _acquire(ask: Acquire) -> tuple[bytes, ...]:
    """The first two arguments are parts of the record as the script writes it (``scripts/rules/record.lua``).

    They are the bytes before the token and the last fields of the holder.
    """
    limit = msgpack_integer(ask.limit)
    return (
        msgpack_text(ask.kind.encode()) + limit + limit,
        _claim(ask),
        _number(ask.ttl),
        b"%d" % (ceil(ask.ttl * 1000) + _RETENTION_MS),
        _options(ask),
        encode_text(ask.nonce),
    )


def _options(ask: Acquire) -> bytes:
    """Exactly two characters where the short path of the script can grant a free lock, and where the claim
    can be stored with the place in the queue."""
    options = _flag(ask.wait) + _flag(ask.fair)
    is_plain = ask.max_hold is None and (ask.kind != "semaphore" or ask.limit > 0)
    is_plain = is_plain and (not ask.metadata or is_brief(ask.metadata))
    return options if is_plain else options + b" " + _number(ask.max_hold)


def _claim(ask: Acquire) -> bytes:
    return b"".join(
        (
            msgpack_text(encode_text(ask.client)),
            msgpack_text(encode_text(ask.owner)),
            msgpack_text(ask.mode.encode()),
            msgpack_double(ask.ttl),
            msgpack_boolean(ask.renews),
            msgpack_boolean(False),  # until: the script knows the time
            msgpack_text(_metadata(ask.metadata)),
        )
    )


def _metadata(metadata: Mapping[str, str]) -> bytes:
    return encode_text(json.dumps(dict(metadata), ensure_ascii=False)) if metadata else b""


_Arguments = Callable[[Any], tuple[bytes, ...]]

_ENCODERS: Final[dict[type, tuple[str, _Arguments]]] = {
    Acquire: ("acquire", _acquire),
    Release: ("release", lambda ask: (_linger(ask.linger), encode_text(ask.nonce))),
    Withdraw: ("withdraw", lambda ask: (_linger(ask.linger), encode_text(ask.nonce))),
    Renew: ("renew", lambda ask: (_number(ask.ttl), encode_text(ask.nonce))),
    Refresh: ("refresh", lambda ask: (encode_text(ask.nonce),)),
    Stop: ("stop", lambda ask: (encode_text(ask.nonce),)),
    Export: ("export", lambda ask: (encode_text(ask.seal), encode_text(ask.nonce))),
    Adopt: (
        "adopt",
        lambda ask: (
            encode_text(ask.client),
            encode_text(ask.owner),
            encode_text(ask.seal),
            _flag(ask.renews),
            encode_text(ask.nonce),
        ),
    ),
    Downgrade: ("downgrade", lambda ask: (encode_text(ask.reader_nonce), encode_text(ask.nonce))),
    Break: ("break", lambda ask: (b"" if ask.token is None else b"%d" % ask.token, encode_text(ask.reason))),
    SetValue: ("set_value", lambda ask: (ask.data, _number(ask.retention), encode_text(ask.nonce))),
    ReadCell: ("read_cell", lambda ask: ()),
    SwapCell: ("swap_cell", lambda ask: (b"%d" % ask.expected, ask.data)),
    Resize: ("resize", lambda ask: (b"%d" % ask.declared, b"%d" % ask.limit)),
    Watch: ("watch", lambda ask: (encode_text(ask.client), encode_text(ask.nonce))),
    Unwatch: ("unwatch", lambda ask: (encode_text(ask.nonce),)),
    Inspect: ("inspect", lambda ask: ()),
}


# --- replies ------------------------------------------------------------------------------------


def decode(request: Request, raw: Any) -> Reply:
    """The reply of a script as the reply of the rule."""
    if raw.__class__ is int:
        if request.__class__ is Acquire:
            return _new(Granted, (raw, (), request[3], request[4], request[5], None, request[11], 0.0))
        return _DONE
    return _DECODERS[raw[0]](*raw[1:])


def decode_all(steps: Iterable[tuple[str, Request]], raw: Sequence[Any]) -> list[Reply]:
    """The replies to the first steps. They end early where a refused step has stopped the script."""
    return [decode(request, reply) for (_, request), reply in zip(steps, raw, strict=False)]


def _string(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _float(raw: bytes) -> float:
    number: float = _DOUBLE.unpack(raw)[0]
    return number


def _optional_float(raw: bytes) -> float | None:
    return _float(raw) if raw else None


def _mapping(raw: bytes) -> Mapping[str, str]:
    return json.loads(_string(raw)) if raw else {}


def _granted(
    token: int, kind: bytes, mode: bytes, ttl: bytes, lasts: bytes, metadata: bytes, age: bytes, *peers: int
) -> Granted:
    lease = _float(ttl), _optional_float(lasts), _mapping(metadata), _float(age)
    return Granted(token, peers, kind.decode(), mode.decode(), *lease)


def _snapshot(
    now: bytes,
    kind: bytes,
    token: int,
    limit: int,
    declared: int,
    value: list[Any],
    holders: list[list[Any]],
    queue: list[list[Any]],
    ended: list[list[Any]],
    watchers: list[list[Any]],
) -> Snapshot:
    record = Record(
        kind.decode() or None,
        token,
        tuple([_holder(*held) for held in holders]),
        tuple([_waiter(*waits) for waits in queue]),
        limit,
        declared,
        StoredValue(*value) if value else None,
        tuple([Tombstone(_string(e[0]), e[1].decode(), _string(e[2]), _float(e[3])) for e in ended]),
        tuple([Watcher(_string(w[0]), _string(w[1]), _float(w[2])) for w in watchers]),
    )
    return Snapshot(record, _float(now))


def _holder(
    nonce: bytes,
    client: bytes,
    owner: bytes,
    mode: bytes,
    since: bytes,
    expires_at: bytes,
    token: int,
    ttl: bytes,
    renews: int,
    until: bytes,
    metadata: bytes,
) -> Holder:
    return Holder(
        _string(nonce),
        _string(client),
        _string(owner),
        mode.decode(),
        token,
        _float(since),
        _float(expires_at),
        _float(ttl),
        renews == 1,
        _optional_float(until),
        _mapping(metadata),
    )


def _waiter(
    nonce: bytes, client: bytes, owner: bytes, mode: bytes, since: bytes, expires_at: bytes, turn_at: bytes
) -> Waiter:
    return Waiter(
        _string(nonce),
        _string(client),
        _string(owner),
        mode.decode(),
        _float(since),
        _float(expires_at),
        _optional_float(turn_at),
    )


def _holders(raw: tuple[list[Any], ...]) -> tuple[Holder, ...]:
    return tuple([_holder(*held) for held in raw])


_DECODERS: Final[dict[bytes, Callable[..., Reply]]] = {
    b"granted": _granted,
    b"busy": lambda now, *holders: Busy(_holders(holders), _float(now)),
    b"queued": lambda position, poll_after, *blockers: Queued(
        position, _float(poll_after), tuple([_string(client) for client in blockers])
    ),
    b"withdrawn": lambda now, *holders: Withdrawn(_holders(holders), _float(now)),
    b"gone": lambda reason, note: Gone(reason.decode(), _string(note)),
    b"absent": Absent,
    b"broken": lambda token, *victims: Broken(token or None, _holders(victims)),
    b"mismatch": lambda kind, limit: Mismatch(kind.decode(), limit),
    b"cell": lambda version, swapped, data=None: CellState(version, data, swapped == 1),
    b"exhausted": Exhausted,
    b"snapshot": _snapshot,
}
