"""Connections to servers that behave badly, and many who share them."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from hpack import Encoder

import holdfast.aio
from engines.etcd.conftest import Connect
from holdfast import EngineUnavailable
from holdfast.engines.etcd import connection as connection_threads
from holdfast.engines.etcd import connection_asyncio
from holdfast.engines.etcd import wire_pb2 as wire
from holdfast.engines.etcd.connection import Http2Transport
from holdfast.engines.etcd.errors import ALL_BUSY, NEVER_SENT
from holdfast.engines.etcd.handshake import Member
from holdfast.engines.etcd.http2 import (
    DATA,
    HEADERS,
    PING,
    SETTINGS,
    Http2Connection,
    _frame,
    length_prefixed,
)
from holdfast.engines.etcd.rpc import RpcError
from holdfast.lab.servers import Etcd
from holdfast.runtime.sockets import HARD_CLOSE
from support import wait_until
from support.servers import shared_etcd

TIMES = 10
HELLO = _frame(SETTINGS, 0, 0)
PUT = wire.PutRequest(key=b"a")
STATUS = wire.StatusRequest()


def answer(message: bytes = b"") -> bytes:
    """To the first call of a connection."""
    begins = Encoder().encode([(":status", "200"), ("content-type", "application/grpc")])
    ends = Encoder().encode([("grpc-status", "0")])
    return (
        _frame(HEADERS, 4, 1, begins)
        + _frame(DATA, 0, 1, length_prefixed(message))
        + _frame(HEADERS, 5, 1, ends)
    )


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[Member]:
    """Serves one connection after the other; then it is cut off hard."""
    listening = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        while True:
            try:
                connected, _ = listening.accept()
            except OSError:
                return
            with connected, suppress(OSError):  # the client may hang up
                serve(connected)
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HARD_CLOSE)

    thread = threading.Thread(target=work)
    thread.start()
    port = listening.getsockname()[1]
    try:
        yield Member(f"127.0.0.1:{port}", "127.0.0.1", port, None)
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(20)


def member_of(server: Etcd) -> Member:
    return Member(server.address, server.host, server.port, None)


def code_of(act: Callable[[], object]) -> str:
    with pytest.raises(RpcError) as failure:
        act()
    return failure.value.code


def test_what_was_answered_is_answered_whatever_becomes_of_the_connection() -> None:
    def serve(connected: socket.socket) -> None:
        connected.recv(65_536)
        connected.sendall(HELLO + answer())

    with server(serve) as member:
        for _ in range(TIMES):
            connection = connection_threads.Subchannel(member)
            assert connection.call("Put", PUT, 5.0, ()) == wire.PutResponse()
            connection.close()


def test_what_was_sent_may_have_happened() -> None:
    """Also where the next thing we have to say cannot be sent."""

    def serve(connected: socket.socket) -> None:
        connected.recv(65_536)
        connected.sendall(HELLO)

    with server(serve) as member:
        for _ in range(TIMES):
            connection = connection_threads.Subchannel(member)
            assert code_of(lambda: connection.call("Put", PUT, 5.0, ())) == "UNAVAILABLE"  # noqa: B023 - at once
            connection.close()


def test_a_server_that_closes_every_connection_leaves_nobody_waiting() -> None:
    """As a proxy does whose server is away."""

    async def run(member: Member) -> None:
        for _ in range(TIMES):
            connection = connection_asyncio.Subchannel(member)
            with pytest.raises(RpcError):
                await (await connection.watch(5.0, ())).receive()
            with pytest.raises(RpcError):
                await connection.call("Put", PUT, 5.0, ())
            await connection.close()

    with server(lambda connected: None) as member:
        asyncio.run(asyncio.wait_for(run(member), 20))


def test_an_answer_before_nonsense_is_an_answer() -> None:
    """What came in one piece with something that cannot be read."""

    def serve(connected: socket.socket) -> None:
        connected.recv(65_536)
        connected.sendall(HELLO + answer() + _frame(SETTINGS, 0, 0, bytes(4)))
        connected.recv(65_536)

    async def run(member: Member) -> None:
        connection = connection_asyncio.Subchannel(member)
        assert await connection.call("Put", PUT, 15.0, ()) == wire.PutResponse()
        await connection.close()

    with server(serve) as member:
        asyncio.run(asyncio.wait_for(run(member), 10))


@pytest.mark.parametrize("driver", ["threads", "asyncio"])
def test_one_member_that_is_no_etcd_does_not_keep_us_from_the_others(
    connect: Connect, namespace: str, driver: str
) -> None:
    def serve(connected: socket.socket) -> None:
        connected.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n")
        connected.recv(65_536)

    async def in_a_loop(url: str) -> None:
        async with holdfast.aio.connect(url, namespace=namespace) as client, client.lock("x") as lease:
            lease.check()

    with server(serve) as member:
        url = f"etcd://{member.endpoint},{shared_etcd().address}"
        if driver == "threads":
            with connect(url).lock("x") as lease:
                lease.check()
        else:
            asyncio.run(in_a_loop(url))


def test_a_request_gets_an_error_if_it_is_closed_while_it_connects() -> None:
    """And is not cancelled: nobody cancelled it."""
    arrived, leave = threading.Event(), threading.Event()

    def serve(connected: socket.socket) -> None:
        arrived.set()
        leave.wait(20)

    async def run(member: Member) -> None:
        client = holdfast.aio.connect(f"etcd://{member.endpoint}?tls=true", io_timeout=10)
        asking = asyncio.create_task(client.inspect("x"))
        await asyncio.to_thread(arrived.wait, 20)
        await client.close()
        with pytest.raises(EngineUnavailable):
            await asking

    with server(serve) as member:
        asyncio.run(asyncio.wait_for(run(member), 20))
        leave.set()


def test_what_is_urgent_waits_behind_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_threads, "CONNECTIONS_MAX", 1)
    connection = connection_threads.Subchannel(member_of(shared_etcd()))
    line = connection._take(5.0, urgent=False)
    assert code_of(lambda: connection.call("Status", STATUS, 0.1, ())) == ALL_BUSY
    assert connection.call("Status", STATUS, 5.0, (), urgent=True).header.cluster_id
    connection._discard(line)
    connection.close()


def test_nobody_stumbles_over_what_others_take() -> None:
    """Connections come and go under those who look at them."""
    connection = connection_threads.Subchannel(Member("nowhere:1", "nowhere", 1, None))
    switching = sys.getswitchinterval()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            connection._connections()
            connection._close_surplus()

    def come_and_go() -> None:
        for _ in range(1000):
            for _ in range(2):
                line = Http2Transport(socket.socket(), Http2Connection("http", "nowhere:1"))
                line.used_at = 0.0
                with connection._mutex:
                    connection._taken.add(line)
                connection._idle.append(line)
            with suppress(IndexError):
                connection._idle.pop().close()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            looking = [pool.submit(look) for _ in range(2)]
            try:
                pool.submit(come_and_go).result(60)
            finally:
                stop.set()
            for each in looking:
                each.result(20)
    finally:
        sys.setswitchinterval(switching)
        connection.close()


def test_hanging_up_leaves_the_encryption_alone() -> None:
    """Else one who sends at that moment would send in the clear."""
    with Etcd(tls=True) as guarded:
        made = guarded.certificates
        context = ssl.create_default_context(cafile=str(made.authority))
        context.load_cert_chain(made.certificate, made.key)
        context.set_alpn_protocols(["h2"])
        connection = connection_threads.Subchannel(
            Member(guarded.address, guarded.host, guarded.port, context)
        )
        line = connection._take(5.0, urgent=False)
        line.shutdown()
        assert line._socket._sslobj is not None  # type: ignore[attr-defined]  # it has one
        with pytest.raises(OSError):  # noqa: PT011 - whatever it says
            line._socket.send(b"x")
        connection._discard(line)
        connection.close()


def test_nothing_was_sent_where_nobody_listens() -> None:
    with server(lambda connected: None) as member:
        pass
    assert code_of(lambda: connection_threads.Subchannel(member).call("Put", PUT, 5.0, ())) == NEVER_SENT


# --- words that nothing hangs on ----------------------------------------------------------------

PINGED = _frame(PING, 0, 0, bytes(8))
ANSWERED = _frame(PING, 1, 0, bytes(8))
ASKED = _frame(PING, 0, 0, b"a server")
OURS = _frame(PING, 1, 0, b"a server")


def read_until(connected: socket.socket, wanted: bytes) -> None:
    settings_received = b""
    while wanted not in settings_received:
        part = connected.recv(65_536)
        if not part:
            raise ConnectionResetError
        settings_received += part


def watched(member: Member, driver: str) -> str:
    """What ends a watch that never gets an event."""

    def in_threads() -> None:
        stream = connection_threads.Subchannel(member).watch(5.0, ())
        try:
            stream.receive()
        finally:
            stream.close()

    async def in_a_loop() -> None:
        connection = connection_asyncio.Subchannel(member)
        try:
            await (await connection.watch(5.0, ())).receive()
        finally:
            await connection.close()

    with pytest.raises(RpcError) as failure:
        in_threads() if driver == "threads" else asyncio.run(asyncio.wait_for(in_a_loop(), 20))
    return failure.value.details


@pytest.mark.parametrize("driver", ["threads", "asyncio"])
def test_a_silent_stream_is_sent_a_ping_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    """The kernel takes what we send as long as it has room: only a reply shows that a server is there."""
    answers, wanted = 0, 2

    def wait_for_pings(seconds: float) -> None:
        for module in (connection_threads, connection_asyncio):
            monkeypatch.setattr(module, "KEEPALIVE_SECONDS", 0.1)
            monkeypatch.setattr(module, "KEEPALIVE_TIMEOUT_SECONDS", seconds)

    def serve(connected: socket.socket) -> None:
        nonlocal answers
        connected.sendall(HELLO)
        while answers < wanted:
            read_until(connected, PINGED)
            answers += 1
            if answers == wanted:
                wait_for_pings(0.2)  # the next one is waited for in vain
            connected.sendall(ANSWERED)
        while connected.recv(65_536):
            pass  # not a word more

    wait_for_pings(2.0)  # those that come may take their time on a busy machine
    with server(serve) as member:
        assert "was silent for too long" in watched(member, driver)
    assert answers == wanted


@pytest.mark.parametrize("driver", ["threads", "asyncio"])
def test_pings_of_the_server_are_acknowledged(driver: str) -> None:
    """Though nothing else is said on the stream."""
    answered = threading.Event()

    def serve(connected: socket.socket) -> None:
        connected.sendall(HELLO + ASKED)
        read_until(connected, OURS)
        answered.set()

    with server(serve) as member:
        watched(member, driver)
    assert answered.is_set()


def test_a_ping_between_two_calls_is_acknowledged_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_threads, "PING_ACK_DELAY_SECONDS", 0.0)

    def serve(connected: socket.socket) -> None:
        connected.recv(65_536)
        connected.sendall(HELLO + answer() + ASKED)
        read_until(connected, OURS)

    with server(serve) as member:
        connection = connection_threads.Subchannel(member)
        connection.call("Put", PUT, 5.0, ())
        line = connection._idle[0]
        wait_until(lambda: not line.is_stale() and line.http2.has_unacknowledged_pings())
        assert code_of(lambda: connection.call("Put", PUT, 5.0, ())) == "UNAVAILABLE", "it hangs up then"
        connection.close()
