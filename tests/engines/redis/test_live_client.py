"""Live clients of redis-py instead of a URL: their settings are used, whatever else they do."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel

import holdfast
import holdfast.aio
from engines.redis.adapters import Driver
from holdfast import EngineUnavailable, InvalidArgument
from holdfast.lab.servers import Redis
from support import wait_until
from support.servers import shared_redis, shared_redis_cluster, shared_redis_tls, shared_sentinel


def try_out(driver: Driver, client: Any, **options: Any) -> tuple[str, str]:
    """Take a lock with it; the URL, and whose the tokens are."""
    namespace = f"test-{secrets.token_hex(6)}"
    if driver == "threads":
        with holdfast.connect(client, namespace=namespace, **options) as locks:
            with locks.lock("x") as lease:
                assert locks.inspect("x").holders[0].token == lease.token
            return locks.url, lease.fence.source

    async def main() -> tuple[str, str]:
        async with holdfast.aio.connect(client, namespace=namespace, **options) as locks:
            async with locks.lock("x") as lease:
                assert (await locks.inspect("x")).holders[0].token == lease.token
            return locks.url, lease.fence.source

    return asyncio.run(main())


@pytest.fixture(scope="module")
def guarded() -> Iterator[Redis]:
    with Redis(acl={"app": "on >app-secret ~* &* +@all"}, password="top secret") as server:
        yield server


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
@pytest.mark.parametrize(
    "options", [{}, {"decode_responses": True}, {"protocol": 3}, {"db": 3}], ids=["", "text", "resp3", "db"]
)
def test_a_client(driver: Driver, kind: Any, options: dict[str, Any]) -> None:
    server = shared_redis()
    url, _ = try_out(driver, kind(host=server.host, port=server.port, **options))
    assert url == f"redis://{server.address}" + ("/3" if "db" in options else "")


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}], ids=["text", "resp3"])
def test_waiting_with_a_client_that_reads_replies_in_its_own_way(
    driver: Driver, options: dict[str, Any]
) -> None:
    """Wake-ups come on connections of our own, which read them in ours."""
    server = shared_redis()
    kind = redis.Redis if driver == "threads" else redis.asyncio.Redis
    client = kind(host=server.host, port=server.port, **options)
    namespace = f"test-{secrets.token_hex(6)}"
    with holdfast.connect(server.url, namespace=namespace) as holder:
        lease = holder.lock("x", ttl=600).acquire()
        assert lease is not None
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(take_threads if driver == "threads" else take_asyncio, client, namespace)
            wait_until(lambda: holder.inspect("x").waiters)
            lease.release()
            assert waiter.result(30) > lease.token


def take_threads(client: Any, namespace: str) -> int:
    with holdfast.connect(client, namespace=namespace) as locks, locks.lock("x", timeout=60) as lease:
        return lease.token


def take_asyncio(client: Any, namespace: str) -> int:
    async def main() -> int:
        async with (
            holdfast.aio.connect(client, namespace=namespace) as locks,
            locks.lock("x", timeout=60) as lease,
        ):
            return lease.token

    return asyncio.run(main())


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_made_from_a_url_or_a_pool(driver: Driver, kind: Any) -> None:
    try_out(driver, kind.from_url(shared_redis().url))
    module: Any = redis if kind is redis.Redis else redis.asyncio
    try_out(driver, kind(connection_pool=module.ConnectionPool.from_url(shared_redis().url)))


def test_a_user_and_a_password(driver: Driver, guarded: Redis) -> None:
    client = redis.Redis(host=guarded.host, port=guarded.port, username="app", password="app-secret")
    url, _ = try_out(driver, client)
    assert "secret" not in url
    try_out(driver, redis.Redis(host=guarded.host, port=guarded.port, password="top secret"))


class Provider(redis.CredentialProvider):
    """Hands out a password, and counts."""

    asked = 0

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        self.asked += 1
        return ("app", "app-secret") if self.asked % 2 else ("top secret",)


class AsyncProvider(Provider):
    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        await asyncio.sleep(0)
        return self.get_credentials()


@pytest.mark.parametrize("kind", [Provider, AsyncProvider])
def test_a_provider_of_passwords_is_asked_for_every_connection(
    driver: Driver, kind: type[Provider], guarded: Redis
) -> None:
    provider = kind()
    client = redis.Redis(host=guarded.host, port=guarded.port, credential_provider=provider)
    try_out(driver, client)
    assert provider.asked >= 1


class BrokenProvider(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str]:
        raise LookupError("the secret is not in its place")


def test_a_provider_that_fails_is_asked_again_and_then_reported(driver: Driver, guarded: Redis) -> None:
    client = redis.Redis(host=guarded.host, port=guarded.port, credential_provider=BrokenProvider())
    with pytest.raises(EngineUnavailable, match=r"the credential provider failed \(LookupError\)$"):
        try_out(driver, client, io_timeout=0.2)


def test_tls(driver: Driver) -> None:
    server = shared_redis_tls()
    authority = str(server.certificates.authority)
    client = redis.Redis(host=server.host, port=server.port, ssl=True, ssl_ca_certs=authority)
    url, _ = try_out(driver, client)
    assert url == f"rediss://{server.address}"
    lax = redis.asyncio.Redis(host=server.host, port=server.port, ssl=True, ssl_cert_reqs="none")
    try_out(driver, lax)


def test_a_unix_socket(driver: Driver, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with Redis(settings={"unixsocket": str(path)}):
        try_out(driver, redis.Redis(unix_socket_path=str(path)))


def test_what_sentinels_manage(driver: Driver) -> None:
    system = shared_sentinel()
    places = [(sentinel.host, sentinel.port) for sentinel in system.sentinels]
    for module in (redis.sentinel, redis.asyncio.sentinel):
        watcher: Any = module.Sentinel(places)
        url, _ = try_out(driver, watcher.master_for(system.service))
        assert url == f"redis+sentinel://{system.addresses}/0?service={system.service}"
        with pytest.raises(InvalidArgument, match="master_for"):
            holdfast.connect(watcher.slave_for(system.service))


def test_a_cluster(driver: Driver) -> None:
    member = shared_redis_cluster().masters[1]
    client = redis.cluster.RedisCluster(host=member.host, port=member.port)
    try:
        url, _ = try_out(driver, client)
        assert url.startswith("redis+cluster://")
    finally:
        client.close()
    url, _ = try_out(driver, redis.asyncio.RedisCluster(host=member.host, port=member.port))
    assert member.address in url


def test_options_of_our_own_beside_it(driver: Driver) -> None:
    server = shared_redis()
    client = redis.Redis(host=server.host, port=server.port)
    _, source = try_out(driver, client, source="orders", connections=1)
    assert source.startswith("redis:orders/")
    with pytest.raises(InvalidArgument, match="with a live client there is no option 'password'"):
        holdfast.connect(client, password="secret")


def test_by_url_and_by_client_the_tokens_are_of_one_source(driver: Driver) -> None:
    server = shared_redis()
    namespace = f"test-{secrets.token_hex(6)}"
    client = redis.Redis(host=server.host, port=server.port)
    with (
        holdfast.connect(server.url, namespace=namespace) as one,
        holdfast.connect(client, namespace=namespace) as two,
    ):
        with one.lock("x") as mine:
            pass
        with two.lock("x") as yours:
            pass
    assert mine.fence.source == yours.fence.source
    assert yours.token > mine.token


def test_what_is_no_client() -> None:
    for stranger in (object(), redis.ConnectionPool(), b"redis://"):
        with pytest.raises(InvalidArgument):
            holdfast.connect(stranger)
