"""Logging in, and servers that will not do: each with a word on what to do instead."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from engines.redis.asking import Asker, Driver
from holdfast import EngineUnavailable
from holdfast.core.ops import Refused
from holdfast.engines.redis.greeting import MINIMUM_VERSION, Server, _must_serve, evicting
from holdfast.engines.redis.settings import Address, Settings
from holdfast.lab.servers import Redis
from holdfast.rules.requests import Granted
from support import wait_until
from support.servers import shared_redis, shared_redis_cluster, shared_redis_tls, shared_sentinel

RULES = (
    "on >app-secret ~holdfast:* &holdfast:* -@all +@scripting +@connection "
    "+get +set +time +scan +publish +subscribe"
)
"""What the documents say that a user needs."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[Redis]:
    """With a password, and users of several rights."""
    users = {
        "app": RULES,
        "deaf": RULES.replace("&holdfast:*", "resetchannels").replace("app-secret", "deaf-secret"),
        "elsewhere": RULES.replace("~holdfast:*", "~other:*").replace("app-secret", "else-secret"),
        "mute": RULES.replace("+@scripting", "").replace("app-secret", "mute-secret"),
    }
    with Redis(password="top secret", acl=users) as server:
        yield server


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
def test_who_may_not_is_told_so_at_once(driver: Driver, guarded: Redis, user: str, told: str) -> None:
    with (
        Asker(driver, f"redis://{user}{guarded.address}") as asker,
        pytest.raises(EngineUnavailable, match=told) as caught,
    ):
        asker.acquire()
    assert "secret" not in str(caught.value)


def test_who_may_not_listen_is_told_when_it_wants_to(driver: Driver, guarded: Redis) -> None:
    with Asker(driver, f"redis://deaf:deaf-secret@{guarded.address}", io_timeout=0.5) as asker:
        assert isinstance(asker.acquire(), Granted)
        with pytest.raises(EngineUnavailable, match=r"lacks a permission.*subscribe"):
            asker.ask(asker.adapter.listen, "x")


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
        pytest.raises((EngineUnavailable, Refused), match=r"no TLS with|no connection to"),
    ):
        asker.acquire()


def test_no_tls_to_a_server_with(driver: Driver) -> None:
    with (
        Asker(driver, f"redis://{shared_redis_tls().address}", io_timeout=2.0) as asker,
        pytest.raises((EngineUnavailable, Refused)),
    ):
        asker.acquire()


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


def test_a_replica_is_told_at_once_but_not_once_it_was_a_master(driver: Driver) -> None:
    """It may be a fail-over behind one address: then it passes, and those who wait go on."""
    with Redis() as master, Redis(replica_of=master) as replica:
        with Asker(driver, replica.url) as asker, pytest.raises(EngineUnavailable, match="read-only replica"):
            asker.acquire()
        with Asker(driver, master.url) as asker:
            assert isinstance(asker.acquire(), Granted)
            asker.ask(asker.adapter.listen, "y")
            looked = asker.told_to_look
            master.command("REPLICAOF", replica.host, replica.port)
            with pytest.raises(Refused, match="read-only replica"):
                asker.acquire("y")
            with pytest.raises(Refused, match="read-only replica"):
                asker.acquire("y")
            master.command("REPLICAOF", "NO", "ONE")
            wait_until(lambda: master.is_replica() is False)
            assert isinstance(asker.acquire("y"), Granted)
            asker.until_told_to_look(looked)


def test_a_server_that_is_too_old() -> None:
    single = Settings("single", (Address("h", 1),))
    for version in (".".join(map(str, MINIMUM_VERSION)), "7.2.0", "8.0.1-rc1", "10.0.0"):
        _must_serve(Server(version, "standalone", "master"), single, Address("h", 1))
    for version in ("5.0.14", "6.2.16", "7.0.0", "", "unknown"):
        with pytest.raises(EngineUnavailable, match=r"Holdfast needs 7\.0\.1 or later"):
            _must_serve(Server(version, "standalone", "master"), single, Address("h", 1))


# --- memory -------------------------------------------------------------------------------------


def test_a_server_that_throws_keys_away_is_told_of_once(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_what_is_evicted_is_read_from_what_the_server_says() -> None:
    assert evicting(b"maxmemory:100\r\nmaxmemory_policy:volatile-ttl\r\n") == "volatile-ttl"
    assert evicting(b"maxmemory:100\r\nmaxmemory_policy:noeviction\r\n") == ""
    assert evicting(b"maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n") == ""
    assert evicting(b"") == ""
    assert evicting(ValueError("NOPERM")) == ""


def test_an_error_of_the_whole_client_says_what_to_do(guarded: Redis) -> None:
    told = "wants a password: write redis://:password@host"
    with (
        holdfast.connect(f"redis://{guarded.address}") as locks,
        pytest.raises(EngineUnavailable, match=told),
    ):
        locks.lock("x").acquire()
