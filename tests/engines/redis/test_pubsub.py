"""Wake-ups: one connection that listens, made anew whatever happens to it; nobody sleeps through the gap."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

import holdfast
import holdfast.aio
from engines.reading_threads import ReadingThread
from engines.redis.adapters import Asker, Driver
from holdfast import Client, Lease, Lock
from holdfast.aio import AsyncLease
from holdfast.core.effects import NotApplied
from holdfast.engines.redis import pubsub
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import Redis
from holdfast.recipes.names import waits
from holdfast.rules.requests import Granted, Queued
from support import async_wait_until, wait_until
from support.crowds import in_threads, join
from support.servers import shared_redis, shared_redis_cluster, shared_redis_tls

T = TypeVar("T")

SOON_SECONDS = 5.0


@pytest.fixture
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


def deadline(lease: Lease | AsyncLease) -> float:
    return time.monotonic() + lease.remaining


def listeners(server: Redis) -> int:
    return len(server.command("CLIENT", "LIST", "TYPE", "PUBSUB").splitlines())


def pings(server: Redis) -> int:
    told = server.info("commandstats").get("cmdstat_ping", "calls=0")
    return int(told.split(",")[0].removeprefix("calls="))


def test_a_release_wakes_the_next_waiter(driver: Driver) -> None:
    with Asker(driver, shared_redis().url) as asker:
        asker.ask(asker.adapter.listen, "x")
        assert isinstance(asker.acquire("x", "n1"), Granted)
        assert isinstance(asker.acquire("x", "n2", wait=True), Queued)
        assert isinstance(asker.acquire("x", "n3", wait=True), Queued)
        asker.release("x", "n1")
        wait_until(lambda: asker.posted == ["n2"])


def test_one_connection_listens_however_many_wait(driver: Driver, server: Redis) -> None:
    with Asker(driver, server.url) as asker:
        for number in range(50):
            asker.ask(asker.adapter.listen, f"x{number}")
        assert listeners(server) == 1
        asker.ask(asker.adapter.unlisten, "n", "x0")
        assert listeners(server) == 1


def test_a_waiter_that_was_cut_off_is_asked_to_look(driver: Driver, server: Redis) -> None:
    """Whatever was said in between is lost, and nobody knows."""
    with Asker(driver, server.url) as asker:
        asker.ask(asker.adapter.listen, "x")
        asker.acquire("x", "n1")
        asker.acquire("x", "n2", wait=True)
        for times in range(2, 5):
            wait_until(lambda: listeners(server) == 1)
            assert server.command("CLIENT", "KILL", "TYPE", "PUBSUB") == 1
            asker.until_told_to_look(times - 1)
        asker.release("x", "n1")
        wait_until(lambda: asker.posted == ["n2"])


def test_it_comes_back_with_the_server(driver: Driver, server: Redis) -> None:
    with Asker(driver, server.url) as asker:
        asker.listen("x")
        looked = asker.told_to_look
        server.kill()
        server.restart()
        asker.until_told_to_look(looked)
        assert listeners(server) == 1


def test_a_connection_that_is_dead_but_not_closed_is_noticed(
    driver: Driver, server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes what is sent to it; only an answer that does not come shows it."""
    monkeypatch.setattr(pubsub, "QUIET_SECONDS", 0.5)
    with Proxy(server.host, server.port) as proxy, Asker(driver, f"redis://{proxy.address}") as asker:
        asker.listen("x")
        before, pinged = proxy.connections, pings(server)
        wait_until(lambda: pings(server) > pinged + 1)
        assert proxy.connections == before, "an answered connection is kept"
        looked = asker.told_to_look
        proxy.drop("to_client")
        wait_until(lambda: proxy.connections > before)
        proxy.pass_on()
        asker.until_told_to_look(looked)


def test_a_server_that_cannot_be_listened_to_is_refused_in_time(driver: Driver, server: Redis) -> None:
    with (
        Proxy(server.host, server.port) as proxy,
        Asker(driver, f"redis://{proxy.address}", io_timeout=1.0) as asker,
    ):
        asker.acquire("x", "n1")
        proxy.cut_new()
        with pytest.raises(NotApplied):
            asker.ask(asker.adapter.listen, "x")
        proxy.pass_on()

        def is_heard() -> bool:
            with contextlib.suppress(NotApplied):  # it may take longer than a try has time
                asker.listen("x")
                return True
            return False

        wait_until(is_heard)


def test_starting_to_listen_waits_for_nobody(driver: Driver, server: Redis) -> None:
    """It begins with a client's first grant, which must not wait for it."""
    with Proxy(server.host, server.port) as proxy, Asker(driver, f"redis://{proxy.address}") as asker:
        asker.acquire("x", "n1")
        proxy.hold()
        asker.ask(asker.adapter.listen, None)
        proxy.pass_on()
        asker.until_told_to_look()


# --- as users see it ----------------------------------------------------------------------------


def wait_in_thread(lock: Lock) -> tuple[threading.Thread, list[float]]:
    """A thread that waits for the lock, and what it saw."""
    tokens: list[float] = []

    def wait() -> None:
        with lock as lease:
            tokens.append(lease.token)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, tokens


def until_waiting(client: Client, name: str, count: int) -> None:
    wait_until(lambda: len(client.inspect(name).waiters) == count)


def test_a_wake_up_that_was_missed_is_made_good_at_once(server: Redis) -> None:
    """Its ttl and its turn would take far longer than this test allows."""
    with holdfast.connect(server.url) as holder, holdfast.connect(server.url) as waiter:
        lease = holder.lock("x", ttl=3600).acquire()
        assert lease is not None
        thread, tokens = wait_in_thread(waiter.lock("x", timeout=60))
        until_waiting(holder, "x", 1)
        server.command("CLIENT", "KILL", "TYPE", "PUBSUB")
        lease.release()
        thread.join(SOON_SECONDS)
        assert tokens
        assert tokens[0] > lease.token


@pytest.mark.parametrize("shape", ["threads", "asyncio"])
def test_what_is_released_before_one_listens_is_not_waited_for(
    server: Redis, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the try that failed and the confirmation: no one is notified, and no one has to be."""
    with Proxy(server.host, server.port) as proxy, holdfast.connect(server.url) as holder:
        lease = holder.lock("x", ttl=3600).acquire()
        assert lease is not None
        begin = pubsub.PubSubConnection._subscribe_all
        asked = threading.Event()

        def begin_unheard(self: Any, line: Any, address: Any) -> None:
            if address.port == proxy.port and not asked.is_set():
                proxy.hold("to_client")
                begin(self, line, address)
                asked.set()
            else:
                begin(self, line, address)

        monkeypatch.setattr(pubsub.PubSubConnection, "_subscribe_all", begin_unheard)
        url = f"redis://{proxy.address}"
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(take_threads if shape == "threads" else take_asyncio, url)
            assert asked.wait(30)
            assert holder.inspect("x").waiters == ()
            lease.release()
            proxy.pass_on()
            assert waiter.result(SOON_SECONDS * 4) > lease.token


def take_threads(url: str) -> int:
    with holdfast.connect(url, io_timeout=60) as locks, locks.lock("x", timeout=60) as lease:
        return lease.token


def take_asyncio(url: str) -> int:
    async def main() -> int:
        async with holdfast.aio.connect(url, io_timeout=60) as locks, locks.lock("x", timeout=60) as lease:
            return lease.token

    return asyncio.run(main())


def test_a_thousand_waiters_in_one_process_need_four_connections(server: Redis) -> None:
    names = [f"x{number}" for number in range(50)]
    with holdfast.connect(server.url) as locks:
        leases = [locks.lock(name, ttl=3600).acquire() for name in names]
        threading.stack_size(256 * 1024)
        try:
            waiting = [wait_in_thread(locks.lock(name, timeout=100)) for name in names * 20]
        finally:
            threading.stack_size(0)
        wait_until(lambda: sum(len(info.waiters) for info in locks.list()) == 1000, timeout=60)
        rows = [row for row in server.command("CLIENT", "LIST").splitlines() if b"name=holdfast-" in row]
        assert 2 <= len(rows) <= 4
        kept = locks.lock("kept", ttl=3).acquire()
        assert kept is not None
        before = deadline(kept)
        wait_until(lambda: deadline(kept) > before + 0.5)  # nobody is in the way of renewals
        kept.release()
        for lease in leases:
            assert lease is not None
            lease.release()
        for thread, _ in waiting:
            thread.join(60)
        assert all(len(tokens) == 1 for _, tokens in waiting)


def test_a_thousand_tasks_need_two(server: Redis) -> None:
    names = [f"x{number}" for number in range(50)]

    async def main() -> None:
        async with holdfast.aio.connect(server.url) as locks:
            leases = [await locks.lock(name, ttl=3600).acquire() for name in names]
            waiting = [asyncio.ensure_future(locks.lock(name, timeout=100).acquire()) for name in names * 20]
            await async_wait_until(lambda: len(locks._driver.client_state.waiting) == 1000, timeout=60)
            rows = server.command("CLIENT", "LIST").splitlines()
            assert sum(b"name=holdfast-" in row for row in rows) == 2
            kept = await locks.lock("kept", ttl=3).acquire()
            assert kept is not None
            before = deadline(kept)
            await async_wait_until(lambda: deadline(kept) > before + 0.5)
            await kept.release()
            for lease in leases:
                assert lease is not None
                await lease.release()
            for done in asyncio.as_completed(waiting):
                taken = await done
                assert taken is not None
                await taken.release()

    asyncio.run(main())


def test_a_crowd_that_holds_something_publishes_none_of_its_waits(server: Redis) -> None:
    """Each holds a lock that nobody wants, and waits for the same one: the record of waits stays empty."""

    async def main() -> None:
        async with holdfast.aio.connect(server.url) as locks:
            wanted = await locks.lock("wanted", ttl=6).acquire()
            assert wanted is not None

            async def work(number: int) -> None:
                async with locks.lock(f"own {number}"), locks.lock("wanted", timeout=100):
                    pass

            async with asyncio.TaskGroup() as group:
                for number in range(200):
                    group.create_task(work(number))
                await async_wait_until(lambda: len(locks._driver.client_state.waiting) == 200, timeout=60)
                before = deadline(wanted)
                await async_wait_until(lambda: deadline(wanted) > before + 0.5, timeout=60)
                record = await locks.inspect(waits(locks._driver.client_state.client))
                assert record.holders == ()
                await wanted.release()

    asyncio.run(main())


# --- threads that read themselves -----------------------------------------------------------------


def hearing_of(asker: Asker) -> Any:
    """Of an adapter for threads that listens."""
    asker.listen("x")
    return wait_until(lambda: asker.adapter.notification_reader)


def test_a_waiter_reads_notifications_itself(server: Redis) -> None:
    with Asker("threads", server.url) as asker:
        pubsub = hearing_of(asker)
        channel = asker.engine._space.channel + asker.id.encode()
        for number in range(10):
            with ReadingThread(pubsub) as reading_thread:
                assert not pubsub.try_acquire()  # one at a time
                server.command("PUBLISH", channel, f"itself {number}")
                asker.until_posted(f"itself {number}")
            assert asker.read_by[f"itself {number}"] == reading_thread.name, (
                "the other thread leaves it alone"
            )
            server.command("PUBLISH", channel, f"listens {number}")
            asker.until_posted(f"listens {number}")
            assert asker.read_by[f"listens {number}"] not in ("MainThread", reading_thread.name)


def test_a_reader_that_does_not_wait_delays_no_other(server: Redis) -> None:
    with Asker("threads", server.url) as asker:
        pubsub = hearing_of(asker)
        assert pubsub.try_acquire()
        assert not in_another_thread(pubsub.try_acquire)
        server.command("PUBLISH", asker.engine._space.channel + asker.id.encode(), "n1")
        asker.until_posted("n1")  # by the thread that listens
        pubsub.release()
        assert in_another_thread(pubsub.try_acquire)


def test_nothing_is_left_unread_when_a_reader_leaves(server: Redis) -> None:
    """Many messages at once, and each reader leaves after its first one."""
    with Asker("threads", server.url) as asker:
        pubsub = hearing_of(asker)
        channel = (asker.engine._space.channel + asker.id.encode()).decode()
        wanted = [f"n{number}" for number in range(300)]
        ended = threading.Event()

        def hear_now_and_then() -> None:
            while not ended.is_set():
                if pubsub.try_acquire():
                    pubsub.read(0.01)
                    pubsub.release()

        threads = in_threads(3, hear_now_and_then)
        for start in range(0, len(wanted), 10):
            for nonce in wanted[start : start + 10]:
                server.command("PUBLISH", channel, nonce)
            wait_until(lambda: len(asker.posted) == start + 10)  # noqa: B023 - asked before it changes
        ended.set()
        join(threads)
        assert sorted(asker.posted) == sorted(wanted), "each once"


def in_another_thread(act: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result(10)


def test_a_reader_is_interrupted(server: Redis) -> None:
    with Asker("threads", server.url) as asker:
        pubsub = hearing_of(asker)
        assert pubsub.try_acquire()
        pubsub.interrupt()
        pubsub.read(60.0)
        pubsub.release()


def test_a_connection_that_breaks_under_a_reader_is_replaced(server: Redis) -> None:
    with Asker("threads", server.url) as asker:
        pubsub = hearing_of(asker)
        for _ in range(3):
            wait_until(pubsub.try_acquire)
            looked = asker.told_to_look
            server.command("CLIENT", "KILL", "TYPE", "PUBSUB")
            for _ in range(3):
                pubsub.read(0.05)  # neither fails nor spins
            asker.until_told_to_look(looked)
            pubsub.release()
        server.command("PUBLISH", asker.engine._space.channel + asker.id.encode(), "n1")
        asker.until_posted("n1")


def test_a_quiet_connection_is_kept_while_a_thread_reads(
    server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener thread sends the ping, and another thread reads the reply."""
    monkeypatch.setattr(pubsub, "QUIET_SECONDS", 0.5)
    with Asker("threads", server.url) as asker:
        own = hearing_of(asker)
        looked, pinged = asker.told_to_look, pings(server)
        assert own.try_acquire()
        wait_until(lambda: not own.read(0.02) and pings(server) > pinged + 2)
        assert asker.told_to_look == looked
        own.release()


def test_there_is_none_over_tls_or_in_a_cluster() -> None:
    tls = f"{shared_redis_tls().url}?ssl_ca_certs={shared_redis_tls().certificates.authority}"
    with Asker("threads", tls) as asker:
        asker.ask(asker.adapter.listen, "x")
        pubsub = asker.adapter.notification_reader
        assert pubsub is None or not pubsub.try_acquire()
    with Asker("threads", f"redis+cluster://{shared_redis_cluster().addresses}") as asker:
        asker.ask(asker.adapter.listen, "x")
        assert asker.adapter.notification_reader is None
