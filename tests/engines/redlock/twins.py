"""The rule of a node and its translation side by side: the same requests at the same moments, all compared.

A sequence is first run through the Python rule, then sent to the server in one write, since what is asked
next depends on the rule's record alone. The scripts are the shipped ones, but that the test sets their clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple
from unittest import mock

from engines.redis.wire import Wire, plain
from holdfast.engines.redlock import codec
from holdfast.engines.redlock.codec import decode, encode
from holdfast.engines.redlock.keys import MARK_KEY, Keyspace
from holdfast.engines.redlock.scripts import NAMES, assemble
from holdfast.engines.resp.config import Address
from holdfast.engines.resp.scripts import Script, inline_constants, make_script
from holdfast.lab.servers import Redis
from holdfast.rules import node
from rules.node_moves import READY, NodeMove, made

__all__ = ["Change", "Deed", "Translation", "deeds_of", "differs", "scripts_with", "told_by_rule"]

BEGINNING: Final = 1_700_000_000_000_000
CLOCK: Final = "local now = tonumber(redis.call('GET', 'clock:node'))\n"
DATABASE: Final = b"9"
SLACK_MS: Final = 20_000
"""How long a sequence may take on a busy machine, as seen by what remains of a record's life."""
ADDRESS: Final = Address("test", 1)

Change = Callable[[str], str]
"""Makes another text of the text of a script."""


class Deed(NamedTuple):
    """What is asked at one moment."""

    now: int
    request: Any
    expected: str


class Told(NamedTuple):
    """What came of it."""

    reply: Any
    stands: Any
    """What one who looks sees afterwards."""
    mark: node.Mark
    lives_ms: int | None
    """How long the record is kept from here on; None: it was not stored."""


def scripts_with(change: Change = lambda text: text) -> dict[str, Script]:
    """The shipped scripts with a clock that the test sets, and changed further."""
    scripts = {}
    for name in NAMES:
        text = assemble(name)
        assert text.count(assemble("clock")) == (name != "change_mark"), "a script reads the clock once"
        scripts[name] = make_script(name, inline_constants(change(text.replace(assemble("clock"), CLOCK))))
    return scripts


def deeds_of(moves: Sequence[NodeMove]) -> list[Deed]:
    now, mark, record = BEGINNING, READY, node.UNUSED
    deeds = []
    for move in moves:
        now += move.pause
        deed = Deed(now, made(move, record.fence, now), move.expected)
        step = node.apply(mark, record, deed.request, deed.expected, now)
        mark, record = step.mark, step.record
        deeds.append(deed)
    return deeds


def told_by_rule(deeds: Sequence[Deed]) -> Iterator[Told]:
    mark, record = READY, node.UNUSED
    for now, request, expected in deeds:
        before = record
        mark, record, reply = node.apply(mark, record, request, expected, now)
        stands = node.apply(mark, record, node.Inspect(), mark.ready, now).reply
        yield Told(reply, stands, mark, None if record is before else lives_ms(record, now))


def lives_ms(record: node.NodeRecord, now: int) -> int:
    ends = [now, *(ended.forget_at for ended in record.tombstones)]
    if record.claim is not None:
        ends.append(record.claim.expires_at)
    return ceil((max(ends) - now) / 1000) + node.RETENTION_US // 1000


class Translation:
    """The same on a server."""

    _spaces = itertools.count()

    def __init__(self, server: Redis, scripts: Mapping[str, Script]) -> None:
        self._scripts = scripts
        self._wire = Wire(server, scripts)
        self._wire.ask(b"SELECT", DATABASE)

    def close(self) -> None:
        self._wire.close()

    def told(self, deeds: Sequence[Deed]) -> Iterator[Told]:
        """Of a name that nobody used before."""
        space = Keyspace(f"twins {next(self._spaces)}")
        name = "näme"
        with mock.patch.object(codec, "load", return_value=self._scripts):
            sent = [self._mark(READY)]
            for deed in deeds:
                sent += self._sent(space, name, deed)
        raw = iter(self._wire.ask_all(sent))
        next(raw)
        for deed in deeds:
            next(raw)
            reply, stands = ((name, deed.request),), ((name, node.Inspect()),)
            (first,) = answered(space, reply, [next(raw)])
            (look,) = answered(space, stands, [next(raw)])
            mark = codec._mark(*next(raw))
            yield Told(first, look, mark, next(raw))

    def _mark(self, mark: node.Mark) -> bytes:
        words = (b"ready", mark.ready.encode(), b"primed", mark.primed.encode(), b"longest", b"0")
        return plain(b"HSET", MARK_KEY, *words)

    def _sent(self, space: Keyspace, name: str, deed: Deed) -> list[bytes]:
        (asked,) = encode(space, ((name, deed.request),))
        (look,) = encode(space, ((name, node.Inspect()),))
        return [
            plain(b"SET", b"clock:node", b"%d" % deed.now),
            asked.with_mark(bulk(deed.expected)),
            look.with_mark(bulk(READY.ready)),
            plain(b"HMGET", MARK_KEY, b"ready", b"primed", b"rejoins", b"longest"),
            plain(b"PTTL", space.key_of(name)),
        ]


def answered(space: Keyspace, batch: Any, raw: list[Any]) -> tuple[Any, ...]:
    told = decode(space, batch, raw, ADDRESS)
    assert isinstance(told, tuple)
    return told


def bulk(text: str) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


def differs(codec: Translation, deeds: Sequence[Deed]) -> str:
    """Where the two part; empty: they do not."""
    for deed, rule, told in zip(deeds, told_by_rule(deeds), codec.told(deeds), strict=True):
        if rule[:3] != told[:3]:
            return f"{deed}\nrule:   {rule}\nscript: {told}"
        if rule.lives_ms is not None and not 0 <= rule.lives_ms - (told.lives_ms or 0) < SLACK_MS:
            return f"{deed}\nkept for {told.lives_ms} ms, and not for {rule.lives_ms} ms"
    return ""
