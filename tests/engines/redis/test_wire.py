"""Connections that break, by a proxy before a real server: what did not happen, and what may have.

Nobody ever gets a reply that was meant for another.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from math import ceil
from time import monotonic
from typing import Any

import pytest

import holdfast.aio
from engines.redis.adapters import Asker, Driver
from holdfast.core.effects import NotApplied, OutcomeUnknown
from holdfast.engines.resp.config import Address
from holdfast.engines.resp.connection import RespSocket
from holdfast.engines.resp.connection_asyncio import FLUSH_REQUESTS
from holdfast.lab.proxy import Proxy
from holdfast.rules.requests import Busy, Done, Granted, Inspect, SetValue, Snapshot
from support import async_wait_until, wait_until
from support.servers import shared_redis

SHORT_SECONDS = 0.2


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(shared_redis().host, shared_redis().port) as proxy:
        yield proxy


@pytest.fixture
def asker(driver: Driver, proxy: Proxy) -> Iterator[Asker]:
    with Asker(driver, f"redis://{proxy.address}", io_timeout=SHORT_SECONDS) as asker:
        asker.acquire("warm")
        asker.release("warm")
        yield asker


def test_one_connection_serves_requests_that_come_one_after_the_other(asker: Asker, proxy: Proxy) -> None:
    for number in range(20):
        assert isinstance(asker.acquire("x", f"n{number}"), Granted)
        assert isinstance(asker.release("x", f"n{number}"), Done)
    assert proxy.connections == 1


def test_a_request_that_was_lost_may_have_happened(asker: Asker, proxy: Proxy) -> None:
    lost = proxy.lose_request(b"EVALSHA")
    with pytest.raises(OutcomeUnknown):
        asker.acquire("x")
    assert lost.is_set()
    assert isinstance(asker.acquire("x"), Granted)


def test_a_reply_that_was_lost_is_given_again_to_the_same_attempt(asker: Asker, proxy: Proxy) -> None:
    lost = proxy.lose_reply(b"EVALSHA")
    with pytest.raises(OutcomeUnknown):
        asker.acquire("x", "n1")
    assert lost.is_set()
    held = asker.apply("x", Inspect()).record.holders[0]
    again = asker.acquire("x", "n1")
    assert isinstance(again, Granted)
    assert again.token == held.token
    assert isinstance(asker.acquire("x", "n2"), Busy)


def test_a_server_that_is_silent_is_given_up_in_time(asker: Asker, proxy: Proxy) -> None:
    proxy.hold("to_client")
    with pytest.raises(OutcomeUnknown, match=r"no answer from .* in 0\.2 s"):
        asker.acquire("x", "n1")
    proxy.pass_on()
    # The late answer to the first was for a connection that nobody reads any more.
    assert isinstance(asker.acquire("y", "n2"), Granted)
    assert isinstance(asker.release("y", "n2"), Done)
    assert isinstance(asker.acquire("x", "n1"), Granted)


def test_what_was_given_up_is_not_sent_later(asker: Asker, proxy: Proxy) -> None:
    proxy.hold("to_server")
    with pytest.raises(OutcomeUnknown):
        asker.acquire("x", "n1")
    wait_until(lambda: proxy.open_connections == 0)
    proxy.pass_on()
    assert asker.apply("x", Inspect()).record.holders == ()
    assert isinstance(asker.acquire("x", "n2"), Granted)


def test_half_a_reply_is_none(asker: Asker, proxy: Proxy) -> None:
    proxy.cut_after(3, "to_client")
    with pytest.raises(OutcomeUnknown, match="broke"):
        asker.acquire("x", "n1")
    assert isinstance(asker.acquire("x", "n1"), Granted)


def test_half_a_request_is_none(asker: Asker, proxy: Proxy) -> None:
    proxy.cut_after(20, "to_server")
    with pytest.raises(OutcomeUnknown):
        asker.acquire("x", "n1")
    assert asker.apply("x", Inspect()).record.holders == ()


def test_a_reply_in_many_pieces_is_put_together(asker: Asker) -> None:
    value = bytes(range(256)) * 256
    asker.acquire("x", "n1")
    assert isinstance(asker.apply("x", SetValue("n1", value, 60.0)), Done)
    seen = asker.apply("x", Inspect())
    assert isinstance(seen, Snapshot)
    assert seen.record.value is not None
    assert seen.record.value.data == value


def test_a_request_larger_than_the_kernel_takes_at_once(asker: Asker, proxy: Proxy) -> None:
    """It is sent piece by piece, as the server reads it."""
    asker.acquire("x", "n1")
    steps = tuple((f"name-{number}", SetValue("nobody", b"v" * 60_000, 60.0)) for number in range(60))
    told = asker.ask(asker.adapter.apply_in_order, steps, False)
    assert len(told) == 60


def test_connections_that_the_server_closed_meanwhile_are_not_used(driver: Driver, proxy: Proxy) -> None:
    with Asker(driver, f"redis://{proxy.address}") as asker:
        asker.acquire("x", "n1")
        assert proxy.cut(reset=False) == 1
        wait_until(lambda: _sees_it_closed(asker))
        assert isinstance(asker.release("x", "n1"), Done)


def _sees_it_closed(asker: Asker) -> bool:
    """Threads look at a connection that was idle for a second; asyncio is notified by the loop."""
    if hasattr(asker.adapter, "_stream"):
        return not asker.adapter._stream.is_open
    line = asker.adapter._pool._idle[0]
    line.used_at = float("-inf")
    return bool(line.is_stale())


def test_nobody_listens(driver: Driver, proxy: Proxy) -> None:
    proxy.refuse()
    with Asker(driver, f"redis://{proxy.address}") as asker:
        with pytest.raises(NotApplied, match=r"no connection to .*: "):
            asker.acquire()
        proxy.pass_on()
        assert isinstance(asker.acquire(), Granted)


def test_a_server_that_accepts_and_says_nothing(driver: Driver, proxy: Proxy) -> None:
    """Nothing was asked of it before it answered our greeting."""
    proxy.hold()
    with Asker(driver, f"redis://{proxy.address}", io_timeout=SHORT_SECONDS) as asker:
        with pytest.raises(NotApplied, match="no answer"):
            asker.acquire()
        proxy.pass_on()
        assert isinstance(asker.acquire(), Granted)


def test_a_name_that_nobody_knows(driver: Driver) -> None:
    with (
        Asker(driver, "redis://no-such-host.invalid") as asker,
        pytest.raises(NotApplied, match=r"no connection to no-such-host\.invalid"),
    ):
        asker.acquire()


def test_a_second_copy_of_a_request_grants_nothing_more(driver: Driver, proxy: Proxy) -> None:
    proxy.duplicate(apart=True)
    with Asker(driver, f"redis://{proxy.address}") as asker:
        granted = [asker.acquire(f"x{number}", f"n{number}") for number in range(10)]
        assert len({each.token for each in granted}) == 10
        for number, each in enumerate(granted):
            assert [holder.token for holder in asker.apply(f"x{number}", Inspect()).record.holders] == [
                each.token
            ]


# --- asyncio ------------------------------------------------------------------------------------


def test_what_is_asked_in_one_turn_of_the_loop_goes_out_in_few_writes(proxy: Proxy) -> None:
    async def main() -> None:
        async with holdfast.aio.connect(f"redis://{proxy.address}") as locks:
            async with locks.lock("warm"):
                pass
            adapter: Any = locks._driver.adapter
            await async_wait_until(lambda: adapter._pubsub._connections[None]._is_subscribed)
            line = adapter._stream
            writes: list[bytes] = []
            write = line._transport.write

            def record(data: bytes) -> None:
                writes.append(data)
                write(data)

            line._transport = _Recorder(line._transport, record)
            leases = await asyncio.gather(*[locks.lock(f"x{number}").acquire() for number in range(100)])
            assert len({lease.token for lease in leases if lease is not None}) == 100
            few = 1 + ceil(99 / FLUSH_REQUESTS)
            assert len(writes) <= few
            await asyncio.gather(*[lease.release() for lease in leases if lease is not None])
            assert len(writes) <= 2 * few

    asyncio.run(main())


class _Recorder:
    def __init__(self, inner: Any, write: Any) -> None:
        self._inner, self.write = inner, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_one_that_is_cancelled_leaves_the_others_their_replies(proxy: Proxy) -> None:
    """Every other one is cancelled while all of them wait for their answers."""

    async def main() -> None:
        async with holdfast.aio.connect(f"redis://{proxy.address}") as locks:
            async with locks.lock("warm"):
                pass
            for _ in range(5):
                proxy.hold("to_client")
                tasks = [asyncio.ensure_future(locks.lock(f"x{n}").acquire()) for n in range(40)]
                await asyncio.sleep(0)
                await asyncio.sleep(0.02)
                for task in tasks[::2]:
                    task.cancel()
                await asyncio.sleep(0)
                proxy.pass_on()
                done = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(each, asyncio.CancelledError) for each in done[::2])
                for number, lease in enumerate(done[1::2]):
                    assert isinstance(lease, holdfast.aio.AsyncLease)
                    assert lease.name == f"x{2 * number + 1}"
                    info = await locks.inspect(lease.name)
                    assert [holder.token for holder in info.holders] == [lease.token]
                    await lease.release()
                for number in range(0, 40, 2):
                    lock = locks.lock(f"x{number}", timeout=5)
                    async with lock:
                        pass
            assert proxy.connections <= 2

    asyncio.run(main())


# --- threads ------------------------------------------------------------------------------------


def test_threads_get_their_own_replies(proxy: Proxy) -> None:
    """Many threads on few connections, some of which break on the way."""
    with holdfast.connect(f"redis://{proxy.address}") as locks:
        wrong: list[str] = []
        stop = threading.Event()

        def work(name: str) -> None:
            while not stop.is_set():
                with locks.lock(name, timeout=20) as lease:
                    info = locks.inspect(name)
                    if [holder.token for holder in info.holders] != [lease.token]:
                        wrong.append(name)

        threads = [threading.Thread(target=work, args=(f"x{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            lost = proxy.lose_reply(b"EVALSHA")
            wait_until(lost.is_set)
        stop.set()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []
        assert proxy.open_connections <= 4


@pytest.mark.parametrize("first", [b"+PONG\r\n", b"-NOPERM this user has no permissions to run it\r\n"])
def test_replies_before_the_one_that_is_wanted_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """However they come in pieces."""
    stream = first + b":7\r\n"
    for cut in range(1, len(stream)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.send(b"!")  # something is always there, as far as the kernel knows
            line, pieces = RespSocket(ours, Address("here", 1), 5.0), iter([stream[:cut], stream[cut:]])
            monkeypatch.setattr(line, "_recv", lambda size, pieces=pieces: next(pieces))
            assert line.call(b"", monotonic(), False, 1) == 7
            assert not list(pieces)
