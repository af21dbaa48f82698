"""Error replies of real servers, and what they are taken for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

import holdfast
from engines.redis.adapters import Asker, Driver
from holdfast import EngineUnavailable
from holdfast.core.effects import NotApplied, TransientError
from holdfast.engines.redis.errors import error_for, parse_redirection
from holdfast.engines.resp.config import Address
from holdfast.lab.servers import Redis
from holdfast.rules.requests import Done, Granted, Inspect, Renew
from support import wait_until
from support.servers import shared_redis

HERE = Address("here", 1)


@pytest.mark.parametrize(
    ("message", "kind", "told"),
    [
        ("LOADING Redis is loading the dataset in memory", NotApplied, "reading its data"),
        ("MASTERDOWN Link with MASTER is down", NotApplied, "lost its master"),
        ("READONLY You can't write against a read only replica.", NotApplied, "read-only replica"),
        ("UNBLOCKED force unblock from blocking operation", NotApplied, "not the master any more"),
        ("ERR WAIT cannot be used with replica instances.", NotApplied, "not the master any more"),
        ("CLUSTERDOWN Hash slot not served", NotApplied, "cluster, or a part of it, is down"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", NotApplied, "being moved"),
        ("BUSY Redis is busy running a script.", NotApplied, "SCRIPT KILL"),
        ("OOM command not allowed when used memory > 'maxmemory'.", NotApplied, "maxmemory"),
        ("MISCONF Redis is configured to save RDB snapshots", NotApplied, "disk full"),
        ("NOREPLICAS Not enough good replicas to write.", NotApplied, "min-replicas-to-write"),
        ("NOSCRIPT No matching script.", NotApplied, "loses scripts"),
        ("MOVED 1 h:1", NotApplied, "being moved"),
        ("ERR max number of clients reached", NotApplied, "maxclients"),
        ("NOAUTH Authentication required.", EngineUnavailable, "wants a password"),
        ("WRONGPASS invalid username-password pair", EngineUnavailable, "does not know this user"),
        ("NOPERM this user has no permissions", EngineUnavailable, "lacks a permission"),
        ("DENIED Redis is running in protected mode", EngineUnavailable, "protected mode"),
        ("ERR unknown command 'EVALSHA', with args", EngineUnavailable, "too old, or lacks a command"),
        ("ERR DB index is out of range", EngineUnavailable, "no such database"),
        ("ERR SELECT is not allowed in cluster mode", EngineUnavailable, "redis\\+cluster://"),
        ("ERR something else", EngineUnavailable, "answered: ERR something else"),
        ("WRONGTYPE Operation against a key", EngineUnavailable, "answered: WRONGTYPE"),
        ("HOLDFAST cannot read the record", EngineUnavailable, "cannot read the record"),
    ],
)
def test_each_error_is_one_of_two_kinds(message: str, kind: type[Exception], told: str) -> None:
    failure = error_for(message, HERE)
    assert isinstance(failure, kind)
    with pytest.raises(kind, match=told):
        raise failure


def test_a_server_that_repeats_what_it_was_asked_does_not_give_away_a_password() -> None:
    """As Redis before 6.0 answers a greeting."""
    message = "ERR unknown command `HELLO`, with args beginning with: `2`, `AUTH`, `app`, `secret`, "
    failure = error_for(message, HERE)
    assert "HELLO" in str(failure)
    assert "secret" not in str(failure)


def test_where_a_slot_went() -> None:
    assert parse_redirection("MOVED 3999 127.0.0.1:6381") == (True, 3999, Address("127.0.0.1", 6381))
    assert parse_redirection("ASK 3999 ::1:6381") == (False, 3999, Address("::1", 6381))
    assert parse_redirection("MOVED 3999 [::1]:6381") == (True, 3999, Address("::1", 6381))
    assert parse_redirection("MOVED 3999 :6381") == (True, 3999, Address("", 6381))
    assert parse_redirection("MOVED 3999 h:6381,hostname=h.example") == (True, 3999, Address("h", 6381))
    assert parse_redirection("MOVED somewhere") is None
    assert parse_redirection("ERR MOVED 1 h:1") is None


# --- real ones ----------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def asker(driver: Driver, server: Redis) -> Iterator[Asker]:
    with Asker(driver, server.url) as asker:
        asker.acquire("warm", "w")
        yield asker


def test_scripts_that_were_flushed_are_loaded_again(asker: Asker, server: Redis) -> None:
    for number in range(3):
        server.command("SCRIPT", "FLUSH")
        assert isinstance(asker.acquire("x", f"n{number}"), Granted)
        server.command("SCRIPT", "FLUSH")
        assert asker.ask(asker.adapter.renew_batch, (("x", Renew(f"n{number}", 30.0)),)) == [Done()]
        server.command("SCRIPT", "FLUSH")
        assert len(asker.ask(asker.adapter.list_names, "")) == 2
        assert isinstance(asker.release("x", f"n{number}"), Done)


def test_a_server_without_memory_refuses_and_nothing_is_held(asker: Asker, server: Redis) -> None:
    server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(NotApplied, match="out of memory"):
        asker.acquire("x")
    server.command("CONFIG", "SET", "maxmemory", "0")
    assert asker.apply("x", Inspect()).record.holders == ()
    assert isinstance(asker.acquire("x"), Granted)


def test_a_full_server_takes_back_also_on_a_new_connection(asker: Asker, server: Redis) -> None:
    asker.acquire("x", "n1")
    server.command("CONFIG", "SET", "maxmemory", "1")
    server.command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")

    def released() -> bool:
        with contextlib.suppress(TransientError):
            return isinstance(asker.release("x", "n1"), Done)
        return False

    wait_until(released)


def test_a_server_that_cannot_save(asker: Asker, server: Redis) -> None:
    """As with a full disk: what it would write is in the way."""
    (server.data / "dump.rdb").mkdir()
    server.command("CONFIG", "SET", "save", "3600 1")
    server.command("BGSAVE")
    wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
    with pytest.raises(NotApplied, match="is its disk full"):
        asker.acquire("x")
    server.command("CONFIG", "SET", "save", "")  # else it would not even stop


def test_too_few_replicas(asker: Asker, server: Redis) -> None:
    server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    with pytest.raises(NotApplied, match="min-replicas-to-write"):
        asker.acquire("x")


def test_a_script_of_another_client_that_hangs(driver: Driver, server: Redis) -> None:
    server.command("CONFIG", "SET", "busy-reply-threshold", "1")
    with Asker(driver, server.url) as asker:
        asker.acquire("warm", "w")

        def hang() -> None:
            with pytest.raises(Exception, match="killed"):
                server.command("EVAL", "while true do end", 0)

        thread = threading.Thread(target=hang)
        thread.start()
        wait_until(lambda: not server.answers())
        with pytest.raises(NotApplied, match="SCRIPT KILL"):
            asker.acquire("x")
        server.command("SCRIPT", "KILL")
        thread.join(10)
        assert isinstance(asker.acquire("x"), Granted)


def test_too_many_clients(driver: Driver, server: Redis) -> None:
    server.command("CONFIG", "SET", "maxclients", "1")
    with Asker(driver, server.url) as one, Asker(driver, server.url) as another:
        one.acquire("x")
        with pytest.raises(NotApplied, match=r"as many clients as it may|no connection|broke"):
            another.acquire("y")


def test_a_record_that_is_not_ours(driver: Driver) -> None:
    with Asker(driver, shared_redis().url) as asker:
        key = asker.engine._space.prefix + b"lock:{x}"
        shared_redis().command("RPUSH", key, "nonsense")
        with pytest.raises(EngineUnavailable):
            asker.acquire("x")


def test_a_client_says_after_a_while_what_the_server_said(server: Redis) -> None:
    with holdfast.connect(server.url, io_timeout=1.0) as locks:
        with locks.lock("warm"):
            pass
        server.command("CONFIG", "SET", "maxmemory", "1")
        lock = locks.lock("x")
        with pytest.raises(EngineUnavailable, match="out of memory and refuses writes: raise maxmemory"):
            lock.acquire()
        assert lock.lease is None
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert not locks.inspect("x").locked
