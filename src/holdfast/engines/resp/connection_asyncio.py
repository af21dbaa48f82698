"""RESP connections for asyncio. Requests of one iteration of the loop share few writes.

A request on an idle connection is sent at once. Requests behind it are collected until the iteration ends, or
until there are enough for the server to start with. Replies come in the order of the requests. The reply to a
cancelled request is dropped. A request needs no task and no timer: one timer for each connection watches the
oldest request that is not answered.

While a single request is pending the loop spins for a moment instead of sleeping (``adaptive_spin``). Its
other callbacks run meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections import deque
from time import monotonic
from typing import Any, Final, TypeVar

import hiredis

from ...core.effects import NotApplied, OutcomeUnknown, TransientError
from ...runtime.adaptive_spin import AdaptiveSpin, yield_processor
from ...runtime.sockets import HARD_CLOSE
from ...runtime.sockets_asyncio import give_to_loop, open_socket, socket_connected
from .config import Address
from .connection import connect_error

__all__ = ["RespStream", "SubscriberStream", "open_stream"]

FLUSH_REQUESTS: Final = 16
LATE_SECONDS: Final = 0.1
RECHECK_SECONDS: Final = 0.001


class _StreamBase(asyncio.Protocol):
    """What both kinds of connections share: the transport, the parser and the end."""

    def __init__(self, address: Address, connected: socket.socket, seconds: float) -> None:
        self.address = address
        self.is_open = True
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._socket = connected
        self._transport: Any = None
        """The transport of the loop, once connected."""
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of a request."""
        self._seconds = seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"the connection to {self.address} broke: {error or 'the server closed it'}")

    def _end(self, reason: str) -> None:
        self.is_open = False

    def close(self) -> None:
        """Close hard: the kernel discards what it has not sent."""
        self._end(f"the connection to {self.address} was closed")
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HARD_CLOSE)
            self._transport.abort()

    def detach_after_fork(self) -> None:
        """In the child of a fork: close the inherited descriptor. The parent shares the selector of the
        loop."""
        self.is_open = False
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())
        _INHERITED.append(self)


_INHERITED: Final[list[_StreamBase]] = []
"""In the child of a fork: references that keep the garbage collector from warning of open transports."""


class RespStream(_StreamBase):
    """Requests of any number of tasks, answered in order."""

    def __init__(self, address: Address, connected: socket.socket, seconds: float) -> None:
        super().__init__(address, connected, seconds)
        self._waiting: deque[asyncio.Future[Any] | _ReplyGroup] = deque()
        self._unsent: list[bytes] = []
        self._is_flush_scheduled = False
        self._requested = 0
        self._sent = 0
        self._answered = 0
        self._send_times: deque[tuple[int, float]] = deque()
        """How many requests had been sent, and when."""
        self._timer: asyncio.TimerHandle | None = None
        self._has_rechecked = False
        self._spin = AdaptiveSpin()

    # --- requests -------------------------------------------------------------------------------

    def call(self, payload: bytes) -> asyncio.Future[Any]:
        """A future of the reply. It can raise NotApplied or OutcomeUnknown."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._enqueue(payload, future, 1)
        return future

    def call_many(self, payload: bytes, count: int) -> asyncio.Future[list[Any]]:
        """The same for several requests in one payload."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._enqueue(payload, _ReplyGroup(future, count), count)
        return future

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        return await self.call_many(payload, count)

    def _enqueue(self, payload: bytes, waiter: asyncio.Future[Any] | _ReplyGroup, count: int) -> None:
        if not self.is_open:
            raise NotApplied(f"the connection to {self.address} is closed")
        waiting, unsent = self._waiting, self._unsent
        is_alone = not waiting
        goes_at_once = is_alone or len(unsent) >= FLUSH_REQUESTS
        self._requested += count
        if count == 1:
            waiting.append(waiter)
        else:
            waiting.extend([waiter] * count)
        unsent.append(payload)
        if goes_at_once:
            self._flush()
            if is_alone and (until := self._spin.next_deadline()):
                self._loop.call_soon(self._spin_once, self._answered, until)
        elif not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_flush_scheduled = False
        if self._unsent:
            self._flush()

    def _flush(self) -> None:
        """Send all requests that were collected."""
        if not self.is_open:
            return
        now = monotonic()
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()
        self._sent = self._requested
        marks = self._send_times
        while marks and marks[0][0] <= self._answered:
            marks.popleft()
        marks.append((self._sent, now))
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._check_timeout)

    def _spin_once(self, answered: int, until: float) -> None:
        """Keep the loop from sleeping until the reply is there, or the time is up."""
        if self._answered != answered:
            self._spin.found()
        elif self.is_open and len(self._waiting) == 1 and monotonic() < until:
            yield_processor()
            self._loop.call_soon(self._spin_once, answered, until)

    def data_received(self, data: bytes) -> None:
        try:
            self._feed(data)
            gets, waiting = self._gets, self._waiting
            while (reply := gets()) is not False:
                waiter = waiting.popleft()
                self._answered += 1
                if not waiter.done():
                    waiter.set_result(reply)
        except (hiredis.ProtocolError, IndexError) as error:
            self._end(f"the connection to {self.address} broke: {error}")
            self.close()  # replies cannot be matched with requests any more

    # --- time limits ----------------------------------------------------------------------------

    def _check_timeout(self) -> None:
        """The oldest request that is not answered decides."""
        self._timer = None
        while self._send_times and self._send_times[0][0] <= self._answered:
            self._send_times.popleft()
        if not self._send_times or not self.is_open:
            return
        left = self._send_times[0][1] + self._seconds - monotonic()
        if left <= -LATE_SECONDS and not self._has_rechecked:
            # The loop was blocked: the reply may have arrived and not been read.
            self._has_rechecked, left = True, RECHECK_SECONDS
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_timeout)
            return
        self._end(f"no answer from {self.address} in {self._seconds:.3g} s")
        self.close()

    def _end(self, reason: str) -> None:
        """Fail all requests: one that was not sent did not happen, one that was sent may have."""
        if not self.is_open:
            return
        super()._end(reason)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        unsent = self._requested - self._sent
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                error = OutcomeUnknown if len(self._waiting) >= unsent else NotApplied
                waiter.set_exception(error(reason))


class _ReplyGroup:
    """A future for several replies, filled one by one."""

    __slots__ = ("_count", "_future", "_replies")

    def __init__(self, future: asyncio.Future[list[Any]], count: int) -> None:
        self._future = future
        self._count = count
        self._replies: list[Any] = []

    def done(self) -> bool:
        return self._future.done()

    def set_result(self, reply: Any) -> None:
        self._replies.append(reply)
        if len(self._replies) == self._count:
            self._future.set_result(self._replies)

    def set_exception(self, error: TransientError) -> None:
        self._future.set_exception(error)


class SubscriberStream(_StreamBase):
    """A connection in subscriber mode. Before that it answers one request at a time."""

    def __init__(self, address: Address, connected: socket.socket, seconds: float) -> None:
        super().__init__(address, connected, seconds)
        self.received_at = monotonic()
        self._messages: list[Any] = []
        self._closed_reason = ""
        self._receiver: asyncio.Future[None] | None = None

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        self.send(payload)
        replies: list[Any] = []
        while len(replies) < count:
            some = await self.receive(self._seconds)
            if not some:
                raise NotApplied(f"no answer from {self.address} in {self._seconds:.3g} s")
            replies += some
        return replies

    async def receive(self, seconds: float) -> list[Any]:
        if not self._messages and self.is_open:
            self._receiver = self._loop.create_future()
            timer = self._loop.call_later(seconds, self._wake_receiver)
            try:
                await self._receiver
            finally:
                timer.cancel()
                self._receiver = None
        messages, self._messages = self._messages, []
        if not messages and not self.is_open:
            raise NotApplied(self._closed_reason)
        return messages

    def send(self, payload: bytes) -> None:
        if not self.is_open:
            raise NotApplied(self._closed_reason)
        self._transport.write(payload)

    def data_received(self, data: bytes) -> None:
        self.received_at = monotonic()
        try:
            self._feed(data)
            while (message := self._gets()) is not False:
                self._messages.append(message)
        except hiredis.ProtocolError:
            self.close()
        if self._messages:
            self._wake_receiver()

    def _wake_receiver(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def _end(self, reason: str) -> None:
        if self.is_open:
            super()._end(reason)
            self._closed_reason = reason
            self._wake_receiver()

    def shutdown(self) -> None:
        self.close()


S = TypeVar("S", RespStream, SubscriberStream)


async def open_stream(kind: type[S], address: Address, tls: ssl.SSLContext | None, seconds: float) -> S:
    """Connect. An error means that no request was sent."""
    try:
        async with asyncio.timeout(seconds):
            if address.port:
                connected = await open_socket(address.host, address.port, seconds)
            else:
                connected = await socket_connected(socket.AF_UNIX, address.host)
            stream = kind(address, connected, seconds)
            await give_to_loop(connected, stream, tls, address.host)
    except (OSError, UnicodeError) as error:
        raise connect_error(address, error) from None
    return stream
