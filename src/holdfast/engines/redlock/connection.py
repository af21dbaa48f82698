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
from ..redis.config import Address, Settings
from ..resp.connection import connection_refused
from .handshake import greet_node
from .requests import Asking, Question, expected
from .resolver import Lookup, Place
from .tls import ADVICE, no_tls, receiving, sending

__all__ = ["NodeLine"]

READ_BYTES: Final = 16_384

UNSENT_BYTES_MAX: Final = 1 << 20
"""A node that is stopped takes no more at some time. What is not sent is not asked."""

AGAIN_SECONDS: Final = 0.1
AGAIN_SECONDS_MAX: Final = 1.0
"""After a connection failed, the next one is tried so much later: ever longer."""


class _Words(NamedTuple):
    """What the greeting says, and how many replies it waits for."""

    payload: bytes
    replies: int

    def __await__(self) -> Generator[_Words, list[Any], list[Any]]:
        return (yield self)


class NodeLine:
    """One connection, used by one thread at a time."""

    __slots__ = (
        "_again_at",
        "_before",
        "_beginning",
        "_client",
        "_failures",
        "_feed",
        "_gets",
        "_greeting",
        "_heard",
        "_interest",
        "_is_between",
        "_is_shaking",
        "_lookup",
        "_member",
        "_owed",
        "_places",
        "_poll",
        "_recv",
        "_seconds",
        "_send_some",
        "_settings",
        "_since",
        "_socket",
        "_trouble",
        "_unheard",
        "_unsent",
        "_wanted",
        "address",
        "fileno",
        "next",
        "node",
        "run",
    )

    def __init__(
        self,
        node: int,
        settings: Settings,
        client: str,
        seconds: float,
        poll: Any,
        unheard: Callable[[Question, int], None],
    ) -> None:
        self.node = node
        self.address: Address = settings.addresses[0]
        self.run = ""
        """The life of the server in which this connection was made; empty: there is none yet."""
        self.fileno = -1
        self._settings = settings
        self._client = client
        self._seconds = seconds
        """One that has not answered for so long is given up."""
        self._poll = poll
        self._unheard = unheard
        """Told of what was to be told behind somebody's back, and may not have been."""
        self._socket: socket.socket | None = None
        self._interest = 0
        self._unsent = b""
        self._before: bytes | None = None
        self._member = ""
        self._beginning = b""
        """How the question began that was last asked here: up to the mark, and what that must say."""
        self._owed: deque[Question | Asking] = deque()
        """What was sent, in its order, and is not answered."""
        self._is_between = False
        """Whether the next byte begins a reply: the reader has nothing of it yet."""
        self.next: Question | None = None
        """What is sent as soon as there is a connection."""
        self._greeting: Coroutine[Any, Any, str] | None = None
        self._heard: list[Any] = []
        self._wanted = 0
        self._since = 0.0
        """When the connection was begun."""
        self._is_shaking = False
        """While it is being agreed how to encrypt."""
        self._lookup: Lookup | None = None
        """While it is not known where the node is."""
        self._places: list[Place] = []
        """Where to try next, should the connection that was begun come to nothing."""
        self._failures = 0
        self._again_at = 0.0
        self._trouble = ""

    # --- asking ---------------------------------------------------------------------------------

    def ask(self, question: Question, now: float) -> None:
        """Send it, now or once connected. What cannot be sent is answered at once."""
        owed, run = self._owed, self.run
        if run and not self._unsent and (not owed or now - owed[0].sent_at <= self._seconds):
            owed.append(question)
            # As ``Question.payload`` and ``_send`` do, written out for the path of every grant.
            if question.after is not None:
                if question.before is not self._before or question.member is not self._member:
                    self._begins(question)
                payload = self._beginning + question.after
            else:
                payload = question.before or question.payload(run)
            try:
                sent = self._send_some(payload)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                if self._settings.tls is None:  # TLS may have sent a part, and does not say so
                    owed.pop()  # nothing of it was sent: a new connection may be had in time
                    self._not_sent(error)
                else:
                    self._not_sent(error)
                    return
                self._ask_later(question, monotonic())
                return
            if sent != len(payload):
                self._keep(payload, sent)
            return
        self._ask_later(question, now)

    def _begins(self, question: Question) -> None:
        """One lock is mostly taken again and again: then the next question begins like this one."""
        self._before, self._member = question.before, question.member
        self._beginning = question.before + expected(question.member, self.run)

    def _ask_later(self, question: Question, now: float) -> None:
        """It is not quite ready for it."""
        if self._is_given_up(now):
            self._break(self._silence())
        try:
            if self._socket is None:
                self._connect(now)
            if self.run:
                self._send_question(question)
            else:
                self.next = question
        except NotApplied as trouble:
            self._unanswered(question, trouble)

    def leave(self) -> None:
        """Nobody waits any more for what is to be sent next. It never is."""
        question, self.next = self.next, None
        if question is not None:
            in_time = f"no connection to {self.address} in time"
            if self._is_shaking:
                in_time = f"no TLS with {self.address} in time: is it a server without TLS?"
            self._unanswered(question, NotApplied(self._trouble or in_time))

    def _silence(self) -> str:
        if self._is_shaking:
            return no_tls(self.address, self._seconds)
        return f"no answer from {self.address} in {self._seconds:g} s"

    @property
    def is_owed(self) -> bool:
        """Whether something that was sent is not answered. For any thread."""
        return bool(self._owed)

    def give_up(self, now: float) -> None:
        """What was sent has not been answered for too long, and nobody asks: it may not have arrived."""
        if self._owed and self._is_given_up(now):
            self._break(f"no answer from {self.address} in {self._seconds:g} s")

    def _is_given_up(self, now: float) -> bool:
        if self._socket is None:
            return False
        if self.run:
            return bool(self._owed) and now - self._owed[0].sent_at > self._seconds
        # Where there are several addresses, none has all the time.
        return now - self._since > (self._seconds / 2 if self._places else self._seconds)

    def _send_question(self, question: Question) -> None:
        if len(self._unsent) > UNSENT_BYTES_MAX:
            raise NotApplied(f"{self.address} takes nothing any more")
        self._owed.append(question)
        self._send(question.payload(self.run))

    def _send(self, payload: bytes) -> None:
        """As much as the kernel takes; the rest follows."""
        if self._unsent:
            self._unsent += payload
            return
        try:
            sent = self._send_some(payload)
        except OSError as error:
            sent = self._not_sent(error)
        if sent != len(payload):
            self._keep(payload, sent)

    def _not_sent(self, error: OSError) -> int:
        if not isinstance(error, BlockingIOError):
            self._break(f"nothing could be sent to {self.address}: {error.strerror}")
        return 0

    def _keep(self, payload: bytes, sent: int) -> None:
        """What the kernel did not take is sent later; unless the connection broke, and there is no later."""
        if self._socket is not None:
            self._unsent = payload[sent:]
            self._watch(select.POLLIN | select.POLLOUT)

    # --- what comes -----------------------------------------------------------------------------

    def ready(self) -> None:
        """The poll has something to say about this connection."""
        if (self._unsent or not self.run) and not self._is_under_way():
            return
        try:
            data = self._recv(READ_BYTES)
            owed = self._owed
            if self._is_between and owed and data == owed[0].usual:  # nearly always
                question = owed.popleft()
                question.answers[self.node] = question.usually  # type: ignore[union-attr]  # no Asking has one
            else:
                self._read(data)
        except BlockingIOError:
            return
        except (OSError, IndexError, hiredis.ProtocolError) as error:
            told = getattr(error, "strerror", None) or type(error).__name__
            if isinstance(error, hiredis.ProtocolError) and not self.run:
                told = "it does not speak Redis' protocol, is it the right port?"
            self._break(f"the connection to {self.address} broke: {told}{self._advice()}")

    def _advice(self) -> str:
        """A server that speaks TLS alone ends a connection whose first words are others."""
        is_new = self._greeting is not None and self._settings.tls is None
        return ADVICE if is_new else ""

    def _read(self, data: bytes) -> None:
        """What came is not just the reply that was awaited."""
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the server closed it")
        if self._is_between:
            data = self._without_usual(data)
            if not data:
                return
        gets, owed = self._gets, self._owed
        self._feed(data)
        while (reply := gets()) is not False:
            if reply.__class__ is int and self.run:
                question = owed[0]
                if type(question) is Question and question.wanted == 1:
                    owed.popleft()
                    question.numbered(self.node, reply)
                    continue
            if self.run:
                self._answered(reply)
            else:
                self._greeted(reply)
            if self._socket is None:
                return
        # Nothing comes that was not asked for. While anything is owed, some of it may have come.
        self._is_between = not owed and self.run != ""

    def _without_usual(self, data: bytes) -> bytes:
        """Take what begins it, as long as that is what was awaited: one that was late has several to tell."""
        owed = self._owed
        while owed and owed[0].usual is not None and data.startswith(owed[0].usual):
            question = owed.popleft()
            question.answers[self.node] = question.usually  # type: ignore[union-attr]  # as above
            data = data[len(question.usual) :]  # type: ignore[arg-type]  # it was looked at just now
        return data

    def _is_under_way(self) -> bool:
        """See to what comes before any answer. Whether there may be one."""
        if self._socket is None:
            return False
        if self._greeting is None and not self.run:
            if self._is_shaking:
                self._shake_hands()
            else:
                self._connected()
            return False
        if self._unsent:
            payload, self._unsent = self._unsent, b""
            self._watch(select.POLLIN)
            self._send(payload)
        return self._socket is not None

    def _answered(self, reply: Any) -> None:
        owed = self._owed
        owed[0] = asking = self._asking(owed[0])
        if not asking.heard(reply):
            return
        again = asking.mended(self.run)
        owed.popleft()
        if again is None:
            asking.answered(self.address)
            if isinstance(asking.result, TransientError):
                self._tell_unheard(asking.question)
        else:
            owed.append(asking)
            self._send(again)

    def _asking(self, owed: Question | Asking) -> Asking:
        return owed if isinstance(owed, Asking) else Asking(owed, self.node)

    # --- connecting -----------------------------------------------------------------------------

    def _connect(self, now: float) -> None:
        """Begin to. Whatever fails, nothing was asked."""
        if now < self._again_at:
            raise NotApplied(self._trouble)
        if self._places:  # the one before these was given up
            self._reach_next()
        else:
            self._look_up()
        if self._socket is None:
            raise NotApplied(self._trouble)

    def _look_up(self) -> None:
        """Find out where it is; or go on with what has been found since somebody last asked."""
        lookup = self._lookup
        if lookup is None:
            lookup = Lookup(self.address)
            if not lookup.is_over:
                self._begin_to_look_up(lookup)
                return
        if lookup.is_over:
            self._looked_up(lookup)
        else:
            self._break(f"no connection to {self.address}: it is still being looked up")

    def _begin_to_look_up(self, lookup: Lookup) -> None:
        try:
            self._begin(lookup.begin(), select.POLLIN)
        except OSError as error:  # this process may have no more files
            self._break(f"{self.address} cannot be looked up: {describe_error(error)}")
        else:
            self._lookup = lookup

    def _looked_up(self, lookup: Lookup) -> None:
        self._lookup = None
        self._places = lookup.places
        self._reach_next("" if lookup.trouble is None else describe_error(lookup.trouble))

    def _reach_next(self, why: str = "") -> None:
        """Begin to connect to the next of its addresses. ``why``: what is wrong with the one before."""
        while self._places:
            family, place = self._places.pop(0)
            try:
                connecting = socket.socket(family, socket.SOCK_STREAM)
                self._begin(connecting, select.POLLOUT)
                code = connecting.connect_ex(place)
                if code not in (0, errno.EINPROGRESS):
                    raise OSError(code, os.strerror(code))
                tune(connecting)
            except OSError as error:
                self._let_go()
                why = describe_error(error)
            else:
                return
        self._break(f"no connection to {self.address}: {why}")

    def _begin(self, awaited: socket.socket, interest: int) -> None:
        """Wait for this one: for the connection, or before that for word of where to connect to."""
        awaited.setblocking(False)
        self._socket = awaited
        self._send_some, self._recv = awaited.send, awaited.recv
        self.fileno = awaited.fileno()
        self._since = monotonic()
        self._watch(interest)

    def _connected(self) -> None:
        """The poll has word of what was begun."""
        assert self._socket is not None  # noqa: S101 - the caller has looked
        if self._lookup is not None:
            self._let_go()
            self._looked_up(self._lookup)
            return
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._let_go()
            self._reach_next(os.strerror(code))
            return
        if self._settings.tls is None:
            self._greet()
        else:
            self._encrypt(self._socket, self._settings.tls)

    def _encrypt(self, connected: socket.socket, context: ssl.SSLContext) -> None:
        try:
            secure = context.wrap_socket(
                connected, server_hostname=self.address.host, do_handshake_on_connect=False
            )
        except (OSError, ValueError) as error:
            self._not_encrypted(error)
            return
        self._socket = secure
        self._send_some, self._recv = sending(secure), receiving(secure)
        self._is_shaking = True
        self._shake_hands()

    def _shake_hands(self) -> None:
        """Go on agreeing how to encrypt: the certificate of the server is verified in there."""
        assert isinstance(self._socket, ssl.SSLSocket)  # noqa: S101 - it was made so
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(select.POLLIN)
        except ssl.SSLWantWriteError:
            self._watch(select.POLLOUT)
        except (OSError, ValueError) as error:
            self._not_encrypted(error)
        else:
            self._is_shaking = False
            self._greet()

    def _not_encrypted(self, error: Exception) -> None:
        why = str(connection_refused(self.address, error))
        if self._places:
            self._let_go()
            self._reach_next(why)
        else:
            self._break(why)

    def _greet(self) -> None:
        """The first words on a connection that is there."""
        self._is_between = False
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        login = self._settings.login
        self._greeting = greet_node(self, self._settings, (login.username, login.password), self._client)
        self._watch(select.POLLIN)
        self._say([])

    async def exchange(self, payload: bytes, count: int) -> list[Any]:
        """For the greeting alone, which is resumed when the replies are here."""
        return await _Words(payload, count)

    def _say(self, replies: list[Any]) -> None:
        """The next words of the greeting."""
        assert self._greeting is not None  # noqa: S101 - it is under way
        try:
            words: _Words = self._greeting.send(replies or None)
        except StopIteration as end:
            self._greeting = None
            self.run = end.value
            self._failures = 0
            self._places = []
            question, self.next = self.next, None
            if question is not None:
                self._send_question(question)
        except TransientError as trouble:
            self._greeting = None
            self._break(str(trouble))
        else:
            self._heard, self._wanted = [], words.replies
            self._send(words.payload)

    def _greeted(self, reply: Any) -> None:
        self._heard.append(reply)
        if len(self._heard) == self._wanted:
            self._say(self._heard)

    # --- the end --------------------------------------------------------------------------------

    def _watch(self, interest: int) -> None:
        if interest != self._interest:
            if self._interest:
                self._poll.modify(self.fileno, interest)
            else:
                self._poll.register(self.fileno, interest)
            self._interest = interest

    def _break(self, why: str) -> None:
        """It is of no use any more: what was sent may have happened, what was not has not."""
        self._trouble = why
        self._failures += 1
        pause = min(AGAIN_SECONDS * 2 ** min(self._failures - 1, 10), AGAIN_SECONDS_MAX)
        # One that was in order is made anew at once, as is one to the next address; others must wait.
        self._again_at = monotonic() + (0.0 if self.run or self._places else pause)
        self.close(why)

    def close(self, why: str = "the connection was closed") -> None:
        """Hard: what the kernel still has of ours is not sent any more."""
        owed, self._owed = self._owed, deque()
        question, self.next = self.next, None
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, HARD_CLOSE)
        self._let_go()
        for each in owed:
            asking = self._asking(each)
            if asking.result is None:
                asking.result = OutcomeUnknown(why)
            self._tell_unheard(asking.question)
        if question is not None:
            self._unanswered(question, NotApplied(why))

    def _unanswered(self, question: Question, trouble: NotApplied) -> None:
        """It was not sent, and never is."""
        question.answers[self.node] = trouble
        self._tell_unheard(question)

    def _tell_unheard(self, question: Question) -> None:
        if question.behind_until is not None:
            self._unheard(question, self.node)

    def forget(self) -> None:
        """This is the child of a fork: let go of our copy, without a word on the parent's connection."""
        self._let_go()

    def _let_go(self) -> None:
        if self._greeting is not None:
            self._greeting.close()
            self._greeting = None
        self._is_shaking = False
        if self._interest:
            with contextlib.suppress(OSError, KeyError):
                self._poll.unregister(self.fileno)
            self._interest = 0
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.run = ""
        self._before = None
        self.fileno = -1
        self._unsent = b""
        self._owed.clear()

    def __del__(self) -> None:
        """An interrupt can strike between any two steps, and nobody has the connection any more."""
        if getattr(self, "_socket", None) is not None:
            self._let_go()
