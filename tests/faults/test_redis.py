"""Redis when things go wrong: processes stop and die; servers restart, forget, fail over, jump in time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from faults.children import acting, holding, waiting
from holdfast import Client, EngineUnavailable, Lease, LockLost, StaleToken, fencing
from holdfast.aio import AsyncClient
from holdfast.lab.links import Direction, Ending
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import Redis, RedisSentinel
from holdfast.lab.servers.resp import ReplyError
from support import async_wait_until, renewal_of, wait_until
from support.engines import chosen_schemes
from support.servers import shared_redis

pytestmark = pytest.mark.engine("redis")

HURRY = 0.5
"""Seconds: an io_timeout for tests in which a server does not answer."""


HAIR = 1e-5
"""Seconds: what is left of a moment when it is reckoned with."""


@pytest.fixture
def server() -> Iterator[Redis]:
    """One that may be harmed."""
    with Redis() as redis:
        yield redis


@pytest.fixture
def url() -> str:
    """One that others use too, with a database for these tests."""
    return f"{shared_redis().url}/7"


@pytest.fixture(autouse=True)
def empty_database(url: str) -> None:
    shared_redis().commands(("SELECT", "7"), ("FLUSHDB",))


@pytest.fixture
def locks(url: str) -> Iterator[Client]:
    with holdfast.connect(url) as client:
        yield client


def taken(client: Client, timeout: float | None = 0, ttl: float = 30.0) -> Lease:
    lease = client.lock("x", ttl=ttl).acquire(timeout=timeout)
    assert lease is not None
    return lease


def settle(client: Client) -> None:
    """Connected, scripts loaded; and it listens, upon which its keeper has looked once at what is held. From
    now on only the test has it ask for something."""

    def is_looked_after() -> bool:
        (holder,) = client.inspect("x").holders
        return holder.age + holder.remaining > lease.ttl + HAIR

    lease = taken(client, ttl=600)
    wait_until(is_looked_after, timeout=30)
    lease.release()


# --- processes ----------------------------------------------------------------------------------


def test_a_holder_that_is_killed_is_followed_when_its_ttl_is_over(url: str, locks: Client) -> None:
    """At the end of the holder's remaining time: not before, and not at the waiter's own ttl."""
    granted: list[tuple[Lease, float]] = []

    def wait() -> None:
        lease = taken(locks, timeout=20, ttl=600)
        granted.append((lease, time.monotonic()))

    with holding(url, ttl=2.0) as child:
        token = int(child.expect("held"))
        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: locks.inspect("x").waiters)
        child.kill()
        killed = time.monotonic()
        (holder,) = locks.inspect("x").holders
        assert holder.remaining > 0
        waiter.join(20)
    ((lease, at),) = granted
    assert holder.remaining - 0.01 <= at - killed < 10  # a hair: the server's clock and ours may be slewed
    assert lease.token > token
    lease.release()


def test_a_holder_that_is_stopped_loses_it_and_its_write_is_refused(
    url: str, locks: Client, tmp_path: Path
) -> None:
    data = tmp_path / "data.db"
    with closing(sqlite3.connect(data)) as db:
        db.execute("CREATE TABLE invoice (writer TEXT)")
        fencing.install(db)
        db.commit()
    code = f"""
import sqlite3
db = sqlite3.connect({str(data)!r})

def write():
    with db:
        fencing.enforce(db, "invoices", lease.fence)
        db.execute("INSERT INTO invoice VALUES ('child')")
    return "written"

lease = locks.lock("x", ttl=1.0).acquire()
with db:
    fencing.advance(db, "invoices", lease)
print("held", lease.token, flush=True)
for line in sys.stdin:
    try:
        print("did", eval(line), flush=True)
    except holdfast.HoldfastError as error:
        print("did", type(error).__name__, flush=True)
"""
    with acting(url, code) as child:
        token = int(child.expect("held"))
        child.send("write()")
        assert child.expect("did") == "written"
        child.stop()
        lease = taken(locks, timeout=20)
        assert lease.token > token
        with closing(sqlite3.connect(data)) as db, db:
            fencing.advance(db, "invoices", lease)
        child.cont()
        for order, said in (("write()", "StaleToken"), ("lease.check()", "LockLost")):
            child.send(order)
            assert child.expect("did") == said
        lease.check()
        lease.release()


def test_a_waiter_that_is_killed_holds_up_nobody(url: str, locks: Client) -> None:
    mine = taken(locks)
    with waiting(url) as first:
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
        with waiting(url) as second:
            wait_until(lambda: len(locks.inspect("x").waiters) == 2)
            first.kill()
            mine.release()
            second.expect("granted")  # after the turn of the dead one, at the latest
            second.send()
            second.expect("released")


def test_holders_in_forked_children_and_parents(url: str) -> None:
    """The child says nothing on its parent's connections: the parent goes on holding and renewing."""
    code = """
lease = locks.lock("x", ttl=1.5).acquire()
pid = os.fork()
if pid == 0:
    try:
        lease.check()
    except holdfast.LockLost:
        os._exit(0 if locks.lock("y").acquire(timeout=5) else 2)
    os._exit(1)
_, status = os.waitpid(pid, 0)
lost = lease.wait_lost(timeout=2)
print("child", os.waitstatus_to_exitcode(status), "lost", lost, flush=True)
lease.release()
"""
    with acting(url, code) as parent:
        assert parent.expect("child") == "0 lost False"


# --- connections --------------------------------------------------------------------------------


def test_connections_that_the_server_kills(server: Redis) -> None:
    with holdfast.connect(server.url) as client:
        lease = taken(client, ttl=2.0)
        for _ in range(3):
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            server.command("CLIENT", "KILL", "TYPE", "pubsub")
            assert client.inspect("x").locked
        wait_until(renewal_of(lease))  # by the keeper, on a new connection
        lease.release()


def test_a_waiter_whose_subscription_was_cut_is_still_woken(server: Redis) -> None:
    with holdfast.connect(server.url) as holder, holdfast.connect(server.url) as other:
        lease = taken(holder, ttl=600)
        granted: list[Lease | None] = []
        thread = threading.Thread(target=lambda: granted.append(other.lock("x").acquire(timeout=30)))
        thread.start()
        wait_until(lambda: holder.inspect("x").waiters)
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        lease.release()
        thread.join(20)
        assert granted
        assert granted[0] is not None
        granted[0].release()


def test_a_connection_that_goes_silent_loses_the_lease_in_time(server: Redis) -> None:
    """The renewal hangs; the loss is reported at the deadline all the same, and exactly once."""
    with Proxy(server.host, server.port) as proxy:
        client = holdfast.connect(f"redis://{proxy.address}", io_timeout=HURRY)
        lease = taken(client, ttl=2.0)
        told: list[float] = []
        lease.on_lost(lambda lost: told.append(lost.remaining))
        proxy.hold()
        assert lease.wait_lost(timeout=10)
        wait_until(lambda: told)
        with pytest.raises(LockLost) as caught:
            lease.check()
        assert caught.value.reason == "unreachable"
        proxy.pass_on()
        again = client.lock("x").acquire(timeout=20)
        assert again is not None
        assert again.token > lease.token
        again.release()
        client.close()
        assert len(told) == 1


@pytest.mark.parametrize("ending", ["reset", "close"])
def test_a_grant_whose_reply_is_lost_is_recognised(server: Redis, ending: str) -> None:
    with Proxy(server.host, server.port) as proxy, holdfast.connect(f"redis://{proxy.address}") as client:
        settle(client)
        lost = proxy.lose_reply(b"EVALSHA", "reset" if ending == "reset" else "close")
        lease = taken(client, timeout=10)
        assert lost.is_set()
        stands = client.inspect("x")
        assert [holder.token for holder in stands.holders] == [lease.token]
        assert stands.token == lease.token, "nothing was minted twice"
        lease.release()
        assert not client.inspect("x").locked


@pytest.mark.parametrize("ending", ["reset", "close", "silence"])
def test_a_release_whose_reply_is_lost_is_recognised(server: Redis, ending: Ending) -> None:
    """It was done: asked again, the server has nothing to give back, and that is no loss."""
    with (
        Proxy(server.host, server.port) as proxy,
        holdfast.connect(f"redis://{proxy.address}", io_timeout=HURRY) as client,
        holdfast.connect(server.url) as other,
    ):
        settle(client)
        lease = taken(client)
        lost = proxy.lose_reply(b"EVALSHA", ending)
        lease.release()
        assert lost.is_set()
        newer = taken(other)
        assert newer.token > lease.token
        newer.release()


def test_a_release_whose_reply_is_lost_can_be_called_again(server: Redis) -> None:
    """By then another may have it."""
    with (
        Proxy(server.host, server.port) as proxy,
        holdfast.connect(f"redis://{proxy.address}", io_timeout=HURRY) as client,
        holdfast.connect(server.url) as other,
    ):
        settle(client)
        lock = client.lock("x")
        lock.acquire()
        proxy.refuse()
        lost = proxy.lose_reply(b"EVALSHA")
        with pytest.raises(EngineUnavailable):
            lock.release()
        assert lost.is_set()
        newer = taken(other)
        proxy.pass_on()
        lock.release()
        newer.check()
        newer.release()


def test_a_release_that_cannot_be_sent_can_be_called_again(server: Redis) -> None:
    with Proxy(server.host, server.port) as proxy:
        client = holdfast.connect(f"redis://{proxy.address}", io_timeout=HURRY)
        lock = client.lock("x")
        lock.acquire()
        proxy.refuse()
        proxy.cut()
        with pytest.raises(EngineUnavailable):
            lock.release()
        proxy.pass_on()
        lock.release()
        assert not client.inspect("x").locked
        client.close()


@pytest.mark.parametrize(
    ("stage", "direction"),
    [
        ("connecting", None),
        ("asking", None),
        ("asking", "to_server"),
        ("asking", "to_client"),
        ("waiting", None),
        ("waiting", "to_client"),
    ],
)
def test_a_cancellation_while_the_server_is_silent(
    server: Redis, stage: str, direction: Direction | None
) -> None:
    """It does not hang, whatever the server knows of; and what stays there is over with its ttl."""

    async def main(other: Client, proxy: Proxy) -> None:
        async with holdfast.aio.connect(f"redis://{proxy.address}", io_timeout=HURRY) as locks:
            lock = locks.lock("x", ttl=1.0)
            if stage != "connecting":
                async with locks.lock("warm"):
                    pass
            held = await asyncio.to_thread(taken, other) if stage == "waiting" else None
            if stage != "waiting":
                proxy.hold(direction)
            connections = proxy.connections
            task = asyncio.create_task(lock.acquire())
            if stage == "connecting":
                await async_wait_until(lambda: proxy.connections > connections)
            elif stage == "asking":
                await async_wait_until(lambda: _asks(locks))
            else:
                await async_wait_until(lambda: other.inspect("x").waiters)
                proxy.hold(direction)
            began = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - began < 4
            if held is not None:
                await asyncio.to_thread(held.release)
            proxy.pass_on()
            newer = await asyncio.to_thread(taken, other, timeout=20)
            await asyncio.to_thread(newer.release)
            await async_wait_until(lambda: not other.inspect("x").waiters)
            again = await lock.acquire(timeout=20)
            assert again is not None
            assert again.token > newer.token
            await again.release()
            assert not other.inspect("x").locked

    with Proxy(server.host, server.port) as proxy, holdfast.connect(server.url) as other:
        asyncio.run(main(other, proxy))


def _asks(locks: AsyncClient) -> bool:
    """A request of its own is under way."""
    adapter: Any = locks._driver.adapter
    return bool(adapter._stream._waiting)


def test_an_asyncio_holder_whose_server_hangs_is_notified_in_time(server: Redis) -> None:
    """Its renewal hangs with the server; the loss does not."""

    async def main() -> None:
        async with holdfast.aio.connect(server.url, io_timeout=HURRY) as locks:
            lease = await locks.lock("x", ttl=2.0).acquire()
            assert lease is not None
            told: list[float] = []
            lease.on_lost(lambda lost: told.append(lost.remaining))
            server.pause()
            try:
                assert await lease.wait_lost(timeout=10)
                await async_wait_until(lambda: told)
                with pytest.raises(LockLost) as caught:
                    lease.check()
                assert caught.value.reason == "unreachable"
            finally:
                server.resume()
            newer = await locks.lock("x").acquire(timeout=20)
            assert newer is not None
            assert newer.token > lease.token
            await newer.release()
            assert len(told) == 1

    asyncio.run(main())


def test_an_asyncio_holder_that_is_stopped_finds_out_when_it_goes_on(url: str, locks: Client) -> None:
    code = """
import asyncio
import holdfast.aio

async def main():
    async with holdfast.aio.connect(sys.argv[1]) as aio:
        lease = await aio.lock("x", ttl=1.0).acquire()
        lease.on_lost(lambda lost: say("told", lost.lost))
        say("held", lease.token)
        await asyncio.to_thread(sys.stdin.readline)
        try:
            lease.check()
            say("did nothing")
        except holdfast.LockLost as error:
            say("did", type(error).__name__)

asyncio.run(main())
"""
    with acting(url, code) as child:
        token = int(child.expect("held"))
        wait_until(lambda: any(held.age > 1.5 for held in locks.inspect("x").holders))  # it is renewed
        child.stop()
        lease = taken(locks, timeout=20)
        assert lease.token > token
        child.send()
        child.cont()
        said = [child.expect() for _ in range(2)]
        assert sorted(said) == ["did LockLost", "told True"]
        lease.check()
        lease.release()
        child.succeed()


# --- servers ------------------------------------------------------------------------------------


def test_a_restart_that_keeps_everything() -> None:
    with Redis(persistence="aof-always") as server, holdfast.connect(server.url) as client:
        lease = taken(client, ttl=30)
        server.restart(kill=True)
        lease.extend()
        lease.check()
        with holdfast.connect(server.url) as other:
            assert other.lock("x").acquire(timeout=0) is None
        lease.release()


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Where the data is that locks protect."""
    with closing(sqlite3.connect(tmp_path / "data.db")) as db:
        fencing.install(db)
        yield db


@pytest.mark.parametrize("knows", ["its id", "its name"])
def test_a_restart_that_forgets_everything(server: Redis, guard: sqlite3.Connection, knows: str) -> None:
    """The lock is free and the counter lost: the new token is larger, and the old holder is fenced, and told.

    A client that knows the id of the database, or was given a name for it, brings it back.
    """
    url = f"{server.url}?source=orders" if knows == "its name" else server.url
    with holdfast.connect(url) as client, holdfast.connect(url) as other:
        if knows == "its id":
            other.inspect("x")
        lease = taken(client, ttl=3.0)
        with guard:
            fencing.advance(guard, "invoices", lease)
        server.restart(kill=True)
        newer = taken(other, timeout=20)
        assert newer.token > lease.token
        assert newer.fence.source == lease.fence.source
        with guard:
            fencing.advance(guard, "invoices", newer)
        with pytest.raises(StaleToken), guard:
            fencing.enforce(guard, "invoices", lease.fence)
        assert lease.wait_lost(timeout=10)
        newer.release()


def test_a_new_client_that_is_first_after_all_was_forgotten(server: Redis, guard: sqlite3.Connection) -> None:
    """It makes a new id: numbers of two sources do not compare, and the guard is still the old one's."""
    with (
        Proxy(server.host, server.port) as proxy,
        holdfast.connect(f"redis://{proxy.address}") as client,
        holdfast.connect(server.url) as other,
    ):
        lease = taken(client, ttl=3.0)
        with guard:
            fencing.advance(guard, "invoices", lease)
        proxy.refuse()
        server.restart(kill=True)
        newer = taken(other, timeout=20)
        proxy.pass_on()
        assert newer.token > lease.token
        assert newer.fence.source != lease.fence.source
        with pytest.raises(StaleToken, match="numbers of two sources do not compare"), guard:
            fencing.enforce(guard, "invoices", newer)
        assert lease.wait_lost(timeout=10)
        with guard:
            fencing.move(guard, "invoices", newer.fence.source)
            fencing.advance(guard, "invoices", newer)
        with pytest.raises(StaleToken), guard:
            fencing.enforce(guard, "invoices", lease.fence)
        newer.release()


def test_a_failover_that_loses_the_last_write_is_fenced(server: Redis, tmp_path: Path) -> None:
    """The replica never received the grant. Two hold it for a while; the guard lets only the newer write."""
    with (
        Redis() as replica,
        Proxy(server.host, server.port) as link,
        closing(sqlite3.connect(tmp_path / "data.db")) as db,
        holdfast.connect(server.url, io_timeout=HURRY) as client,
        holdfast.connect(replica.url) as other,
    ):
        fencing.install(db)
        replica.command("REPLICAOF", link.host, str(link.port))
        taken(client, timeout=10).release()
        wait_until(lambda: _offset(replica) == _offset(server) > 0)
        link.hold()  # from here on the replica receives nothing
        stale = taken(client, ttl=600)
        with db:
            fencing.advance(db, "invoices", stale)
        server.kill()
        link.cut()
        replica.command("REPLICAOF", "NO", "ONE")
        newer = taken(other, timeout=20)
        assert newer.fence.source == stale.fence.source
        assert newer.token > stale.token
        with db:
            fencing.advance(db, "invoices", newer)
        with pytest.raises(StaleToken), db:
            fencing.enforce(db, "invoices", stale.fence)
        newer.release()


def _offset(server: Redis) -> int:
    told = server.info("replication")
    return int(told.get("slave_repl_offset", told["master_repl_offset"]))


@pytest.mark.engine("redis+sentinel")
def test_a_failover_under_sentinels_keeps_what_was_replicated() -> None:
    with RedisSentinel() as redis:
        url = f"redis+sentinel://{redis.addresses}/0?service={redis.service}"
        with holdfast.connect(url) as client, holdfast.connect(url) as other:
            lease = taken(client, timeout=10, ttl=60)
            wait_until(lambda: _offset(redis.nodes[0]) == _offset(redis.nodes[1]))
            redis.failover()
            # Until the old one knows, what is written there is lost.
            wait_until(redis.nodes[0].is_replica)
            wait_until(lambda: _is_extended(lease))
            assert other.lock("x").acquire(timeout=0.1) is None
            lease.release()
            newer = taken(other, timeout=20)
            assert newer.token > lease.token
            newer.release()


def _is_extended(lease: Lease) -> bool:
    try:
        lease.extend()
    except EngineUnavailable:
        return False
    return True


def test_a_key_that_is_deleted_from_outside_is_a_loss(server: Redis) -> None:
    with holdfast.connect(server.url) as client:
        lease = taken(client, ttl=1.5)
        server.command("FLUSHALL")
        assert lease.wait_lost(timeout=10)
        with pytest.raises(LockLost) as caught:
            lease.check()
        assert caught.value.reason == "expired"


def test_a_key_that_is_evicted_is_a_loss_and_the_next_token_is_larger() -> None:
    settings = {"maxmemory-policy": "allkeys-lru"}
    with Redis(maxmemory="4mb", settings=settings) as server, holdfast.connect(server.url) as client:
        lease = taken(client, ttl=2.0)
        keys = server.command("KEYS", "holdfast:*x*")
        assert len(keys) == 1
        filler = "x" * 2000
        numbers = itertools.count()

        def is_evicted() -> bool:
            server.commands(*[("SET", f"filler {next(numbers)}", filler) for _ in range(100)])
            return bool(server.command("EXISTS", *keys) == 0)

        wait_until(is_evicted, timeout=60)
        assert int(server.info("stats")["evicted_keys"]) > 0
        assert lease.wait_lost(timeout=10)
        with pytest.raises(LockLost) as caught:
            lease.check()
        assert caught.value.reason == "expired"
        server.command("CONFIG", "SET", "maxmemory", "100mb")  # else the next one may be evicted, too
        with holdfast.connect(server.url) as other:
            newer = taken(other, timeout=10)
            assert newer.token > lease.token
            newer.release()


def test_a_read_only_replica_is_refused(server: Redis) -> None:
    with (
        Redis(replica_of=server) as replica,
        holdfast.connect(replica.url, io_timeout=HURRY) as client,
        pytest.raises(EngineUnavailable, match="replica"),
    ):
        client.lock("x").acquire(timeout=5)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "small"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode:
        complaint = f"only who may mount can make a small disk: {mounted.stderr.decode()}"
        (pytest.fail if chosen_schemes() is None else pytest.skip)(complaint)
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill(disk: Path) -> Path:
    """Until nothing more fits; what must be deleted to make room again."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(b"x"):
            pass
    return filler


@pytest.mark.parametrize("fsync", ["always", "everysec"])
def test_a_disk_that_is_full(small_disk: Path, fsync: str) -> None:
    """Refused in clear words, or by a server that ends itself; what was held is lost, and nothing else is."""
    settings = {"dir": str(small_disk), "appendfsync": fsync}
    with (
        Redis(persistence="aof-always", settings=settings) as server,
        holdfast.connect(server.url, io_timeout=1.0) as client,
    ):
        held = client.lock("held", ttl=2.0).acquire()
        assert held is not None
        filler = fill(small_disk)
        wait_until(lambda: not server.running or _write_failed(server))
        with pytest.raises(EngineUnavailable) as caught:
            client.lock("x").acquire(timeout=3)
        assert ("is its disk full" if server.running else "no connection") in str(caught.value)
        assert held.wait_lost(timeout=10)
        filler.unlink()
        if not server.running:
            server.start()
        newer = client.lock("held").acquire(timeout=20)
        assert newer is not None
        assert newer.token > held.token
        assert not client.inspect("x").locked
        newer.release()


def _write_failed(server: Redis) -> bool:
    """What is small still fits into the last page: with this it is full."""
    with contextlib.suppress(OSError, ReplyError):  # it may be ending just now
        server.command("SET", "filler", "x" * 10_000)
        return server.info("persistence")["aof_last_write_status"] == "err"
    return False


def test_the_clock_of_the_server_jumps_ahead(guard: sqlite3.Connection) -> None:
    """The lease ends early, and another has the lock, with a larger token; the old one is fenced and told."""
    with Redis(faketime=True) as server, holdfast.connect(server.url) as client:
        old = taken(client, ttl=3.0)
        with guard:
            fencing.enforce(guard, "invoices", old)
        server.shift_clock(3600.0)
        with holdfast.connect(server.url) as other:
            newer = taken(other)
            assert newer.token > old.token
            with guard:
                fencing.enforce(guard, "invoices", newer)
            with pytest.raises(StaleToken), guard:
                fencing.enforce(guard, "invoices", old.fence)
            assert old.wait_lost(timeout=10)
            newer.release()


def test_the_clock_of_the_server_jumps_back(guard: sqlite3.Connection) -> None:
    """The lease is kept, and renewed; the next token is larger all the same."""
    with Redis(faketime=True) as server, holdfast.connect(server.url) as client:
        old = taken(client, ttl=3.0)
        server.shift_clock(-3600.0)
        with holdfast.connect(server.url) as other:
            assert other.lock("x").acquire(timeout=0) is None
            old.extend()
            assert not old.wait_lost(timeout=4)
            with guard:
                fencing.enforce(guard, "invoices", old)
            old.release()
            newer = taken(other)
            assert newer.token > old.token
            with guard:
                fencing.enforce(guard, "invoices", newer)
            with pytest.raises(StaleToken), guard:
                fencing.enforce(guard, "invoices", old.fence)
            newer.release()
