"""The guard in Redis: the rule in Lua against the rule, and what callers meet."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import NoPermissionError, OutOfMemoryError, ResponseError

import holdfast
from fencing.test_redis_arguments import Untouched
from holdfast import HoldfastError, InvalidArgument, LockLost, NotHeld, StaleToken
from holdfast.fencing import AsyncFencedRedis, FencedRedis, Grant
from holdfast.fencing.mark_text import mark_text
from holdfast.fencing.redis import fence_key
from holdfast.fencing.redis_scripts import fenced, plain
from holdfast.fencing.rule import Mark, Refuse, after, decide, moved
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import Redis
from holdfast.model import Fence
from support import run_python
from support.servers import shared_redis, shared_redis_cluster
from support.thorough import examples

pytestmark = [pytest.mark.realtime, pytest.mark.engine("redis")]

NOW = time.time_ns() // 1000
"""A token of 16 digits, as an engine with a clock issues them."""
OLD, NEW = Fence("s", NOW, "old"), Fence("s", NOW + 1, "new")


class Awaited:
    """An asyncio guard or client, called as if it blocked."""

    def __init__(self, target: Any, run: Callable[[Any], Any]) -> None:
        self._target = target
        self._run = run

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            result = found(*arguments, **options)
            return self._run(result) if inspect.isawaitable(result) else result

        return call


class Redises:
    """Clients of redis-py, for threads or for asyncio, and guards over them."""

    def __init__(self, driver: str, stack: ExitStack, **options: Any) -> None:
        self._awaits = driver == "asyncio"
        self._stack = stack
        self._options = options
        if self._awaits:
            self._run = stack.enter_context(asyncio.Runner()).run

    def connect(self, url: str, **options: Any) -> Any:
        options = {**self._options, **options}
        if not self._awaits:
            return self._stack.enter_context(redis.Redis.from_url(url, **options))
        client = redis.asyncio.Redis.from_url(url, **options)
        self._stack.callback(lambda: self._run(client.aclose()))
        return Awaited(client, self._run)

    def connect_cluster(self, url: str) -> Any:
        if not self._awaits:
            return self._stack.enter_context(closing(redis.RedisCluster.from_url(url, **self._options)))

        async def connect() -> Any:
            return redis.asyncio.RedisCluster.from_url(url, **self._options)

        client = self._run(connect())
        self._stack.callback(lambda: self._run(client.aclose()))
        return Awaited(client, self._run)

    def retry(self) -> Any:
        """As ``redis.Redis(host)`` has it by default, and ``from_url`` has not."""
        from redis.asyncio.retry import Retry as AsyncRetry
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return (AsyncRetry if self._awaits else Retry)(NoBackoff(), 3)

    def guard(self, client: Any, resource: str) -> FencedRedis:
        if not self._awaits:
            return FencedRedis(client, resource)
        return cast("FencedRedis", Awaited(AsyncFencedRedis(client._target, resource), self._run))


@pytest.fixture(params=["threads", "asyncio"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def redises(driver: str) -> Iterator[Redises]:
    with ExitStack() as stack:
        yield Redises(driver, stack)


@pytest.fixture
def client(redises: Redises) -> Any:
    return redises.connect(shared_redis().url)


@pytest.fixture
def resource() -> str:
    """One that no other test guards."""
    return f"invoices-{secrets.token_hex(6)}"


@pytest.fixture
def guard(redises: Redises, client: Any, resource: str) -> FencedRedis:
    return redises.guard(client, resource)


@pytest.fixture
def key(resource: str) -> str:
    return f"total:{{{resource}}}"


# --- the rule -----------------------------------------------------------------------------------

marks = st.builds(
    Mark,
    st.sampled_from([0, 1, 2, NOW, NOW + 1, NOW + 2]),
    st.sampled_from(["", "s", "t:ü %"]),
    st.sampled_from(["", "a", "b:\n"]),
    st.lists(st.sampled_from([1, 2, NOW, NOW + 1, 11]), max_size=3).map(
        lambda each: tuple(sorted(set(each)))
    ),
)


def test_the_script_decides_and_stores_as_the_rule_does() -> None:
    with redis.Redis.from_url(shared_redis().url) as client:
        key = fence_key("the rule")

        @settings(max_examples=examples(150))
        @given(st.lists(marks, max_size=12))
        def check(sequence: list[Mark]) -> None:
            client.delete(key)
            stored: Mark | None = None
            for mark in sequence:
                decision = decide(stored, mark)
                reply = client.eval(fenced("advance").text, 1, key, mark_text(mark))
                assert reply == ([0, client.get(key)] if isinstance(decision, Refuse) else [1])
                stored = after(stored, decision)
                assert stored is not None
                assert client.get(key) == mark_text(stored).encode()
                assert (client.ttl(key) > 0) == (stored.token >= 10**15), (
                    "only clocks tell how old a token is"
                )

        check()


def test_the_script_moves_as_the_rule_does() -> None:
    with redis.Redis.from_url(shared_redis().url) as client:
        key = fence_key("the move")

        @settings(max_examples=examples(50))
        @given(st.none() | marks, st.sampled_from(["s", "t:ü %"]))
        def check(stored: Mark | None, source: str) -> None:
            client.delete(key)
            if stored is not None:
                client.set(key, mark_text(stored))
            client.eval(plain("move").text, 1, key, mark_text(moved(None, source)))
            assert client.get(key) == mark_text(moved(stored, source)).encode()

        check()


# --- writes -------------------------------------------------------------------------------------


def test_writes_of_the_newest_holder(guard: FencedRedis, client: Any, key: str) -> None:
    assert guard.newest() is None
    guard.advance(OLD)
    assert guard.set(key, "1", OLD) is True
    assert client.get(key) == b"1"
    assert guard.hset(key + "h", {"a": 1, "b": 2.5}, OLD) == 2
    assert guard.hset(key + "h", {b"b": b"\xff"}, OLD) == 0
    assert client.hgetall(key + "h") == {b"a": b"1", b"b": b"\xff"}
    assert guard.delete(key, key + "h", key + "none", lease=OLD) == 2
    assert client.exists(key, key + "h") == 0
    assert guard.newest() == OLD


def test_options_of_set(guard: FencedRedis, client: Any, key: str) -> None:
    assert guard.set(key, "1", OLD, xx=True) is False
    assert guard.set(key, "1", OLD, nx=True, ex=100) is True
    assert guard.set(key, "2", OLD, nx=True) is False
    assert guard.set(key, "3", OLD, keepttl=True) is True
    assert 0 < client.ttl(key) <= 100
    assert guard.set(key, "4", OLD, px=500_000) is True
    assert 100 < client.ttl(key) <= 500
    assert guard.set(key, "5", OLD, exat=int(time.time()) + 1000) is True
    assert 500 < client.ttl(key) <= 1000
    assert guard.set(key, "6", OLD, pxat=(int(time.time()) + 2000) * 1000) is True
    assert 1000 < client.ttl(key) <= 2000
    assert guard.set(key, "7", OLD) is True
    assert client.ttl(key) == -1


Write = Callable[[FencedRedis, str, Fence], object]

WRITES: dict[str, Write] = {
    "set": lambda guard, key, fence: guard.set(key, "stale", fence),
    "delete": lambda guard, key, fence: guard.delete(key, lease=fence),
    "hset": lambda guard, key, fence: guard.hset(key + "h", {"a": "stale"}, fence),
    "eval": lambda guard, key, fence: guard.eval("redis.call('SET', KEYS[1], 'stale')", [key], [], fence),
    "advance": lambda guard, key, fence: guard.advance(fence),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_stale_holder_writes_nothing(
    guard: FencedRedis, client: Any, resource: str, key: str, name: str
) -> None:
    guard.set(key, "right", NEW)
    with pytest.raises(StaleToken, match=f"token {NOW} is too old for '{resource}'") as refusal:
        WRITES[name](guard, key, OLD)
    assert (refusal.value.resource, refusal.value.token, refusal.value.newest) == (resource, NOW, NOW + 1)
    assert client.get(key) == b"right"
    assert not client.exists(key + "h")
    assert guard.newest() == NEW


def test_the_same_number_of_another_grant_and_another_source_are_refused(
    guard: FencedRedis, key: str
) -> None:
    guard.set(key, "right", NEW)
    with pytest.raises(StaleToken, match="another grant"):
        guard.set(key, "stale", Fence("s", NEW.token, "other"))
    with pytest.raises(StaleToken, match="numbers of two sources do not compare"):
        guard.set(key, "stale", Fence("t", NEW.token + 1, "new"))


def test_a_peer_of_the_newest_passes(guard: FencedRedis, client: Any, key: str) -> None:
    guard.advance(Grant(NEW, "permit", (OLD.token, NEW.token)))
    assert guard.set(key, "peer", Grant(OLD, "permit"))
    assert client.get(key) == b"peer"
    with pytest.raises(StaleToken):
        guard.set(key, "stale", Grant(Fence("s", OLD.token - 1, "older"), "permit"))


def test_a_resource_is_moved_on_purpose(guard: FencedRedis, key: str) -> None:
    guard.set(key, "1", NEW)
    guard.move("s")
    assert guard.newest() == NEW, "the source that has it already"
    guard.move("t")
    with pytest.raises(StaleToken, match="two sources"):
        guard.set(key, "stale", NEW)
    assert guard.set(key, "2", Fence("t", 1, "first"))


def test_bare_tokens_pass_by_their_number(guard: FencedRedis, key: str) -> None:
    assert guard.set(key, "1", 41)
    assert guard.set(key, "2", 42)
    with pytest.raises(StaleToken):
        guard.set(key, "3", 41)
    assert guard.newest() == Fence("", 42, "")


def test_a_large_hash_is_written_whole(guard: FencedRedis, client: Any, key: str) -> None:
    """More than fits on Lua's stack at once."""
    assert guard.hset(key, {f"field-{number}": number for number in range(10_000)}, NEW) == 10_000
    assert client.hlen(key) == 10_000


# --- scripts of the caller's own ----------------------------------------------------------------


def test_a_script_sees_its_own_keys_and_arguments(guard: FencedRedis, client: Any, key: str) -> None:
    client.set(key, 5)
    script = """
        -- What a holder does with its data.
        local function plus(a, b) return a + b end
        local total = plus(tonumber(redis.call('GET', KEYS[1])), tonumber(ARGV[1]))
        redis.call('SET', KEYS[1], total)
        return {total, #KEYS, #ARGV} -- no newline behind this comment"""
    assert guard.eval(script, [key], [10], NEW) == [15, 1, 1]
    assert guard.eval("return nil", [], [], NEW) is None
    assert guard.eval("return false", [], [], NEW) is None
    assert guard.eval("", [], [], NEW) is None
    assert guard.eval("return redis.status_reply('fine')", [], [], NEW) == b"fine"


@pytest.mark.parametrize(
    "script",
    [
        "return redis.call('LPUSH', KEYS[1], 1)",
        "return redis.pcall('LPUSH', KEYS[1], 1)",
        "return redis.error_reply('WRONGTYPE of my own')",
        "return {redis.pcall('LPUSH', KEYS[1], 1)}",
    ],
)
def test_an_error_of_a_script_is_the_callers(guard: FencedRedis, client: Any, key: str, script: str) -> None:
    client.set(key, 5)
    if script.startswith("return {"):
        assert isinstance(guard.eval(script, [key], [], NEW)[0], ResponseError), "as redis-py has it"
        return
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        guard.eval(script, [key], [], NEW)


def test_nothing_of_a_script_runs_before_the_check(guard: FencedRedis, client: Any, key: str) -> None:
    """However it is written: code that leaves the function it is put in runs behind the rule all the same."""
    guard.set(key, "right", NEW)
    outside = "end redis.call('SET', KEYS[2] or KEYS[1], 'stale') do"
    with pytest.raises(StaleToken):
        guard.eval(outside, [key], [], OLD)
    assert client.get(key) == b"right"


def test_a_script_with_a_header_and_text_for_a_list_are_refused(guard: FencedRedis) -> None:
    with pytest.raises(InvalidArgument, match="leave it out"):
        guard.eval("#!lua flags=no-writes\nreturn 1", [], [], NEW)
    with pytest.raises(InvalidArgument, match="are sequences"):
        guard.eval("return 1", "total", [], NEW)


def test_scripts_that_the_server_forgot_are_sent_again(guard: FencedRedis, client: Any, key: str) -> None:
    guard.set(key, "1", NEW)
    client.script_flush()
    guard.set(key, "2", NEW)
    client.script_flush()
    with pytest.raises(StaleToken):
        guard.set(key, "3", OLD)
    assert client.get(key) == b"2"


# --- before any request -------------------------------------------------------------------------


def test_pipelines_and_the_other_kind_of_client_are_refused() -> None:
    with redis.Redis() as client, pytest.raises(InvalidArgument, match="too late"):
        FencedRedis(client.pipeline(), "x")
    with pytest.raises(InvalidArgument, match="pass it to AsyncFencedRedis"):
        FencedRedis(redis.asyncio.Redis(), "x")


def test_leases_that_may_not_write_are_refused_before_any_request() -> None:
    guard = FencedRedis(Untouched(), "invoices")
    with holdfast.connect(f"memory://{secrets.token_hex(6)}") as locks:
        with locks.rwlock("x").read() as reading, pytest.raises(InvalidArgument, match="may not write"):
            guard.set("k", 1, reading)
        lock = locks.lock("y")
        lease = lock.acquire()
        assert lease is not None
        lock.release()
        with pytest.raises(NotHeld):
            guard.set("k", 1, lease)
        lost = locks.lock("z", ttl=0.05, renew=False).acquire()
        assert lost is not None
        assert lost.wait_lost(timeout=20)
        for write in (lambda: guard.set("k", 1, lost), lambda: guard.advance(lost)):
            with pytest.raises(LockLost):
                write()


def test_a_lease_that_is_lost_after_it_was_presented_is_refused(guard: FencedRedis, key: str) -> None:
    """What a lease presents is remembered; whether it is still held is not."""
    with holdfast.connect(shared_redis().url) as locks:
        lock = locks.lock(key)
        lease = lock.acquire()
        assert lease is not None
        assert guard.set(key, 1, lease)
        assert guard.set(key, 2, lease)
        assert guard.newest() == lease.fence
        lock.release()
        with pytest.raises(NotHeld):
            guard.set(key, 3, lease)


def test_a_reader_may_shut_older_holders_out(guard: FencedRedis, key: str) -> None:
    with holdfast.connect(f"memory://{secrets.token_hex(6)}") as locks:
        lock = locks.rwlock("x")
        with lock.write() as writing:
            stale = writing.fence
        with lock.read() as reading:
            guard.advance(reading)
        with pytest.raises(StaleToken):
            guard.set(key, 1, stale)


def test_importing_the_guards_imports_no_client() -> None:
    code = """
        import sys
        import holdfast.fencing
        assert not {"redis", "grpc", "kazoo"} & set(sys.modules), sorted(sys.modules)
        from holdfast.fencing import FencedRedis
        print("imported", FencedRedis.__name__, "redis" in sys.modules)
    """
    with run_python(code) as child:
        assert child.expect("imported") == "FencedRedis False"
        child.succeed()


# --- clients with settings ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"decode_responses": True},
        {"protocol": 2},
        {"protocol": 3},
        {"protocol": 3, "decode_responses": True},
        {"encoding": "latin-1", "decode_responses": True},
    ],
    ids=str,
)
def test_a_client_with_any_settings(redises: Redises, options: dict[str, Any]) -> None:
    client = redises.connect(shared_redis().url, **options)
    plain = redises.connect(shared_redis().url)
    resource = f"Straße ☃ {secrets.token_hex(6)}"
    guard = redises.guard(client, resource)
    source = Fence("källa ☃", NOW, "nonce")
    guard.set("settings", "ü", source)
    assert guard.newest() == source
    assert redises.guard(plain, resource).newest() == source, "the same fence, whatever the client encodes"
    with pytest.raises(StaleToken):
        guard.set("settings", "x", Fence("källa ☃", NOW - 1, "older"))
    reply = guard.eval("return {KEYS[1], ARGV[1]}", ["settings"], ["ü"], source)
    assert reply == [client.echo("settings"), client.echo("ü")], "as the client itself has it"


@pytest.mark.parametrize("ending", ["reset", "close"])
def test_a_write_whose_reply_is_lost_is_sent_again_by_the_client(
    redises: Redises, resource: str, key: str, ending: Any
) -> None:
    """The same grant passes again, so the write is done and said to be."""
    server = shared_redis()
    with Proxy(server.host, server.port) as proxy:
        client = redises.connect(f"redis://{proxy.address}", retry=redises.retry())
        guard = redises.guard(client, resource)
        guard.set(key, "1", NEW)
        lost = proxy.lose_reply(b"EVALSHA", ending)
        assert guard.set(key, "2", NEW) is True
        assert lost.is_set()
        assert client.get(key) == b"2"
        lost = proxy.lose_reply(b"EVALSHA", ending)
        guard.advance(Fence("s", NEW.token + 1, "newer"))
        assert lost.is_set()


# --- a Cluster ----------------------------------------------------------------------------------


@pytest.mark.engine("redis+cluster")
def test_in_a_cluster_everything_of_a_resource_is_in_one_slot(redises: Redises) -> None:
    cluster = shared_redis_cluster()
    client = redises.connect_cluster(f"redis://{cluster.masters[0].address}")
    for resource in (f"invoices-{secrets.token_hex(6)}", f"orders/{{{secrets.token_hex(6)}}}"):
        tag = resource.partition("{")[2].rstrip("}") or resource
        guard = redises.guard(client, resource)
        assert guard.set(f"total:{{{tag}}}", 1, NEW)
        assert guard.delete(f"total:{{{tag}}}", f"more:{{{tag}}}", lease=NEW) == 1
        with pytest.raises(StaleToken):
            guard.set(f"total:{{{tag}}}", 2, OLD)
        with pytest.raises(InvalidArgument, match=rf"another slot .* give the key the hash tag \{{{tag}\}}"):
            guard.set("total:{elsewhere}", 1, NEW)
        assert guard.newest() == NEW


@pytest.mark.engine("redis+cluster")
def test_a_plain_client_of_a_cluster_gets_the_error_as_well(redises: Redises) -> None:
    """There is no list of slots to look at, so the server refuses."""
    cluster = shared_redis_cluster()
    resource = f"invoices-{secrets.token_hex(6)}"
    owner = cluster.owner(cluster.slot_of(fence_key(resource)))
    guard = redises.guard(redises.connect(owner.url), resource)
    assert guard.set(f"total:{{{resource}}}", 1, NEW)
    with pytest.raises(InvalidArgument, match="another slot"):
        guard.set("total:{elsewhere}", 1, NEW)


# --- how long a fence is kept -------------------------------------------------------------------

DAY = 86_400


def test_fences_of_idle_resources_expire_and_their_stale_holders_stay_out(redises: Redises) -> None:
    with Redis(faketime=True) as server:
        client = redises.connect(server.url)
        guard = redises.guard(client, "invoices")
        guard.set("total", "right", NEW)
        assert 8 * DAY < client.ttl(guard.key) <= 9 * DAY
        server.shift_clock(2 * DAY)
        guard.set("total", "right", NEW)
        assert 8 * DAY < client.ttl(guard.key) <= 9 * DAY, "a fence that is used is kept"
        server.shift_clock(10 * DAY)
        assert guard.newest() == NEW
        server.shift_clock(12 * DAY)
        assert guard.newest() is None, "nobody presented anything for nine days"
        assert client.keys("holdfast:*") == []
        for fence in (OLD, NEW):
            with pytest.raises(StaleToken, match="more than 7 days ago") as refusal:
                guard.set("total", "stale", fence)
            assert (refusal.value.token, refusal.value.newest) == (fence.token, None)
        assert client.get("total") == b"right"
        assert client.keys("holdfast:*") == []


def test_a_grant_of_this_week_begins_a_fence_anew(guard: FencedRedis, key: str) -> None:
    assert guard.set(key, 1, Fence("s", NOW - 6 * DAY * 10**6, "this week"))
    with pytest.raises(StaleToken, match="too old"):
        guard.set(key, 1, Fence("s", NOW - 8 * DAY * 10**6, "the week before"))


def test_fences_of_counters_are_kept(guard: FencedRedis, client: Any, key: str) -> None:
    """A counter does not say when it counted."""
    guard.set(key, 1, Fence("etcd/1/x", 4004, "nonce"))
    assert client.ttl(guard.key) == -1
    guard.set(key, 1, Fence("etcd/1/x", 4008, "nonce"))
    assert client.ttl(guard.key) == -1


def test_a_full_server_writes_nothing_and_forgets_no_fence(redises: Redises) -> None:
    with Redis() as server:
        client = redises.connect(server.url)
        guard = redises.guard(client, "invoices")
        guard.set("total", "right", OLD)
        client.config_set("maxmemory", 1)
        for fence in (OLD, NEW):
            with pytest.raises((OutOfMemoryError, ResponseError), match=r"OOM|memory"):
                guard.set("total", "more", fence)
        assert client.get("total") == b"right"
        assert guard.newest() == OLD
        client.config_set("maxmemory", 0)
        assert guard.set("total", "more", NEW)


def test_an_evicted_fence_lets_the_next_one_in(guard: FencedRedis, client: Any, key: str) -> None:
    """Hence ``noeviction``: what the server has thrown away nobody can know."""
    guard.set(key, "right", NEW)
    client.delete(guard.key)
    assert guard.set(key, "stale", OLD)


@pytest.mark.parametrize("call", ["set", "newest", "move"])
def test_what_is_no_fence_is_left_alone(guard: FencedRedis, client: Any, key: str, call: str) -> None:
    client.set(guard.key, "hello")
    calls: dict[str, Callable[[], object]] = {
        "set": lambda: guard.set(key, 1, NEW),
        "newest": guard.newest,
        "move": lambda: guard.move("t"),
    }
    with pytest.raises(HoldfastError, match="holds 'hello', which is no mark"):
        calls[call]()
    assert client.get(guard.key) == b"hello"
    assert not client.exists(key)


RIGHTS = "~holdfast:fence:* ~total* -@all +evalsha +eval +get +set +expire +pttl +time +del +hset"
"""As ``docs/fencing-key-value.md`` has them."""


def test_the_rights_that_are_needed(redises: Redises) -> None:
    with Redis() as server:
        server.command("ACL", "SETUSER", "app", "on", ">secret", *RIGHTS.split())
        client = redises.connect(f"redis://app:secret@{server.address}")
        guard = redises.guard(client, "invoices")
        for write in WRITES.values():
            write(guard, "total", NEW)
        server.command("EXPIRE", guard.key, "1000")
        assert guard.set("total", "1", NEW), "it lengthens the life of its fence"
        assert server.command("TTL", guard.key) > 8 * DAY
        with pytest.raises(NoPermissionError):
            guard.set("elsewhere", "1", NEW)


def test_between_processes(tmp_path: Path, resource: str, key: str) -> None:
    """Two real processes; the older is refused, and told which is newest."""
    code = """
        import sys, redis
        from holdfast.errors import StaleToken
        from holdfast.fencing import FencedRedis
        client = redis.Redis.from_url(sys.argv[1])
        guard = FencedRedis(client, sys.argv[2])
        print("ready", flush=True)
        for line in sys.stdin:
            try:
                guard.set(sys.argv[3], line.strip(), int(sys.argv[4]))
                print("did", flush=True)
            except StaleToken as refusal:
                print("refused", refusal.newest, flush=True)
    """
    url = shared_redis().url
    with run_python(code, url, resource, key, "41") as old, run_python(code, url, resource, key, "42") as new:
        for child in (old, new):
            child.expect("ready")
        old.send("one")
        old.expect("did")
        new.send("two")
        new.expect("did")
        old.send("three")
        assert old.expect("refused") == "42"
    with redis.Redis.from_url(url) as client:
        assert client.get(key) == b"two"
