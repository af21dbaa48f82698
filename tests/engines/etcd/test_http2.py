"""gRPC over HTTP/2, against the server side of another library (``h2``), in memory: bytes there and back."""

from __future__ import annotations

from collections.abc import Callable

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.etcd.errors import NEVER_SENT, UNREADABLE
from holdfast.engines.etcd.http2 import (
    CLIENT_PREFACE,
    CONNECTION_RECEIVE_WINDOW,
    DATA,
    DEFAULT_WINDOW_SIZE,
    GOAWAY,
    HEADERS,
    LOCAL_MAX_FRAME_SIZE,
    MESSAGE_BYTES_MAX,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_RECEIVE_WINDOW,
    WINDOW_UPDATE,
    Http2Connection,
    ProtocolError,
    Stream,
    _frame,
    length_prefixed,
)
from holdfast.engines.etcd.rpc import RpcError

pytestmark = pytest.mark.timeless

PATH = "/etcdserverpb.KV/Range"
HEADERS_OF_A_RESPONSE = [(":status", "200"), ("content-type", "application/grpc")]
FINE = [("grpc-status", "0"), ("grpc-message", "")]


class Server:
    """Speaks to one client."""

    def __init__(self, client: Http2Connection) -> None:
        self.client = client
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.headers: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: list[int] = []
        self.resets: dict[int, int] = {}
        self.pongs: list[bytes] = []
        self.reads = True
        """Says that there is room again for what came."""

    def receive(self) -> None:
        """What the client has to say."""
        for event in self.h2.receive_data(self.client.data_to_send()):
            if isinstance(event, h2.events.RequestReceived):
                self.headers[event.stream_id] = dict(event.headers)  # type: ignore[arg-type]  # decoded
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                if self.reads:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.append(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = event.error_code
            elif isinstance(event, h2.events.PingAckReceived):
                self.pongs.append(event.ping_data)

    def say(self, chunk: int = 1 << 20) -> list[Stream]:
        """What is to be said to the client, in pieces so large."""
        data = self.h2.data_to_send()
        news = []
        for at in range(0, len(data), chunk):
            news += self.client.receive_data(data[at : at + chunk])
        return news

    def answer(self, stream: int, *messages: bytes, trailers: list[tuple[str, str]] | None = None) -> None:
        self.h2.send_headers(stream, HEADERS_OF_A_RESPONSE)
        for message in messages:
            self.send(stream, message)
        self.h2.send_headers(stream, FINE if trailers is None else trailers, end_stream=True)

    def send(self, stream: int, message: bytes, padding: int | None = None) -> None:
        data = length_prefixed(message)
        size = self.h2.max_outbound_frame_size - 256
        for at in range(0, len(data), size):
            self.h2.send_data(stream, data[at : at + size], pad_length=padding)


@pytest.fixture
def client() -> Http2Connection:
    return Http2Connection("http", "localhost:2379")


@pytest.fixture
def server(client: Http2Connection) -> Server:
    return Server(client)


def open_stream(client: Http2Connection, *messages: bytes, end_stream: bool = True) -> Stream:
    return client.open_stream(PATH, (), 1.5, b"".join(map(length_prefixed, messages)), end_stream)


def failure_of(call: Stream) -> RpcError:
    assert call.is_closed
    assert call.failure is not None
    return call.failure


def test_a_call_says_what_grpc_asks_for(client: Http2Connection, server: Server) -> None:
    call = client.open_stream(PATH, (("token", "a.b"),), 1.5, length_prefixed(b"question"), end_stream=True)
    server.receive()
    assert server.headers[call.stream_id] == {
        ":method": "POST",
        ":scheme": "http",
        ":path": PATH,
        ":authority": "localhost:2379",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "holdfast",
        "token": "a.b",
        "grpc-timeout": "1500m",
    }
    assert server.bodies[call.stream_id] == b"\0\0\0\0\x08question"
    assert server.ended == [call.stream_id]


def test_a_call_and_its_answer(client: Http2Connection, server: Server) -> None:
    call = open_stream(client, b"question")
    server.receive()
    server.answer(call.stream_id, b"answer")
    news = server.say()
    assert set(news) == {call}
    assert call.messages == [b"answer"]
    assert call.is_closed
    assert call.failure is None
    assert not client.has_open_streams()
    server.receive()
    assert not server.resets


@given(
    questions=st.lists(st.binary(max_size=40_000), min_size=1, max_size=4),
    answers=st.lists(st.binary(max_size=40_000), max_size=4),
    chunk=st.integers(1, 5000),
    padding=st.none() | st.integers(0, 255),
)
def test_whatever_is_said_arrives_as_it_was_said(
    questions: list[bytes], answers: list[bytes], chunk: int, padding: int | None
) -> None:
    """In pieces of any size, padded or not, and however little room there is at a time."""
    client = Http2Connection("http", "localhost:2379")
    server = Server(client)
    calls = [open_stream(client, each) for each in questions]
    while client.has_data_to_send():
        server.receive()
        server.say(chunk)
    for call, question in zip(calls, questions, strict=True):
        assert server.bodies[call.stream_id] == length_prefixed(question)
        server.h2.send_headers(call.stream_id, HEADERS_OF_A_RESPONSE)
        for answer in answers:
            server.send(call.stream_id, answer, padding)
        server.h2.send_headers(call.stream_id, FINE, end_stream=True)
    server.say(chunk)
    for call in calls:
        assert call.messages == answers
        assert call.is_closed
        assert call.failure is None


def test_no_more_is_sent_than_there_is_room_for(client: Http2Connection, server: Server) -> None:
    """``h2`` refuses what is too much."""
    server.reads = False
    first, second = open_stream(client, bytes(DEFAULT_WINDOW_SIZE)), open_stream(client, b"behind it")
    server.receive()
    server.say()
    server.receive()
    assert len(server.bodies[first.stream_id]) == DEFAULT_WINDOW_SIZE
    assert second.stream_id not in server.bodies
    server.h2.increment_flow_control_window(100)
    server.h2.increment_flow_control_window(100, first.stream_id)
    server.say()
    server.receive()
    assert server.bodies[first.stream_id] == length_prefixed(bytes(DEFAULT_WINDOW_SIZE))
    assert server.bodies[second.stream_id] == length_prefixed(b"behind it")
    assert sorted(server.ended) == [first.stream_id, second.stream_id]


def test_room_for_calls_under_way_can_be_changed(client: Http2Connection, server: Server) -> None:
    server.receive()
    server.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
    server.say()
    call = open_stream(client, bytes(100))
    server.receive()
    assert len(server.bodies[call.stream_id]) == 10
    server.reads = False
    server.h2.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 50})
    server.say()
    server.receive()
    assert len(server.bodies[call.stream_id]) == 60, "ten were read, and there is room for fifty"


def test_the_window_of_the_server_is_updated(client: Http2Connection, server: Server) -> None:
    call = open_stream(client, b"x", end_stream=False)
    server.receive()
    server.h2.send_headers(call.stream_id, HEADERS_OF_A_RESPONSE)
    client._unacked_bytes = CONNECTION_RECEIVE_WINDOW // 2 - 2
    call._unacked_bytes = STREAM_RECEIVE_WINDOW // 2 - 2
    server.send(call.stream_id, b"more")
    server.say()
    windows = client.data_to_send().removeprefix(_frame(SETTINGS, 1, 0))
    assert windows == _frame(WINDOW_UPDATE, 0, 0, (CONNECTION_RECEIVE_WINDOW // 2 + 7).to_bytes(4)), (
        "nobody has read it yet"
    )
    assert client.take(call) == [b"more"]
    assert client.data_to_send() == _frame(
        WINDOW_UPDATE, 0, call.stream_id, (STREAM_RECEIVE_WINDOW // 2 + 7).to_bytes(4)
    )


def test_a_ping_is_answered_and_one_of_ours_too(client: Http2Connection, server: Server) -> None:
    server.receive()
    server.h2.ping(b"12345678")
    server.say()
    server.receive()
    assert not server.pongs
    client.acknowledge_pings()
    client.ping()
    server.receive()
    assert server.pongs == [b"12345678"]
    assert client.data_to_send() == b""
    server.say()
    assert not client.has_data_to_send(), "an answer is not answered"


@pytest.mark.parametrize(
    ("trailers", "code", "details"),
    [
        ([("grpc-status", "5"), ("grpc-message", "lease not found")], "NOT_FOUND", "lease not found"),
        ([("grpc-status", "14"), ("grpc-message", "100%25 %C3%A4")], "UNAVAILABLE", "100% ä"),
        ([("grpc-status", "99")], "UNKNOWN", ""),
        ([("grpc-status", "-1")], "UNKNOWN", ""),
        ([("other", "thing")], "UNKNOWN", "the call ended without a status"),
    ],
    ids=["known", "quoted", "a number of our time", "no number", "none"],
)
def test_a_call_that_failed(
    client: Http2Connection, server: Server, trailers: list[tuple[str, str]], code: str, details: str
) -> None:
    call = open_stream(client, b"question")
    server.receive()
    server.answer(call.stream_id, trailers=trailers)
    server.say()
    assert (failure_of(call).code, failure_of(call).details) == (code, details)


def test_a_call_that_fails_at_once(client: Http2Connection, server: Server) -> None:
    """The first headers are the last."""
    call = open_stream(client, b"question")
    server.receive()
    headers = [*HEADERS_OF_A_RESPONSE, ("grpc-status", "16"), ("grpc-message", "who are you?")]
    server.h2.send_headers(call.stream_id, headers, end_stream=True)
    server.say()
    assert (failure_of(call).code, failure_of(call).details) == ("UNAUTHENTICATED", "who are you?")


@pytest.mark.parametrize(
    ("status", "code"), [("503", "UNAVAILABLE"), ("404", "UNIMPLEMENTED"), ("302", "UNKNOWN")]
)
def test_a_server_that_knows_nothing_of_grpc(
    client: Http2Connection, server: Server, status: str, code: str
) -> None:
    call = open_stream(client, b"question")
    server.receive()
    server.h2.send_headers(call.stream_id, [(":status", status)])
    server.h2.send_data(call.stream_id, b"<html>", end_stream=True)
    server.say()
    assert (failure_of(call).code, failure_of(call).details) == (code, f"HTTP status {status}")


def test_an_end_without_a_status(client: Http2Connection, server: Server) -> None:
    call = open_stream(client, b"question")
    server.receive()
    server.h2.send_headers(call.stream_id, HEADERS_OF_A_RESPONSE)
    server.h2.send_data(call.stream_id, length_prefixed(b"answer"), end_stream=True)
    server.say()
    assert failure_of(call).code == "UNKNOWN"


def test_headers_that_take_several_frames(client: Http2Connection, server: Server) -> None:
    call = open_stream(client, b"question")
    server.receive()
    long = "x" * 40_000
    server.answer(call.stream_id, trailers=[("grpc-status", "13"), ("grpc-message", long)])
    server.say(chunk=1000)
    assert failure_of(call).details == long


@pytest.mark.parametrize("error", [2, 7, 8])
def test_a_call_that_the_server_gives_up(client: Http2Connection, server: Server, error: int) -> None:
    """It may have happened. A proxy says that it refused what it has passed on."""
    call = open_stream(client, b"question")
    server.receive()
    server.h2.reset_stream(call.stream_id, error)
    assert server.say() == [call]
    assert failure_of(call).code == "UNAVAILABLE"


def test_a_server_that_keeps_no_table_of_headers(client: Http2Connection, server: Server) -> None:
    server.receive()
    server.h2.update_settings({h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0})
    server.say()
    for _ in range(2):
        call = open_stream(client, b"question")
        server.receive()
        assert server.headers[call.stream_id][":path"] == PATH


def test_how_many_calls_a_server_takes_at_a_time(client: Http2Connection, server: Server) -> None:
    server.receive()
    server.h2.update_settings({h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    server.say()
    calls = [open_stream(client, b"question") for _ in range(2)]
    assert not client.can_open_stream()
    server.receive()
    server.answer(calls[0].stream_id, b"answer")
    server.say()
    assert client.can_open_stream()


def test_however_long_it_may_take_it_can_be_written_down(client: Http2Connection, server: Server) -> None:
    call = client.open_stream(PATH, (), 1e9, b"", end_stream=True)
    server.receive()
    assert len(server.headers[call.stream_id]["grpc-timeout"]) <= 9


def test_a_server_that_goes_away_ends_what_it_has_begun_and_nothing_else(
    client: Http2Connection, server: Server
) -> None:
    first, second = open_stream(client, b"one"), open_stream(client, b"two")
    server.receive()
    news = client.receive_data(
        _frame(SETTINGS, 0, 0) + _frame(GOAWAY, 0, 0, first.stream_id.to_bytes(4) + bytes(4))
    )
    assert news == [second]
    assert client.is_closing
    assert failure_of(second).code == NEVER_SENT
    assert not first.is_closed
    server.answer(first.stream_id, b"answer")
    server.say()
    assert first.messages == [b"answer"]


def test_a_connection_that_is_lost_takes_its_calls_with_it(client: Http2Connection, server: Server) -> None:
    call = open_stream(client, b"question")
    assert client.fail_streams("it broke") == [call]
    assert (failure_of(call).code, failure_of(call).details) == ("UNAVAILABLE", "it broke")
    assert client.is_closing


def test_a_call_that_was_given_up_has_no_later_effect(client: Http2Connection, server: Server) -> None:
    call = open_stream(client, b"question")
    server.receive()
    client.cancel(call)
    client.cancel(call)
    server.h2.send_headers(call.stream_id, HEADERS_OF_A_RESPONSE)
    server.send(call.stream_id, b"too late")
    assert server.say() == []
    assert failure_of(call).code == "CANCELLED"
    server.receive()
    assert server.resets == {call.stream_id: 8}


def test_a_stream_goes_on_until_one_side_ends_it(client: Http2Connection, server: Server) -> None:
    call = open_stream(client, b"one", end_stream=False)
    server.receive()
    server.h2.send_headers(call.stream_id, HEADERS_OF_A_RESPONSE)
    for word in (b"two", b"three"):
        client.send(call, length_prefixed(word))
        server.receive()
        server.send(call.stream_id, word)
        assert set(server.say()) == {call}
    assert call.messages == [b"two", b"three"]
    assert server.bodies[call.stream_id] == length_prefixed(b"one") + length_prefixed(
        b"two"
    ) + length_prefixed(b"three")
    server.h2.send_headers(call.stream_id, FINE, end_stream=True)
    server.say()
    assert call.is_closed
    server.receive()
    assert server.resets == {call.stream_id: 0}, "our half is over, too"


def test_a_response_that_is_too_large_or_compressed_is_refused(
    client: Http2Connection, server: Server
) -> None:
    for data in (b"\0" + (MESSAGE_BYTES_MAX + 1).to_bytes(4), b"\1\0\0\0\1x"):
        call = open_stream(client, b"question")
        server.receive()
        server.h2.send_headers(call.stream_id, HEADERS_OF_A_RESPONSE)
        server.h2.send_data(call.stream_id, data)
        server.say()
        assert failure_of(call).code == UNREADABLE
        server.receive()


def test_the_numbers_of_calls_run_out_in_time(client: Http2Connection) -> None:
    client._last_stream_id = 2**30 - 3
    open_stream(client)
    assert not client.is_closing
    open_stream(client)
    assert client.is_closing


HELLO = _frame(SETTINGS, 0, 0)
NONSENSE: dict[str, Callable[[int], bytes]] = {
    "another protocol": lambda stream: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "TLS": lambda stream: b"\x15\x03\x01\x00\x02\x02\x46" + bytes(9),
    "no greeting": lambda stream: _frame(PING, 0, 0, bytes(8)),
    "a frame too large": lambda stream: HELLO + (LOCAL_MAX_FRAME_SIZE + 1).to_bytes(3) + bytes(6),
    "a push": lambda stream: HELLO + _frame(PUSH_PROMISE, 4, stream, bytes(4)),
    "half a ping": lambda stream: HELLO + _frame(PING, 0, 0, bytes(4)),
    "half a setting": lambda stream: HELLO + _frame(SETTINGS, 0, 0, bytes(4)),
    "half a window": lambda stream: HELLO + _frame(WINDOW_UPDATE, 0, 0, bytes(3)),
    "half a farewell": lambda stream: HELLO + _frame(GOAWAY, 0, 0, bytes(7)),
    "half a reset": lambda stream: HELLO + _frame(RST_STREAM, 0, stream, bytes(3)),
    "padding alone": lambda stream: HELLO + _frame(DATA, 8, stream, b"\5four"),
    "no headers": lambda stream: HELLO + _frame(HEADERS, 4, stream, b"\xff\xff\xff\xff\xff\xff"),
    "headers that lean on others": lambda stream: HELLO + _frame(HEADERS, 4, stream, b"\xbe"),
    "headers interrupted": lambda stream: HELLO + _frame(HEADERS, 0, stream) + _frame(PING, 0, 0, bytes(8)),
    "headers of another": lambda stream: HELLO + _frame(HEADERS, 0, stream) + _frame(9, 4, stream + 2),
    "a continuation of nothing": lambda stream: HELLO + _frame(9, 4, stream),
    "endless headers": lambda stream: (
        HELLO + _frame(HEADERS, 0, stream, bytes(LOCAL_MAX_FRAME_SIZE)) + _frame(9, 0, stream, bytes(9))
    ),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE.keys())
def test_what_makes_no_sense_breaks_the_connection(
    client: Http2Connection, nonsense: Callable[[int], bytes]
) -> None:
    call = open_stream(client, b"question")
    with pytest.raises(ProtocolError):
        client.receive_data(nonsense(call.stream_id))
    assert client.fail_streams("it broke") == [call]


@given(st.binary(max_size=200), st.booleans())
def test_whatever_comes_is_read_or_refused(noise: bytes, greeted: bool) -> None:
    client = Http2Connection("http", "localhost:2379")
    open_stream(client, b"question")
    if greeted:
        client.receive_data(HELLO)
    try:
        client.receive_data(noise)
    except ProtocolError:
        client.fail_streams("it broke")


def test_it_begins_with_the_preface(client: Http2Connection) -> None:
    open_stream(client, b"question")
    assert client.data_to_send().startswith(CLIENT_PREFACE)
    assert not client.has_data_to_send()
    open_stream(client, b"question")
    assert CLIENT_PREFACE not in client.data_to_send()
