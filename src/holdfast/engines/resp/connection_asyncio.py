"""A connection for asyncio: what is asked in one turn of the loop goes out in few writes.

A request that finds the connection idle goes out at once. Those behind it are collected until the turn ends,
or until they are so many that the server may as well begin with them while the rest is still being asked.
Replies come in the order of the requests. Who was cancelled is simply not told; those behind it are. No task
is made for a request, and no timer: one for each connection watches the oldest request that is not answered.

While a single request is under way the loop is kept from sleeping for a moment (``adaptive_spin``). It
goes round meanwhile, so everything else in it goes on.
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
from ..redis.config import Address
from .connection import connection_refused

__all__ = ["HearingStream", "StreamLine", "open_stream"]

SENT_AT_ONCE: Final = 16
LATE_SECONDS: Final = 0.1
LOOK_AGAIN_SECONDS: Final = 0.001


class _Stream(asyncio.Protocol):
    """What both kinds share: a transport, a parser, an end."""

    def __init__(self, address: Address, connected: socket.socket, seconds: float) -> None:
        self.address = address
        self.is_open = True
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._socket = connected
        self._transport: Any = None
        """As the loop makes it, once connected."""
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets

    def allow(self, seconds: float) -> None:
        """From now on a request may take so long."""
        self._seconds = seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"the connection to {self.address} broke: {error or 'the server closed it'}")

    def _end(self, why: str) -> None:
        self.is_open = False

    def close(self) -> None:
        """Hard: what was not sent is thrown away."""
        self._end(f"the connection to {self.address} was closed")
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HARD_CLOSE)
            self._transport.abort()

    def forget(self) -> None:
        """This is the child of a fork: let go of our copy. The loop's selector is the parent's, too."""
        self.is_open = False
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())
        _INHERITED.append(self)


_INHERITED: Final[list[_Stream]] = []
"""In the child of a fork: kept from the garbage collector, which would complain of transports left open."""


class StreamLine(_Stream):
    """Requests of any number of tasks, answered in order."""

    def __init__(self, address: Address, connected: socket.socket, seconds: float) -> None:
        super().__init__(address, connected, seconds)
        self._waiting: deque[asyncio.Future[Any] | _Several] = deque()
        self._unsent: list[bytes] = []
        self._is_to_flush = False
        self._asked = 0
        self._sent = 0
        self._answered = 0
        self._marks: deque[tuple[int, float]] = deque()
        """So many had been sent at this time."""
        self._timer: asyncio.TimerHandle | None = None
        self._looks_again = False
        self._looks = AdaptiveSpin()

    # --- asking ---------------------------------------------------------------------------------

    def call(self, payload: bytes) -> asyncio.Future[Any]:
        """The reply to come. Awaiting it may raise Refused or Unknown."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._ask(payload, future, 1)
        return future

    def several(self, payload: bytes, count: int) -> asyncio.Future[list[Any]]:
        """The same for several requests in one payload."""
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        self._ask(payload, _Several(future, count), count)
        return future

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        return await self.several(payload, count)

    def _ask(self, payload: bytes, waiter: asyncio.Future[Any] | _Several, count: int) -> None:
        if not self.is_open:
            raise NotApplied(f"the connection to {self.address} is closed")
        waiting, unsent = self._waiting, self._unsent
        is_alone = not waiting
        goes_at_once = is_alone or len(unsent) >= SENT_AT_ONCE
        self._asked += count
        if count == 1:
            waiting.append(waiter)
        else:
            waiting.extend([waiter] * count)
        unsent.append(payload)
        if goes_at_once:
            self._flush()
            if is_alone and (until := self._looks.next_deadline()):
                self._loop.call_soon(self._look, self._answered, until)
        elif not self._is_to_flush:
            self._is_to_flush = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_to_flush = False
        if self._unsent:
            self._flush()

    def _flush(self) -> None:
        """All that was asked and not sent yet."""
        if not self.is_open:
            return
        now = monotonic()
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()
        self._sent = self._asked
        marks = self._marks
        while marks and marks[0][0] <= self._answered:
            marks.popleft()
        marks.append((self._sent, now))
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._watch)

    def _look(self, answered: int, until: float) -> None:
        """Have the loop go round and look, instead of sleeping: until the answer is there, or time is up."""
        if self._answered != answered:
            self._looks.found()
        elif self.is_open and len(self._waiting) == 1 and monotonic() < until:
            yield_processor()
            self._loop.call_soon(self._look, answered, until)

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
            self.close()  # nobody knows any more which reply is whose

    # --- when there is no answer ----------------------------------------------------------------

    def _watch(self) -> None:
        """The oldest that was not answered decides."""
        self._timer = None
        while self._marks and self._marks[0][0] <= self._answered:
            self._marks.popleft()
        if not self._marks or not self.is_open:
            return
        left = self._marks[0][1] + self._seconds - monotonic()
        if left <= -LATE_SECONDS and not self._looks_again:
            # The loop was held up: the answer may be there and only wants to be read.
            self._looks_again, left = True, LOOK_AGAIN_SECONDS
        if left > 0:
            self._timer = self._loop.call_later(left, self._watch)
            return
        self._end(f"no answer from {self.address} in {self._seconds:.3g} s")
        self.close()

    def _end(self, why: str) -> None:
        """Whoever waits is told: what was not sent did not happen, what was sent may have."""
        if not self.is_open:
            return
        super()._end(why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        unsent = self._asked - self._sent
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                trouble = OutcomeUnknown if len(self._waiting) >= unsent else NotApplied
                waiter.set_exception(trouble(why))


class _Several:
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

    def set_exception(self, trouble: TransientError) -> None:
        self._future.set_exception(trouble)


class HearingStream(_Stream):
    """A connection that was turned over to wake-ups; until then it answers one question at a time."""

    def __init__(self, address: Address, connected: socket.socket, seconds: float) -> None:
        super().__init__(address, connected, seconds)
        self.heard_at = monotonic()
        self._heard: list[Any] = []
        self._why = ""
        self._awaited: asyncio.Future[None] | None = None

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
        if not self._heard and self.is_open:
            self._awaited = self._loop.create_future()
            timer = self._loop.call_later(seconds, self._tell)
            try:
                await self._awaited
            finally:
                timer.cancel()
                self._awaited = None
        heard, self._heard = self._heard, []
        if not heard and not self.is_open:
            raise NotApplied(self._why)
        return heard

    def send(self, payload: bytes) -> None:
        if not self.is_open:
            raise NotApplied(self._why)
        self._transport.write(payload)

    def data_received(self, data: bytes) -> None:
        self.heard_at = monotonic()
        try:
            self._feed(data)
            while (message := self._gets()) is not False:
                self._heard.append(message)
        except hiredis.ProtocolError:
            self.close()
        if self._heard:
            self._tell()

    def _tell(self) -> None:
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def _end(self, why: str) -> None:
        if self.is_open:
            super()._end(why)
            self._why = why
            self._tell()

    def hang_up(self) -> None:
        self.close()


S = TypeVar("S", StreamLine, HearingStream)


async def open_stream(kind: type[S], address: Address, tls: ssl.SSLContext | None, seconds: float) -> S:
    """Connect. Whatever fails, nothing was asked of the server yet."""
    try:
        async with asyncio.timeout(seconds):
            if address.port:
                connected = await open_socket(address.host, address.port, seconds)
            else:
                connected = await socket_connected(socket.AF_UNIX, address.host)
            stream = kind(address, connected, seconds)
            await give_to_loop(connected, stream, tls, address.host)
    except (OSError, UnicodeError) as error:
        raise connection_refused(address, error) from None
    return stream
