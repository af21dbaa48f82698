"""gRPC over one HTTP/2 connection (RFC 9113), sans I/O: bytes out and bytes in.

Only what a client needs to call a server's methods. The dynamic table of HPACK has size zero in both
directions, so every header block can be decoded by itself: the few different blocks there are are encoded,
and decoded, once.
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
"""Frame types."""

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20
"""Frame flags."""

(
    HEADER_TABLE_SIZE,
    ENABLE_PUSH,
    MAX_CONCURRENT_STREAMS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
) = range(1, 7)
"""Settings parameters."""

NO_ERROR: Final = 0
CANCEL: Final = 8

DEFAULT_WINDOW_SIZE: Final = 65_535
"""The initial flow-control window of RFC 9113."""

WINDOW_SIZE_MAX: Final = 2**31 - 1
STREAM_RECEIVE_WINDOW: Final = 4 << 20
"""The receive window of one stream. Messages that are not read yet are not returned to the window, so a
server that is faster than the reader has to wait."""

CONNECTION_RECEIVE_WINDOW: Final = 16 << 20
"""The receive window of the connection. It is returned as data arrives, because a slow reader must not delay
the other streams."""

DEFAULT_MAX_FRAME_SIZE: Final = 16_384
LOCAL_MAX_FRAME_SIZE: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = 64 << 20
STREAMS_MAX: Final = 120
"""At most this many, also where the server allows more."""

HEADER_BYTES_MAX: Final = 1 << 17
CONTINUATIONS_MAX: Final = 32
"""A header block is at most this large, and has at most this many CONTINUATION frames."""

CACHED_HEADER_BYTES: Final = 512
"""A larger block is unlikely to come again: it is not cached."""

PINGS_MAX: Final = 64
"""At most this many unacknowledged PINGs of the server: etcd sends the next after the ACK of the last."""

STATUS_DIGITS_MAX: Final = 2
"""gRPC has no status code with more digits."""

MILLISECONDS_MAX: Final = 99_999_999
"""The largest ``grpc-timeout`` in milliseconds."""

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
"""gRPC's status codes, by number."""

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
"""The status code for an HTTP status, where the response has no gRPC status."""

DYNAMIC_TABLE_SIZE_ZERO: Final = b"\x20"
"""Begins a header block: a dynamic table size update to zero. A server may require it, and none minds."""

NEVER_INDEXED: Final = b"\x10"
"""Begins a literal header field, never indexed, with a new name."""

GRPC: Final = b"application/grpc"

_head: Final = struct.Struct(">BHBBL")
_long: Final = struct.Struct(">L")
_setting: Final = struct.Struct(">HL")
_message: Final = struct.Struct(">BL")


class ProtocolError(Exception):
    """The peer violated HTTP/2. The connection cannot be used any more."""


def _frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _head.pack(length >> 16, length & 0xFFFF, kind, flags, stream_id) + payload


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
    """A message with gRPC's length prefix."""
    return _message.pack(0, len(message)) + message


@lru_cache(256)
def _request(scheme: str, authority: str, path: str, metadata: Metadata, milliseconds: int | None) -> bytes:
    """The header block that opens a stream."""
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
    """An HPACK string literal, not Huffman-coded. Written here because ``hpack`` logs what it encodes, an
    authentication token among it."""
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
    """The header fields of a block."""
    return _decode_cached_block(block) if len(block) <= CACHED_HEADER_BYTES else _decode_block(block)


def _decode_block(block: bytes) -> dict[bytes, bytes]:
    decoder = Decoder()
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    try:
        return {bytes(name): bytes(value) for name, value in decoder.decode(block, raw=True)}
    except HPACKError:
        raise ProtocolError("a header block that cannot be decoded") from None


_decode_cached_block: Final = lru_cache(256)(_decode_block)


class Stream:
    """One stream, which carries one gRPC call: what was received so far."""

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
        "stream_id",
    )

    def __init__(self, stream_id: int, send_window: int) -> None:
        self.stream_id = stream_id
        self.messages: list[bytes] = []
        """Responses, in their order. A reader that wants more takes them with ``Http2Connection.take``."""
        self.is_closed = False
        self.failure: RpcError | None = None
        """Why the call failed. None on a closed stream: it succeeded."""
        self._headers_received = False
        """The response headers were received."""
        self._receive_window = STREAM_RECEIVE_WINDOW
        """The server may send this many more bytes."""
        self._unacked_bytes = 0
        """Received bytes, less those of messages not taken yet: what a WINDOW_UPDATE can return. Negative
        where a message larger than the window was accepted."""
        self._parts: list[bytes] = []
        """The received parts of an incomplete message."""
        self._missing_bytes = 0
        """At least this many bytes are missing."""
        self._send_window = send_window
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
        """Headers: those that begin the response, or its trailers."""
        if not self._headers_received:
            status = fields.get(b":status", b"")
            if status != b"200":
                if not status.startswith(b"1") or is_end:
                    reason = f"HTTP status {status[:20].decode('latin-1') or 'missing'}"
                    self._close(RpcError(HTTP_STATUS_TO_GRPC.get(status, "UNKNOWN"), reason))
                return
            self._headers_received = True
            content = fields.get(b"content-type", b"")
            if content != GRPC and not content.startswith((GRPC + b"+", GRPC + b";")):
                reason = content[:60].decode("latin-1") or "without a content type"
                self._close(
                    RpcError(UNREADABLE, f"the response is not gRPC but {reason}: is a proxy in between?")
                )
                return
        elif not is_end:
            self._close(RpcError(UNREADABLE, "a response with two header blocks"))
            return
        if not is_end:
            return  # the status comes in the trailers
        number = fields.get(b"grpc-status")
        if number is None:
            self._close(RpcError("UNKNOWN", "the call ended without a status"))
            return
        is_known = number.isdigit() and len(number) <= STATUS_DIGITS_MAX and int(number) < len(GRPC_STATUS)
        code = GRPC_STATUS[int(number)] if is_known else "UNKNOWN"
        if code == "OK":
            self._close(RpcError(UNREADABLE, "an incomplete response") if self._parts else None)
        else:
            details = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
            self._close(RpcError(code, details))


class Http2Connection:
    """One client connection, from the connection preface on."""

    __slots__ = (
        "_buffer",
        "_continuations",
        "_header_block",
        "_initial_window_size",
        "_last_stream_id",
        "_max_concurrent_streams",
        "_max_frame_size",
        "_out",
        "_receive_window",
        "_route",
        "_send_window",
        "_streams",
        "_unacked_bytes",
        "_unacknowledged_pings",
        "is_closing",
        "settings_received",
    )

    def __init__(self, scheme: str, authority: str) -> None:
        self._route = scheme, authority
        self._out = [CLIENT_PREFACE]
        self._streams: dict[int, Stream] = {}
        self._max_concurrent_streams = STREAMS_MAX
        self._last_stream_id = -1
        self._buffer = b""
        self._header_block: tuple[int, int, bytes] | None = None
        """An incomplete header block: its stream, its flags, and what was received of it."""
        self._send_window = self._initial_window_size = DEFAULT_WINDOW_SIZE
        self._continuations = 0
        self._max_frame_size = DEFAULT_MAX_FRAME_SIZE
        self._receive_window = CONNECTION_RECEIVE_WINDOW
        """The server may send this many more bytes on all streams together."""
        self._unacked_bytes = 0
        self._unacknowledged_pings: list[bytes] = []
        self.settings_received = False
        """The server's SETTINGS frame was received."""
        self.is_closing = False
        """No stream can be opened any more."""

    # --- sending --------------------------------------------------------------------------

    def open_stream(
        self, path: str, metadata: Metadata, seconds: float | None, data: bytes, end_stream: bool
    ) -> Stream:
        """Open a stream for a call. ``data``: length-prefixed messages; without ``end_stream`` more may
        follow."""
        self._last_stream_id += 2
        self.is_closing = self.is_closing or self._last_stream_id >= STREAM_ID_MAX
        stream = self._streams[self._last_stream_id] = Stream(self._last_stream_id, self._initial_window_size)
        milliseconds = None if seconds is None else min(max(int(seconds * 1000), 1), MILLISECONDS_MAX)
        block = _request(*self._route, path, metadata, milliseconds)
        self._out.append(_frame(HEADERS, END_HEADERS, stream.stream_id, block))
        self.send(stream, data, end_stream)
        return stream

    def send(self, stream: Stream, data: bytes, end_stream: bool = False) -> None:
        """Send length-prefixed messages as soon as the send windows allow."""
        stream._unsent += data
        stream._ends_stream = end_stream
        self._send_data(stream)

    def _send_data(self, stream: Stream) -> None:
        while stream._unsent:
            size = min(len(stream._unsent), self._send_window, stream._send_window, self._max_frame_size)
            if size <= 0:
                return
            part, stream._unsent = stream._unsent[:size], stream._unsent[size:]
            self._send_window -= size
            stream._send_window -= size
            is_end = stream._ends_stream and not stream._unsent
            self._out.append(_frame(DATA, END_STREAM if is_end else 0, stream.stream_id, part))

    def take(self, stream: Stream) -> list[bytes]:
        """The received messages; taking them returns their bytes to the window."""
        messages, stream.messages = stream.messages, []
        stream._unacked_bytes += sum([5 + len(each) for each in messages])
        self._send_window_update(stream)
        return messages

    def cancel(self, stream: Stream) -> None:
        """Give the call up."""
        if self._streams.pop(stream.stream_id, None) is not None and not stream.is_closed:
            self._out.append(_frame(RST_STREAM, 0, stream.stream_id, _long.pack(CANCEL)))
            stream._close(RpcError("CANCELLED", "the call was given up"))

    def ping(self) -> None:
        """Make the server answer: a dead connection is noticed."""
        self._out.append(_frame(PING, 0, 0, bytes(8)))

    def acknowledge_pings(self) -> None:
        """Called by the transport, with a delay. etcd sends a PING before each response to measure the
        bandwidth, unless the last one has no ACK yet: that is not worth a wake-up and a write each time."""
        for payload in self._unacknowledged_pings:
            self._out.append(_frame(PING, ACK, 0, payload))
        self._unacknowledged_pings.clear()

    def has_unacknowledged_pings(self) -> bool:
        return bool(self._unacknowledged_pings)

    def data_to_send(self) -> bytes:
        """The bytes to send now."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def has_data_to_send(self) -> bool:
        return bool(self._out)

    def has_open_streams(self) -> bool:
        return bool(self._streams)

    def can_open_stream(self) -> bool:
        """Whether the server accepts another stream. Before its SETTINGS are known it gets one stream only,
        which nearly every server accepts."""
        return not self.is_closing and len(self._streams) < (
            self._max_concurrent_streams if self.settings_received else 1
        )

    # --- receiving --------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[Stream]:
        """Process received bytes; returns the streams that changed. After a ProtocolError call
        ``fail_streams``."""
        changed: list[Stream] = []
        if self._buffer:
            data = self._buffer + data
        at, size = 0, len(data)
        while size - at >= 9:
            high, low, kind, flags, stream_id = _head.unpack_from(data, at)
            length = high << 16 | low
            if not self.settings_received:
                if kind != SETTINGS or flags & ACK:
                    raise ProtocolError("the peer does not speak HTTP/2")
                self.settings_received = True
            if length > LOCAL_MAX_FRAME_SIZE:
                raise ProtocolError("a frame larger than SETTINGS_MAX_FRAME_SIZE")
            if size - at - 9 < length:
                break
            payload = data[at + 9 : at + 9 + length]
            at += 9 + length
            if kind == GOAWAY:
                changed += self._receive_goaway(payload)
            elif (stream := self._receive_frame(kind, flags, stream_id & 0x7FFFFFFF, payload)) is not None:
                changed.append(stream)
        self._buffer = data[at:]
        return changed

    def _receive_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> Stream | None:
        if self._header_block is not None and kind != CONTINUATION:
            raise ProtocolError("a header block without its CONTINUATION")
        if kind == DATA:
            return self._receive_data_frame(flags, stream_id, payload)
        if kind == HEADERS:
            payload = _unpadded(flags, payload)
            self._continuations = 0
            return self._receive_headers_frame(
                stream_id, flags, payload[5:] if flags & PRIORITY_FLAG else payload
            )
        if kind == CONTINUATION:
            if self._header_block is None or self._header_block[0] != stream_id:
                raise ProtocolError("a CONTINUATION of another stream")
            _, first, block = self._header_block
            self._header_block = None
            self._continuations += 1
            if self._continuations > CONTINUATIONS_MAX:
                raise ProtocolError("too many CONTINUATION frames")
            return self._receive_headers_frame(stream_id, first | flags & END_HEADERS, block + payload)
        if kind == WINDOW_UPDATE:
            self._receive_window_update(stream_id, _long.unpack(_checked_length(payload, 4))[0] & 0x7FFFFFFF)
        elif kind == RST_STREAM:
            return self._receive_rst_stream(stream_id, _long.unpack(_checked_length(payload, 4))[0])
        elif kind == SETTINGS:
            if not flags & ACK:
                self._receive_settings(payload)
        elif kind == PING:
            if not flags & ACK:
                self._unacknowledged_pings.append(_checked_length(payload, 8))
                if len(self._unacknowledged_pings) > PINGS_MAX:
                    raise ProtocolError("too many PING frames")
        elif kind == PUSH_PROMISE:
            raise ProtocolError("a PUSH_PROMISE, which was disabled")
        return None  # PRIORITY and unknown types are ignored

    def _receive_data_frame(self, flags: int, stream_id: int, payload: bytes) -> Stream | None:
        self._check_opened(stream_id)
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            raise ProtocolError("more data than the connection's window allows")
        self._unacked_bytes += size
        if self._unacked_bytes >= CONNECTION_RECEIVE_WINDOW // 2:
            self._out.append(_frame(WINDOW_UPDATE, 0, 0, _long.pack(self._unacked_bytes)))
            self._receive_window += self._unacked_bytes
            self._unacked_bytes = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            return None  # the stream was cancelled
        stream._receive_window -= size
        if stream._receive_window < 0:
            raise ProtocolError("more data than the stream's window allows")
        stream._unacked_bytes += size
        data = _unpadded(flags, payload)
        if stream._headers_received:
            stream._read_data(data)
        else:
            stream._close(RpcError(UNREADABLE, "data before the headers of the response"))
        if flags & END_STREAM:
            stream._close(RpcError("UNKNOWN", "the call ended without a status"))
        self._send_window_update(stream)
        return self._stream_changed(stream)

    def _send_window_update(self, stream: Stream) -> None:
        """Return the bytes that were read to the server's window."""
        if stream._unacked_bytes >= STREAM_RECEIVE_WINDOW // 2 and not stream.is_closed:
            self._out.append(_frame(WINDOW_UPDATE, 0, stream.stream_id, _long.pack(stream._unacked_bytes)))
            stream._receive_window += stream._unacked_bytes
            stream._unacked_bytes = 0

    def _check_opened(self, stream_id: int) -> None:
        if not stream_id & 1 or stream_id > self._last_stream_id:
            raise ProtocolError("a frame of a stream that was never opened")

    def _receive_headers_frame(self, stream_id: int, flags: int, block: bytes) -> Stream | None:
        self._check_opened(stream_id)
        if len(block) > HEADER_BYTES_MAX:
            raise ProtocolError("a header block that is too large")
        if not flags & END_HEADERS:
            self._header_block = stream_id, flags, block
            return None
        stream = self._streams.get(stream_id)
        if stream is None:
            return None
        stream._read_headers(_decode_headers(block), bool(flags & END_STREAM))
        return self._stream_changed(stream)

    def _stream_changed(self, stream: Stream) -> Stream:
        if stream.is_closed:
            self._streams.pop(stream.stream_id, None)
            if stream._unsent or not stream._ends_stream:
                # The server closed its side only: close this side, too.
                self._out.append(_frame(RST_STREAM, 0, stream.stream_id, _long.pack(NO_ERROR)))
        return stream

    def _receive_rst_stream(self, stream_id: int, code: int) -> Stream | None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            # Outcome unknown also for REFUSED_STREAM: a proxy may send that for a request it has passed on.
            stream._close(RpcError("UNAVAILABLE", f"the server reset the stream ({code})"))
        return stream

    def _receive_window_update(self, stream_id: int, size: int) -> None:
        """The server enlarged a send window."""
        if not stream_id:
            self._send_window = _checked_window(self._send_window + size)
            for each in list(self._streams.values()):
                self._send_data(each)
            return
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream._send_window = _checked_window(stream._send_window + size)
            self._send_data(stream)

    def _receive_settings(self, payload: bytes) -> None:
        if len(payload) % _setting.size:
            raise ProtocolError("a SETTINGS frame of the wrong size")
        for what, value in _setting.iter_unpack(payload):
            if what == MAX_CONCURRENT_STREAMS:
                self._max_concurrent_streams = min(value, STREAMS_MAX)
            elif what == INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream._send_window = _checked_window(
                        stream._send_window + value - self._initial_window_size
                    )
                self._initial_window_size = _checked_window(value)
            elif what == MAX_FRAME_SIZE:
                self._max_frame_size = min(max(value, DEFAULT_MAX_FRAME_SIZE), LOCAL_MAX_FRAME_SIZE)
        self._out.append(_frame(SETTINGS, ACK, 0))
        for stream in list(self._streams.values()):
            self._send_data(stream)

    def _receive_goaway(self, payload: bytes) -> list[Stream]:
        """The server is about to close the connection; it never processes streams above the last one
        named."""
        if len(payload) < 8:
            raise ProtocolError("a frame of the wrong size")
        self.is_closing = True
        last = _long.unpack_from(payload)[0] & 0x7FFFFFFF
        left = [stream for stream in self._streams.values() if stream.stream_id > last]
        for stream in left:
            del self._streams[stream.stream_id]
            stream._close(RpcError(NEVER_SENT, "the server is closing the connection (GOAWAY)"))
        return left

    # --- the end --------------------------------------------------------------------------------

    def fail_streams(self, why: str) -> list[Stream]:
        """The connection is lost: the outcome of the open streams is unknown."""
        self.is_closing = True
        calls = list(self._streams.values())
        self._streams.clear()
        for stream in calls:
            stream._close(RpcError("UNAVAILABLE", why))
        return calls


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError("more padding than payload")
    return payload[1 : len(payload) - payload[0]]


def _checked_window(size: int) -> int:
    if size > WINDOW_SIZE_MAX:
        raise ProtocolError("a flow-control window above 2^31-1")
    return size


def _checked_length(payload: bytes, size: int) -> bytes:
    if len(payload) != size:
        raise ProtocolError("a frame of the wrong size")
    return payload
