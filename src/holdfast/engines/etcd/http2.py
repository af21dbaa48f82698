"""gRPC over one HTTP/2 connection, as bytes out and bytes in. No I/O here.

As much of both as it takes to call a server's procedures. No header is ever indexed, in neither direction: so
every block of headers stands for itself, and the few different ones there are are packed, and read, once.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from hpack import Decoder, HPACKError

from .errors import NEVER_SENT, UNREADABLE
from .rpc import Metadata, RpcError

__all__ = ["Http2Connection", "ProtocolError", "Stream", "length_prefixed"]

PREFACE_MAGIC: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
"""Kinds of frames."""

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20
"""Flags of frames."""

(
    HEADER_TABLE_SIZE,
    ENABLE_PUSH,
    MAX_CONCURRENT_STREAMS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
) = range(1, 7)
"""Settings."""

NO_ERROR: Final = 0
CANCEL: Final = 8

DEFAULT_WINDOW_SIZE: Final = 65_535
"""What may be sent before the other side allows more, unless it says otherwise."""

WINDOW_SIZE_MAX: Final = 2**31 - 1
STREAM_RECEIVE_WINDOW: Final = 4 << 20
"""What the server may send on one stream ahead of the reader: messages that nobody has read yet are not given
back to the window, so a server that is faster than the reader has to wait."""

CONNECTION_RECEIVE_WINDOW: Final = 16 << 20
"""The same for the connection. It is given back as data arrives, for a reader that is slow must not hold up
the other calls."""

DEFAULT_MAX_FRAME_SIZE: Final = 16_384
LOCAL_MAX_FRAME_SIZE: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = 64 << 20
STREAMS_MAX: Final = 120
"""At most, also where the server allows more."""

HEADER_BYTES_MAX: Final = 1 << 17
CONTINUATIONS_MAX: Final = 32
"""One block of headers is no larger, and comes in no more frames than these and the first."""

CACHED_HEADER_BYTES: Final = 512
"""A block that is larger is unlikely to come again: it is not remembered."""

PINGS_MAX: Final = 64
"""More of the server's pings are never left unanswered: etcd sends the next after the answer to the last."""

STATUS_DIGITS_MAX: Final = 2
"""gRPC has no status code with more."""

MILLISECONDS_MAX: Final = 99_999_999
"""More cannot be written down."""

STREAM_ID_MAX: Final = 1 << 30

GRPC_STATUS: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
"""How gRPC numbers what became of a call."""

HTTP_STATUS_TO_GRPC: Final = {
    b"400": "INTERNAL",
    b"401": "UNAUTHENTICATED",
    b"403": "PERMISSION_DENIED",
    b"404": "UNIMPLEMENTED",
    b"429": "UNAVAILABLE",
    b"502": "UNAVAILABLE",
    b"503": "UNAVAILABLE",
    b"504": "UNAVAILABLE",
}
"""What an HTTP status means where there is none of gRPC's."""

DYNAMIC_TABLE_SIZE_ZERO: Final = b"\x20"
"""Begins a block of headers: there is no table of them. Somebody may ask for that, and nobody minds."""

NEVER_INDEXED: Final = b"\x10"
"""Begins a header whose name is written out and which no table may hold."""

GRPC: Final = b"application/grpc"

_head: Final = struct.Struct(">BHBBL")
_long: Final = struct.Struct(">L")
_setting: Final = struct.Struct(">HL")
_message: Final = struct.Struct(">BL")


class ProtocolError(Exception):
    """What came is not HTTP/2. The connection is of no use any more."""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _head.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


CLIENT_PREFACE: Final = (
    PREFACE_MAGIC
    + _frame(
        SETTINGS,
        0,
        0,
        b"".join(
            [
                _setting.pack(HEADER_TABLE_SIZE, 0),
                _setting.pack(ENABLE_PUSH, 0),
                _setting.pack(INITIAL_WINDOW_SIZE, STREAM_RECEIVE_WINDOW),
                _setting.pack(MAX_FRAME_SIZE, LOCAL_MAX_FRAME_SIZE),
                _setting.pack(MAX_HEADER_LIST_SIZE, HEADER_BYTES_MAX),
            ]
        ),
    )
    + _frame(WINDOW_UPDATE, 0, 0, _long.pack(CONNECTION_RECEIVE_WINDOW - DEFAULT_WINDOW_SIZE))
)


def length_prefixed(message: bytes) -> bytes:
    """A message as it stands in the stream of a call."""
    return _message.pack(0, len(message)) + message


@lru_cache(256)
def _request(scheme: str, authority: str, path: str, metadata: Metadata, milliseconds: int | None) -> bytes:
    """The headers that begin a call."""
    headers: list[tuple[str, str]] = [
        (":method", "POST"),
        (":scheme", scheme),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "holdfast"),
        *metadata,
    ]
    if milliseconds is not None:
        headers.append(("grpc-timeout", f"{milliseconds}m"))
    return DYNAMIC_TABLE_SIZE_ZERO + b"".join(
        [NEVER_INDEXED + _string(name) + _string(value) for name, value in headers]
    )


def _string(text: str) -> bytes:
    """A string of HPACK, not compressed. Written here, for ``hpack`` logs what it encodes, and a token is
    among that."""
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    length, rest = bytearray(b"\x7f"), len(data) - 127
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    length.append(rest)
    return bytes(length) + data


def _decode_headers(block: bytes) -> dict[bytes, bytes]:
    """Headers as the server sent them."""
    return _decode_cached_block(block) if len(block) <= CACHED_HEADER_BYTES else _decode_block(block)


def _decode_block(block: bytes) -> dict[bytes, bytes]:
    decoder = Decoder()
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    try:
        return {bytes(name): bytes(value) for name, value in decoder.decode(block, raw=True)}
    except HPACKError:
        raise ProtocolError("headers that cannot be read") from None


_decode_cached_block: Final = lru_cache(256)(_decode_block)


class Stream:
    """One call: what came of it so far."""

    __slots__ = (
        "_ends_stream",
        "_headers_received",
        "_missing_bytes",
        "_parts",
        "_receive_window",
        "_send_window",
        "_unacked_bytes",
        "_unsent",
        "failure",
        "is_closed",
        "messages",
        "stream",
    )

    def __init__(self, stream: int, room: int) -> None:
        self.stream = stream
        self.messages: list[bytes] = []
        """Responses, in their order. A reader that wants more of them takes them with ``Http2.take``."""
        self.is_closed = False
        self.failure: RpcError | None = None
        """Why it failed; if it is over and there is none, it did not."""
        self._headers_received = False
        """The headers that begin the response have come."""
        self._receive_window = STREAM_RECEIVE_WINDOW
        """So many bytes the server may still send."""
        self._unacked_bytes = 0
        """Bytes that came, less those of messages not taken yet: what the window can be given back. Below
        zero where a message that is larger than the window was let through."""
        self._parts: list[bytes] = []
        """What came of messages that are not complete."""
        self._missing_bytes = 0
        """So many bytes, at least, until one is."""
        self._send_window = room
        self._unsent = b""
        self._ends_stream = False

    def _close(self, failure: RpcError | None) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.failure = failure

    def _read_data(self, data: bytes) -> None:
        if self._parts:
            self._parts.append(data)
            self._missing_bytes -= len(data)
            if self._missing_bytes > 0:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        at, size = 0, len(data)
        while at < size:
            self._missing_bytes = 5 - (size - at)
            if self._missing_bytes <= 0:
                compressed, length = _message.unpack_from(data, at)
                if compressed or length > MESSAGE_BYTES_MAX:
                    what = "compressed" if compressed else f"larger than {MESSAGE_BYTES_MAX} bytes"
                    self._close(RpcError(UNREADABLE, f"a response that is {what}"))
                    return
                self._missing_bytes += length
            if self._missing_bytes > 0:
                self._parts.append(data[at:])
                return
            self.messages.append(data[at + 5 : at + 5 + length])
            self._unacked_bytes -= 5 + length
            at += 5 + length

    def _read_headers(self, fields: dict[bytes, bytes], is_end: bool) -> None:
        """Headers came: those that begin the response, or those that end it."""
        if not self._headers_received:
            status = fields.get(b":status", b"")
            if status != b"200":
                if not status.startswith(b"1") or is_end:
                    told = f"HTTP status {status[:20].decode('latin-1') or 'missing'}"
                    self._close(RpcError(HTTP_STATUS_TO_GRPC.get(status, "UNKNOWN"), told))
                return
            self._headers_received = True
            content = fields.get(b"content-type", b"")
            if content != GRPC and not content.startswith((GRPC + b"+", GRPC + b";")):
                told = content[:60].decode("latin-1") or "nothing that is named"
                self._close(RpcError(UNREADABLE, f"the answer is no gRPC but {told}: is a proxy in between?"))
                return
        elif not is_end:
            self._close(RpcError(UNREADABLE, "a response that begins twice"))
            return
        if not is_end:
            return  # a status belongs to the end
        number = fields.get(b"grpc-status")
        if number is None:
            self._close(RpcError("UNKNOWN", "the call ended without a status"))
            return
        is_known = number.isdigit() and len(number) <= STATUS_DIGITS_MAX and int(number) < len(GRPC_STATUS)
        code = GRPC_STATUS[int(number)] if is_known else "UNKNOWN"
        if code == "OK":
            self._close(RpcError(UNREADABLE, "half a response") if self._parts else None)
        else:
            details = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
            self._close(RpcError(code, details))


class Http2Connection:
    """One connection from its beginning."""

    __slots__ = (
        "_buffer",
        "_calls",
        "_calls_max",
        "_continuations",
        "_header_block",
        "_initial_window_size",
        "_last_stream_id",
        "_max_frame_size",
        "_out",
        "_receive_window",
        "_route",
        "_send_window",
        "_unacked_bytes",
        "_unacknowledged_pings",
        "is_closing",
        "settings_received",
    )

    def __init__(self, scheme: str, authority: str) -> None:
        self._route = scheme, authority
        self._out = [CLIENT_PREFACE]
        self._calls: dict[int, Stream] = {}
        self._calls_max = STREAMS_MAX
        self._last_stream_id = -1
        self._buffer = b""
        self._header_block: tuple[int, int, bytes] | None = None
        """Headers that have yet to be completed: whose, their flags, and what came of them."""
        self._send_window = self._initial_window_size = DEFAULT_WINDOW_SIZE
        self._continuations = 0
        self._max_frame_size = DEFAULT_MAX_FRAME_SIZE
        self._receive_window = CONNECTION_RECEIVE_WINDOW
        """So many bytes the server may still send, on all streams together."""
        self._unacked_bytes = 0
        self._unacknowledged_pings: list[bytes] = []
        self.settings_received = False
        """The server has said a word."""
        self.is_closing = False
        """No call can be begun any more."""

    # --- what goes out --------------------------------------------------------------------------

    def open_stream(
        self, path: str, metadata: Metadata, seconds: float | None, data: bytes, end_stream: bool
    ) -> Stream:
        """A call; ``data``: messages, packed. Without ``is_last`` more of them may follow."""
        self._last_stream_id += 2
        self.is_closing = self.is_closing or self._last_stream_id >= STREAM_ID_MAX
        call = self._calls[self._last_stream_id] = Stream(self._last_stream_id, self._initial_window_size)
        milliseconds = None if seconds is None else min(max(int(seconds * 1000), 1), MILLISECONDS_MAX)
        block = _request(*self._route, path, metadata, milliseconds)
        self._out.append(_frame(HEADERS, END_HEADERS, call.stream, block))
        self.send(call, data, end_stream)
        return call

    def send(self, call: Stream, data: bytes, end_stream: bool = False) -> None:
        """Messages, packed; as soon as the server has room for them."""
        call._unsent += data
        call._ends_stream = end_stream
        self._send_data(call)

    def _send_data(self, call: Stream) -> None:
        while call._unsent:
            size = min(len(call._unsent), self._send_window, call._send_window, self._max_frame_size)
            if size <= 0:
                return
            part, call._unsent = call._unsent[:size], call._unsent[size:]
            self._send_window -= size
            call._send_window -= size
            is_end = call._ends_stream and not call._unsent
            self._out.append(_frame(DATA, END_STREAM if is_end else 0, call.stream, part))

    def take(self, call: Stream) -> list[bytes]:
        """The messages that have come, which makes room for more."""
        messages, call.messages = call.messages, []
        call._unacked_bytes += sum([5 + len(each) for each in messages])
        self._send_window_update(call)
        return messages

    def cancel(self, call: Stream) -> None:
        """Nobody wants to know any more."""
        if self._calls.pop(call.stream, None) is not None and not call.is_closed:
            self._out.append(_frame(RST_STREAM, 0, call.stream, _long.pack(CANCEL)))
            call._close(RpcError("CANCELLED", "the call was given up"))

    def ping(self) -> None:
        """Have the server say a word."""
        self._out.append(_frame(PING, 0, 0, bytes(8)))

    def acknowledge_pings(self) -> None:
        """Not by itself: etcd sends one before each response, to find out how fast the network is, unless the
        last is not answered yet. That is not worth waking up and writing for each time."""
        for payload in self._unacknowledged_pings:
            self._out.append(_frame(PING, ACK, 0, payload))
        self._unacknowledged_pings.clear()

    def has_unacknowledged_pings(self) -> bool:
        return bool(self._unacknowledged_pings)

    def data_to_send(self) -> bytes:
        """What is to be sent now."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def has_data_to_send(self) -> bool:
        return bool(self._out)

    def has_open_streams(self) -> bool:
        return bool(self._calls)

    def can_open_stream(self) -> bool:
        """Whether the server takes one call more here. Before its settings are known it is given one alone:
        that is as many as nearly every server takes."""
        return not self.is_closing and len(self._calls) < (self._calls_max if self.settings_received else 1)

    # --- what comes in --------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[Stream]:
        """Calls of which there is news. Raises Broken; then ``lost`` tells the calls."""
        news: list[Stream] = []
        if self._buffer:
            data = self._buffer + data
        at, size = 0, len(data)
        while size - at >= 9:
            high, low, kind, flags, stream = _head.unpack_from(data, at)
            length = high << 16 | low
            if not self.settings_received:
                if kind != SETTINGS or flags & ACK:
                    raise ProtocolError("it does not speak HTTP/2")
                self.settings_received = True
            if length > LOCAL_MAX_FRAME_SIZE:
                raise ProtocolError("a frame that is too large")
            if size - at - 9 < length:
                break
            payload = data[at + 9 : at + 9 + length]
            at += 9 + length
            if kind == GOAWAY:
                news += self._receive_goaway(payload)
            elif (call := self._frame(kind, flags, stream & 0x7FFFFFFF, payload)) is not None:
                news.append(call)
        self._buffer = data[at:]
        return news

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> Stream | None:
        if self._header_block is not None and kind != CONTINUATION:
            raise ProtocolError("headers that are not continued")
        if kind == DATA:
            return self._receive_data_frame(flags, stream, payload)
        if kind == HEADERS:
            payload = _unpadded(flags, payload)
            self._continuations = 0
            return self._receive_headers_frame(
                stream, flags, payload[5:] if flags & PRIORITY_FLAG else payload
            )
        if kind == CONTINUATION:
            if self._header_block is None or self._header_block[0] != stream:
                raise ProtocolError("headers of another call are continued")
            _, first, block = self._header_block
            self._header_block = None
            self._continuations += 1
            if self._continuations > CONTINUATIONS_MAX:
                raise ProtocolError("headers in too many frames")
            return self._receive_headers_frame(stream, first | flags & END_HEADERS, block + payload)
        if kind == WINDOW_UPDATE:
            self._receive_window_update(stream, _long.unpack(_checked_length(payload, 4))[0] & 0x7FFFFFFF)
        elif kind == RST_STREAM:
            return self._receive_rst_stream(stream, _long.unpack(_checked_length(payload, 4))[0])
        elif kind == SETTINGS:
            if not flags & ACK:
                self._receive_settings(payload)
        elif kind == PING:
            if not flags & ACK:
                self._unacknowledged_pings.append(_checked_length(payload, 8))
                if len(self._unacknowledged_pings) > PINGS_MAX:
                    raise ProtocolError("more pings than are worth an answer")
        elif kind == PUSH_PROMISE:
            raise ProtocolError("it sends what nobody asked for")
        return None  # what else there is does not concern us

    def _receive_data_frame(self, flags: int, stream: int, payload: bytes) -> Stream | None:
        self._check_opened(stream)
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise ProtocolError("more data than the connection's window allows")
        self._unacked_bytes += size
        if self._unacked_bytes >= CONNECTION_RECEIVE_WINDOW // 2:
            self._out.append(_frame(WINDOW_UPDATE, 0, 0, _long.pack(self._unacked_bytes)))
            self._receive_window += self._unacked_bytes
            self._unacked_bytes = 0
        call = self._calls.get(stream)
        if call is None:
            return None  # it was given up
        call._receive_window -= size
        if call._receive_window < 0:
            raise ProtocolError("more data than the stream's window allows")
        call._unacked_bytes += size
        data = _unpadded(flags, payload)
        if call._headers_received:
            call._read_data(data)
        else:
            call._close(RpcError(UNREADABLE, "data before the headers of the response"))
        if flags & END_STREAM:
            call._close(RpcError("UNKNOWN", "the call ended without a status"))
        self._send_window_update(call)
        return self._stream_changed(call)

    def _send_window_update(self, call: Stream) -> None:
        """Tell the server that there is room again for what was read."""
        if call._unacked_bytes >= STREAM_RECEIVE_WINDOW // 2 and not call.is_closed:
            self._out.append(_frame(WINDOW_UPDATE, 0, call.stream, _long.pack(call._unacked_bytes)))
            call._receive_window += call._unacked_bytes
            call._unacked_bytes = 0

    def _check_opened(self, stream: int) -> None:
        if not stream & 1 or stream > self._last_stream_id:
            raise ProtocolError("a frame of a call that was never begun")

    def _receive_headers_frame(self, stream: int, flags: int, block: bytes) -> Stream | None:
        self._check_opened(stream)
        if len(block) > HEADER_BYTES_MAX:
            raise ProtocolError("headers that are too large")
        if not flags & END_HEADERS:
            self._header_block = stream, flags, block
            return None
        call = self._calls.get(stream)
        if call is None:
            return None
        call._read_headers(_decode_headers(block), bool(flags & END_STREAM))
        return self._stream_changed(call)

    def _stream_changed(self, call: Stream) -> Stream:
        if call.is_closed:
            self._calls.pop(call.stream, None)
            if call._unsent or not call._ends_stream:
                # It is over on their side alone: let go of ours, too.
                self._out.append(_frame(RST_STREAM, 0, call.stream, _long.pack(NO_ERROR)))
        return call

    def _receive_rst_stream(self, stream: int, code: int) -> Stream | None:
        call = self._calls.pop(stream, None)
        if call is not None:
            # Also where it says that it refused it: a proxy may say so of what it has passed on.
            call._close(RpcError("UNAVAILABLE", f"the server gave up the call ({code})"))
        return call

    def _receive_window_update(self, stream: int, size: int) -> None:
        """There is room for more."""
        if not stream:
            self._send_window = _checked_window(self._send_window + size)
            for each in list(self._calls.values()):
                self._send_data(each)
            return
        call = self._calls.get(stream)
        if call is not None:
            call._send_window = _checked_window(call._send_window + size)
            self._send_data(call)

    def _receive_settings(self, payload: bytes) -> None:
        if len(payload) % _setting.size:
            raise ProtocolError("settings that cannot be read")
        for what, value in _setting.iter_unpack(payload):
            if what == MAX_CONCURRENT_STREAMS:
                self._calls_max = min(value, STREAMS_MAX)
            elif what == INITIAL_WINDOW_SIZE:
                for call in self._calls.values():
                    call._send_window = _checked_window(call._send_window + value - self._initial_window_size)
                self._initial_window_size = _checked_window(value)
            elif what == MAX_FRAME_SIZE:
                self._max_frame_size = min(max(value, DEFAULT_MAX_FRAME_SIZE), LOCAL_MAX_FRAME_SIZE)
        self._out.append(_frame(SETTINGS, ACK, 0))
        for call in list(self._calls.values()):
            self._send_data(call)

    def _receive_goaway(self, payload: bytes) -> list[Stream]:
        """The server is about to end; what it has not begun it never will."""
        if len(payload) < 8:
            raise ProtocolError("a frame of the wrong size")
        self.is_closing = True
        last = _long.unpack_from(payload)[0] & 0x7FFFFFFF
        left = [call for call in self._calls.values() if call.stream > last]
        for call in left:
            del self._calls[call.stream]
            call._close(RpcError(NEVER_SENT, "the server is about to end"))
        return left

    # --- the end --------------------------------------------------------------------------------

    def fail_streams(self, why: str) -> list[Stream]:
        """The connection is gone: nobody knows what becomes of the calls that are under way."""
        self.is_closing = True
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call._close(RpcError("UNAVAILABLE", why))
        return calls


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError("more padding than there is")
    return payload[1 : len(payload) - payload[0]]


def _checked_window(size: int) -> int:
    if size > WINDOW_SIZE_MAX:
        raise ProtocolError("a window larger than there can be")
    return size


def _checked_length(payload: bytes, size: int) -> bytes:
    if len(payload) != size:
        raise ProtocolError("a frame of the wrong size")
    return payload
