"""Much of it: leases that are renewed in batches, names that are listed, threads that share connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import holdfast
import holdfast.aio
from engines.redis.adapters import Asker, Driver
from holdfast.core.effects import NotApplied
from holdfast.engines.redis.codec import BATCH_KEYS_MAX
from holdfast.engines.redis.pool import Pool
from holdfast.engines.resp.config import Address
from holdfast.engines.resp.connection import RespSocket, open_socket, run_sync
from holdfast.lab.servers import Redis
from holdfast.rules.requests import Acquire, Done, Gone, Granted, Renew
from support import wait_until
from support.crowds import in_threads, join

MANY = 10_000


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


def calls(server: Redis) -> int:
    """Scripts that the server was asked to run."""
    told = server.info("commandstats").get("cmdstat_evalsha", "calls=0")
    return int(told.partition("calls=")[2].partition(",")[0])


def ours(server: Redis) -> list[bytes]:
    return [row for row in server.command("CLIENT", "LIST").splitlines() if b"name=holdfast-" in row]


def test_ten_thousand_leases_are_renewed_on_one_connection_in_batches(driver: Driver, server: Redis) -> None:
    with Asker(driver, server.url) as asker:
        for start in range(0, MANY, 500):
            steps = tuple(
                (
                    f"x{number}",
                    Acquire(f"n{number}", asker.id, "me", "lock", "exclusive", ttl=60.0, wait=False),
                )
                for number in range(start, start + 500)
            )
            told = asker.ask(asker.adapter.apply_in_order, steps, True)
            assert all(isinstance(each, Granted) for each in told)
        asker.ask(asker.adapter.renew_batch, (("x1", Renew("n1", 60.0)),))  # now the script is known there
        before = calls(server)
        renewals = tuple((f"x{number}", Renew(f"n{number}", 60.0)) for number in range(MANY))
        told = asker.ask(asker.adapter.renew_batch, renewals)
        assert told == [Done()] * MANY
        assert calls(server) - before == MANY // BATCH_KEYS_MAX
        assert len(ours(server)) == 1
        mixed = (("x1", Renew("n1", 60.0)), ("x2", Renew("other", 60.0)), ("x3", Renew("n3", 60.0)))
        done, gone, done_too = asker.ask(asker.adapter.renew_batch, mixed)
        assert (done, gone, done_too) == (Done(), Gone("stolen"), Done())
        names = asker.ask(asker.adapter.list_names, "x99")
        assert [name for name, _ in names] == sorted(
            f"x{number}" for number in range(MANY) if f"{number}".startswith("99")
        )


# --- threads on few connections -----------------------------------------------------------------


def a_pool(server: Redis, most: int, seconds: float = 5.0) -> Pool:
    address = Address(server.host, server.port)
    return Pool(
        address,
        most,
        seconds,
        lambda to: RespSocket(open_socket(to, None, seconds), to, seconds),
        lambda: None,
    )


PING = b"*1\r\n$4\r\nPING\r\n"
SLOW = b"*3\r\n$5\r\nBLPOP\r\n$4\r\nword\r\n$1\r\n0\r\n"
"""Answered when the test says so."""


def answer(server: Redis, count: int) -> None:
    server.command("RPUSH", "word", *["go on"] * count)


def keep_busy(server: Redis, pool: Pool, count: int) -> list[threading.Thread]:
    """So many threads that each wait for an answer."""
    threads = in_threads(count, lambda: pool.call(SLOW))
    wait_until(lambda: server.info("clients")["blocked_clients"] == str(count))
    return threads


def test_connections_are_opened_as_they_are_needed(server: Redis) -> None:
    pool = a_pool(server, 3)
    try:
        assert pool.call(PING) == b"PONG" or pool.call(PING) == "PONG"
        assert len(pool._taken) == 1
        threads = keep_busy(server, pool, 3)
        assert len(pool._taken) == 3
        # Three are busy; a fourth caller waits for one of them, and gets it.
        with ThreadPoolExecutor(1) as fourth:
            answered = fourth.submit(pool.call, PING)
            wait_until(lambda: pool._waiters)
            answer(server, 3)
            assert answered.result(10) in (b"PONG", "PONG")
        join(threads)
        assert len(pool._taken) == 3
        assert len(pool._idle) == 3
    finally:
        pool.close()


def test_what_a_crowd_needed_is_closed_when_it_is_gone(
    server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = a_pool(server, 3)
    try:
        threads = keep_busy(server, pool, 3)
        answer(server, 3)
        join(threads)
        assert len(pool._idle) == 3
        run_sync(pool.exchange(PING, 1))
        assert len(pool._idle) == 3
        monkeypatch.setattr("holdfast.runtime.sockets.SURPLUS_SECONDS", 0.0)
        run_sync(pool.exchange(PING, 1))
        assert len(pool._idle) == 1
        assert pool.call(PING) in (b"PONG", "PONG")
    finally:
        pool.close()


def test_a_request_that_waits_too_long_for_a_connection_is_refused(server: Redis) -> None:
    pool = a_pool(server, 1, seconds=5.0)
    pool._seconds = 0.1
    try:
        threads = keep_busy(server, pool, 1)
        with pytest.raises(NotApplied, match="all 1 connections"):
            pool.call(PING)
        answer(server, 1)
        join(threads)
        assert pool.call(PING) in (b"PONG", "PONG")
        assert not pool._waiters
    finally:
        pool.close()


def test_a_busy_thread_does_not_keep_the_connection_from_others(server: Redis) -> None:
    """Two who give back and take again at once, on one connection: the third gets its turn."""
    pool = a_pool(server, 1)
    stop = threading.Event()
    counts = [0, 0, 0]

    def work(me: int) -> None:
        while not stop.is_set():
            pool.call(PING)
            counts[me] += 1

    threads = [threading.Thread(target=work, args=(me,)) for me in range(3)]
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: all(counts), timeout=30)  # all are there
        before = list(counts)
        wait_until(lambda: sum(counts) - sum(before) > 3000, timeout=30)
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)
        pool.close()
    turns = [count - was for count, was in zip(counts, before, strict=True)]
    assert min(turns) * 3 > max(turns), turns


def test_a_connection_that_cannot_be_opened_leaves_room_for_the_next(server: Redis) -> None:
    address = Address(server.host, server.port)
    fails = [True]

    def open_line(to: Address) -> RespSocket:
        if fails[0]:
            raise NotApplied("no")
        return RespSocket(open_socket(to, None, 5.0), to, 5.0)

    pool = Pool(address, 1, 5.0, open_line, lambda: None)
    for _ in range(3):
        with pytest.raises(NotApplied, match="no"):
            pool.call(PING)
    fails[0] = False
    assert pool.call(PING) in (b"PONG", "PONG")
    pool.close()
    with pytest.raises(NotApplied, match="closed"):
        pool.call(PING)


# --- tasks on one connection --------------------------------------------------------------------


def test_a_hundred_tasks_use_one_connection(server: Redis) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(server.url) as locks:

            async def work(number: int) -> None:
                for _ in range(10):
                    async with locks.lock(f"t{number}"):
                        pass

            await asyncio.gather(*[work(number) for number in range(100)])
            assert len(ours(server)) <= 2  # and one that listens

    asyncio.run(main())
