"""Logging in, and servers that will not do: each with a word on what to do instead."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest

import holdfast
from engines.redis.adapters import Asker, Driver
from holdfast import EngineUnavailable
from holdfast.core.effects import NotApplied
from holdfast.engines.redis.config import RedisConfig
from holdfast.engines.redis.errors import ACL_RULES, ACL_RULES_CLUSTER
from holdfast.engines.resp.config import Address
from holdfast.engines.resp.handshake import MINIMUM_VERSION, ServerInfo, _check_server, eviction_policy
from holdfast.lab.servers import Redis, RedisCluster, RedisSentinel
from holdfast.rules.requests import Granted
from support import wait_until
from support.servers import shared_redis, shared_redis_cluster, shared_redis_tls, shared_sentinel

RULES = f"on >app-secret {ACL_RULES}"
"""What the documents say that a user needs."""

RULES_OF_A_CLUSTER = f"{RULES} {ACL_RULES_CLUSTER}"
"""And there."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Redis]:
    """With a password, and users of several rights."""
    users = {
        "app": RULES,
        "deaf": RULES.replace("&holdfast:*", "resetchannels").replace("app-secret", "deaf-secret"),
        "elsewhere": RULES.replace("~holdfast:*", "~other:*").replace("app-secret", "else-secret"),
        "blind": RULES.replace("+info|memory", "").replace("app-secret", "blind-secret"),
        "mute": RULES.replace("+evalsha", "").replace("app-secret", "mute-secret"),
    }
    with Redis(password="top secret", acl=users) as server:
        yield server


@pytest.fixture(scope="module")
def changing() -> Iterator[RedisCluster]:
    """One whose settings may be changed."""
    with RedisCluster() as cluster:
        yield cluster


def try_out(driver: Driver, url: str, **options: Any) -> Granted:
    with Asker(driver, url, **options) as asker:
        granted = asker.acquire()
        assert isinstance(granted, Granted)
        asker.release()
        asker.ask(asker.adapter.listen, "x")
        asker.ask(asker.adapter.list_names, "")
    return granted


def test_a_password(driver: Driver, guarded: Redis) -> None:
    try_out(driver, guarded.url)
    try_out(driver, f"redis://{guarded.address}", password="top secret")


def test_a_user_with_no_more_rights_than_needed(driver: Driver, guarded: Redis) -> None:
    try_out(driver, f"redis://app:app-secret@{guarded.address}")


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ("", "wants a password"),
        (":wrong-secret@", "does not know this user with this password"),
        ("app:wrong-secret@", "does not know this user with this password"),
        ("elsewhere:else-secret@", r"lacks a permission.*~holdfast:\*"),
        ("mute:mute-secret@", "lacks a permission"),
    ],
)
def test_a_missing_right_is_reported_at_once(driver: Driver, guarded: Redis, user: str, told: str) -> None:
    with (
        Asker(driver, f"redis://{user}{guarded.address}") as asker,
        pytest.raises(EngineUnavailable, match=told) as caught,
    ):
        asker.acquire()
    assert "secret" not in str(caught.value)


def test_a_missing_right_to_listen_is_reported_when_it_is_needed(driver: Driver, guarded: Redis) -> None:
    with Asker(driver, f"redis://deaf:deaf-secret@{guarded.address}", io_timeout=0.5) as asker:
        assert isinstance(asker.acquire(), Granted)

        def told() -> str:
            try:
                asker.ask(asker.adapter.listen, "x")
            except NotApplied:
                return ""  # the server has not answered in the time of this try
            except EngineUnavailable as error:
                return str(error)
            raise AssertionError("it listens")

        assert re.search(r"lacks a permission.*subscribe", wait_until(told))


def test_databases_are_apart(driver: Driver) -> None:
    namespace = f"test-{secrets.token_hex(6)}"
    url = shared_redis().url
    with (
        Asker(driver, f"{url}/1", namespace=namespace) as one,
        Asker(driver, f"{url}/2", namespace=namespace) as two,
    ):
        assert isinstance(one.acquire(), Granted)
        assert isinstance(two.acquire(), Granted)
        assert one.adapter.source != two.adapter.source
    with Asker(driver, f"{url}/999") as asker, pytest.raises(EngineUnavailable, match="no such database"):
        asker.acquire()


# --- logging in to several servers --------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded_sentinel() -> Iterator[RedisSentinel]:
    with RedisSentinel(password="top secret", sentinels=1) as system:
        yield system


@pytest.fixture(scope="module")
def guarded_cluster() -> Iterator[RedisCluster]:
    with RedisCluster(password="top secret") as cluster:
        yield cluster


def let_in(servers: Iterable[Redis], rules: str) -> None:
    for server in servers:
        server.command("ACL", "SETUSER", "app", "reset", *rules.split())


def wait_and_take(url: str) -> None:
    """Everything that a client does with a lock that is not free, at the server of each name."""
    namespace = f"test-{secrets.token_hex(6)}"
    with holdfast.connect(url, namespace=namespace) as locks:
        for name in ("a", "b", "c", "d"):
            lease = locks.lock(name, ttl=600).acquire(timeout=10)
            assert lease is not None
            with ThreadPoolExecutor(1) as pool:
                waiter = pool.submit(locks.lock(name).acquire, timeout=30)
                wait_until(lambda name=name: locks.inspect(name).waiters)  # type: ignore[misc]  # its default
                lease.release()
                taken = waiter.result(30)
            assert taken is not None
            assert taken.token > lease.token
            taken.extend()
            taken.release()
        assert [info.name for info in locks.list()] == []


def test_a_password_behind_sentinels(driver: Driver, guarded_sentinel: RedisSentinel) -> None:
    end = f"{guarded_sentinel.addresses}?service={guarded_sentinel.service}"
    try_out(driver, f"redis+sentinel://:top%20secret@{end}")
    for user, told in (("", "wants a password"), (":wrong-secret@", "does not know this user")):
        with (
            Asker(driver, f"redis+sentinel://{user}{end}") as asker,
            pytest.raises(EngineUnavailable, match=told),
        ):
            asker.acquire()


def test_a_user_behind_sentinels(driver: Driver, guarded_sentinel: RedisSentinel) -> None:
    let_in(guarded_sentinel.nodes, RULES)
    end = f"{guarded_sentinel.addresses}?service={guarded_sentinel.service}"
    try_out(driver, f"redis+sentinel://app:app-secret@{end}")
    wait_and_take(f"redis+sentinel://app:app-secret@{end}")


def test_a_password_of_a_cluster(driver: Driver, guarded_cluster: RedisCluster) -> None:
    try_out(driver, f"redis+cluster://:top%20secret@{guarded_cluster.addresses}")
    for user, told in (("", "wants a password"), (":wrong-secret@", "does not know this user")):
        with (
            Asker(driver, f"redis+cluster://{user}{guarded_cluster.addresses}") as asker,
            pytest.raises(EngineUnavailable, match=told),
        ):
            asker.acquire()


def test_a_user_of_a_cluster_with_no_more_rights_than_needed(
    driver: Driver, guarded_cluster: RedisCluster
) -> None:
    let_in(guarded_cluster.masters, RULES_OF_A_CLUSTER)
    url = f"redis+cluster://app:app-secret@{guarded_cluster.addresses}"
    try_out(driver, url)
    wait_and_take(url)


@pytest.mark.parametrize(
    "command",
    [
        "EVAL x 0",
        "SCRIPT FLUSH",
        "SCRIPT KILL",
        "CLIENT KILL ID 1",
        "CLIENT LIST",
        "FLUSHALL",
        "KEYS *",
        "DEL x",
        "CONFIG GET x",
        "CONFIG SET x y",
        "INFO",
        "ACL WHOAMI",
        "GET other",
        "PUBLISH other x",
        "EVALSHA x 1 other",
    ],
)
def test_the_user_may_do_nothing_else(guarded: Redis, command: str) -> None:
    denied = guarded.command("ACL", "DRYRUN", "app", *command.split())
    assert b"no permissions" in denied.lower()


def test_the_rights_are_those_that_the_documents_name() -> None:
    page = (Path(__file__).parents[3] / "docs" / "redis.md").read_text()
    assert f"ACL SETUSER app {RULES.replace('app-secret', 'password')}\n" in page
    assert f"In a Cluster add `{RULES_OF_A_CLUSTER.removeprefix(RULES).strip()}`" in page


# --- TLS ----------------------------------------------------------------------------------------


def test_tls(driver: Driver) -> None:
    server = shared_redis_tls()
    files = server.certificates
    try_out(driver, f"{server.url}?ssl_ca_certs={files.authority}")
    try_out(driver, server.url, ssl_cert_reqs="none")
    try_out(
        driver,
        server.url,
        ssl_ca_certs=str(files.authority),
        ssl_certfile=str(files.certificate),
        ssl_keyfile=str(files.key),
    )


def test_a_certificate_that_is_not_trusted(driver: Driver) -> None:
    with (
        Asker(driver, shared_redis_tls().url) as asker,
        pytest.raises(EngineUnavailable, match=r"certificate of .* is not trusted"),
    ):
        asker.acquire()


def test_tls_to_a_server_without(driver: Driver) -> None:
    with (
        Asker(driver, f"rediss://{shared_redis().address}", io_timeout=2.0) as asker,
        pytest.raises((EngineUnavailable, NotApplied), match=r"no TLS with|no connection to"),
    ):
        asker.acquire()


def test_no_tls_to_a_server_with(driver: Driver) -> None:
    with (
        Asker(driver, f"redis://{shared_redis_tls().address}", io_timeout=2.0) as asker,
        pytest.raises((EngineUnavailable, NotApplied)),
    ):
        asker.acquire()


@pytest.mark.engine("redis+cluster")
def test_a_cluster_over_tls() -> None:
    """Wherever it is sent, to every master and to listen."""
    with RedisCluster(tls=True) as cluster:
        url = f"redis+cluster://{cluster.addresses}?ssl=true"
        authority = cluster.members[0].certificates.authority
        wait_and_take(f"{url}&ssl_ca_certs={authority}")
        try_out("asyncio", f"{url}&ssl_ca_certs={authority}")
        with Asker("threads", url) as asker, pytest.raises(EngineUnavailable, match="is not trusted"):
            asker.acquire()


@pytest.mark.engine("redis+sentinel")
def test_sentinels_over_tls_that_want_a_password() -> None:
    """Their own, which is not the master's."""
    users = {"watcher": "on >watch-secret ~* &* +@all"}
    with RedisSentinel(
        tls=True, password="top secret", sentinel_password="sentinel secret", sentinel_acl=users
    ) as system:
        authority = system.nodes[0].certificates.authority
        end = f"{system.addresses}?service={system.service}&ssl=true"
        url = f"redis+sentinel://:top%20secret@{end}&ssl_ca_certs={authority}"
        wait_and_take(f"{url}&sentinel_password=sentinel%20secret")
        try_out("asyncio", url, sentinel_username="watcher", sentinel_password="watch-secret")
        try_out("threads", url, sentinel_username="watcher", sentinel_password="watch-secret")
        wrong = f"{url}&sentinel_password=top%20secret"
        for refused, told in ((url, "wants a password"), (wrong, "does not know this user")):
            with Asker("threads", refused) as asker, pytest.raises(EngineUnavailable, match=told):
                asker.acquire()
        old = system.master()
        system.failover()
        wait_until(old.is_replica)
        wait_and_take(f"{url}&sentinel_password=sentinel%20secret")


# --- the wrong server ---------------------------------------------------------------------------


def test_a_member_of_a_cluster_by_itself(driver: Driver) -> None:
    member = shared_redis_cluster().masters[0]
    with (
        Asker(driver, member.url) as asker,
        pytest.raises(EngineUnavailable, match=r"write redis\+cluster://"),
    ):
        asker.acquire()


def test_no_cluster(driver: Driver) -> None:
    with (
        Asker(driver, f"redis+cluster://{shared_redis().address}") as asker,
        pytest.raises(EngineUnavailable, match="not part of a cluster: write redis://"),
    ):
        asker.acquire()


def test_a_sentinel_by_itself(driver: Driver) -> None:
    sentinel = shared_sentinel().sentinels[0]
    with (
        Asker(driver, f"redis://{sentinel.address}") as asker,
        pytest.raises(EngineUnavailable, match=r"is a Sentinel: write redis\+sentinel://"),
    ):
        asker.acquire()


def test_no_sentinel(driver: Driver) -> None:
    with (
        Asker(driver, f"redis+sentinel://{shared_redis().address}?service=main") as asker,
        pytest.raises(EngineUnavailable, match=r"unknown command|lacks a command"),
    ):
        asker.acquire()


def test_a_master_that_the_sentinels_do_not_know(driver: Driver) -> None:
    with (
        Asker(driver, f"redis+sentinel://{shared_sentinel().addresses}?service=nobody") as asker,
        pytest.raises(EngineUnavailable, match="know no master called 'nobody'"),
    ):
        asker.acquire()


def test_a_replica_is_refused_at_once_but_not_once_it_was_a_master(driver: Driver) -> None:
    """It may be a fail-over behind one address: then it passes, and those who wait go on."""
    with Redis() as master, Redis(replica_of=master) as replica:
        with Asker(driver, replica.url) as asker, pytest.raises(EngineUnavailable, match="read-only replica"):
            asker.acquire()
        with Asker(driver, master.url) as asker:
            assert isinstance(asker.acquire(), Granted)
            asker.listen("y")
            looked = asker.told_to_look
            master.command("REPLICAOF", replica.host, replica.port)
            with pytest.raises(NotApplied, match="read-only replica"):
                asker.acquire("y")
            with pytest.raises(NotApplied, match="read-only replica"):
                asker.acquire("y")
            master.command("REPLICAOF", "NO", "ONE")
            wait_until(lambda: master.is_replica() is False)
            wait_until(lambda: is_taken(asker, "y"))
            asker.until_told_to_look(looked)


def is_taken(asker: Asker, name: str) -> bool:
    """It may share in a look at the server that the listener began before."""
    try:
        return isinstance(asker.acquire(name), Granted)
    except NotApplied:
        return False


def test_a_server_that_is_too_old() -> None:
    single = RedisConfig("single", (Address("h", 1),))
    for version in (".".join(map(str, MINIMUM_VERSION)), "7.2.0", "8.0.1-rc1", "10.0.0"):
        _check_server(ServerInfo(version, "standalone", "master"), single, Address("h", 1))
    for version in ("5.0.14", "6.2.16", "7.0.0", "", "unknown"):
        with pytest.raises(EngineUnavailable, match=r"Holdfast needs 7\.0\.1 or later"):
            _check_server(ServerInfo(version, "standalone", "master"), single, Address("h", 1))


class OldServer:
    """Answers the first words on every connection as one of another version does, and nothing else."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked: list[bytes] = []
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, contextlib.suppress(ConnectionError):  # the client may hang up
                while asked := connection.recv(4096):
                    self.asked.append(asked)
                    connection.sendall(self._answer)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


def hello(version: bytes) -> bytes:
    """As Redis 6 and 7 answer ``HELLO 2``."""
    pairs = [b"server", b"redis", b"version", version, b"mode", b"standalone", b"role", b"master"]
    return b"*%d\r\n" % len(pairs) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in pairs])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (hello(b"6.2.16"), r"is version 6\.2\.16; Holdfast needs 7\.0\.1 or later"),
        (hello(b"7.0.0"), r"is version 7\.0\.0; Holdfast needs 7\.0\.1 or later"),
        (
            b"-ERR unknown command `HELLO`, with args beginning with: `2`, \r\n",
            "is too old, or lacks a command",
        ),
    ],
    ids=["6.2", "7.0.0", "5.0"],
)
def test_an_old_server_is_refused_by_the_first_words(driver: Driver, answer: bytes, told: str) -> None:
    with OldServer(answer) as old, Asker(driver, f"redis://{old.address}") as asker:
        with pytest.raises(EngineUnavailable, match=told):
            asker.acquire()
        assert len(old.asked) == 1
        assert b"HELLO" in old.asked[0]


# --- memory -------------------------------------------------------------------------------------


def test_a_server_that_evicts_keys_is_reported_once(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"maxmemory-policy": "allkeys-lru"}
    with Redis(maxmemory="100mb", settings=settings) as server, Asker(driver, server.url) as asker:
        before = asker.engine.guarantees
        asker.acquire()
        told = asker.engine.guarantees
        assert told != before
        assert any("allkeys-lru" in need for need in told.needs)
        assert "allkeys-lru" in told.faults["keys are evicted"]
        with Asker(driver, server.url) as again:
            again.acquire()
    warned = [record for record in caplog.records if "allkeys-lru" in record.getMessage()]
    assert len(warned) == 2  # once for each client


def test_without_the_right_to_ask_the_policy_is_unknown(
    driver: Driver, guarded: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with Asker(driver, f"redis://app:app-secret@{guarded.address}") as asker:
        before = asker.engine.guarantees
        asker.acquire()
        assert asker.engine.guarantees == before
        asker.release()
    with Asker(driver, f"redis://blind:blind-secret@{guarded.address}") as asker:
        asker.acquire()
        asker.adapter._topology.invalidate(None)
        asker.ask(asker.adapter.list_names, "")
        told = asker.engine.guarantees
        assert any("NOT KNOWN HERE: this server does not say" in need for need in told.needs)
        assert "NOT KNOWN HERE" in told.faults["keys are evicted"]
    assert len([record for record in caplog.records if "does not say" in record.getMessage()]) == 1


def test_a_cluster_whose_user_may_not_ask(driver: Driver, guarded_cluster: RedisCluster) -> None:
    let_in(guarded_cluster.masters, RULES_OF_A_CLUSTER.replace("+info|memory", ""))
    with Asker(driver, f"redis+cluster://app:app-secret@{guarded_cluster.addresses}") as asker:
        asker.acquire()
        told = asker.engine.guarantees
    assert any("NOT KNOWN HERE: a master of this cluster does not say" in need for need in told.needs)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_master_of_a_cluster_that_evicts_keys_is_reported(
    driver: Driver, changing: RedisCluster, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    """At the latest when it is first asked for a lock."""
    bad = changing.masters[which]
    bad.commands(
        ("CONFIG", "SET", "maxmemory", "100mb"), ("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    )
    try:
        with Asker(driver, f"redis+cluster://{changing.addresses}") as asker:
            for number in range(100):
                asker.acquire(f"x{number}", f"n{number}")
            told = asker.engine.guarantees
    finally:
        bad.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    wanted = f"a master of this cluster evicts keys .*allkeys-lfu at {bad.address}"
    assert re.search(wanted, told.faults["keys are evicted"])
    assert any(re.search(wanted, need) for need in told.needs)
    assert len([record for record in caplog.records if bad.address in record.getMessage()]) == 1


def test_what_is_evicted_is_read_from_what_the_server_says() -> None:
    assert eviction_policy(b"maxmemory:100\r\nmaxmemory_policy:volatile-ttl\r\n") == "volatile-ttl"
    assert eviction_policy(b"maxmemory:100\r\nmaxmemory_policy:noeviction\r\n") == ""
    assert eviction_policy(b"maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n") == ""
    assert eviction_policy(b"") is None
    assert eviction_policy(ValueError("NOPERM")) is None


def test_an_error_of_the_whole_client_says_what_to_do(guarded: Redis) -> None:
    told = "wants a password: write redis://:password@host"
    with (
        holdfast.connect(f"redis://{guarded.address}") as locks,
        pytest.raises(EngineUnavailable, match=told),
    ):
        locks.lock("x").acquire()
