"""The documented rights are enough for every operation on real servers, and allow nothing else."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from engines.redis.adapters import Driver
from holdfast import EngineUnavailable
from holdfast.engines.redis.errors import ACL_RULES, ACL_RULES_CLUSTER, PERMISSION_HINT, error_for
from holdfast.engines.redlock import errors as redlock_rights
from holdfast.engines.resp.config import Address
from holdfast.lab.servers import Redis, RedisCluster
from holdfast.lab.servers.group import Group
from holdfast.lab.servers.resp import ReplyError, ask
from support import async_wait_until, wait_until

DOCS = Path(__file__).parents[3] / "docs"

PASSWORD = "app-secret"

FORBIDDEN = (
    "EVAL 'return 1' 0",
    "SCRIPT FLUSH",
    "SCRIPT KILL",
    "FUNCTION FLUSH",
    "CLIENT KILL TYPE normal",
    "CLIENT LIST",
    "CLIENT PAUSE 1",
    "FLUSHALL",
    "FLUSHDB",
    "KEYS *",
    "CONFIG SET maxmemory 1",
    "CONFIG REWRITE",
    "ACL LIST",
    "ACL SETUSER app +@all",
    "SHUTDOWN NOSAVE",
    "REPLICAOF NO ONE",
    "MONITOR",
    "GET other",
    "SET other x",
    "DEL holdfast:shop:lock:{x}",
    "PUBLISH other x",
    "SUBSCRIBE other",
    "PSUBSCRIBE *",
)


@contextmanager
def single() -> Iterator[tuple[str, list[Redis]]]:
    with Redis() as server:
        let_in([server], ACL_RULES)
        yield f"redis://app:{PASSWORD}@{server.address}", [server]


@contextmanager
def another_database() -> Iterator[tuple[str, list[Redis]]]:
    with Redis() as server:
        let_in([server], f"{ACL_RULES} +select")
        yield f"redis://app:{PASSWORD}@{server.address}/3", [server]


@contextmanager
def replicated() -> Iterator[tuple[str, list[Redis]]]:
    with Redis() as server, Redis(replica_of=server) as replica:
        wait_until(lambda: replica.info("replication")["master_link_status"] == "up")
        let_in([server], f"{ACL_RULES} +wait")
        yield f"redis://app:{PASSWORD}@{server.address}?wait_replicas=1", [server]


@contextmanager
def cluster() -> Iterator[tuple[str, list[Redis]]]:
    with RedisCluster() as members:
        let_in(members.masters, f"{ACL_RULES} {ACL_RULES_CLUSTER}")
        yield f"redis+cluster://app:{PASSWORD}@{members.addresses}", list(members.masters)


@contextmanager
def nodes() -> Iterator[tuple[str, list[Redis]]]:
    with Group([Redis() for _ in range(3)]) as group:
        let_in(group.members, redlock_rights.ACL_RULES)
        url = f"redlock://app:{PASSWORD}@{group.addresses}?node_timeout=2s"
        yield url, list(group.members)


def let_in(servers: Iterable[Redis], rules: str) -> None:
    for server in servers:
        server.command("ACL", "SETUSER", "app", "reset", "on", f">{PASSWORD}", *rules.split())


SHAPES: dict[str, Callable[[], Any]] = {
    "single": single,
    "another database": another_database,
    "wait_replicas": replicated,
    "cluster": cluster,
    "redlock": nodes,
}


def denied(servers: Iterable[Redis]) -> list[str]:
    """What servers refused because of missing rights."""
    rows = [row for server in servers for row in server.command("ACL", "LOG")]
    return [str(dict(zip(row[::2], row[1::2], strict=True))[b"object"]) for row in rows]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_operation_works_with_these_rights(driver: Driver, shape: str) -> None:
    with SHAPES[shape]() as (url, servers):
        namespace = f"test-{secrets.token_hex(4)}"
        if driver == "threads":
            everything(url, namespace, shape == "redlock")
        else:
            asyncio.run(everything_in_a_loop(url, namespace, shape == "redlock"))
        assert denied(servers) == []


def everything(url: str, namespace: str, locks_alone: bool) -> None:
    """Of the public operations each that asks a server anything."""
    with (
        holdfast.connect(url, namespace=namespace) as one,
        holdfast.connect(url, namespace=namespace) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        for name in ("a", "b", "c", "d"):  # at several masters
            lease = one.lock(name, ttl=60, metadata={"job": "1"}).acquire(timeout=10)
            assert lease is not None
            assert other.lock(name).locked()
            waiter = pool.submit(other.lock(name).acquire, timeout=30)
            if locks_alone:
                assert one.inspect(name).holders
            else:
                wait_until(lambda name=name: one.inspect(name).waiters)  # type: ignore[misc]  # its default
            lease.extend(90)
            lease.release()
            taken = waiter.result(30)
            assert taken is not None
            taken.release()
        lease = held(one.rlock("r").acquire(timeout=10))
        assert one.break_lock("r", token=lease.token, reason="test") is not None
        assert lease.wait_lost(30)
        adopted = other.adopt(held(one.lock("e", ttl=60).acquire(timeout=10)).export())
        assert [info.name for info in other.list("e")] == ["e"]
        adopted.release()
        if locks_alone:
            return
        with one.watch("w") as watch:
            lease = held(one.lock("w").acquire(timeout=10))
            assert watch.next(30) is not None
            lease.set_value(b"data")
            assert one.inspect("w").value == b"data"
            lease.release()
        writer = held(one.rwlock("rw").write().acquire(timeout=10))
        reader = pool.submit(other.rwlock("rw").read().acquire, timeout=30)
        wait_until(lambda: one.inspect("rw").waiters)
        writer.downgrade().release()
        held(reader.result(30)).release()
        permits = one.semaphore("s", 2)
        held(permits.acquire(timeout=10))
        permits.resize(3)
        permits.release()


async def everything_in_a_loop(url: str, namespace: str, locks_alone: bool) -> None:
    one, other = (holdfast.aio.connect(url, namespace=namespace) for _ in range(2))
    async with one, other:
        for name in ("a", "b", "c", "d"):
            lease = held(await one.lock(name, ttl=60, metadata={"job": "1"}).acquire(timeout=10))
            assert await other.lock(name).locked()
            waiter = asyncio.create_task(other.lock(name).acquire(timeout=30))
            if not locks_alone:
                await async_wait_until(lambda: other._driver.client_state.waiting)
            await lease.extend(90)
            await lease.release()
            await held(await waiter).release()
        lease = held(await one.rlock("r").acquire(timeout=10))
        assert await one.break_lock("r", token=lease.token, reason="test") is not None
        assert await lease.wait_lost(30)
        adopted = await other.adopt(await held(await one.lock("e", ttl=60).acquire(timeout=10)).export())
        assert [info.name for info in await other.list("e")] == ["e"]
        await adopted.release()
        if locks_alone:
            return
        async with one.watch("w") as watch:
            lease = held(await one.lock("w").acquire(timeout=10))
            assert await watch.next(30) is not None
            await lease.set_value(b"data")
            await lease.release()
        writer = held(await one.rwlock("rw").write().acquire(timeout=10))
        await (await writer.downgrade()).release()
        permits = one.semaphore("s", 2)
        held(await permits.acquire(timeout=10))
        await permits.resize(3)
        await permits.release()


def held(lease: Any) -> Any:
    assert lease is not None
    return lease


@pytest.mark.parametrize("shape", SHAPES)
def test_everything_else_is_refused(shape: str) -> None:
    """On a real connection of that user, as a thief of its password would try it."""
    with SHAPES[shape]() as (_, servers), ExitStack() as stack:
        connection = stack.enter_context(servers[0].connection())
        ask(connection, ("AUTH", "app", PASSWORD))
        for command in FORBIDDEN:
            with pytest.raises(ReplyError, match="NOPERM"):
                ask(connection, tuple(re.findall(r"'[^']*'|\S+", command)))
        if shape != "redlock":
            with pytest.raises(ReplyError, match="NOPERM"):
                ask(connection, ("CONFIG", "GET", "*"))
        if shape == "redlock":
            for command in ("GET holdfast:shop:lock:{x}", "PUBLISH holdfast:shop:wake:x y"):
                with pytest.raises(ReplyError, match="NOPERM"):
                    ask(connection, tuple(command.split()))


def test_a_script_of_that_user_can_do_no_more_either() -> None:
    with single() as (_, (server,)), server.connection() as connection:
        ask(connection, ("AUTH", "app", PASSWORD))
        for command in ("'GET', 'other'", "'FLUSHALL'", "'DEL', KEYS[1]"):
            script = f"return redis.call({command})"
            (sha1,) = ask(connection, ("SCRIPT", "LOAD", script))
            with pytest.raises(ReplyError, match="The user executing the script can't"):
                ask(connection, ("EVALSHA", sha1, "1", "holdfast:x"))
    for what in (
        "run this command or subcommand",
        "access at least one of the keys mentioned in the command",
    ):
        told = str(error_for(f"ERR The user executing the script can't {what}", Address("host", 1)))
        assert ACL_RULES in told


# --- one set, in errors and in documents -----------------------------------------------------------


def test_the_hints_and_the_documents_name_the_same_rights() -> None:
    page = (DOCS / "redis.md").read_text()
    assert f"ACL SETUSER app on >password {ACL_RULES}\n" in page
    assert f"In a Cluster add `{ACL_RULES_CLUSTER}`" in page
    for each in (ACL_RULES, ACL_RULES_CLUSTER, "+select", "+wait"):
        assert each in PERMISSION_HINT
    assert re.findall(r"`\+(?:select|wait)`", page.replace("\n", " ")) == ["`+select`", "`+wait`"]
    page = (DOCS / "redlock.md").read_text()
    assert f"ACL SETUSER app on >password {redlock_rights.ACL_RULES}\n" in page
    assert redlock_rights.ACL_RULES in redlock_rights.PERMISSION_HINT
    assert "`+select`" in page
    assert "+select" in redlock_rights.PERMISSION_HINT


def test_a_missing_right_is_reported_with_the_set_of_this_engine(driver: Driver) -> None:
    for shape, lacks, told in (
        ("single", "-evalsha", ACL_RULES),
        ("redlock", "-evalsha", redlock_rights.ACL_RULES),
        ("redlock", "-script|load", redlock_rights.ACL_RULES),
    ):
        with SHAPES[shape]() as (url, servers):
            for server in servers:
                server.command("ACL", "SETUSER", "app", lacks)
            attempt = _try if driver == "threads" else _try_in_a_loop
            with pytest.raises(EngineUnavailable, match=re.escape(told)) as caught:
                attempt(url)
            assert PASSWORD not in str(caught.value)


def _try(url: str) -> None:
    with holdfast.connect(url, io_timeout=1.0) as locks:
        locks.lock("x").acquire(timeout=5)


def _try_in_a_loop(url: str) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(url, io_timeout=1.0) as locks:
            await locks.lock("x").acquire(timeout=5)

    asyncio.run(main())


# --- what servers say -----------------------------------------------------------------------------

STEERING = "\x1b]0;owned\x07\x1b[2J\r\n\x00\u202e"


@pytest.mark.parametrize(
    "start", ["ERR", "NOPERM", "LOADING", "WRONGPASS", "ODD", "ERR unknown command", "HOLDFAST", "NOAUTH"]
)
def test_what_a_server_says_cannot_steer_a_terminal(start: str) -> None:
    for address in (Address("host", 1), Address(f"host{STEERING}", 1)):
        told = str(error_for(f"{start} {STEERING}", address))
        assert told.isprintable()


def test_what_another_holder_says_cannot_steer_a_terminal() -> None:
    with single() as (url, _), holdfast.connect(url) as one, holdfast.connect(url) as other:
        lease = held(one.lock("x", ttl=60).acquire(timeout=10))
        other.break_lock("x", reason=f"because{STEERING}")
        assert lease.wait_lost(30)
        with pytest.raises(holdfast.LockLost, match="because") as caught:
            lease.check()
        assert str(caught.value).isprintable()
