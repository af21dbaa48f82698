"""Questions to a node as commands of its server, and the server's replies as the node's answers.

What the mark of the node must say ends with the run of the server at the other end of a connection. So that
one argument differs from node to node: a question is packed into what stands before it and what behind it.
And when one lock is taken and given back again and again, only the owner and the hint differ: the rest of
those two commands is kept.
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
from ..redis.config import Address
from ..resp import codec
from ..resp.errors import failure_of
from ..resp.handshake import evicting
from ..resp.interfaces import packed_command
from .errors import permission_needed
from .keys import MARK_KEY, RECORDS, Space, escaped
from .scripts import load

__all__ = [
    "PACKERS",
    "Packed",
    "answers",
    "loading_commands",
    "lone_answer",
    "missing_scripts",
    "pack",
    "run_of_info",
]

PACKED_AT_MOST: Final = 10_000
"""So many beginnings and ends of commands are kept for one space."""

PAGE: Final = b"500"
"""How many keys of the server are looked at for one page."""

DURABLE: Final = {b"appendonly": b"yes", b"appendfsync": b"always", b"no-appendfsync-on-rewrite": b"no"}
NO_FORMER_MASTER: Final = b"0" * 40

_new: Final = tuple.__new__
_RETENTION_MS: Final = node.RETENTION_US // 1000
_KEPT: Final = node.Kept()
_KEPT_ALONE: Final = (_KEPT,)
_INFO: Final = packed_command(b"INFO", b"server", b"replication", b"memory")
_CONFIG: Final = packed_command(b"CONFIG", b"GET", *DURABLE)
_MARK: Final = packed_command(b"HMGET", MARK_KEY, b"ready", b"primed", b"rejoins", b"longest")
_HELLO: Final = 3
"""So many commands ask a node what it says of itself."""


class Packed(NamedTuple):
    """One question: its commands but for what the mark must say, which comes between the two parts."""

    before: bytes
    after: bytes | None
    """None: nothing comes in between."""
    replies: int
    number: int = 0
    """What nearly every node replies to it, where that is known before."""
    usual: bytes | None = None
    """This reply as it comes; None: it is not known."""
    told: tuple[Any, ...] = ()
    """What it means, if nothing else was asked."""

    def bytes_for(self, expected: bytes) -> bytes:
        return self.before if self.after is None else b"".join((self.before, expected, self.after))


def pack(space: Space, batch: Batch) -> list[Packed]:
    return [PACKERS[question.__class__](space, name, question) for name, question in batch]


def loading_commands() -> tuple[bytes, int]:
    """The commands that have a server know all scripts, and how many replies that makes."""
    scripts = load().values()
    return b"".join([packed_command(b"SCRIPT", b"LOAD", each.source) for each in scripts]), len(scripts)


# --- questions ----------------------------------------------------------------------------------


def _bulk(part: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(part), part)


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _number(number: int) -> bytes:
    return b"%d" % number


def _script(name: str, key: bytes, *args: bytes) -> Packed:
    """A script that looks at the mark before it does anything."""
    sha1 = load()[name].sha1
    before = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n2\r\n" % (len(args) + 6, sha1)
    return Packed(before + _bulk(key) + _bulk(MARK_KEY), b"".join(map(_bulk, args)), 1)


def _markless(name: str, keys: Sequence[bytes], args: Sequence[bytes]) -> Packed:
    """A script that does its work on any node."""
    sha1 = load()[name].sha1
    return Packed(packed_command(b"EVALSHA", sha1, b"%d" % len(keys), *keys, *args), None, 1)


def _acquire(space: Space, name: str, ask: node.Acquire) -> Packed:
    owner, hint = ask.owner.encode("utf-8", "surrogatepass"), b"%d" % ask.hint
    fresh = b"$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(owner), owner, len(hint), hint)
    shape = name, ask[2:]
    kept = space.packed.get(shape)
    if kept is None:
        whole = _script(
            "acquire",
            space.key_of(name),
            owner,
            hint,
            _number(ask.ttl),
            _number(ceil(ask.ttl / 1000) + _RETENTION_MS),
            _end_of_claim(ask),
            *_rare(ask),
        )
        kept = whole.before, cast(bytes, whole.after)[len(fresh) :]
        if not ask.metadata and not ask.instead_of and not ask.token:
            _keep(space, shape, kept)
    told = (_new(node.Issued, (ask.hint,)),)
    return _new(Packed, (kept[0], fresh + kept[1], 1, ask.hint, b":%b\r\n" % hint, told))


def _end_of_claim(ask: node.Acquire) -> bytes:
    """What stands behind the time it runs out, as the script writes it (``scripts/rules/record.lua``)."""
    return b"".join(
        (
            codec.integer(ask.ttl),
            codec.integer(0),  # until: the script knows the time
            codec.text(_text(ask.client)),
            codec.text(_text(ask.label)),
            codec.text(_text(ask.metadata)),
            codec.integer(ask.token),
        )
    )


def _rare(ask: node.Acquire) -> tuple[bytes, ...]:
    """Nothing where a free lock can be given away without a closer look."""
    if not ask.max_hold and not ask.instead_of:
        return ()
    return _number(ask.max_hold), _text(ask.note), *map(_text, ask.instead_of)


def _release(space: Space, name: str, ask: node.Release) -> Packed:
    owner = ask.owner.encode("utf-8", "surrogatepass")
    shape = name, ask.linger
    kept = space.packed.get(shape)
    if kept is None:
        linger = _number(ask.linger)
        anybody = _markless("release", (space.key_of(name),), (b"", linger)).before
        kept = anybody[: -len(_bulk(b"") + _bulk(linger))], _bulk(linger)
        _keep(space, shape, kept)
    whole = b"%b$%d\r\n%b\r\n%b" % (kept[0], len(owner), owner, kept[1])
    return _new(Packed, (whole, None, 1, 1, b":1\r\n", _KEPT_ALONE))


def _keep(space: Space, shape: object, ends: tuple[bytes, bytes]) -> None:
    if len(space.packed) >= PACKED_AT_MOST:
        space.packed.clear()
    space.packed[shape] = ends


def _change(what: bytes) -> Callable[[Space, str, Any], Packed]:
    def packed(space: Space, name: str, ask: Any) -> Packed:
        was, longest = getattr(ask, "was", ""), getattr(ask, "longest", 0)
        return _script("change", MARK_KEY, what, _text(ask.mark), _text(was), _number(longest))

    return packed


def _page(pattern: bytes, cursor: str) -> Packed:
    return _script("page", MARK_KEY, pattern, _text(cursor or "0"), PAGE)


def _raise(space: Space, name: str, ask: node.Raise) -> Packed:
    keys = [RECORDS + _text(record) for record, _ in ask.fences]
    return _markless("raise", keys, [_number(fence) for _, fence in ask.fences])


PACKERS: Final[dict[type, Callable[[Space, str, Any], Packed]]] = {
    node.Acquire: _acquire,
    node.Stamp: lambda space, name, ask: _script(
        "stamp", space.key_of(name), _text(ask.owner), _number(ask.number)
    ),
    node.Release: _release,
    node.Renew: lambda space, name, ask: _script(
        "renew", space.key_of(name), _text(ask.owner), _number(ask.ttl)
    ),
    node.Export: lambda space, name, ask: _script(
        "export", space.key_of(name), _text(ask.owner), _number(ask.token), _text(ask.seal)
    ),
    node.Adopt: lambda space, name, ask: _script(
        "adopt", space.key_of(name), _text(ask.owner), _text(ask.client), _text(ask.label), _text(ask.seal)
    ),
    node.Look: lambda space, name, ask: _script("look", space.key_of(name)),
    node.List: lambda space, name, ask: _page(space.pattern_of(ask.prefix), ask.cursor),
    node.Fences: lambda space, name, ask: _page(escaped(RECORDS) + b"*", ask.cursor),
    node.Raise: _raise,
    node.Prime: _change(b"prime"),
    node.Start: _change(b"start"),
    node.Trust: _change(b"trust"),
    node.Rejoin: _change(b"rejoin"),
    node.Admit: _change(b"admit"),
    node.Hello: lambda space, name, ask: Packed(_INFO + _CONFIG + _MARK, None, _HELLO),
}


# --- answers ------------------------------------------------------------------------------------


def answers(
    space: Space, batch: Batch, raw: Sequence[Any], address: Address
) -> tuple[Any, ...] | TransientError:
    """What the replies to a whole batch say; trouble, if one of them is an error."""
    told = []
    place = 0
    for _, question in batch:
        if question.__class__ is node.Hello:
            some = raw[place : place + _HELLO]
            place += _HELLO
            error = next((each for each in (some[0], some[2]) if isinstance(each, ReplyError)), None)
            if error is not None:
                return _trouble([error], address)
            told.append(_greeting(*some))
        else:
            if isinstance(raw[place], ReplyError):
                return _trouble(raw, address)
            told.append(_answer(space, question, raw[place]))
            place += 1
    return tuple(told)


def missing_scripts(raw: Sequence[Any]) -> list[int]:
    """Which of the replies say that the server has forgotten our scripts."""
    return [
        n for n, each in enumerate(raw) if isinstance(each, ReplyError) and str(each).startswith("NOSCRIPT")
    ]


def _trouble(raw: Sequence[Any], address: Address) -> TransientError:
    """Nothing happened where every reply is an error; a node that is no use to us may be one of many."""
    error = next(each for each in raw if isinstance(each, ReplyError))
    told = str(failure_of(str(error), address, permission_needed()))
    return NotApplied(told) if all(isinstance(each, ReplyError) for each in raw) else OutcomeUnknown(told)


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
    ended = [node.Over(_string(o), r.decode(), _string(n), forget_at) for o, r, n, forget_at in over]
    return node.NodeRecord(fence, _claim(claim), tuple(ended))


def lone_answer(question: Any, number: int) -> tuple[Any]:
    """``answers`` to a batch of one question that was answered by a number: most are."""
    if question.__class__ is node.Release:
        return _KEPT_ALONE
    return (_numbered(question, number),)


def _numbered(question: Any, number: int) -> Any:
    if question.__class__ is node.Acquire or question.__class__ is node.Stamp:
        return node.Issued(number)
    return node.Marked(node.FRESH) if question.__class__ is node.Raise else _KEPT


def _answer(space: Space, question: Any, raw: Any) -> Any:
    if raw.__class__ is int:
        return _numbered(question, raw)
    if raw[0] == b"page":
        return _read_page(space, question, *raw[1:])
    return _DECODERS[raw[0]](*raw[1:])


def _read_page(space: Space, question: Any, now: int, cursor: bytes, found: list[list[Any]]) -> Any:
    after = "" if cursor == b"0" else cursor.decode()
    if question.__class__ is node.Fences:
        fences = [(_string(key[len(RECORDS) :]), fence) for key, fence, _, _ in found]
        return node.FencePage(tuple(fences), after)
    named = [(space.name_of(key), _record(*rest)) for key, *rest in found]
    return node.NamePage(tuple([(name, record) for name, record in named if name is not None]), now, after)


_DECODERS: Final[dict[bytes, Callable[..., Any]]] = {
    b"taken": lambda now, claim: node.Taken(_claim(claim), now),  # type: ignore[arg-type]  # there is one
    b"lost": lambda reason, note: node.Lost(reason.decode(), _string(note)),
    b"unready": lambda mark: node.Unready(_string(mark)),
    b"skewed": node.Skewed,
    b"spent": node.Spent,
    b"view": lambda now, *record: node.View(_record(*record), now),
    b"marked": lambda ready, primed, rejoins, longest: node.Marked(_mark(ready, primed, rejoins, longest)),
}


def _mark(
    ready: bytes | None, primed: bytes | None, rejoins: bytes | None, longest: bytes | int | None
) -> node.Mark:
    return node.Mark(
        _string(ready or b""), _string(primed or b""), _string(rejoins or b""), int(longest or 0)
    )


# --- what a node says of itself -----------------------------------------------------------------


def _greeting(info: bytes, config: Any, mark: list[Any]) -> node.Greeting:
    policy = evicting(info)
    complaint = f"it throws keys away when its memory is full (maxmemory-policy {policy})" if policy else ""
    return node.Greeting(run_of_info(info), _mark(*mark), _is_durable(info, config), complaint)


def run_of_info(info: bytes) -> str:
    return _facts(info).get(b"run_id", b"").decode("ascii", "replace")


def _is_durable(info: bytes, config: Any) -> bool:
    """By its own settings; who may not ask for them does not know. What was a replica once has never been
    asked to remember anything before it answered."""
    if isinstance(config, ReplyError) or _facts(info).get(b"master_replid2") != NO_FORMER_MASTER:
        return False
    told = dict(zip(config[::2], config[1::2], strict=False))
    return all(told.get(setting) == wanted for setting, wanted in DURABLE.items())


def _facts(info: bytes) -> dict[bytes, bytes]:
    return dict(chain.from_iterable([row.split(b":", 1)] for row in info.splitlines() if b":" in row))
