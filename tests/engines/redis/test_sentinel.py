"""Behind Sentinels: the master is found, and found again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from engines.redis.adapters import Asker, Driver
from engines.redis.test_batches import ours
from holdfast.core.effects import NotApplied, TransientError
from holdfast.engines.redis import topology
from holdfast.engines.resp.config import Address
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import Redis, RedisSentinel
from holdfast.lab.servers.redis_sentinel import SentinelProcess
from holdfast.rules.requests import Done, Granted
from support import wait_until
from support.servers import shared_sentinel


@pytest.fixture
def failing() -> Iterator[RedisSentinel]:
    """One that may be made to fail over."""
    with RedisSentinel() as system:
        yield system


def url_of(system: RedisSentinel, first: str = "") -> str:
    return f"redis+sentinel://{first}{system.addresses}?service={system.service}"


def test_the_master_is_found(driver: Driver) -> None:
    with Asker(driver, url_of(shared_sentinel())) as asker:
        assert isinstance(asker.acquire(), Granted)
        assert asker.adapter._topology.home.port == shared_sentinel().master().port


def test_a_sentinel_that_is_gone_is_passed_over_and_asked_last(driver: Driver) -> None:
    with Asker(driver, url_of(shared_sentinel(), "127.0.0.1:1,")) as asker:
        assert isinstance(asker.acquire(), Granted)
        assert asker.adapter._topology._sentinels[-1].port != shared_sentinel().sentinels[0].port
        assert asker.adapter._topology._sentinels[0].port == shared_sentinel().sentinels[0].port


def test_a_sentinel_that_is_cut_off_is_not_believed_for_ever(driver: Driver) -> None:
    """It knows of no peers, and goes on naming a master that is long dead."""
    system = shared_sentinel()
    with (
        Redis() as dead,
        SentinelProcess(
            dead, service=system.service, quorum=2, down_after_ms=1000, failover_timeout_ms=3000
        ) as lost,
    ):
        dead.kill()
        with Asker(driver, url_of(system, f"{lost.address},")) as asker:
            assert isinstance(asker.acquire(), Granted)
            assert asker.adapter._topology.home.port == system.master().port
            assert asker.adapter._topology._sentinels[0].port == system.sentinels[0].port
        with (
            Asker(driver, f"redis+sentinel://{lost.address}?service={system.service}") as asker,
            pytest.raises(NotApplied, match=f"{dead.port}"),
        ):
            asker.acquire()


def test_no_sentinel_answers(driver: Driver) -> None:
    url = "redis+sentinel://127.0.0.1:1,127.0.0.1:2?service=main"
    with (
        Asker(driver, url) as asker,
        pytest.raises(NotApplied, match=r"no Sentinel answers \(127\.0\.0\.1:1"),
    ):
        asker.acquire()


def test_requests_and_wake_ups_follow_the_master(driver: Driver, failing: RedisSentinel) -> None:
    with Asker(driver, url_of(failing)) as asker:
        asker.listen("x")
        first = asker.acquire("x", "n1")
        old = failing.master()
        wait_until(lambda: old.command("WAIT", 1, 1000) == 1)
        looked = asker.told_to_look
        new = failing.failover()
        wait_until(old.is_replica)

        def again() -> object:
            with contextlib.suppress(TransientError):
                return asker.acquire("x", "n1")
            return None

        second = wait_until(again, timeout=30)
        assert isinstance(second, Granted)
        assert second.token >= first.token
        assert asker.adapter._topology.home.port == new.port
        asker.until_told_to_look(looked)
        asker.acquire("x", "n2", wait=True)
        asker.release("x", "n1")
        asker.until_posted("n2")


def test_a_late_word_of_the_old_master_costs_the_new_one_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread has found the new master while the old one's refusal was under way."""
    with Redis() as old, Redis() as new, Proxy(old.host, old.port) as proxy:
        named = [Address(proxy.host, proxy.port)]

        async def named_by(*_: object) -> Address:
            return named[0]

        monkeypatch.setattr(topology, "_master_named_by", named_by)
        with Asker("threads", "redis+sentinel://127.0.0.1:1?service=main") as asker:
            asker.acquire("warm")
            old.command("REPLICAOF", new.host, new.port)
            proxy.hold("to_client")
            failures: list[Exception] = []
            thread = threading.Thread(target=lambda: failures.append(_failure_of(asker)))
            thread.start()
            wait_until(lambda: "errorstat_READONLY" in old.info("errorstats"))
            named[0] = Address(new.host, new.port)
            asker.adapter._topology.invalidate(None)
            asker.ask(asker.adapter.list_names, "")
            assert isinstance(asker.acquire("x", "n2"), Granted)
            connected = {row.split()[0] for row in ours(new)}
            proxy.pass_on()
            thread.join(10)
            assert "read-only replica" in str(failures[0])
            assert f":{proxy.port}" in str(failures[0])
            assert isinstance(asker.release("x", "n2"), Done)
            assert {row.split()[0] for row in ours(new)} == connected


def _failure_of(asker: Asker) -> Exception:
    with pytest.raises(NotApplied) as caught:
        asker.acquire("x", "n1")
    return caught.value
