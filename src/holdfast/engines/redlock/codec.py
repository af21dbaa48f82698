"""Questions to a node as commands for its server, and the replies of the server as answers of the node.

The mark that a node must have ends with the run id of its server. That argument differs from node to node, so
a question is packed in two parts, one before it and one behind it. Where the same lock is acquired and
released again and again, only the owner and the hint differ. The other bytes of those two commands are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import ceil
from typing import Any, Final, NamedTuple, cast

from hiredis import ReplyError

from ...core.effects import NotApplied, OutcomeUnknown, TransientError
from ...protocols.quorum.effects import Batch
from ...rules import node
from ..resp.codec import bulk, encode_text, msgpack_integer, msgpack_text, pack_command
from ..resp.config import Address
from ..resp.errors import error_for
from ..resp.handshake import eviction_policy
from ..resp.scripts import is_missing, load_command
from .errors import PERMISSION_HINT
from .keys import MARK_KEY, RECORDS, Keyspace, escape_pattern
from .scripts import load

__all__ = [
    "ENCODERS",
    "PackedRequest",
    "decode",
    "decode_number",
    "encode",
    "loading_commands",
    "missing_scripts",
    "run_id_of",
]

PARTS_MAX: Final = 10_000
"""The number of command parts kept for one keyspace."""

SCAN_COUNT: Final = b"500"
"""How many keys of the server are scanned for one page."""

DURABLE: Final = {b"appendonly": b"yes", b"appendfsync": b"always", b"no-appendfsync-on-rewrite": b"no"}
NO_FORMER_MASTER: Final = b"0" * 40

_new: Final = tuple.__new__
_RETENTION_MS: Final = node.RETENTION_US // 1000
_KEPT: Final = node.Applied()
_KEPT_ALONE: Final = (_KEPT,)
_INFO: Final = pack_command(b"INFO", b"server", b"replication", b"memory")
_CONFIG: Final = pack_command(b"CONFIG", b"GET", *DURABLE)
_MARK: Final = pack_command(b"HMGET", MARK_KEY, b"ready", b"primed", b"rejoins", b"longest")
_DESCRIBE_REPLIES: Final = 3
"""The number of commands of DescribeNode."""


class PackedRequest(NamedTuple):
    """One question: its commands without the expected mark, which comes between the two parts."""

    before_mark: bytes
    after_mark: bytes | None
    """None: no mark comes in between."""
    reply_count: int
    usual_number: int = 0
    """The number that nearly every node replies, where it is known in advance."""
    usual_reply: bytes | None = None
    """The bytes of that reply; None: not known."""
    usual_answer: tuple[Any, ...] = ()
    """The meaning of that reply to a request of one question."""

    def with_mark(self, expected: bytes) -> bytes:
        return (
            self.before_mark
            if self.after_mark is None
            else b"".join((self.before_mark, expected, self.after_mark))
        )


def encode(space: Keyspace, batch: Batch) -> list[PackedRequest]:
    return [ENCODERS[question.__class__](space, name, question) for name, question in batch]


def loading_commands() -> tuple[bytes, int]:
    """The commands that load all scripts, and the number of their replies."""
    scripts = load().values()
    return b"".join([load_command(each) for each in scripts]), len(scripts)


# --- questions ----------------------------------------------------------------------------------


def _number(number: int) -> bytes:
    return b"%d" % number


def _script(name: str, key: bytes, *args: bytes) -> PackedRequest:
    """A script that checks the mark of the node first."""
    sha1 = load()[name].sha1
    before = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n2\r\n" % (len(args) + 6, sha1)
    return PackedRequest(before + bulk(key) + bulk(MARK_KEY), b"".join(map(bulk, args)), 1)


def _script_without_mark(name: str, keys: Sequence[bytes], args: Sequence[bytes]) -> PackedRequest:
    """A script that does not check the mark."""
    sha1 = load()[name].sha1
    return PackedRequest(pack_command(b"EVALSHA", sha1, b"%d" % len(keys), *keys, *args), None, 1)


def _acquire(space: Keyspace, name: str, ask: node.Acquire) -> PackedRequest:
    owner, hint = ask.owner.encode("utf-8", "surrogatepass"), b"%d" % ask.hint
    fresh = b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(owner), owner, len(hint), hint)
    shape = name, ask[2:]
    kept = space.command_parts.get(shape)
    if kept is None:
        whole = _script(
            "acquire",
            space.key_of(name),
            owner,
            hint,
            _number(ask.ttl),
            _number(ceil(ask.ttl / 1000) + _RETENTION_MS),
            _end_of_claim(ask),
            *_optional_arguments(ask),
        )
        kept = whole.before_mark, cast(bytes, whole.after_mark)[len(fresh) :]
        if not ask.metadata and not ask.instead_of and not ask.token:
            _remember_parts(space, shape, kept)
    answer = (_new(node.Issued, (ask.hint,)),)
    return _new(PackedRequest, (kept[0], fresh + kept[1], 1, ask.hint, b":%b\r\n" % hint, answer))


def _end_of_claim(ask: node.Acquire) -> bytes:
    """The last fields of the claim, as the script writes them (``scripts/rules/record.lua``)."""
    return b"".join(
        (
            msgpack_integer(ask.ttl),
            msgpack_integer(0),  # until: the script knows the time
            msgpack_text(encode_text(ask.client)),
            msgpack_text(encode_text(ask.label)),
            msgpack_text(encode_text(ask.metadata)),
            msgpack_integer(ask.token),
        )
    )


def _optional_arguments(ask: node.Acquire) -> tuple[bytes, ...]:
    """Arguments that only the long path of the script reads. Without them a free lock takes the short
    path."""
    if not ask.max_hold and not ask.instead_of:
        return ()
    return _number(ask.max_hold), encode_text(ask.note), *map(encode_text, ask.instead_of)


def _release(space: Keyspace, name: str, ask: node.Release) -> PackedRequest:
    owner = ask.owner.encode("utf-8", "surrogatepass")
    shape = name, ask.linger
    kept = space.command_parts.get(shape)
    if kept is None:
        linger = _number(ask.linger)
        without_owner = _script_without_mark("release", (space.key_of(name),), (b"", linger)).before_mark
        kept = without_owner[: -len(bulk(b"") + bulk(linger))], bulk(linger)
        _remember_parts(space, shape, kept)
    whole = b"%b$%d\r\n%b\r\n%b" % (kept[0], len(owner), owner, kept[1])
    return _new(PackedRequest, (whole, None, 1, 1, b":1\r\n", _KEPT_ALONE))


def _remember_parts(space: Keyspace, shape: object, ends: tuple[bytes, bytes]) -> None:
    if len(space.command_parts) >= PARTS_MAX:
        space.command_parts.clear()
    space.command_parts[shape] = ends


def _change_mark(what: bytes) -> Callable[[Keyspace, str, Any], PackedRequest]:
    def packed(space: Keyspace, name: str, ask: Any) -> PackedRequest:
        was, longest = getattr(ask, "was", ""), getattr(ask, "longest", 0)
        return _script(
            "change_mark", MARK_KEY, what, encode_text(ask.mark), encode_text(was), _number(longest)
        )

    return packed


def _page(pattern: bytes, cursor: str) -> PackedRequest:
    return _script("list_page", MARK_KEY, pattern, encode_text(cursor or "0"), SCAN_COUNT)


def _raise(space: Keyspace, name: str, ask: node.RaiseFences) -> PackedRequest:
    keys = [RECORDS + encode_text(record) for record, _ in ask.fences]
    return _script_without_mark("raise_fences", keys, [_number(fence) for _, fence in ask.fences])


ENCODERS: Final[dict[type, Callable[[Keyspace, str, Any], PackedRequest]]] = {
    node.Acquire: _acquire,
    node.Stamp: lambda space, name, ask: _script(
        "stamp", space.key_of(name), encode_text(ask.owner), _number(ask.number)
    ),
    node.Release: _release,
    node.Renew: lambda space, name, ask: _script(
        "renew", space.key_of(name), encode_text(ask.owner), _number(ask.ttl)
    ),
    node.Export: lambda space, name, ask: _script(
        "export", space.key_of(name), encode_text(ask.owner), _number(ask.token), encode_text(ask.seal)
    ),
    node.Adopt: lambda space, name, ask: _script(
        "adopt",
        space.key_of(name),
        encode_text(ask.owner),
        encode_text(ask.client),
        encode_text(ask.label),
        encode_text(ask.seal),
    ),
    node.Inspect: lambda space, name, ask: _script("inspect", space.key_of(name)),
    node.List: lambda space, name, ask: _page(space.pattern_of(ask.prefix), ask.cursor),
    node.ListFences: lambda space, name, ask: _page(escape_pattern(RECORDS) + b"*", ask.cursor),
    node.RaiseFences: _raise,
    node.Prime: _change_mark(b"prime"),
    node.Start: _change_mark(b"start"),
    node.Trust: _change_mark(b"trust"),
    node.Rejoin: _change_mark(b"rejoin"),
    node.Admit: _change_mark(b"admit"),
    node.DescribeNode: lambda space, name, ask: PackedRequest(
        _INFO + _CONFIG + _MARK, None, _DESCRIBE_REPLIES
    ),
}


# --- answers ------------------------------------------------------------------------------------


def decode(
    space: Keyspace, batch: Batch, raw: Sequence[Any], address: Address
) -> tuple[Any, ...] | TransientError:
    """The answers to a batch, or an error if one of the replies is an error."""
    decoded = []
    place = 0
    for _, question in batch:
        if question.__class__ is node.DescribeNode:
            some = raw[place : place + _DESCRIBE_REPLIES]
            place += _DESCRIBE_REPLIES
            error = next((each for each in (some[0], some[2]) if isinstance(each, ReplyError)), None)
            if error is not None:
                return _error_of([error], address)
            decoded.append(_description(*some))
        else:
            if isinstance(raw[place], ReplyError):
                return _error_of(raw, address)
            decoded.append(_decode_reply(space, question, raw[place]))
            place += 1
    return tuple(decoded)


def missing_scripts(raw: Sequence[Any]) -> list[int]:
    """The places of the replies that say that the server does not have the script."""
    return [n for n, each in enumerate(raw) if isinstance(each, ReplyError) and is_missing(str(each))]


def _error_of(raw: Sequence[Any], address: Address) -> TransientError:
    """NotApplied where every reply is an error. A permanent error of one node is no reason to stop: there are
    others."""
    error = next(each for each in raw if isinstance(each, ReplyError))
    message = str(error_for(str(error), address, PERMISSION_HINT))
    return (
        NotApplied(message) if all(isinstance(each, ReplyError) for each in raw) else OutcomeUnknown(message)
    )


def _string(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


def _claim(raw: list[Any] | bytes) -> node.Claim | None:
    if isinstance(raw, bytes):
        return None
    owner, number, since, expires_at, ttl, until, client, label, metadata, token = raw
    return node.Claim(
        _string(owner),
        number,
        since,
        expires_at,
        ttl,
        until,
        _string(client),
        _string(label),
        _string(metadata),
        token,
    )


def _record(fence: int, claim: list[Any] | bytes, over: list[list[Any]]) -> node.NodeRecord:
    ended = [node.Tombstone(_string(o), r.decode(), _string(n), forget_at) for o, r, n, forget_at in over]
    return node.NodeRecord(fence, _claim(claim), tuple(ended))


def decode_number(question: Any, number: int) -> tuple[Any]:
    """``decode`` for a batch of one question with a number as its reply, which is the common case."""
    if question.__class__ is node.Release:
        return _KEPT_ALONE
    return (_decode_integer(question, number),)


def _decode_integer(question: Any, number: int) -> Any:
    if question.__class__ is node.Acquire or question.__class__ is node.Stamp:
        return node.Issued(number)
    return node.Marked(node.FRESH) if question.__class__ is node.RaiseFences else _KEPT


def _decode_reply(space: Keyspace, question: Any, raw: Any) -> Any:
    if raw.__class__ is int:
        return _decode_integer(question, raw)
    if raw[0] == b"page":
        return _decode_page(space, question, *raw[1:])
    return _DECODERS[raw[0]](*raw[1:])


def _decode_page(space: Keyspace, question: Any, now: int, cursor: bytes, found: list[list[Any]]) -> Any:
    after = "" if cursor == b"0" else cursor.decode()
    if question.__class__ is node.ListFences:
        fences = [(_string(key[len(RECORDS) :]), fence) for key, fence, _, _ in found]
        return node.FencePage(tuple(fences), after)
    named = [(space.name_of(key), _record(*rest)) for key, *rest in found]
    return node.NamePage(tuple([(name, record) for name, record in named if name is not None]), now, after)


_DECODERS: Final[dict[bytes, Callable[..., Any]]] = {
    b"taken": lambda now, claim: node.HeldByOther(_claim(claim), now),  # type: ignore[arg-type]  # there is one
    b"lost": lambda reason, note: node.Lost(reason.decode(), _string(note)),
    b"unready": lambda mark: node.Unready(_string(mark)),
    b"skewed": node.ClockSkewed,
    b"spent": node.TokensExhausted,
    b"view": lambda now, *record: node.View(_record(*record), now),
    b"marked": lambda ready, primed, rejoins, longest: node.Marked(_mark(ready, primed, rejoins, longest)),
}


def _mark(
    ready: bytes | None, primed: bytes | None, rejoins: bytes | None, longest: bytes | int | None
) -> node.Mark:
    return node.Mark(
        _string(ready or b""), _string(primed or b""), _string(rejoins or b""), int(longest or 0)
    )


# --- descriptions -------------------------------------------------------------------------------


def _description(info: bytes, config: Any, mark: list[Any]) -> node.NodeDescription:
    policy = eviction_policy(info)
    complaint = f"it evicts keys when its memory is full (maxmemory-policy {policy})" if policy else ""
    return node.NodeDescription(run_id_of(info), _mark(*mark), _is_durable(info, config), complaint)


def run_id_of(info: bytes) -> str:
    return _info_fields(info).get(b"run_id", b"").decode("ascii", "replace")


def _is_durable(info: bytes, config: Any) -> bool:
    """Whether its own settings say that no answer is lost; False where the user may not read them. A server
    that was a replica once is not durable: as a replica it answered before anything was on disk."""
    if isinstance(config, ReplyError) or _info_fields(info).get(b"master_replid2") != NO_FORMER_MASTER:
        return False
    settings = dict(zip(config[::2], config[1::2], strict=False))
    return all(settings.get(setting) == wanted for setting, wanted in DURABLE.items())


def _info_fields(info: bytes) -> dict[bytes, bytes]:
    return dict(chain.from_iterable([row.split(b":", 1)] for row in info.splitlines() if b":" in row))
