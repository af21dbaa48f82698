"""Records as they are stored: what the short ways through the scripts write, and what is no record at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import hiredis
import pytest

from engines.redis.wire import Wire
from engines.redlock.twins import BEGINNING, DATABASE, bulk, scripts_with
from holdfast.engines.redlock import codec
from holdfast.engines.redlock.codec import encode
from holdfast.engines.redlock.keys import MARK_KEY, Keyspace
from holdfast.engines.resp.scripts import Script
from holdfast.rules import node
from rules.node_moves import EXPECTED
from support.servers import shared_redis

ASK = node.Acquire("me.1", BEGINNING, 30_000_000, 0, "me", "host/1/main", "")
RELEASE = node.Release("me.1", 60_000_000)
IDLE_BYTES = 12
KEY = Keyspace("records").key_of("x")


class Asker:
    """One who asks a node whose clock stands still about one name."""

    def __init__(self, wire: Wire, scripts: Mapping[str, Script]) -> None:
        self.wire = wire
        self._scripts = scripts
        self._space = Keyspace("records")

    def fresh(self, longest: int) -> None:
        """The name is unused, and this is the longest ttl that any client requested."""
        self.wire.ask(b"FLUSHDB")
        self.wire.ask(b"SET", b"clock:node", b"%d" % BEGINNING)
        self.wire.ask(b"HSET", MARK_KEY, b"ready", EXPECTED.encode(), b"longest", b"%d" % longest)

    def ask(self, request: Any) -> Any:
        with mock.patch.object(codec, "load", return_value=self._scripts):
            (packed,) = encode(self._space, (("x", request),))
        (told,) = self.wire.ask_all([packed.with_mark(bulk(EXPECTED))])
        return told

    def stored(self) -> tuple[bytes, int]:
        """The record, and when it goes."""
        return self.wire.ask(b"GET", KEY), self.wire.ask(b"PTTL", KEY)


@contextmanager
def asking(scripts: Mapping[str, Script]) -> Iterator[Asker]:
    wire = Wire(shared_redis(), scripts)
    try:
        wire.ask(b"SELECT", DATABASE)
        yield Asker(wire, scripts)
    finally:
        wire.close()


@pytest.fixture
def asker() -> Iterator[Asker]:
    with asking(scripts_with()) as asker:
        yield asker


def test_a_free_lock_is_given_and_given_back_without_a_closer_look() -> None:
    def no_closer_look(text: str) -> str:
        return text.replace("local function read(", "error('a closer look')\nlocal function read(")

    with asking(scripts_with(no_closer_look)) as asker:
        asker.fresh(longest=ASK.ttl)
        for number in (BEGINNING, BEGINNING + 1):
            assert asker.ask(ASK) == number
            assert asker.ask(RELEASE) == 1
        asker.fresh(longest=ASK.ttl - 1)
        with pytest.raises(hiredis.ReplyError, match="a closer look"):
            asker.ask(ASK)


@pytest.mark.parametrize("ttl", [1, 200, 50_000, 30_000_000, 86_400_000_000])
@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
def test_the_short_way_stores_what_the_long_way_stores(size: int, ttl: int, asker: Asker) -> None:
    ask = ASK._replace(ttl=ttl, client="c" * size, label="ä" * (size // 2), metadata="m" * size)
    found = []
    for longest in (0, ttl):
        asker.fresh(longest)
        assert asker.ask(ask) == BEGINNING
        found.append(asker.stored())
    (long, long_ms), (short, short_ms) = found
    assert short == long
    assert abs(short_ms - long_ms) < 20_000
    assert asker.ask(RELEASE) == 1
    assert len(asker.stored()[0]) == IDLE_BYTES


NEWER = "holds a record of schema 2, this version reads up to 1: upgrade holdfast here"
OTHER = "holds something that is no record of Holdfast under the key"
UNREADABLE = {
    "newer": (b"\x02\x05\xc2\xc2", NEWER),
    "newer and held": (b"\x02\x05\xc2\xa4me.1\x05\x05\xcf\x00\x1f\xff\xff\xff\xff\xff\xff", NEWER),
    "other": (b"\xa9some text", OTHER),
    "empty": (b"", OTHER),
    "cut": (b"\x01\xcf\x00\x1f", OTHER),
    "cut in its claim": (b"\x01\x05\xc2\xa4me.1\x05\x05\xcf\x00", OTHER),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_cannot_be_read_is_left_alone(what: str, asker: Asker) -> None:
    raw, complaint = UNREADABLE[what]
    asker.fresh(longest=ASK.ttl)
    asker.wire.ask(b"SET", KEY, raw)
    for request in (ASK, RELEASE, node.Renew("me.1", 1), node.Inspect()):
        with pytest.raises(hiredis.ReplyError, match=f"^HOLDFAST {complaint}"):
            asker.ask(request)
    assert asker.wire.ask(b"GET", KEY) == raw
