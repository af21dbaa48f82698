"""The shipped scripts on a real server, by its own clock: what is kept, for how long, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import Any

import hiredis
import pytest

from engines.redis.stored import record_of
from engines.redis.wire import Wire, plain
from holdfast.core.effects import NotApplied
from holdfast.engines.redis.codec import (
    decode,
    decode_all,
    encode,
    encode_in_order,
    encode_packed,
    encode_renew_batch,
    pack,
)
from holdfast.engines.redis.errors import error_for
from holdfast.engines.redis.keys import Keyspace, channel_of, key_of, name_of, scan_pattern, value_key_of
from holdfast.engines.resp.config import Address
from holdfast.errors import EngineUnavailable
from holdfast.lab.servers import Redis
from holdfast.rules.requests import (
    Absent,
    Acquire,
    Break,
    Broken,
    Busy,
    Done,
    Gone,
    Granted,
    Inspect,
    Mismatch,
    Queued,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Resize,
    SetValue,
    Snapshot,
    Watch,
    Withdraw,
    Withdrawn,
)
from support import wait_until
from support.servers import shared_redis

DAY_MS = 86_400_000
SLACK_MS = 20_000
_spaces = count()


def ask_for(nonce: str, client: str = "c1", **more: Any) -> Acquire:
    return Acquire(nonce, client, f"host/1/{nonce}", "lock", "exclusive", 30.0, wait=False)._replace(**more)


@pytest.fixture
def space() -> Keyspace:
    return Keyspace(f"scripts {next(_spaces)}")


@pytest.fixture
def wire(space: Keyspace) -> Iterator[Wire]:
    wire = Wire(shared_redis(), space.scripts)
    yield wire
    wire.close()


def server_us(wire: Wire) -> int:
    seconds, microseconds = wire.ask(b"TIME")
    return int(seconds) * 1_000_000 + int(microseconds)


def renew_batch(wire: Wire, space: Keyspace, steps: list[tuple[str, Request]]) -> list[Reply]:
    (batch,) = encode_renew_batch(space, steps)
    return decode_all(steps, wire.call(batch.command))


def in_order(wire: Wire, space: Keyspace, steps: list[tuple[str, Request]]) -> list[Reply]:
    return decode_all(steps, wire.call(encode_in_order(space, steps, stop_when_refused=True)))


# --- by the server's clock ----------------------------------------------------------------------


def test_a_token_is_the_servers_time_in_microseconds(wire: Wire, space: Keyspace) -> None:
    before = server_us(wire)
    granted = wire.apply(space, "a", ask_for("n1"))
    after = server_us(wire)
    assert isinstance(granted, Granted)
    assert before <= granted.token <= after
    (holder,) = record_of(wire.ask(b"GET", key_of(space, "a"))).holders
    assert holder.token == granted.token
    assert holder.since == granted.token / 1_000_000
    assert holder.expires_at == holder.since + 30.0


def test_tokens_grow_even_if_the_record_is_lost(wire: Wire, space: Keyspace) -> None:
    tokens = []
    for number in range(20):
        granted = wire.apply(space, "a", ask_for(f"n{number}"))
        assert isinstance(granted, Granted)
        tokens.append(granted.token)
        if number % 2:
            assert wire.apply(space, "a", Release(f"n{number}")) == Done()
        else:
            wire.ask(b"DEL", key_of(space, "a"))
    assert tokens == sorted(set(tokens))


def test_a_counter_that_runs_ahead_of_the_clock_goes_on(wire: Wire, space: Keyspace) -> None:
    wire.apply(space, "a", ask_for("n1"))
    wire.apply(space, "a", Release("n1"))
    idle = wire.ask(b"GET", key_of(space, "a"))
    ahead = 2**53 - 2
    wire.ask(b"SET", key_of(space, "a"), idle[:-8] + ahead.to_bytes(8, "big"))
    granted = wire.apply(space, "a", ask_for("n2"))
    assert isinstance(granted, Granted)
    assert granted.token == 2**53 - 1
    wire.apply(space, "a", Release("n2"))
    assert type(wire.apply(space, "a", ask_for("n3"))).__name__ == "Exhausted"


def test_a_lease_ends_by_itself(wire: Wire, space: Keyspace) -> None:
    first = wire.apply(space, "a", ask_for("n1", ttl=0.05))
    assert isinstance(first, Granted)
    wait_until(lambda: isinstance(wire.apply(space, "a", ask_for("n2", "c2")), Granted))
    second = wire.apply(space, "a", ask_for("n2", "c2"))
    assert isinstance(second, Granted)
    assert second.token > first.token
    assert wire.apply(space, "a", Renew("n1", 30.0)) == Gone("stolen")
    assert wire.apply(space, "a", Release("n1")) == Gone("stolen")
    assert wire.apply(space, "a", Release("n2")) == Done()


def test_a_waiter_that_does_not_come_is_passed(wire: Wire, space: Keyspace) -> None:
    """The turns are those of the rule; here only that they are in the server's time."""
    wire.apply(space, "a", ask_for("n1"))
    waiting = ask_for("n2", "c2", wait=True, fair=False)
    assert wire.apply(space, "a", waiting) == Queued(0, 5.0, ("c1",))
    before = server_us(wire)
    wire.apply(space, "a", Release("n1"))
    after = server_us(wire)
    (waiter,) = record_of(wire.ask(b"GET", key_of(space, "a"))).queue
    assert waiter.turn_at is not None
    assert before / 1_000_000 <= waiter.turn_at <= after / 1_000_000


# --- how long it is kept ------------------------------------------------------------------------


def lives_ms(wire: Wire, key: bytes) -> int:
    remaining: int = wire.ask(b"PTTL", key)
    return remaining


@pytest.mark.parametrize(
    ("requests", "beyond_ms"),
    [
        ([ask_for("n1")], 30_000),
        ([ask_for("n1", max_hold=3.0)], 3_000),
        ([ask_for("n1"), Release("n1")], 30_000),
        ([ask_for("n1"), ask_for("n2", wait=True), Withdraw("n2"), Release("n1")], 30_000),
        ([ask_for("n1"), Watch("w1", "c1"), Release("n1")], 5_000),
        ([ask_for("n1"), Release("n1", 60.0)], 60_000),
        ([Withdraw("n1", 60.0)], 60_000),
        ([ask_for("n1", ttl=1.0), ask_for("n2", wait=True)], 5_000),
        ([Watch("w1", "c1")], 5_000),
        ([ask_for("n1", ttl=1.0), Renew("n1", 100.0)], 100_000),
        ([ask_for("n1", ttl=1.0), Break(None, "stuck")], 3_601_000),
        ([Resize(2, 3)], 0),
    ],
    ids=str,
)
def test_a_record_is_kept_for_a_day_after_the_last_thing_in_it(
    requests: list[Request], beyond_ms: int, wire: Wire, space: Keyspace
) -> None:
    """Given back by the only one who had it, it is kept for as long as it would have been without."""
    for request in requests:
        wire.apply(space, "a", request)
    kept = lives_ms(wire, key_of(space, "a"))
    assert DAY_MS + beyond_ms - SLACK_MS < kept <= DAY_MS + beyond_ms + 2


def test_a_batch_keeps_records_as_long_as_what_it_renewed(wire: Wire, space: Keyspace) -> None:
    wire.apply(space, "a", ask_for("n1"))
    assert renew_batch(wire, space, [("a", Renew("n1", 500.0))]) == [Done()]
    assert DAY_MS + 480_000 < lives_ms(wire, key_of(space, "a")) <= DAY_MS + 500_002


def test_a_value_is_kept_as_long_as_it_was_given_for(wire: Wire, space: Keyspace) -> None:
    wire.apply(space, "a", ask_for("n1"))
    assert wire.apply(space, "a", SetValue("n1", b"\x00\xffdata", 100.0)) == Done()
    assert 80_000 < lives_ms(wire, value_key_of(space, "a")) <= 100_001
    wire.apply(space, "a", Release("n1"))
    told = wire.apply(space, "a", Inspect())
    assert isinstance(told, Snapshot)
    assert told.record.value is not None
    assert told.record.value.data == b"\x00\xffdata"
    assert wire.apply(space, "a", SetValue("n1", b"late", 100.0)) == Gone("expired")


def test_a_value_outlives_its_record_and_ends_by_itself(wire: Wire, space: Keyspace) -> None:
    wire.apply(space, "a", ask_for("n1"))
    wire.apply(space, "a", SetValue("n1", b"x" * 65_536, 0.2))
    wire.ask(b"DEL", key_of(space, "a"))
    told = wire.apply(space, "a", Inspect())
    assert isinstance(told, Snapshot)
    assert told.record.kind is None
    assert told.record.value is not None
    assert len(told.record.value.data) == 65_536
    wait_until(lambda: wire.ask(b"EXISTS", value_key_of(space, "a")) == 0)


# --- the wire -----------------------------------------------------------------------------------


def test_both_protocols_say_the_same(wire: Wire, space: Keyspace) -> None:
    with closing(Wire(shared_redis(), resp=3)) as newer:
        steps: list[Request] = [
            ask_for("n1", metadata={"ключ": "значение"}, max_hold=60.0),
            ask_for("n2", "c2"),
            ask_for("n2", "c2", wait=True),
            Resize(1, 2),
            Break(None, "wegen ☃"),
            Renew("n1", 1.0),
            Inspect(),
            Refresh("n9"),
            Withdraw("n2"),
        ]
        kinds = [
            [type(each.apply(space, name, step)) for step in steps]
            for each, name in ((wire, "a"), (newer, "b"))
        ]
        assert kinds[0] == kinds[1]
        assert kinds[0] == [Granted, Busy, Queued, Mismatch, Broken, Gone, Snapshot, Absent, Withdrawn]


def test_wake_ups_come_to_the_channel_of_the_client(wire: Wire, space: Keyspace) -> None:
    with closing(Wire(shared_redis())) as subscriber:
        subscriber.ask(b"SUBSCRIBE", channel_of(space, "c2", "a"))
        wire.apply(space, "a", ask_for("n1"))
        wire.apply(space, "a", ask_for("n2", "c2", wait=True, fair=False))
        wire.apply(space, "a", Release("n1"))
        assert subscriber.read() == [b"message", channel_of(space, "c2", "a"), b"n2"]


def test_names_are_found_by_scanning(wire: Wire, space: Keyspace) -> None:
    names = ["a", "a*b", "a[b]", "a\\b", "ab{c}", "}a", "%a", "é", "b", "A?"]
    for name in names:
        wire.apply(space, name, ask_for("n1"))
    wire.apply(space, "value", ask_for("n1"))
    wire.apply(space, "value", SetValue("n1", b"x", 10.0))
    wire.ask(b"DEL", key_of(space, "value"))
    for prefix in ("", "a", "a*", "a[", "a\\", "ab{", "}", "%", "é", "zzz", "val"):
        keys: list[bytes] = []
        cursor = b"0"
        while True:
            cursor, some = wire.ask(b"SCAN", cursor, b"MATCH", scan_pattern(space, prefix), b"COUNT", b"1000")
            keys += some
            if cursor == b"0":
                break
        told = {found for key in keys if (found := name_of(space, key)) and found.startswith(prefix)}
        assert told == {name for name in [*names, "value"] if name.startswith(prefix)}, prefix


def test_what_a_user_of_the_server_needs(space: Keyspace) -> None:
    """These rights and no others; without the right to publish, only the wake-ups are missing."""
    rights = "~holdfast:* +evalsha +script|load +get +set +time +auth"
    users = {"app": f"on >secret {rights} &holdfast:* +publish", "mute": f"on >secret {rights} resetchannels"}
    with Redis(acl=users) as server:
        for user in users:
            with closing(Wire(server)) as wire:
                wire.ask(b"AUTH", user.encode(), b"secret")
                for script in space.scripts.values():
                    wire.ask(b"SCRIPT", b"LOAD", script.source)
                assert isinstance(wire.apply(space, user, ask_for("n1")), Granted)
                assert isinstance(wire.apply(space, user, ask_for("n2", wait=True)), Queued)
                assert renew_batch(wire, space, [(user, Renew("n1", 1.0))]) == [Done()]
                assert wire.apply(space, user, Release("n1")) == Done()
                assert isinstance(wire.apply(space, user, ask_for("n2", wait=True)), Granted)


# --- what is refused ----------------------------------------------------------------------------

UNREADABLE = {
    "newer": (
        b"\x02\x00rest",
        "holds a record of schema 2, this version reads up to 1: upgrade holdfast here",
    ),
    "other": (b"plain text", "holds something that is no record of Holdfast under the key"),
    "empty": (b"", "holds something that is no record of Holdfast under the key"),
    "cut": (b"\x01\x02\xa4lo", "holds something that is no record of Holdfast under the key"),
    "held": (
        b"\x01\x01\xa4lock\x00\x00\xcf\x00",
        "holds something that is no record of Holdfast under the key",
    ),
    "idle": (
        b"\x01\x00\xa4lock\x00\x00\xcf\x00",
        "holds something that is no record of Holdfast under the key",
    ),
}
REQUESTS: list[Request] = [ask_for("n1"), Release("n1"), Renew("n1", 1.0), Inspect(), Break(None, "x")]


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_record_that_cannot_be_read_is_left_alone(what: str, wire: Wire, space: Keyspace) -> None:
    raw, complaint = UNREADABLE[what]
    wire.ask(b"SET", key_of(space, "a"), raw)
    for request in REQUESTS:
        with pytest.raises(hiredis.ReplyError) as refused:
            wire.apply(space, "a", request)
        error = error_for(str(refused.value), Address("host", 1))
        assert isinstance(error, EngineUnavailable)
        assert str(error).startswith(f"Redis {complaint}")
        assert "user_script" not in str(error)
    assert wire.ask(b"GET", key_of(space, "a")) == raw


def test_errors_of_the_server_are_not_taken_for_ours() -> None:
    for message in ("OOM command not allowed", "NOSCRIPT No matching script. Please use EVAL."):
        assert isinstance(error_for(message, Address("host", 1)), NotApplied)


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_batch_renews_the_others(what: str, wire: Wire, space: Keyspace) -> None:
    for name in ("a", "b"):
        wire.apply(space, name, ask_for("n1"))
    wire.ask(b"SET", key_of(space, "bad"), UNREADABLE[what][0])
    wire.ask(b"LPUSH", key_of(space, "list"), b"x")
    told = renew_batch(
        wire,
        space,
        [
            ("a", Renew("n1", 500.0)),
            ("bad", Renew("n1", 500.0)),
            ("list", Renew("n1", 500.0)),
            ("b", Renew("n1", 500.0)),
            ("bad", Refresh("n1")),
        ],
    )
    assert [told[0], told[3], told[4]] == [Done(), Done(), Absent()]
    for lost in told[1:3]:
        assert isinstance(lost, Gone)
        assert lost.reason == "stolen"
    assert UNREADABLE[what][1].removeprefix("holds ") in str(told[1])
    assert lives_ms(wire, key_of(space, "b")) > DAY_MS + 400_000


def test_several_in_order_change_nothing_if_one_cannot_be_read(wire: Wire, space: Keyspace) -> None:
    wire.ask(b"SET", key_of(space, "b"), UNREADABLE["newer"][0])
    with pytest.raises(hiredis.ReplyError, match="HOLDFAST holds a record of schema 2"):
        in_order(wire, space, [("a", ask_for("n1")), ("b", ask_for("n2"))])
    assert wire.ask(b"EXISTS", key_of(space, "a")) == 0


def test_a_full_server_grants_nothing_and_takes_back_everything(space: Keyspace) -> None:
    settings = {"maxmemory-policy": "noeviction"}
    with Redis(maxmemory="8mb", settings=settings) as server, closing(Wire(server, space.scripts)) as wire:
        for name in ("a", "b", "c"):
            assert isinstance(wire.apply(space, name, ask_for("n1")), Granted)
        assert isinstance(wire.apply(space, "c", ask_for("n2", wait=True)), Queued)
        wire.ask(b"CONFIG", b"SET", b"maxmemory", b"1mb")
        for request in (ask_for("n2"), SetValue("n1", b"x", 1.0), Watch("w1", "c1")):
            with pytest.raises(hiredis.ReplyError, match="OOM"):
                wire.apply(space, "a", request)
        assert renew_batch(wire, space, [("a", Renew("n1", 60.0)), ("c", Refresh("n2"))])[0] == Done()
        assert wire.apply(space, "a", Release("n1")) == Done()
        assert isinstance(wire.apply(space, "b", Break(None, "full")), Broken)
        assert wire.apply(space, "c", Release("n1")) == Done()
        assert isinstance(wire.apply(space, "c", Inspect()), Snapshot)


def test_a_replica_refuses_before_anything_happens(space: Keyspace) -> None:
    with (
        Redis() as master,
        Redis(replica_of=master) as replica,
        closing(Wire(replica, space.scripts)) as wire,
    ):
        for request in (ask_for("n1"), Release("n1"), Renew("n1", 1.0)):
            with pytest.raises(hiredis.ReplyError, match="READONLY"):
                wire.apply(space, "a", request)


# --- many ---------------------------------------------------------------------------------------


def calls(wire: Wire) -> dict[str, int]:
    """What scripts have called since the last reset, and how often."""
    stats: str = wire.ask(b"INFO", b"commandstats").decode()
    found = re.findall(r"cmdstat_(\w+):calls=(\d+)", stats)
    return {name: int(count) for name, count in found if name not in ("info", "config", "evalsha")}


def test_five_hundred_renewals_are_one_call(wire: Wire, space: Keyspace) -> None:
    steps: list[tuple[str, Request]] = [(f"n{number}", Renew(f"a{number}", 30.0)) for number in range(500)]
    wire.ask_all(
        [
            encode_packed(space, name, ask_for(request.nonce))
            for name, request in steps
            if isinstance(request, Renew)
        ]
    )
    wire.ask(b"CONFIG", b"RESETSTAT")
    assert renew_batch(wire, space, steps) == [Done()] * 500
    assert calls(wire) == {"time": 1, "get": 500, "set": 500}


def test_the_common_case_is_short(wire: Wire, space: Keyspace) -> None:
    """Acquire and release of a free lock: the record is read and written once each."""
    for request in (ask_for("a1"), Release("a1")):
        wire.ask(b"CONFIG", b"RESETSTAT")
        wire.ask_all([encode_packed(space, "n", request)])
        assert calls(wire) == {"time": 1, "get": 1, "set": 1}


def test_twenty_thousand_wait(wire: Wire, space: Keyspace) -> None:
    """More than Lua can have on its stack at once."""
    waiting = 20_000
    wire.apply(space, "a", ask_for("holder"))
    wire.ask(b"EVAL", CROWD, b"1", key_of(space, "a"), b"%d" % waiting)
    asked = ask_for("late", "c2", wait=True)
    queued = wire.apply(space, "a", asked)
    assert isinstance(queued, Queued)
    assert queued.position == waiting
    refreshes: list[tuple[str, Request]] = [("a", Refresh(f"n{number}")) for number in range(1, 501)]
    told = renew_batch(wire, space, [("a", Renew("holder", 30.0)), *refreshes[:499]])
    assert told[0] == Done()
    assert all(isinstance(one, Queued) for one in told[1:])
    assert wire.apply(space, "a", Release("holder")) == Done()
    assert isinstance(wire.apply(space, "a", ask_for("n1", wait=True)), Granted)
    snapshot = wire.apply(space, "a", Inspect())
    assert isinstance(snapshot, Snapshot)
    assert len(snapshot.record.queue) == waiting
    assert isinstance(wire.apply(space, "a", Withdraw("late")), Withdrawn)


CROWD = b"""
local values = { cmsgpack.unpack(redis.call('GET', KEYS[1])) }
local now, queue, deadlines = values[8], {}, {}
for number = 1, tonumber(ARGV[1]) do
  queue[number] = cmsgpack.pack('n' .. number, 'exclusive', 'c2', 'host/1/crowd', now)
  deadlines[number] = now + 1000
end
local holder = { unpack(values, 7) }
local crowded = cmsgpack.pack(1, 2, 'lock', 0, 0, values[6], { holder }, queue, deadlines, {}, {}, {})
redis.call('SET', KEYS[1], crowded)
"""


def test_a_large_semaphore(wire: Wire, space: Keyspace) -> None:
    limit = 500
    asks = [ask_for(f"n{number}", kind="semaphore", mode="permit", limit=limit) for number in range(limit)]
    last = decode(asks[-1], wire.ask_all([encode_packed(space, "a", ask) for ask in asks])[-1])
    assert isinstance(last, Granted)
    assert len(last.peers) == limit - 1
    assert isinstance(wire.apply(space, "a", asks[0]._replace(nonce="more")), Busy)
    assert wire.apply(space, "a", Release("n0")) == Done()
    assert wire.ask_all([pack(encode(space, "a", Inspect())), plain(b"PING")])[1] == b"PONG"
