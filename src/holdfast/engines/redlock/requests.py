"""What is asked of nodes and what came back: a question for several of them, and each node's part of it."""

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
def expected_mark(member: str, run: str) -> bytes:
    """What the mark of a node must say, as an argument."""
    mark = f"{member}/{run}".encode()
    return b"$%d\r\n%b\r\n" % (len(mark), mark)


class NodeRequest:
    """A batch as all nodes are asked it that are asked the same, and what they answered."""

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

    def __init__(self, space: Keyspace, op: Broadcast, batch: Batch, answers: Answers, now: float) -> None:
        self.space = space
        self.batch = batch
        self.member = op.member
        self.handoff_until = op.handoff_until
        self.answers = answers
        """Whoever asked looks here. What comes later than it waited for comes here too."""
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
            """``usual``: the reply of most nodes, as it comes, and what it means; None: it is not known."""
        else:
            self._packed = encode(space, batch)
            self.before_mark, self.after_mark, self.usual_number, self.usual_reply, self.usual_answer = (
                b"",
                None,
                0,
                None,
                (),
            )
            self.reply_count = sum([each.reply_count for each in self._packed])
        self.decoded = self.usual_answer
        """What it means that this number answers it. Nodes mostly answer the same: then it is made once."""

    def payload(self, run: str) -> bytes:
        """For a server in this life of it."""
        if self.after_mark is not None:
            return b"".join((self.before_mark, expected_mark(self.member, run), self.after_mark))
        return self.before_mark or self.payload_of(range(len(self._packed)), run)

    def answer_number(self, node: int, number: int) -> None:
        """A node answered with a number, and nothing else was asked of it."""
        if number != self.usual_number or not self.decoded:
            self.decoded = decode_number(self.batch[0][1], number)
            self.usual_number = number
        self.answers[node] = self.decoded

    def payload_of(self, places: Iterable[int], run: str) -> bytes:
        """Some of it."""
        mark = expected_mark(self.member, run)
        return b"".join([self._packed[place].with_mark(mark) for place in places])


class PendingReply:
    """One node's part of a question that needs a closer look than a number does."""

    __slots__ = ("_replies_before_retry", "_retried", "node", "replies", "reply_count", "request")

    usual_reply = None
    """Nor does it go by the bytes of a reply."""

    def __init__(self, question: NodeRequest, node: int) -> None:
        self.node = node
        self.request = question
        self.replies: list[Any] = []
        self.reply_count = question.reply_count
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
        """The next reply; whether all are here."""
        self.replies.append(reply)
        return len(self.replies) == self.reply_count

    def retry_payload(self, run: str) -> bytes | None:
        """All replies are here. The server forgot our scripts: what to send once more; None: it did not."""
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
        # Only scripts are missed, and each of those is one command: places of replies are places of questions
        # unless a greeting stands among them, which it never does.
        payload, count = loading_commands()
        self.reply_count = self._replies_before_retry + count + len(self._retried)
        return payload + self.request.payload_of(self._retried, run)

    def finish(self, address: Address) -> None:
        question = self.request
        self.result = decode(question.space, question.batch, self.replies, address)


def requests_of(
    space: Keyspace, op: Broadcast, answers: Answers, now: float
) -> list[tuple[int, NodeRequest]]:
    """For each node what it is asked; what is the same for several is packed once."""
    asked = []
    question: NodeRequest | None = None
    for node, batch in op.asks:
        if question is None or batch is not question.batch:
            question = NodeRequest(space, op, batch, answers, now)
        asked.append((node, question))
    return asked
