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

from .calls import Failed, Metadata
from .failures import NEVER_SENT, UNREADABLE

__all__ = ["Broken", "Call", "Http2", "packed"]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
"""Kinds of frames."""

END_OF_STREAM: Final = 0x1
ACKNOWLEDGES: Final = 0x1
END_OF_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20
"""Flags of frames."""

TABLE_SIZE, ENABLE_PUSH, CALLS_MAX, FIRST_ROOM, FRAME_SIZE, HEADER_LIST_SIZE = range(1, 7)
"""Settings."""

NO_ERROR: Final = 0
CANCEL: Final = 8

ROOM: Final = 65_535
"""What may be sent before the other side allows more, unless it says otherwise."""

WINDOW_MAX: Final = 2**31 - 1
OUR_STREAM_WINDOW: Final = 4 << 20
"""What the server may send on one stream ahead of the reader: messages that nobody has read yet are not given
back to the window, so a server that is faster than the reader has to wait."""

OUR_WINDOW: Final = 16 << 20
"""The same for the connection. It is given back as data arrives, for a reader that is slow must not hold up
the other calls."""

FRAME_BYTES: Final = 16_384
OUR_FRAME_BYTES: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = 64 << 20
CALLS_AT_ONCE: Final = 120
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

LAST_STREAM: Final = 1 << 30

CODES: Final = (
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

HTTP_CODES: Final = {
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

NO_TABLE: Final = b"\x20"
"""Begins a block of headers: there is no table of them. Somebody may ask for that, and nobody minds."""

NEVER_INDEXED: Final = b"\x10"
"""Begins a header whose name is written out and which no table may hold."""

GRPC: Final = b"application/grpc"

_head: Final = struct.Struct(">BHBBL")
_long: Final = struct.Struct(">L")
_setting: Final = struct.Struct(">HL")
_message: Final = struct.Struct(">BL")


class Broken(Exception):
    """What came is not HTTP/2. The connection is of no use any more."""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return _head.pack(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


OPENING: Final = (
    PREFACE
    + _frame(
        SETTINGS,
        0,
        0,
        b"".join(
            [
                _setting.pack(TABLE_SIZE, 0),
                _setting.pack(ENABLE_PUSH, 0),
                _setting.pack(FIRST_ROOM, OUR_STREAM_WINDOW),
                _setting.pack(FRAME_SIZE, OUR_FRAME_BYTES),
                _setting.pack(HEADER_LIST_SIZE, HEADER_BYTES_MAX),
            ]
        ),
    )
    + _frame(WINDOW, 0, 0, _long.pack(OUR_WINDOW - ROOM))
)


def packed(message: bytes) -> bytes:
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
    return NO_TABLE + b"".join([NEVER_INDEXED + _string(name) + _string(value) for name, value in headers])


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


def _fields(block: bytes) -> dict[bytes, bytes]:
    """Headers as the server sent them."""
    return _cached_fields(block) if len(block) <= CACHED_HEADER_BYTES else _decoded(block)


def _decoded(block: bytes) -> dict[bytes, bytes]:
    decoder = Decoder()
    decoder.header_table_size = decoder.max_allowed_table_size = 0
    try:
        return {bytes(name): bytes(value) for name, value in decoder.decode(block, raw=True)}
    except HPACKError:
        raise Broken("headers that cannot be read") from None


_cached_fields: Final = lru_cache(256)(_decoded)


class Call:
    """One call: what came of it so far."""

    __slots__ = (
        "_is_answered",
        "_is_last",
        "_missing",
        "_parts",
        "_room",
        "_uncredited",
        "_unsent",
        "_window",
        "failure",
        "is_over",
        "messages",
        "stream",
    )

    def __init__(self, stream: int, room: int) -> None:
        self.stream = stream
        self.messages: list[bytes] = []
        """Responses, in their order. A reader that wants more of them takes them with ``Http2.take``."""
        self.is_over = False
        self.failure: Failed | None = None
        """Why it failed; if it is over and there is none, it did not."""
        self._is_answered = False
        """The headers that begin the response have come."""
        self._window = OUR_STREAM_WINDOW
        """So many bytes the server may still send."""
        self._uncredited = 0
        """Bytes that came, less those of messages not taken yet: what the window can be given back. Below
        zero where a message that is larger than the window was let through."""
        self._parts: list[bytes] = []
        """What came of messages that are not complete."""
        self._missing = 0
        """So many bytes, at least, until one is."""
        self._room = room
        self._unsent = b""
        self._is_last = False

    def _end(self, failure: Failed | None) -> None:
        if not self.is_over:
            self.is_over = True
            self.failure = failure

    def _read(self, data: bytes) -> None:
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        at, size = 0, len(data)
        while at < size:
            self._missing = 5 - (size - at)
            if self._missing <= 0:
                compressed, length = _message.unpack_from(data, at)
                if compressed or length > MESSAGE_BYTES_MAX:
                    what = "compressed" if compressed else f"larger than {MESSAGE_BYTES_MAX} bytes"
                    self._end(Failed(UNREADABLE, f"a response that is {what}"))
                    return
                self._missing += length
            if self._missing > 0:
                self._parts.append(data[at:])
                return
            self.messages.append(data[at + 5 : at + 5 + length])
            self._uncredited -= 5 + length
            at += 5 + length

    def _told(self, fields: dict[bytes, bytes], is_end: bool) -> None:
        """Headers came: those that begin the response, or those that end it."""
        if not self._is_answered:
            status = fields.get(b":status", b"")
            if status != b"200":
                if not status.startswith(b"1") or is_end:
                    told = f"HTTP status {status[:20].decode('latin-1') or 'missing'}"
                    self._end(Failed(HTTP_CODES.get(status, "UNKNOWN"), told))
                return
            self._is_answered = True
            content = fields.get(b"content-type", b"")
            if content != GRPC and not content.startswith((GRPC + b"+", GRPC + b";")):
                told = content[:60].decode("latin-1") or "nothing that is named"
                self._end(Failed(UNREADABLE, f"the answer is no gRPC but {told}: is a proxy in between?"))
                return
        elif not is_end:
            self._end(Failed(UNREADABLE, "a response that begins twice"))
            return
        if not is_end:
            return  # a status belongs to the end
        number = fields.get(b"grpc-status")
        if number is None:
            self._end(Failed("UNKNOWN", "the call ended without a status"))
            return
        is_known = number.isdigit() and len(number) <= STATUS_DIGITS_MAX and int(number) < len(CODES)
        code = CODES[int(number)] if is_known else "UNKNOWN"
        if code == "OK":
            self._end(Failed(UNREADABLE, "half a response") if self._parts else None)
        else:
            details = unquote_to_bytes(fields.get(b"grpc-message", b"")).decode("utf-8", "replace")
            self._end(Failed(code, details))


class Http2:
    """One connection from its beginning."""

    __slots__ = (
        "_block",
        "_buffer",
        "_calls",
        "_calls_max",
        "_continuations",
        "_first_room",
        "_frame_bytes",
        "_out",
        "_pings",
        "_room",
        "_route",
        "_stream",
        "_uncredited",
        "_window",
        "heard",
        "is_ending",
    )

    def __init__(self, scheme: str, authority: str) -> None:
        self._route = scheme, authority
        self._out = [OPENING]
        self._calls: dict[int, Call] = {}
        self._calls_max = CALLS_AT_ONCE
        self._stream = -1
        self._buffer = b""
        self._block: tuple[int, int, bytes] | None = None
        """Headers that have yet to be completed: whose, their flags, and what came of them."""
        self._room = self._first_room = ROOM
        self._continuations = 0
        self._frame_bytes = FRAME_BYTES
        self._window = OUR_WINDOW
        """So many bytes the server may still send, on all streams together."""
        self._uncredited = 0
        self._pings: list[bytes] = []
        self.heard = False
        """The server has said a word."""
        self.is_ending = False
        """No call can be begun any more."""

    # --- what goes out --------------------------------------------------------------------------

    def begin(self, path: str, metadata: Metadata, seconds: float | None, data: bytes, is_last: bool) -> Call:
        """A call; ``data``: messages, packed. Without ``is_last`` more of them may follow."""
        self._stream += 2
        self.is_ending = self.is_ending or self._stream >= LAST_STREAM
        call = self._calls[self._stream] = Call(self._stream, self._first_room)
        milliseconds = None if seconds is None else min(max(int(seconds * 1000), 1), MILLISECONDS_MAX)
        block = _request(*self._route, path, metadata, milliseconds)
        self._out.append(_frame(HEADERS, END_OF_HEADERS, call.stream, block))
        self.send(call, data, is_last)
        return call

    def send(self, call: Call, data: bytes, is_last: bool = False) -> None:
        """Messages, packed; as soon as the server has room for them."""
        call._unsent += data
        call._is_last = is_last
        self._push(call)

    def _push(self, call: Call) -> None:
        while call._unsent:
            size = min(len(call._unsent), self._room, call._room, self._frame_bytes)
            if size <= 0:
                return
            part, call._unsent = call._unsent[:size], call._unsent[size:]
            self._room -= size
            call._room -= size
            is_end = call._is_last and not call._unsent
            self._out.append(_frame(DATA, END_OF_STREAM if is_end else 0, call.stream, part))

    def take(self, call: Call) -> list[bytes]:
        """The messages that have come, which makes room for more."""
        messages, call.messages = call.messages, []
        call._uncredited += sum([5 + len(each) for each in messages])
        self._credit(call)
        return messages

    def cancel(self, call: Call) -> None:
        """Nobody wants to know any more."""
        if self._calls.pop(call.stream, None) is not None and not call.is_over:
            self._out.append(_frame(RESET, 0, call.stream, _long.pack(CANCEL)))
            call._end(Failed("CANCELLED", "the call was given up"))

    def ping(self) -> None:
        """Have the server say a word."""
        self._out.append(_frame(PING, 0, 0, bytes(8)))

    def answer_pings(self) -> None:
        """Not by itself: etcd sends one before each response, to find out how fast the network is, unless the
        last is not answered yet. That is not worth waking up and writing for each time."""
        for payload in self._pings:
            self._out.append(_frame(PING, ACKNOWLEDGES, 0, payload))
        self._pings.clear()

    def has_pings(self) -> bool:
        return bool(self._pings)

    def outgoing(self) -> bytes:
        """What is to be sent now."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def has_outgoing(self) -> bool:
        return bool(self._out)

    def has_calls(self) -> bool:
        return bool(self._calls)

    def has_room(self) -> bool:
        """Whether the server takes one call more here. Before its settings are known it is given one alone:
        that is as many as nearly every server takes."""
        return not self.is_ending and len(self._calls) < (self._calls_max if self.heard else 1)

    # --- what comes in --------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[Call]:
        """Calls of which there is news. Raises Broken; then ``lost`` tells the calls."""
        news: list[Call] = []
        if self._buffer:
            data = self._buffer + data
        at, size = 0, len(data)
        while size - at >= 9:
            high, low, kind, flags, stream = _head.unpack_from(data, at)
            length = high << 16 | low
            if not self.heard:
                if kind != SETTINGS or flags & ACKNOWLEDGES:
                    raise Broken("it does not speak HTTP/2")
                self.heard = True
            if length > OUR_FRAME_BYTES:
                raise Broken("a frame that is too large")
            if size - at - 9 < length:
                break
            payload = data[at + 9 : at + 9 + length]
            at += 9 + length
            if kind == GOAWAY:
                news += self._go_away(payload)
            elif (call := self._frame(kind, flags, stream & 0x7FFFFFFF, payload)) is not None:
                news.append(call)
        self._buffer = data[at:]
        return news

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> Call | None:
        if self._block is not None and kind != CONTINUATION:
            raise Broken("headers that are not continued")
        if kind == DATA:
            return self._data(flags, stream, payload)
        if kind == HEADERS:
            payload = _unpadded(flags, payload)
            self._continuations = 0
            return self._headers(stream, flags, payload[5:] if flags & WITH_PRIORITY else payload)
        if kind == CONTINUATION:
            if self._block is None or self._block[0] != stream:
                raise Broken("headers of another call are continued")
            _, first, block = self._block
            self._block = None
            self._continuations += 1
            if self._continuations > CONTINUATIONS_MAX:
                raise Broken("headers in too many frames")
            return self._headers(stream, first | flags & END_OF_HEADERS, block + payload)
        if kind == WINDOW:
            self._allowed(stream, _long.unpack(_sized(payload, 4))[0] & 0x7FFFFFFF)
        elif kind == RESET:
            return self._reset(stream, _long.unpack(_sized(payload, 4))[0])
        elif kind == SETTINGS:
            if not flags & ACKNOWLEDGES:
                self._set(payload)
        elif kind == PING:
            if not flags & ACKNOWLEDGES:
                self._pings.append(_sized(payload, 8))
                if len(self._pings) > PINGS_MAX:
                    raise Broken("more pings than are worth an answer")
        elif kind == PUSH:
            raise Broken("it sends what nobody asked for")
        return None  # what else there is does not concern us

    def _data(self, flags: int, stream: int, payload: bytes) -> Call | None:
        self._check_opened(stream)
        size = len(payload)
        self._window -= size
        if self._window < 0:
            raise Broken("more data than the connection's window allows")
        self._uncredited += size
        if self._uncredited >= OUR_WINDOW // 2:
            self._out.append(_frame(WINDOW, 0, 0, _long.pack(self._uncredited)))
            self._window += self._uncredited
            self._uncredited = 0
        call = self._calls.get(stream)
        if call is None:
            return None  # it was given up
        call._window -= size
        if call._window < 0:
            raise Broken("more data than the stream's window allows")
        call._uncredited += size
        data = _unpadded(flags, payload)
        if call._is_answered:
            call._read(data)
        else:
            call._end(Failed(UNREADABLE, "data before the headers of the response"))
        if flags & END_OF_STREAM:
            call._end(Failed("UNKNOWN", "the call ended without a status"))
        self._credit(call)
        return self._seen(call)

    def _credit(self, call: Call) -> None:
        """Tell the server that there is room again for what was read."""
        if call._uncredited >= OUR_STREAM_WINDOW // 2 and not call.is_over:
            self._out.append(_frame(WINDOW, 0, call.stream, _long.pack(call._uncredited)))
            call._window += call._uncredited
            call._uncredited = 0

    def _check_opened(self, stream: int) -> None:
        if not stream & 1 or stream > self._stream:
            raise Broken("a frame of a call that was never begun")

    def _headers(self, stream: int, flags: int, block: bytes) -> Call | None:
        self._check_opened(stream)
        if len(block) > HEADER_BYTES_MAX:
            raise Broken("headers that are too large")
        if not flags & END_OF_HEADERS:
            self._block = stream, flags, block
            return None
        call = self._calls.get(stream)
        if call is None:
            return None
        call._told(_fields(block), bool(flags & END_OF_STREAM))
        return self._seen(call)

    def _seen(self, call: Call) -> Call:
        if call.is_over:
            self._calls.pop(call.stream, None)
            if call._unsent or not call._is_last:
                # It is over on their side alone: let go of ours, too.
                self._out.append(_frame(RESET, 0, call.stream, _long.pack(NO_ERROR)))
        return call

    def _reset(self, stream: int, code: int) -> Call | None:
        call = self._calls.pop(stream, None)
        if call is not None:
            # Also where it says that it refused it: a proxy may say so of what it has passed on.
            call._end(Failed("UNAVAILABLE", f"the server gave up the call ({code})"))
        return call

    def _allowed(self, stream: int, size: int) -> None:
        """There is room for more."""
        if not stream:
            self._room = _checked_window(self._room + size)
            for each in list(self._calls.values()):
                self._push(each)
            return
        call = self._calls.get(stream)
        if call is not None:
            call._room = _checked_window(call._room + size)
            self._push(call)

    def _set(self, payload: bytes) -> None:
        if len(payload) % _setting.size:
            raise Broken("settings that cannot be read")
        for what, value in _setting.iter_unpack(payload):
            if what == CALLS_MAX:
                self._calls_max = min(value, CALLS_AT_ONCE)
            elif what == FIRST_ROOM:
                for call in self._calls.values():
                    call._room = _checked_window(call._room + value - self._first_room)
                self._first_room = _checked_window(value)
            elif what == FRAME_SIZE:
                self._frame_bytes = min(max(value, FRAME_BYTES), OUR_FRAME_BYTES)
        self._out.append(_frame(SETTINGS, ACKNOWLEDGES, 0))
        for call in list(self._calls.values()):
            self._push(call)

    def _go_away(self, payload: bytes) -> list[Call]:
        """The server is about to end; what it has not begun it never will."""
        if len(payload) < 8:
            raise Broken("a frame of the wrong size")
        self.is_ending = True
        last = _long.unpack_from(payload)[0] & 0x7FFFFFFF
        left = [call for call in self._calls.values() if call.stream > last]
        for call in left:
            del self._calls[call.stream]
            call._end(Failed(NEVER_SENT, "the server is about to end"))
        return left

    # --- the end --------------------------------------------------------------------------------

    def lost(self, why: str) -> list[Call]:
        """The connection is gone: nobody knows what becomes of the calls that are under way."""
        self.is_ending = True
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call._end(Failed("UNAVAILABLE", why))
        return calls


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Broken("more padding than there is")
    return payload[1 : len(payload) - payload[0]]


def _checked_window(size: int) -> int:
    if size > WINDOW_MAX:
        raise Broken("a window larger than there can be")
    return size


def _sized(payload: bytes, size: int) -> bytes:
    if len(payload) != size:
        raise Broken("a frame of the wrong size")
    return payload
