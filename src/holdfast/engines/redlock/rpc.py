"""Requests to nodes and their replies: one request to several nodes, and the reply of each of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ...core.effects import TransientError
from ...protocols.quorum import Answers, Broadcast
from ...protocols.quorum.effects import Batch
from ..resp.config import Address
from .codec import ENCODERS, decode, decode_number, encode, loading_commands, missing_scripts
from .keys import Keyspace

__all__ = ["NodeRequest", "PendingReply", "expected_mark", "requests_of"]


@lru_cache(256)
def expected_mark(member: str, run_id: str) -> bytes:
    """The mark that a node must have, as an argument of a script."""
    mark = f"{member}/{run_id}".encode()
    return b"$%d\r\n%b\r\n" % (len(mark), mark)


class NodeRequest:
    """A batch for all nodes that get the same batch, and their answers."""

    __slots__ = (
        "_packed",
        "after_mark",
        "answers",
        "batch",
        "before_mark",
        "decoded",
        "handoff_until",
        "member",
        "reply_count",
        "sent_at",
        "space",
        "usual_answer",
        "usual_number",
        "usual_reply",
    )

    def __init__(
        self, space: Keyspace, broadcast: Broadcast, batch: Batch, answers: Answers, now: float
    ) -> None:
        self.space = space
        self.batch = batch
        self.member = broadcast.member
        self.handoff_until = broadcast.handoff_until
        self.answers = answers
        """The answers that the caller reads. Late answers are added here, too."""
        self.sent_at = now
        if len(batch) == 1:  # nearly always
            name, ask = batch[0]
            packed = ENCODERS[ask.__class__](space, name, ask)
            self._packed = [packed]
            (
                self.before_mark,
                self.after_mark,
                self.reply_count,
                self.usual_number,
                self.usual_reply,
                self.usual_answer,
            ) = packed
            """``usual_reply``: the bytes that most nodes reply; None: not known. ``usual_answer``: their
            meaning."""
        else:
            self._packed = encode(space, batch)
            self.before_mark, self.after_mark, self.usual_number = b"", None, 0
            self.usual_reply, self.usual_answer = None, ()
            self.reply_count = sum([each.reply_count for each in self._packed])
        self.decoded = self.usual_answer
        """The meaning of ``usual_number``. Most nodes reply the same number, so it is decoded once."""

    def payload(self, run_id: str) -> bytes:
        """The bytes for a server with this run_id id."""
        if self.after_mark is not None:
            return b"".join((self.before_mark, expected_mark(self.member, run_id), self.after_mark))
        return self.before_mark or self.payload_of(range(len(self._packed)), run_id)

    def answer_number(self, node: int, number: int) -> None:
        """A node replied a number to a request of one question."""
        if number != self.usual_number or not self.decoded:
            self.decoded = decode_number(self.batch[0][1], number)
            self.usual_number = number
        self.answers[node] = self.decoded

    def payload_of(self, places: Iterable[int], run_id: str) -> bytes:
        """The bytes of some of the questions."""
        mark = expected_mark(self.member, run_id)
        return b"".join([self._packed[place].with_mark(mark) for place in places])


class PendingReply:
    """The reply of one node where it is more than one number."""

    __slots__ = ("_replies_before_retry", "_retried", "node", "replies", "reply_count", "request")

    usual_reply = None
    """Its bytes are never compared with a usual reply."""

    def __init__(self, request: NodeRequest, node: int) -> None:
        self.node = node
        self.request = request
        self.replies: list[Any] = []
        self.reply_count = request.reply_count
        self._replies_before_retry = 0
        self._retried: list[int] = []

    @property
    def result(self) -> tuple[Any, ...] | TransientError | None:
        return self.request.answers.get(self.node)

    @result.setter
    def result(self, result: tuple[Any, ...] | TransientError) -> None:
        self.request.answers[self.node] = result

    @property
    def sent_at(self) -> float:
        return self.request.sent_at

    def add_reply(self, reply: Any) -> bool:
        """Add a reply. Whether all are here."""
        self.replies.append(reply)
        return len(self.replies) == self.reply_count

    def retry_payload(self, run_id: str) -> bytes | None:
        """The bytes to send again where the server has lost the scripts; None: all replies are here."""
        if self._replies_before_retry:
            fresh = self.replies[len(self.replies) - len(self._retried) :]
            self.replies = self.replies[: self._replies_before_retry]
            for place, reply in zip(self._retried, fresh, strict=True):
                self.replies[place] = reply
            return None
        self._retried = missing_scripts(self.replies)
        if not self._retried:
            return None
        self._replies_before_retry = len(self.replies)
        # Only scripts can be missing, and each is one command: the places of replies are the places of
        # questions. DescribeNode, which has several commands, is never in such a batch.
        payload, count = loading_commands()
        self.reply_count = self._replies_before_retry + count + len(self._retried)
        return payload + self.request.payload_of(self._retried, run_id)

    def finish(self, address: Address) -> None:
        request = self.request
        self.result = decode(request.space, request.batch, self.replies, address)


def requests_of(
    space: Keyspace, broadcast: Broadcast, answers: Answers, now: float
) -> list[tuple[int, NodeRequest]]:
    """The request for each node. A batch for several nodes is packed once."""
    requests = []
    request: NodeRequest | None = None
    for node, batch in broadcast.asks:
        if request is None or batch is not request.batch:
            request = NodeRequest(space, broadcast, batch, answers, now)
        requests.append((node, request))
    return requests
