"""Whose numbers the tokens are: one source for one database, whatever happens to it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from engines.redis.adapters import Asker, Driver
from holdfast.core.effects import TransientError
from holdfast.lab.servers import Redis
from holdfast.rules.requests import Gone, Granted, Renew
from support import wait_until
from support.servers import shared_redis, shared_redis_cluster, shared_sentinel


@pytest.fixture
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


def source_of(asker: Asker) -> str:
    def asked() -> bool:
        try:
            asker.acquire("y", secrets.token_hex(8))
        except TransientError:
            return False
        return True

    wait_until(asked)
    return str(asker.adapter.source)


@pytest.mark.parametrize("shape", ["single", "sentinel", "cluster"])
def test_all_clients_of_one_engine_have_the_same(driver: Driver, shape: str) -> None:
    urls = {
        "single": lambda: shared_redis().url,
        "sentinel": lambda: f"redis+sentinel://{shared_sentinel().addresses}?service=mymaster",
        "cluster": lambda: f"redis+cluster://{shared_redis_cluster().addresses}",
    }
    namespace = f"test-{secrets.token_hex(6)}"
    with (
        Asker(driver, urls[shape](), namespace=namespace) as one,
        Asker("threads", urls[shape](), namespace=namespace) as two,
        Asker(driver, urls[shape]()) as elsewhere,
    ):
        assert source_of(one) == source_of(two)
        assert source_of(one) != source_of(elsewhere)
        assert namespace in source_of(one)


def test_a_client_that_still_knows_it_brings_it_back_after_a_restart_without_data(
    driver: Driver, server: Redis
) -> None:
    with Asker(driver, server.url, namespace="n") as old:
        before = source_of(old)
        server.kill()
        server.restart()
        assert source_of(old) == before
        with Asker(driver, server.url, namespace="n") as new:
            assert source_of(new) == before


def test_or_takes_over_what_others_agreed_on(driver: Driver, server: Redis) -> None:
    with Asker(driver, server.url, namespace="n") as old:
        before = source_of(old)
        server.command("FLUSHALL")
        with Asker(driver, server.url, namespace="n") as new:
            after = source_of(new)
        assert after != before
        assert [type(each) for each in old.ask(old.adapter.renew_batch, (("x", Renew("n1", 30.0)),))] == [
            Gone
        ]
        old.ask(old.adapter.renew_batch, (("x", Renew("n1", 30.0)),))
        assert source_of(old) == after


def test_a_name_of_ones_own_never_changes(driver: Driver, server: Redis) -> None:
    with Asker(driver, f"{server.url}?source=orders", namespace="n") as asker:
        assert isinstance(asker.acquire(), Granted)
        assert asker.adapter.source == "redis:orders/0/n"
        server.command("FLUSHALL")
        assert source_of(asker) == "redis:orders/0/n"
