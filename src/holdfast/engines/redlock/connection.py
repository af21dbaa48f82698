"""A connection to one node for threads. It never blocks: whoever asks several nodes waits for all at once.

It may be in the middle of connecting when one who asked goes on without it; the next one to ask finds it
farther on. Replies come in the order of the requests, also those for which nobody waits any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from time import monotonic
from typing import Any, Final, NamedTuple

import hiredis

from ...core.effects import NotApplied, OutcomeUnknown, TransientError
from ...runtime.sockets import HARD_CLOSE, describe_error, tune
from ..resp.config import Address, ServerConfig
from ..resp.connection import connect_error
from .errors import TLS_HINT, tls_timeout_message
from .handshake import handshake_with_node
from .requests import NodeRequest, PendingReply, expected_mark
from .resolver import Endpoint, Resolver
from .tls import nonblocking_receive, nonblocking_send

__all__ = ["NodeConnection"]

READ_BYTES: Final = 16_384

UNSENT_BYTES_MAX: Final = 1 << 20
"""A node that is stopped takes no more at some time. What is not sent is not asked."""

RECONNECT_SECONDS: Final = 0.1
RECONNECT_SECONDS_MAX: Final = 1.0
"""After a connection failed, the next one is tried so much later: ever longer."""


class _Exchange(NamedTuple):
    """What the greeting says, and how many replies it waits for."""

    payload: bytes
    replies: int

    def __await__(self) -> Generator[_Exchange, list[Any], list[Any]]:
        return (yield self)


class NodeConnection:
    """One connection, used by one thread at a time."""

    __slots__ = (
        "_client",
        "_connecting_since",
        "_endpoints",
        "_error",
        "_failures",
        "_feed",
        "_gets",
        "_handshake",
        "_interest",
        "_is_in_tls_handshake",
        "_is_reader_empty",
        "_member",
        "_on_undelivered",
        "_pending",
        "_poll",
        "_prefix",
        "_prefix_of",
        "_recv",
        "_replies",
        "_reply_count",
        "_resolver",
        "_retry_at",
        "_seconds",
        "_send_some",
        "_settings",
        "_socket",
        "_unsent",
        "address",
        "fileno",
        "next_request",
        "node",
        "run_id",
    )

    def __init__(
        self,
        node: int,
        settings: ServerConfig,
        client: str,
        seconds: float,
        poll: Any,
        unheard: Callable[[NodeRequest, int], None],
    ) -> None:
        self.node = node
        self.address: Address = settings.addresses[0]
        self.run_id = ""
        """The life of the server in which this connection was made; empty: there is none yet."""
        self.fileno = -1
        self._settings = settings
        self._client = client
        self._seconds = seconds
        """One that has not answered for so long is given up."""
        self._poll = poll
        self._on_undelivered = unheard
        """Told of what was to be told behind somebody's back, and may not have been."""
        self._socket: socket.socket | None = None
        self._interest = 0
        self._unsent = b""
        self._prefix_of: bytes | None = None
        self._member = ""
        self._prefix = b""
        """How the question began that was last asked here: up to the mark, and what that must say."""
        self._pending: deque[NodeRequest | PendingReply] = deque()
        """What was sent, in its order, and is not answered."""
        self._is_reader_empty = False
        """Whether the next byte begins a reply: the reader has nothing of it yet."""
        self.next_request: NodeRequest | None = None
        """What is sent as soon as there is a connection."""
        self._handshake: Coroutine[Any, Any, str] | None = None
        self._replies: list[Any] = []
        self._reply_count = 0
        self._connecting_since = 0.0
        """When the connection was begun."""
        self._is_in_tls_handshake = False
        """While it is being agreed how to encrypt."""
        self._resolver: Resolver | None = None
        """While it is not known where the node is."""
        self._endpoints: list[Endpoint] = []
        """Where to try next, should the connection that was begun come to nothing."""
        self._failures = 0
        self._retry_at = 0.0
        self._error = ""

    # --- asking ---------------------------------------------------------------------------------

    def send_request(self, question: NodeRequest, now: float) -> None:
        """Send it, now or once connected. What cannot be sent is answered at once."""
        owed, run = self._pending, self.run_id
        if run and not self._unsent and (not owed or now - owed[0].sent_at <= self._seconds):
            owed.append(question)
            # As ``Question.payload`` and ``_send`` do, written out for the path of every grant.
            if question.after_mark is not None:
                if question.before_mark is not self._prefix_of or question.member is not self._member:
                    self._set_prefix(question)
                payload = self._prefix + question.after_mark
            else:
                payload = question.before_mark or question.payload(run)
            try:
                sent = self._send_some(payload)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                if self._settings.tls is None:  # TLS may have sent a part, and does not say so
                    owed.pop()  # nothing of it was sent: a new connection may be had in time
                    self._send_failed(error)
                else:
                    self._send_failed(error)
                    return
                self._send_when_connected(question, monotonic())
                return
            if sent != len(payload):
                self._keep_unsent(payload, sent)
            return
        self._send_when_connected(question, now)

    def _set_prefix(self, question: NodeRequest) -> None:
        """One lock is mostly taken again and again: then the next question begins like this one."""
        self._prefix_of, self._member = question.before_mark, question.member
        self._prefix = question.before_mark + expected_mark(question.member, self.run_id)

    def _send_when_connected(self, question: NodeRequest, now: float) -> None:
        """It is not quite ready for it."""
        if self._is_timed_out(now):
            self._fail(self._timeout_message())
        try:
            if self._socket is None:
                self._start_connecting(now)
            if self.run_id:
                self._send_request(question)
            else:
                self.next_request = question
        except NotApplied as trouble:
            self._request_not_sent(question, trouble)

    def abandon_unsent(self) -> None:
        """Nobody waits any more for what is to be sent next. It never is."""
        question, self.next_request = self.next_request, None
        if question is not None:
            in_time = f"no connection to {self.address} in time"
            if self._is_in_tls_handshake:
                in_time = f"no TLS with {self.address} in time: is it a server without TLS?"
            self._request_not_sent(question, NotApplied(self._error or in_time))

    def _timeout_message(self) -> str:
        if self._is_in_tls_handshake:
            return tls_timeout_message(self.address, self._seconds)
        return f"no answer from {self.address} in {self._seconds:g} s"

    @property
    def is_pending(self) -> bool:
        """Whether something that was sent is not answered. For any thread."""
        return bool(self._pending)

    def check_timeout(self, now: float) -> None:
        """What was sent has not been answered for too long, and nobody asks: it may not have arrived."""
        if self._pending and self._is_timed_out(now):
            self._fail(f"no answer from {self.address} in {self._seconds:g} s")

    def _is_timed_out(self, now: float) -> bool:
        if self._socket is None:
            return False
        if self.run_id:
            return bool(self._pending) and now - self._pending[0].sent_at > self._seconds
        # Where there are several addresses, none has all the time.
        return now - self._connecting_since > (self._seconds / 2 if self._endpoints else self._seconds)

    def _send_request(self, question: NodeRequest) -> None:
        if len(self._unsent) > UNSENT_BYTES_MAX:
            raise NotApplied(f"{self.address} takes nothing any more")
        self._pending.append(question)
        self._send(question.payload(self.run_id))

    def _send(self, payload: bytes) -> None:
        """As much as the kernel takes; the rest follows."""
        if self._unsent:
            self._unsent += payload
            return
        try:
            sent = self._send_some(payload)
        except OSError as error:
            sent = self._send_failed(error)
        if sent != len(payload):
            self._keep_unsent(payload, sent)

    def _send_failed(self, error: OSError) -> int:
        if not isinstance(error, BlockingIOError):
            self._fail(f"nothing could be sent to {self.address}: {error.strerror}")
        return 0

    def _keep_unsent(self, payload: bytes, sent: int) -> None:
        """What the kernel did not take is sent later; unless the connection broke, and there is no later."""
        if self._socket is not None:
            self._unsent = payload[sent:]
            self._watch(select.POLLIN | select.POLLOUT)

    # --- what comes -----------------------------------------------------------------------------

    def handle_event(self) -> None:
        """The poll has something to say about this connection."""
        if (self._unsent or not self.run_id) and not self._prepare_to_read():
            return
        try:
            data = self._recv(READ_BYTES)
            owed = self._pending
            if self._is_reader_empty and owed and data == owed[0].usual_reply:  # nearly always
                question = owed.popleft()
                question.answers[self.node] = question.usual_answer  # type: ignore[union-attr]  # no Asking has one
            else:
                self._read_replies(data)
        except BlockingIOError:
            return
        except (OSError, IndexError, hiredis.ProtocolError) as error:
            told = getattr(error, "strerror", None) or type(error).__name__
            if isinstance(error, hiredis.ProtocolError) and not self.run_id:
                told = "it does not speak Redis' protocol, is it the right port?"
            self._fail(f"the connection to {self.address} broke: {told}{self._tls_hint()}")

    def _tls_hint(self) -> str:
        """A server that speaks TLS alone ends a connection whose first words are others."""
        is_new = self._handshake is not None and self._settings.tls is None
        return TLS_HINT if is_new else ""

    def _read_replies(self, data: bytes) -> None:
        """What came is not just the reply that was awaited."""
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the server closed it")
        if self._is_reader_empty:
            data = self._strip_usual_replies(data)
            if not data:
                return
        gets, owed = self._gets, self._pending
        self._feed(data)
        while (reply := gets()) is not False:
            if reply.__class__ is int and self.run_id:
                question = owed[0]
                if type(question) is NodeRequest and question.reply_count == 1:
                    owed.popleft()
                    question.answer_number(self.node, reply)
                    continue
            if self.run_id:
                self._add_reply(reply)
            else:
                self._add_handshake_reply(reply)
            if self._socket is None:
                return
        # Nothing comes that was not asked for. While anything is owed, some of it may have come.
        self._is_reader_empty = not owed and self.run_id != ""

    def _strip_usual_replies(self, data: bytes) -> bytes:
        """Take what begins it, as long as that is what was awaited: one that was late has several to tell."""
        owed = self._pending
        while owed and owed[0].usual_reply is not None and data.startswith(owed[0].usual_reply):
            question = owed.popleft()
            question.answers[self.node] = question.usual_answer  # type: ignore[union-attr]  # as above
            data = data[len(question.usual_reply) :]  # type: ignore[arg-type]  # it was looked at just now
        return data

    def _prepare_to_read(self) -> bool:
        """See to what comes before any answer. Whether there may be one."""
        if self._socket is None:
            return False
        if self._handshake is None and not self.run_id:
            if self._is_in_tls_handshake:
                self._continue_tls_handshake()
            else:
                self._connected()
            return False
        if self._unsent:
            payload, self._unsent = self._unsent, b""
            self._watch(select.POLLIN)
            self._send(payload)
        return self._socket is not None

    def _add_reply(self, reply: Any) -> None:
        owed = self._pending
        owed[0] = asking = self._pending_reply(owed[0])
        if not asking.add_reply(reply):
            return
        again = asking.retry_payload(self.run_id)
        owed.popleft()
        if again is None:
            asking.finish(self.address)
            if isinstance(asking.result, TransientError):
                self._report_undelivered(asking.request)
        else:
            owed.append(asking)
            self._send(again)

    def _pending_reply(self, owed: NodeRequest | PendingReply) -> PendingReply:
        return owed if isinstance(owed, PendingReply) else PendingReply(owed, self.node)

    # --- connecting -----------------------------------------------------------------------------

    def _start_connecting(self, now: float) -> None:
        """Begin to. Whatever fails, nothing was asked."""
        if now < self._retry_at:
            raise NotApplied(self._error)
        if self._endpoints:  # the one before these was given up
            self._connect_to_next()
        else:
            self._resolve()
        if self._socket is None:
            raise NotApplied(self._error)

    def _resolve(self) -> None:
        """Find out where it is; or go on with what has been found since somebody last asked."""
        lookup = self._resolver
        if lookup is None:
            lookup = Resolver(self.address)
            if not lookup.is_done:
                self._start_resolving(lookup)
                return
        if lookup.is_done:
            self._resolved(lookup)
        else:
            self._fail(f"no connection to {self.address}: it is still being looked up")

    def _start_resolving(self, lookup: Resolver) -> None:
        try:
            self._use_socket(lookup.start(), select.POLLIN)
        except OSError as error:  # this process may have no more files
            self._fail(f"{self.address} cannot be looked up: {describe_error(error)}")
        else:
            self._resolver = lookup

    def _resolved(self, lookup: Resolver) -> None:
        self._resolver = None
        self._endpoints = lookup.endpoints
        self._connect_to_next("" if lookup.error is None else describe_error(lookup.error))

    def _connect_to_next(self, why: str = "") -> None:
        """Begin to connect to the next of its addresses. ``why``: what is wrong with the one before."""
        while self._endpoints:
            family, place = self._endpoints.pop(0)
            try:
                connecting = socket.socket(family, socket.SOCK_STREAM)
                self._use_socket(connecting, select.POLLOUT)
                code = connecting.connect_ex(place)
                if code not in (0, errno.EINPROGRESS):
                    raise OSError(code, os.strerror(code))
                tune(connecting)
            except OSError as error:
                self._release_socket()
                why = describe_error(error)
            else:
                return
        self._fail(f"no connection to {self.address}: {why}")

    def _use_socket(self, awaited: socket.socket, interest: int) -> None:
        """Wait for this one: for the connection, or before that for word of where to connect to."""
        awaited.setblocking(False)
        self._socket = awaited
        self._send_some, self._recv = awaited.send, awaited.recv
        self.fileno = awaited.fileno()
        self._connecting_since = monotonic()
        self._watch(interest)

    def _connected(self) -> None:
        """The poll has word of what was begun."""
        assert self._socket is not None  # noqa: S101 - the caller has looked
        if self._resolver is not None:
            self._release_socket()
            self._resolved(self._resolver)
            return
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._release_socket()
            self._connect_to_next(os.strerror(code))
            return
        if self._settings.tls is None:
            self._start_handshake()
        else:
            self._start_tls(self._socket, self._settings.tls)

    def _start_tls(self, connected: socket.socket, context: ssl.SSLContext) -> None:
        try:
            secure = context.wrap_socket(
                connected, server_hostname=self.address.host, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as error:
            self._tls_failed(error)
            return
        self._socket = secure
        self._send_some, self._recv = nonblocking_send(secure), nonblocking_receive(secure)
        self._is_in_tls_handshake = True
        self._continue_tls_handshake()

    def _continue_tls_handshake(self) -> None:
        """Go on agreeing how to encrypt: the certificate of the server is verified in there."""
        assert isinstance(self._socket, ssl.SSLSocket)  # noqa: S101 - it was made so
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(select.POLLIN)
        except ssl.SSLWantWriteError:
            self._watch(select.POLLOUT)
        except (OSError, ValueError) as error:
            self._tls_failed(error)
        else:
            self._is_in_tls_handshake = False
            self._start_handshake()

    def _tls_failed(self, error: Exception) -> None:
        why = str(connect_error(self.address, error))
        if self._endpoints:
            self._release_socket()
            self._connect_to_next(why)
        else:
            self._fail(why)

    def _start_handshake(self) -> None:
        """The first words on a connection that is there."""
        self._is_reader_empty = False
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        login = self._settings.login
        self._handshake = handshake_with_node(
            self, self._settings, (login.username, login.password), self._client
        )
        self._watch(select.POLLIN)
        self._continue_handshake([])

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        """For the greeting alone, which is resumed when the replies are here."""
        return await _Exchange(payload, count)

    def _continue_handshake(self, replies: list[Any]) -> None:
        """The next words of the greeting."""
        assert self._handshake is not None  # noqa: S101 - it is under way
        try:
            words: _Exchange = self._handshake.send(replies or None)
        except StopIteration as end:
            self._handshake = None
            self.run_id = end.value
            self._failures = 0
            self._endpoints = []
            question, self.next_request = self.next_request, None
            if question is not None:
                self._send_request(question)
        except TransientError as trouble:
            self._handshake = None
            self._fail(str(trouble))
        else:
            self._replies, self._reply_count = [], words.replies
            self._send(words.payload)

    def _add_handshake_reply(self, reply: Any) -> None:
        self._replies.append(reply)
        if len(self._replies) == self._reply_count:
            self._continue_handshake(self._replies)

    # --- the end --------------------------------------------------------------------------------

    def _watch(self, interest: int) -> None:
        if interest != self._interest:
            if self._interest:
                self._poll.modify(self.fileno, interest)
            else:
                self._poll.register(self.fileno, interest)
            self._interest = interest

    def _fail(self, why: str) -> None:
        """It is of no use any more: what was sent may have happened, what was not has not."""
        self._error = why
        self._failures += 1
        pause = min(RECONNECT_SECONDS * 2 ** min(self._failures - 1, 10), RECONNECT_SECONDS_MAX)
        # One that was in order is made anew at once, as is one to the next address; others must wait.
        self._retry_at = monotonic() + (0.0 if self.run_id or self._endpoints else pause)
        self.close(why)

    def close(self, why: str = "the connection was closed") -> None:
        """Hard: what the kernel still has of ours is not sent any more."""
        owed, self._pending = self._pending, deque()
        question, self.next_request = self.next_request, None
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HARD_CLOSE)
        self._release_socket()
        for each in owed:
            asking = self._pending_reply(each)
            if asking.result is None:
                asking.result = OutcomeUnknown(why)
            self._report_undelivered(asking.request)
        if question is not None:
            self._request_not_sent(question, NotApplied(why))

    def _request_not_sent(self, question: NodeRequest, trouble: NotApplied) -> None:
        """It was not sent, and never is."""
        question.answers[self.node] = trouble
        self._report_undelivered(question)

    def _report_undelivered(self, question: NodeRequest) -> None:
        if question.handoff_until is not None:
            self._on_undelivered(question, self.node)

    def detach_after_fork(self) -> None:
        """This is the child of a fork: let go of our copy, without a word on the parent's connection."""
        self._release_socket()

    def _release_socket(self) -> None:
        if self._handshake is not None:
            self._handshake.close()
            self._handshake = None
        self._is_in_tls_handshake = False
        if self._interest:
            with contextlib.suppress(OSError, KeyError):
                self._poll.unregister(self.fileno)
            self._interest = 0
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.run_id = ""
        self._prefix_of = None
        self.fileno = -1
        self._unsent = b""
        self._pending.clear()

    def __del__(self) -> None:
        """An interrupt can strike between any two steps, and nobody has the connection any more."""
        if getattr(self, "_socket", None) is not None:
            self._release_socket()
