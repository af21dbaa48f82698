"""Servers that answer what cannot be read, say too much, take too few calls, or are no etcd at all."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hpack import Encoder

import holdfast.aio
from engines.etcd.admin import Admin
from engines.etcd.conftest import Connect
from engines.etcd.test_connection import HELLO, PUT, answer, code_of, server
from holdfast import EngineUnavailable
from holdfast.core.effects import OutcomeUnknown
from holdfast.engines.etcd import connection as connection_threads
from holdfast.engines.etcd import connection_asyncio
from holdfast.engines.etcd import wire_pb2 as wire
from holdfast.engines.etcd.errors import ALL_BUSY, UNREADABLE, UNUSABLE, classify_error
from holdfast.engines.etcd.handshake import Member
from holdfast.engines.etcd.http2 import (
    CONNECTION_RECEIVE_WINDOW,
    CONTINUATION,
    CONTINUATIONS_MAX,
    DATA,
    HEADER_BYTES_MAX,
    HEADERS,
    PING,
    PINGS_MAX,
    SETTINGS,
    STREAM_RECEIVE_WINDOW,
    WINDOW_UPDATE,
    Http2Connection,
    ProtocolError,
    _frame,
    _request,
    length_prefixed,
)
from holdfast.engines.etcd.rpc import RpcError
from holdfast.lab.servers.certificates import Certificates, make_certificates
from support import wait_until
from support.servers import shared_etcd

DRIVERS = pytest.mark.parametrize("driver", ["threads", "asyncio"])
GRPC = ("content-type", "application/grpc")


def headers(stream: int, *fields: tuple[str, str], flags: int = 4) -> bytes:
    return _frame(HEADERS, flags, stream, Encoder().encode(list(fields)))


def put(member: Member, driver: str, seconds: float = 5.0) -> object:
    async def in_a_loop() -> object:
        connection = connection_asyncio.Subchannel(member)
        try:
            return await connection.call("Put", PUT, seconds, ())
        finally:
            await connection.close()

    if driver == "asyncio":
        return asyncio.run(asyncio.wait_for(in_a_loop(), 20))
    connection = connection_threads.Subchannel(member)
    try:
        return connection.call("Put", PUT, seconds, ())
    finally:
        connection.close()


# --- answers that cannot be read ------------------------------------------------------------------

BEGUN = headers(1, (":status", "200"), GRPC)
DONE = headers(1, ("grpc-status", "0"), flags=5)
ANSWERS = {
    "compressed": BEGUN + _frame(DATA, 0, 1, b"\1\0\0\0\1x"),
    "too large": BEGUN + _frame(DATA, 0, 1, b"\0\xff\xff\xff\xff"),
    "a page": headers(1, (":status", "200"), ("content-type", "text/html")) + _frame(DATA, 1, 1, b"<html>"),
    "another content type": headers(1, (":status", "200"), ("content-type", "application/json"))
    + _frame(DATA, 0, 1, length_prefixed(b""))
    + DONE,
    "no content type": headers(1, (":status", "200")) + _frame(DATA, 0, 1, length_prefixed(b"")) + DONE,
    "no headers": _frame(DATA, 0, 1, length_prefixed(b"")) + DONE,
    "no message of etcd's": BEGUN + _frame(DATA, 0, 1, length_prefixed(b"\xff\xff\xff")) + DONE,
    "half a message": BEGUN + _frame(DATA, 0, 1, length_prefixed(b"abc")[:-1]) + DONE,
    "two messages": BEGUN + _frame(DATA, 0, 1, length_prefixed(b"") * 2) + DONE,
    "no message": BEGUN + DONE,
    "two beginnings": BEGUN + BEGUN,
}


@DRIVERS
@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_that_cannot_be_read_leaves_open_what_happened(said: bytes, driver: str) -> None:
    def serve(connected: socket.socket) -> None:
        connected.recv(65_536)
        connected.sendall(HELLO + said)
        connected.recv(65_536)

    with server(serve) as member, pytest.raises(RpcError) as failure:
        put(member, driver)
    assert failure.value.code == UNREADABLE
    assert isinstance(classify_error(failure.value.code, failure.value.details), OutcomeUnknown)


@DRIVERS
def test_a_status_of_thousands_of_digits_is_no_status(driver: str) -> None:
    def serve(connected: socket.socket) -> None:
        connected.recv(65_536)
        connected.sendall(HELLO + BEGUN + headers(1, ("grpc-status", "9" * 5000), flags=5))
        connected.recv(65_536)

    with server(serve) as member, pytest.raises(RpcError) as failure:
        put(member, driver)
    assert failure.value.code == "UNKNOWN"


class Spoiler:
    """Before the shared etcd: passes everything on, and makes one answer unreadable when it is asked to."""

    def __init__(self) -> None:
        self.spoils = threading.Event()
        self.spoiled = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listening.accept()
                upstream = socket.create_connection((shared_etcd().host, shared_etcd().port))
                for act, here, there in (
                    (self._pass, connected, upstream),
                    (self._bend, upstream, connected),
                ):
                    threading.Thread(target=act, args=(here, there), daemon=True).start()

    def _pass(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while data := here.recv(65_536):
                there.sendall(data)
        with suppress(OSError):
            there.shutdown(socket.SHUT_RDWR)

    def _bend(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError), here, there, here.makefile("rb") as reading:
            while len(head := reading.read(9)) == 9:
                body = bytearray(reading.read(int.from_bytes(head[:3])))
                if head[3] == DATA and body and self.spoils.is_set():
                    self.spoils.clear()
                    self.spoiled += 1
                    body[0] = 1  # it claims to be compressed
                there.sendall(head + bytes(body))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def test_a_lock_whose_answer_cannot_be_read_is_found_to_be_ours(
    connect: Connect, admin: Admin, namespace: str
) -> None:
    """etcd has granted it: who takes that for a refusal leaves a ticket behind, or has two."""
    with closing(Spoiler()) as spoiler:
        client = connect(f"etcd://{spoiler.address}")
        with client.lock("first"):
            pass
        for number in range(3):
            spoiler.spoils.set()
            lease = client.lock(f"x{number}").acquire(timeout=20)
            assert lease is not None
            lease.check()
            assert len(admin.tickets(namespace)) == 1
            lease.release()
        assert spoiler.spoiled == 3
        assert admin.tickets(namespace) == []


# --- bounds ---------------------------------------------------------------------------------------


def fed(*said: bytes) -> Http2Connection:
    client = Http2Connection("http", "localhost:2379")
    client.open_stream("/a", (), None, b"question", end_stream=True)
    client.receive_data(HELLO)
    for each in said:
        client.receive_data(each)
    return client


def test_pings_that_are_never_answered_are_bounded() -> None:
    ping = _frame(PING, 0, 0, bytes(8))
    client = fed(ping * PINGS_MAX)
    client.acknowledge_pings()
    client.receive_data(ping * PINGS_MAX)
    with pytest.raises(ProtocolError, match="PING"):
        client.receive_data(ping)


def test_continuations_are_bounded_also_where_they_are_empty() -> None:
    begun = _frame(HEADERS, 0, 1, b"")
    fed(begun + _frame(CONTINUATION, 0, 1) * (CONTINUATIONS_MAX - 1) + _frame(CONTINUATION, 4, 1))
    with pytest.raises(ProtocolError, match="too many CONTINUATION"):
        fed(begun + _frame(CONTINUATION, 0, 1) * (CONTINUATIONS_MAX + 1))


def test_headers_are_bounded_in_one_frame_and_in_several() -> None:
    for frames in (
        _frame(HEADERS, 4, 1, bytes(HEADER_BYTES_MAX + 1)),
        _frame(HEADERS, 0, 1, bytes(HEADER_BYTES_MAX)) + _frame(CONTINUATION, 0, 1, b"x"),
    ):
        with pytest.raises(ProtocolError, match="too large"):
            fed(frames)


@pytest.mark.parametrize("stream", [0, 2, 3])
def test_a_call_that_was_never_begun_has_no_answer(stream: int) -> None:
    for kind in (DATA, HEADERS):
        with pytest.raises(ProtocolError, match="never opened"):
            fed(_frame(kind, 4, stream, b""))


def test_windows_of_the_server_have_an_end() -> None:
    for said in (
        _frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 2**31 - 1)),
        _frame(WINDOW_UPDATE, 0, 1, struct.pack(">L", 2**31 - 1)),
        _frame(SETTINGS, 0, 0, struct.pack(">HL", 4, 2**31)),
    ):
        with pytest.raises(ProtocolError, match="window"):
            fed(said)


def test_a_reader_that_is_slow_holds_up_the_server_and_nobody_else() -> None:
    """By the accounts of another implementation of HTTP/2."""
    client = Http2Connection("http", "localhost:2379")
    slow = client.open_stream("/watch", (), None, b"", end_stream=False)
    other = client.open_stream("/watch", (), None, b"", end_stream=False)
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    peer.initiate_connection()
    peer.receive_data(client.data_to_send())
    for call in (slow, other):
        peer.send_headers(call.stream_id, [(":status", "200"), GRPC])
    message = length_prefixed(bytes(10_000))

    def send_all() -> int:
        sent = 0
        while peer.local_flow_control_window(slow.stream_id) >= len(message):
            peer.send_data(slow.stream_id, message)
            client.receive_data(peer.data_to_send())
            peer.receive_data(client.data_to_send())
            sent += 1
        return sent

    sent = send_all()
    assert STREAM_RECEIVE_WINDOW - len(message) < sent * len(message) <= STREAM_RECEIVE_WINDOW
    assert send_all() == 0
    for _ in range(3 * CONNECTION_RECEIVE_WINDOW // len(message)):
        peer.send_data(other.stream_id, message)
        client.receive_data(peer.data_to_send())
        assert len(client.take(other)) == 1
        peer.receive_data(client.data_to_send())
    assert len(client.take(slow)) == sent
    peer.receive_data(client.data_to_send())
    assert send_all() > 0


def test_a_server_that_sends_more_than_the_window_allows_is_cut_off() -> None:
    client = fed(BEGUN)
    piece = _frame(DATA, 0, 1, length_prefixed(bytes(100_000)))
    with pytest.raises(ProtocolError, match="window"):
        client.receive_data(piece * (STREAM_RECEIVE_WINDOW // 100_000 + 1))


def test_a_message_larger_than_the_window_comes_through() -> None:
    client = Http2Connection("http", "localhost:2379")
    call = client.open_stream("/a", (), None, b"question", end_stream=True)
    peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    peer.initiate_connection()
    peer.receive_data(client.data_to_send())
    peer.send_headers(call.stream_id, [(":status", "200"), GRPC])
    message = bytes(3 * STREAM_RECEIVE_WINDOW)
    data = length_prefixed(message)
    for at in range(0, len(data), 16_384):
        peer.send_data(call.stream_id, data[at : at + 16_384])
        client.receive_data(peer.data_to_send())
        peer.receive_data(client.data_to_send())
    assert call.messages == [message]


def test_a_token_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.NOTSET):
        block = _request("http", "localhost", "/a", (("token", "s3cret" * 30),), 1)
    assert b"s3cret" in block
    assert "s3cret" not in caplog.text


# --- more calls than a server takes ---------------------------------------------------------------


class Narrow:
    """Takes few calls at a time over one connection, and each for a while; by another implementation of
    HTTP/2, which breaks the connection where there are more."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._mutex = threading.Lock()
        self.most = self.connections = self.answered = 0

    def serve(self, connected: socket.socket) -> None:
        with self._mutex:
            self.connections += 1
        peer = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        allowed = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self._calls_max}
        peer.local_settings = h2.settings.Settings(client=False, initial_values=allowed)
        peer.initiate_connection()
        connected.sendall(peer.data_to_send())
        under_way: list[int] = []
        connected.settimeout(0.01)
        while True:
            try:
                data = connected.recv(65_536)
                if not data:
                    return
                came = peer.receive_data(data)
                under_way += [each.stream_id for each in came if isinstance(each, h2.events.StreamEnded)]
            except TimeoutError:
                for stream in under_way:
                    peer.send_headers(stream, [(":status", "200"), GRPC])
                    peer.send_data(stream, length_prefixed(b""))
                    peer.send_headers(stream, [("grpc-status", "0")], end_stream=True)
                with self._mutex:
                    self.answered += len(under_way)
                under_way = []
            with self._mutex:
                self.most = max(self.most, len(under_way))
            connected.sendall(peer.data_to_send())

    @contextmanager
    def listening(self) -> Iterator[Member]:
        """One thread for each connection."""
        listening = socket.create_server(("127.0.0.1", 0))
        threads: list[threading.Thread] = []

        def one(connected: socket.socket) -> None:
            with connected, suppress(OSError):
                self.serve(connected)

        def work() -> None:
            with suppress(OSError):
                while True:
                    connected, _ = listening.accept()
                    threads.append(threading.Thread(target=one, args=(connected,)))
                    threads[-1].start()

        accepting = threading.Thread(target=work)
        accepting.start()
        port = listening.getsockname()[1]
        try:
            yield Member(f"127.0.0.1:{port}", "127.0.0.1", port, None)
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            listening.close()
            for thread in (accepting, *threads):
                thread.join(20)


@pytest.mark.parametrize("calls_max", [1, 2, 7])
def test_more_calls_than_the_server_takes_wait_for_their_turn(calls_max: int) -> None:
    narrow = Narrow(calls_max)

    async def run(member: Member) -> None:
        connection = connection_asyncio.Subchannel(member)
        answers = await asyncio.gather(*[connection.call("Put", PUT, 15.0, ()) for _ in range(60)])
        assert answers == [wire.PutResponse()] * 60
        await connection.close()

    with narrow.listening() as member:
        asyncio.run(asyncio.wait_for(run(member), 30))
    assert narrow.answered == 60
    assert narrow.most <= calls_max
    assert narrow.connections <= connection_asyncio.TRANSPORTS_MAX


def test_calls_that_come_just_when_the_connection_is_made_find_it() -> None:
    """Also between its making and word of it: they must not spin."""

    async def run(member: Member) -> None:
        for _ in range(10):
            connection = connection_asyncio.Subchannel(member)
            calls = []
            for _ in range(40):
                calls.append(asyncio.ensure_future(connection.call("Put", PUT, 15.0, ())))
                await asyncio.sleep(0)
            await asyncio.gather(*calls)
            await connection.close()

    with Narrow(2).listening() as member:
        asyncio.run(asyncio.wait_for(run(member), 60))


def test_a_watch_does_not_take_the_only_call_there_is() -> None:
    narrow = Narrow(1)

    async def run(member: Member) -> None:
        connection = connection_asyncio.Subchannel(member)
        watching = await connection.watch(15.0, ())
        assert await connection.call("Put", PUT, 15.0, ()) == wire.PutResponse()
        watching.cancel()
        await connection.close()

    with narrow.listening() as member:
        asyncio.run(asyncio.wait_for(run(member), 30))


@DRIVERS
def test_a_server_that_takes_no_call_at_all_is_reported_as_busy(driver: str) -> None:
    def serve(connected: socket.socket) -> None:
        none_more = _frame(SETTINGS, 0, 0, struct.pack(">HL", 3, 0))
        connected.recv(65_536)
        connected.sendall(HELLO + answer() + none_more)
        while connected.recv(65_536):
            pass

    async def in_a_loop(member: Member) -> None:
        connection = connection_asyncio.Subchannel(member)
        try:
            await connection.call("Put", PUT, 5.0, ())
            await asyncio.to_thread(wait_until, lambda: not connection._transports[0].http2.can_open_stream())
            with pytest.raises(RpcError) as failure:
                await connection.call("Put", PUT, 0.2, ())
            assert failure.value.code in (ALL_BUSY, "DEADLINE_EXCEEDED"), "nobody takes the next one"
        finally:
            await connection.close()

    with server(serve) as member:
        if driver == "asyncio":
            asyncio.run(asyncio.wait_for(in_a_loop(member), 20))
            return
        connection = connection_threads.Subchannel(member)
        connection.call("Put", PUT, 5.0, ())
        line = connection._idle[0]
        wait_until(lambda: not line.is_stale() and not line.http2.can_open_stream())
        assert code_of(lambda: connection.call("Put", PUT, 0.2, ())) == ALL_BUSY
        connection.close()


def test_locks_over_few_calls_at_a_time_on_a_real_server(namespace: str, url: str) -> None:
    async def run() -> None:
        async with holdfast.aio.connect(url, namespace=namespace) as client:
            for _ in range(2):
                leases = await asyncio.gather(*[client.lock(f"x{n}").acquire(timeout=20) for n in range(30)])
                for lease in leases:
                    assert lease is not None
                    await lease.release()

    pressed = pytest.MonkeyPatch()
    with pressed.context() as patch:
        patch.setattr("holdfast.engines.etcd.http2.STREAMS_MAX", 3)
        asyncio.run(asyncio.wait_for(run(), 60))


# --- TLS with something else ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    openssl = shutil.which("openssl")
    assert openssl is not None
    return make_certificates(Path(tmp_path_factory.mktemp("tls")), openssl)


@DRIVERS
@pytest.mark.parametrize("offers", [[], ["http/1.1"]])
def test_tls_with_what_does_not_speak_http2_is_refused_before_anything_is_sent(
    certificates: Certificates, offers: list[str], driver: str, connect: Connect
) -> None:
    settings_received: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    if offers:
        context.set_alpn_protocols(offers)

    def serve(connected: socket.socket) -> None:
        with suppress(OSError), context.wrap_socket(connected, server_side=True) as protected:
            settings_received.append(protected.recv(65_536))

    ours = ssl.create_default_context(cafile=str(certificates.authority))
    ours.set_alpn_protocols(["h2"])
    with server(serve) as member:
        with pytest.raises(RpcError) as failure:
            put(member._replace(tls_context=ours), driver)
        assert failure.value.code == UNUSABLE
        assert "ALPN" in failure.value.details
        with pytest.raises(EngineUnavailable, match="HTTP/2"):
            connect(f"etcd://{member.endpoint}?ca={certificates.authority}").lock("x").acquire(timeout=0)
    assert not any(settings_received)


# --- what it says ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["UNAVAILABLE", "INTERNAL", "PERMISSION_DENIED", "UNIMPLEMENTED", UNREADABLE]
)
def test_what_a_server_says_cannot_steer_a_terminal(code: str) -> None:
    told = str(classify_error(code, "\x1b[2J\x07gone\x9b\u202e" + "x" * 10_000))
    assert told.isprintable()
    assert "\\x1b[2J\\x07gone\\x9b\\u202e" in told
    assert len(told) < 700
