"""Connections to one member, for asyncio: many calls share a connection, and no call needs a task."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from ...runtime.connect_timeout import connect_seconds
from ...runtime.sockets import HARD_CLOSE, describe_error
from ...runtime.sockets_asyncio import give_to_loop, open_socket
from .connection import KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS, PING_ACK_DELAY_SECONDS
from .errors import ALL_BUSY, NEVER_SENT, UNREADABLE, UNUSABLE
from .handshake import Member, check_protocol, closed_by_server, no_grpc, not_connected
from .http2 import Http2Connection, ProtocolError, Stream, length_prefixed
from .rpc import KEEP_ALIVE, METHODS, WATCH, Metadata, Method, RpcError, decode_response

__all__ = ["Subchannel", "WatchStream"]

TRANSPORTS_MAX: Final = 4
"""At most this many connections to one member, where the server accepts fewer streams than there are
calls."""

UNSENT_BYTES_MAX: Final = 16 << 20
"""A server that does not read but makes us answer must not fill the memory: the connection is closed."""


class Http2Transport(asyncio.Protocol):
    """One connection in the loop."""

    def __init__(self, member: Member, connected: socket.socket, changed: Callable[[], None]) -> None:
        self._member = member
        self._changed = changed
        """Called when another stream may be possible, or none ever."""
        self._loop = asyncio.get_running_loop()
        self._loop_transport: Any = None
        """The loop's transport, once connected."""
        self._socket = connected
        self._waiting: dict[Stream, asyncio.Future[None]] = {}
        self._is_to_flush = False
        self._timer: asyncio.TimerHandle | None = None
        self._ack_timer: asyncio.TimerHandle | None = None
        self._has_received = False
        self._settings_waiter: asyncio.Future[None] | None = None
        self.failure: RpcError | None = None
        """Why the connection ended."""
        self.http2 = Http2Connection(member.scheme, member.endpoint)

    async def wait_for_settings(self) -> None:
        """Wait for the server's SETTINGS. Raises RpcError: no request was sent."""
        self._flush()
        while not self.http2.settings_received and self.failure is None:
            self._settings_waiter = self._loop.create_future()
            await self._settings_waiter
        if self.failure is not None:
            failed = _never_sent(self)
            raise RpcError(failed.code, f"{self._member.endpoint}: {failed.details}")

    def _wake_settings_waiter(self) -> None:
        if self._settings_waiter is not None and not self._settings_waiter.done():
            self._settings_waiter.set_result(None)

    # --- sending ---------------------------------------------------------------------------------

    def open_stream(
        self, method: Method, data: bytes, timeout: float | None, metadata: Metadata, end_stream: bool = True
    ) -> Stream:
        call = self.http2.open_stream(method.path, metadata, timeout, data, end_stream)
        self.flush_soon()
        if self._timer is None:
            self._timer = self._loop.call_later(KEEPALIVE_SECONDS, self._check_keepalive, KEEPALIVE_SECONDS)
        return call

    async def wait_for_events(self, call: Stream) -> None:
        """Wait until the stream changes. A cancellation ends the wait, not the call."""
        future = self._waiting[call] = self._loop.create_future()
        try:
            await future
        finally:
            self._waiting.pop(call, None)

    def cancel(self, call: Stream) -> None:
        self.http2.cancel(call)
        self._wake([call])
        self.flush_soon()
        self._changed()

    def flush_soon(self) -> None:
        """Everything requested in one iteration of the loop goes out in one write."""
        if not self._is_to_flush:
            self._is_to_flush = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_to_flush = False
        if self._loop_transport is not None and self.failure is None and self.http2.has_data_to_send():
            self._loop_transport.write(self.http2.data_to_send())
            if self._loop_transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                self._end(RpcError("UNAVAILABLE", "the server reads nothing any more"))

    # --- receiving -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop_transport = transport

    def data_received(self, data: bytes) -> None:
        self._has_received = True
        try:
            self._wake(self.http2.receive_data(data))
        except ProtocolError as broken:
            self._end(no_grpc(self._member, self.http2, broken))
        else:
            self._wake_settings_waiter()
            self._flush()
            if self.http2.has_unacknowledged_pings() and self._ack_timer is None and self.failure is None:
                self._ack_timer = self._loop.call_later(PING_ACK_DELAY_SECONDS, self._answer_pings)
            self._changed()

    def _answer_pings(self) -> None:
        self._ack_timer = None
        self.http2.acknowledge_pings()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        why = closed_by_server(self.http2) if error is None else describe_error(error)
        self._end(RpcError("UNAVAILABLE", f"the connection broke: {why}"))

    def _wake(self, calls: list[Stream]) -> None:
        for call in calls:
            future = self._waiting.get(call)
            if future is not None and not future.done():
                future.set_result(None)

    def _check_keepalive(self, seconds: float) -> None:
        """While streams are open, a silent server is sent a PING."""
        self._timer = None
        if self.failure is not None or not self.http2.has_open_streams():
            return
        if self._has_received:
            seconds = KEEPALIVE_SECONDS
        elif seconds == KEEPALIVE_SECONDS:
            self.http2.ping()
            self._flush()
            seconds = KEEPALIVE_TIMEOUT_SECONDS
        else:
            self._end(RpcError("UNAVAILABLE", "the server was silent for too long"))
            return
        self._has_received = False
        self._timer = self._loop.call_later(seconds, self._check_keepalive, seconds)

    def alpn(self) -> str | None:
        """The protocol that TLS agreed on."""
        protected: ssl.SSLObject = self._loop_transport.get_extra_info("ssl_object")
        return protected.selected_alpn_protocol()

    # --- the end --------------------------------------------------------------------------------

    def _end(self, failure: RpcError) -> None:
        """Close hard: unsent data is discarded."""
        if self.failure is not None:
            return
        self.failure = failure
        self._wake_settings_waiter()
        for timer in (self._timer, self._ack_timer):
            if timer is not None:
                timer.cancel()
        self.http2.fail_streams(failure.details)
        self._wake(list(self._waiting))
        self._changed()
        if self._loop_transport is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HARD_CLOSE)
            self._loop_transport.abort()

    def close(self) -> None:
        self._end(RpcError("CANCELLED", "the connection was closed"))

    def detach_after_fork(self) -> None:
        """This is the child of a fork: close its copy of the socket. The loop's selector belongs to the
        parent, too."""
        if self.failure is None:
            with contextlib.suppress(OSError):
                os.close(self._socket.detach())
        self.failure = RpcError("CANCELLED", "the connection is the parent process's")
        _INHERITED.append(self)


_INHERITED: Final[list[Http2Transport]] = []
"""In the child of a fork: kept alive, because collecting them would warn about open transports."""


class Subchannel:
    """One member of the cluster, and the connections to it, opened when needed."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._opening: asyncio.Task[Http2Transport] | None = None
        self._transports: list[Http2Transport] = []
        self._queue: collections.deque[asyncio.Future[None]] = collections.deque()
        """Calls that wait for a stream."""
        self._is_closed = False

    # --- calls ----------------------------------------------------------------------------------

    async def call(
        self, name: str, request: Any, timeout: float, metadata: Metadata, urgent: bool = False
    ) -> Any:
        """One request, one response. Raises RpcError."""
        method = METHODS[name]
        call = await self._exchange(
            method, length_prefixed(request.SerializeToString()), timeout, metadata, urgent
        )
        if len(call.messages) != 1:
            raise RpcError(UNREADABLE, "not one response")
        return decode_response(method, call.messages[0])

    async def keep_alive(self, requests: tuple[Any, ...], timeout: float, metadata: Metadata) -> list[Any]:
        """One response for each request, or fewer."""
        data = b"".join([length_prefixed(each.SerializeToString()) for each in requests])
        call = await self._exchange(KEEP_ALIVE, data, timeout, metadata, urgent=True)
        return [decode_response(KEEP_ALIVE, each) for each in call.messages]

    async def _exchange(
        self, method: Method, data: bytes, timeout: float, metadata: Metadata, urgent: bool
    ) -> Stream:
        transport = await self._open(timeout, urgent)
        call = transport.open_stream(method, data, timeout, metadata)
        try:
            async with asyncio.timeout(timeout):
                while not call.is_closed:
                    await transport.wait_for_events(call)
        except TimeoutError:
            transport.cancel(call)
            raise RpcError("DEADLINE_EXCEEDED", f"no answer from {self._member.endpoint}") from None
        if call.failure is not None:
            is_unusable = transport.failure is not None and transport.failure.code == UNUSABLE
            raise transport.failure if is_unusable and transport.failure is not None else call.failure
        return call

    async def watch(self, timeout: float, metadata: Metadata) -> WatchStream:
        """A stream of watch requests and responses. Raises RpcError."""
        transport = await self._open(timeout)
        return WatchStream(transport, transport.open_stream(WATCH, b"", None, metadata, end_stream=False))

    # --- the connection -------------------------------------------------------------------------

    async def _open(self, timeout: float, urgent: bool = False) -> Http2Transport:
        """A transport that accepts another stream. Where all are full another is opened; where the limit is
        reached, calls wait in turn. A call that gives up leaves the connection being opened to the others."""
        ends_at = asyncio.get_running_loop().time() + timeout
        is_next = urgent
        while True:
            if self._is_closed:
                raise RpcError(NEVER_SENT, "the connection was closed")
            if is_next or not self._queue:
                for transport in self._transports:
                    if transport.failure is None and transport.http2.can_open_stream():
                        return transport
            opening = self._opening
            if opening is None and self._needs_another():
                opening = self._opening = asyncio.ensure_future(self._connect(timeout))
                opening.add_done_callback(self._opened)
            if opening is None:
                await self._wait_turn(ends_at, urgent)
                is_next = True
            else:
                transport = await self._await_opening(opening, ends_at, connect_seconds(timeout))
                if transport.failure is not None:
                    raise _never_sent(transport)

    def _needs_another(self) -> bool:
        """Not while one is new: its SETTINGS will soon say how many streams it accepts."""
        usable = [
            transport
            for transport in self._transports
            if transport.failure is None and not transport.http2.is_closing
        ]
        return len(usable) < TRANSPORTS_MAX and all(transport.http2.settings_received for transport in usable)

    async def _await_opening(
        self, opening: asyncio.Task[Http2Transport], ends_at: float, within: float
    ) -> Http2Transport:
        try:
            async with asyncio.timeout_at(min(ends_at, asyncio.get_running_loop().time() + within)):
                return await asyncio.shield(opening)
        except TimeoutError:
            raise RpcError(NEVER_SENT, f"no connection to {self._member.endpoint} in time") from None
        except asyncio.CancelledError:
            us = asyncio.current_task()
            if opening.cancelled() and not (us is not None and us.cancelling()):
                raise RpcError(NEVER_SENT, "the connection was closed") from None
            raise

    async def _wait_turn(self, ends_at: float, urgent: bool) -> None:
        """Wait until a stream may be possible: one call at a time, in their order; urgent calls first."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if urgent:
            self._queue.appendleft(waiter)
        else:
            self._queue.append(waiter)
        try:
            async with asyncio.timeout_at(ends_at):
                await waiter
        except TimeoutError:
            if any(
                transport.failure is None and not transport.http2.settings_received
                for transport in self._transports
            ):
                raise RpcError(NEVER_SENT, f"no answer from {self._member.endpoint}") from None
            raise RpcError(ALL_BUSY, f"{self._member.endpoint} accepts no more streams") from None
        finally:
            self._queue.remove(waiter)
            loop.call_soon(self._changed)  # after this call has taken the stream, or not

    def _changed(self) -> None:
        """The next call may get a stream, or another connection is to be opened."""
        waiter = next(iter(self._queue), None)
        if waiter is None or waiter.done():
            return
        can_open_stream = any(
            transport.failure is None and transport.http2.can_open_stream() for transport in self._transports
        )
        if can_open_stream or self._is_closed or self._opening is not None or self._needs_another():
            waiter.set_result(None)

    def _opened(self, opening: asyncio.Task[Http2Transport]) -> None:
        if self._opening is opening:
            self._opening = None  # it was cancelled before it started
        if not opening.cancelled():
            opening.exception()  # the calls that wait for it get it, too
        self._changed()

    async def _connect(self, timeout: float) -> Http2Transport:
        try:
            return await self._new_transport(timeout)
        finally:
            self._opening = None  # at once: no call waits for a finished task

    async def _new_transport(self, timeout: float) -> Http2Transport:
        """Where the time for connecting is limited, wait for the server's SETTINGS, too: see
        ``connection``."""
        member, transport, within = self._member, None, connect_seconds(timeout)
        try:
            async with asyncio.timeout(within):
                connected = await open_socket(member.host, member.port, timeout)
                transport = Http2Transport(member, connected, self._changed)
                await give_to_loop(connected, transport, member.tls_context, member.host)
                if member.tls_context is not None:
                    check_protocol(member, transport.alpn())
                if within < timeout:
                    await transport.wait_for_settings()
        except (OSError, UnicodeError) as error:
            if transport is not None:
                transport.close()
            raise not_connected(member, error) from None
        except BaseException:
            if transport is not None:
                transport.close()
            raise
        self._transports = [
            *[transport for transport in self._transports if transport.failure is None],
            transport,
        ]
        return transport

    async def close(self) -> None:
        self._is_closed = True
        opening = self._opening
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        for transport in self._transports:
            transport.close()
        await asyncio.sleep(0)  # an iteration of the loop, in which it closes them

    def detach_after_fork(self) -> None:
        """This is the child of a fork."""
        for transport in self._transports:
            transport.detach_after_fork()


def _never_sent(transport: Http2Transport) -> RpcError:
    """The connection ended, or other calls filled it, before this call was sent."""
    failure = transport.failure
    if failure is None:
        return RpcError(ALL_BUSY, "too many streams")
    return failure if failure.code == UNUSABLE else RpcError(NEVER_SENT, failure.details)


class WatchStream:
    """A watch stream."""

    def __init__(self, transport: Http2Transport, call: Stream) -> None:
        self._transport = transport
        self._call = call

    def send(self, requests: list[Any]) -> None:
        if requests and not self._call.is_closed:
            data = b"".join([length_prefixed(each.SerializeToString()) for each in requests])
            self._transport.http2.send(self._call, data)
            self._transport.flush_soon()

    async def receive(self) -> list[Any]:
        """The next responses. Raises RpcError."""
        call = self._call
        while not call.messages:
            if call.is_closed:
                raise call.failure or RpcError("UNAVAILABLE", "the stream ended")
            await self._transport.wait_for_events(call)
        messages = self._transport.http2.take(call)
        if self._transport.http2.has_data_to_send():
            self._transport.flush_soon()
        return [decode_response(WATCH, each) for each in messages]

    def cancel(self) -> None:
        self._transport.cancel(self._call)

    close = cancel
