"""A connection to one node for threads. It never blocks.

Replies come in the order of the requests, also replies to requests whose callers wait no longer.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import hiredis

from ...core.effects import NotApplied, OutcomeUnknown, TransientError
from ...runtime.sockets import HARD_CLOSE
from ..resp.config import ServerConfig
from .connector import Connector
from .rpc import NodeRequest, PendingReply, expected_mark

__all__ = ["NodeConnection"]

READ_BYTES: Final = 16_384

UNSENT_BYTES_MAX: Final = 1 << 20
"""A node that is stopped takes no more bytes at some point. Then further requests are not sent."""


class NodeConnection(Connector):
    """One connection, used by one thread at a time."""

    __slots__ = (
        "_is_reader_empty",
        "_member",
        "_on_undelivered",
        "_pending",
        "_prefix",
        "_prefix_of",
        "next_request",
        "node",
    )

    def __init__(
        self,
        node: int,
        config: ServerConfig,
        client: str,
        seconds: float,
        poll: Any,
        on_undelivered: Callable[[NodeRequest, int], None],
    ) -> None:
        super().__init__(config, client, seconds, poll)
        self.node = node
        self._on_undelivered = on_undelivered
        """Called with a request that is to be handed off later, because it may not have been delivered."""
        self._prefix_of: bytes | None = None
        self._member = ""
        self._prefix = b""
        """The beginning of the last request on this connection, up to and including the expected mark."""
        self._pending: deque[NodeRequest | PendingReply] = deque()
        """Requests that were sent and not answered, in their order."""
        self._is_reader_empty = False
        """Whether the next byte begins a reply: the reader holds no part of one."""
        self.next_request: NodeRequest | None = None
        """Sent as soon as there is a connection."""

    # --- requests ---------------------------------------------------------------------------------

    def send_request(self, request: NodeRequest, now: float) -> None:
        """Send it now, or once connected. A request that cannot be sent is answered at once."""
        pending, run_id = self._pending, self.run_id
        if run_id and not self._unsent and (not pending or now - pending[0].sent_at <= self._seconds):
            pending.append(request)
            # What ``NodeRequest.payload`` and ``_send`` do, written out here: it is on the hot path.
            if request.after_mark is not None:
                if request.before_mark is not self._prefix_of or request.member is not self._member:
                    self._set_prefix(request)
                payload = self._prefix + request.after_mark
            else:
                payload = request.before_mark or request.payload(run_id)
            try:
                sent = self._send_some(payload)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                if self._config.tls is None:  # TLS may have sent a part, and does not say so
                    pending.pop()  # nothing of it was sent: there may be time for a new connection
                    self._send_failed(error)
                else:
                    self._send_failed(error)
                    return
                self._send_when_connected(request, monotonic())
                return
            if sent != len(payload):
                self._keep_unsent(payload, sent)
            return
        self._send_when_connected(request, now)

    def _set_prefix(self, request: NodeRequest) -> None:
        """Most requests are about the same lock as the one before, and begin with the same bytes."""
        self._prefix_of, self._member = request.before_mark, request.member
        self._prefix = request.before_mark + expected_mark(request.member, self.run_id)

    def _send_when_connected(self, request: NodeRequest, now: float) -> None:
        if self._is_timed_out(now):
            self._fail(self._timeout_message())
        try:
            if self._socket is None:
                self._start_connecting(now)
            if self.run_id:
                self._send_request(request)
            else:
                self.next_request = request
        except NotApplied as error:
            self._request_not_sent(request, error)

    def _send_request(self, request: NodeRequest) -> None:
        if len(self._unsent) > UNSENT_BYTES_MAX:
            raise NotApplied(f"{self.address} accepts no more data")
        self._pending.append(request)
        self._send(request.payload(self.run_id))

    def _established(self) -> None:
        request, self.next_request = self.next_request, None
        if request is not None:
            self._send_request(request)
        self._is_reader_empty = not self._pending

    def abandon_unsent(self) -> None:
        """The caller does not wait any more for the request that was to be sent next. It is never sent."""
        request, self.next_request = self.next_request, None
        if request is not None:
            reason = f"no connection to {self.address} in time"
            if self._is_in_tls_handshake:
                reason = f"no TLS with {self.address} in time: is it a server without TLS?"
            self._request_not_sent(request, NotApplied(self._error or reason))

    @property
    def is_pending(self) -> bool:
        """Whether a request that was sent is not answered. For any thread."""
        return bool(self._pending)

    def check_timeout(self, now: float) -> None:
        """Give the connection up if a request is not answered in time: it may not have arrived."""
        if self._pending and self._is_timed_out(now):
            self._fail(f"no answer from {self.address} in {self._seconds:g} s")

    def _is_timed_out(self, now: float) -> bool:
        if self._socket is None:
            return False
        if self.run_id:
            return bool(self._pending) and now - self._pending[0].sent_at > self._seconds
        return self._is_connecting_timed_out(now)

    # --- replies ----------------------------------------------------------------------------------

    def handle_event(self) -> None:
        """The poll has reported an event of this connection."""
        if (self._unsent or not self.run_id) and not self._prepare_to_read():
            return
        try:
            data = self._recv(READ_BYTES)
            pending = self._pending
            if self._is_reader_empty and pending and data == pending[0].usual_reply:  # nearly always
                request = pending.popleft()
                request.answers[self.node] = request.usual_answer  # type: ignore[union-attr]  # no PendingReply has a usual reply
            else:
                self._read_replies(data)
        except BlockingIOError:
            return
        except (OSError, IndexError, hiredis.ProtocolError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            if isinstance(error, hiredis.ProtocolError) and not self.run_id:
                reason = "it does not speak Redis' protocol, is it the right port?"
            self._fail(f"the connection to {self.address} broke: {reason}{self._tls_hint()}")

    def _prepare_to_read(self) -> bool:
        """Continue what comes before any reply. Whether there may be a reply to read."""
        if self._socket is None:
            return False
        if self._handshake is None and not self.run_id:
            self._continue_connecting()
            return False
        if self._unsent:
            self._flush()
        return self._socket is not None

    def _read_replies(self, data: bytes) -> None:
        """Read data that is more, or something else, than the usual reply to the oldest request."""
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the server closed it")
        if not self.run_id:
            self._read_handshake(data)
            return
        if self._is_reader_empty:
            data = self._strip_usual_replies(data)
            if not data:
                return
        gets, pending = self._gets, self._pending
        self._feed(data)
        while (reply := gets()) is not False:
            if reply.__class__ is int:
                request = pending[0]
                if type(request) is NodeRequest and request.reply_count == 1:
                    pending.popleft()
                    request.answer_number(self.node, reply)
                    continue
            self._add_reply(reply)
            if self._socket is None:
                return
        # Every byte answers a request. While requests are pending, the reader may hold a part of a reply.
        self._is_reader_empty = not pending

    def _strip_usual_replies(self, data: bytes) -> bytes:
        """Take usual replies off the beginning: a node that was late sends several at once."""
        pending = self._pending
        while pending and pending[0].usual_reply is not None and data.startswith(pending[0].usual_reply):
            request = pending.popleft()
            request.answers[self.node] = request.usual_answer  # type: ignore[union-attr]  # as above
            data = data[len(request.usual_reply) :]  # type: ignore[arg-type]  # the loop has checked it
        return data

    def _add_reply(self, reply: Any) -> None:
        pending = self._pending
        pending[0] = pending_reply = self._pending_reply(pending[0])
        if not pending_reply.add_reply(reply):
            return
        retry = pending_reply.retry_payload(self.run_id)
        pending.popleft()
        if retry is None:
            pending_reply.finish(self.address)
            if isinstance(pending_reply.result, TransientError):
                self._report_undelivered(pending_reply.request)
        else:
            pending.append(pending_reply)
            self._send(retry)

    def _pending_reply(self, request: NodeRequest | PendingReply) -> PendingReply:
        return request if isinstance(request, PendingReply) else PendingReply(request, self.node)

    # --- the end ----------------------------------------------------------------------------------

    def close(self, reason: str = "the connection was closed") -> None:
        """Close hard: the kernel discards what it has not sent."""
        pending, self._pending = self._pending, deque()
        request, self.next_request = self.next_request, None
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HARD_CLOSE)
        self._release_socket()
        for each in pending:
            pending_reply = self._pending_reply(each)
            if pending_reply.result is None:
                pending_reply.result = OutcomeUnknown(reason)
            self._report_undelivered(pending_reply.request)
        if request is not None:
            self._request_not_sent(request, NotApplied(reason))

    def _request_not_sent(self, request: NodeRequest, error: NotApplied) -> None:
        """It was not sent, and never is."""
        request.answers[self.node] = error
        self._report_undelivered(request)

    def _report_undelivered(self, request: NodeRequest) -> None:
        if request.handoff_until is not None:
            self._on_undelivered(request, self.node)

    def detach_after_fork(self) -> None:
        """In the child of a fork: close the inherited descriptor, and send nothing on the parent's
        connection."""
        self._release_socket()

    def _release_socket(self) -> None:
        super()._release_socket()
        self._prefix_of = None
        self._pending.clear()
