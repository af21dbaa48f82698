"""What is asked of nodes and what came back: a question for several of them, and each node's part of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from ...core.ops import Troubled
from ...protocols.quorum import Fan
from ...protocols.quorum.ops import Batch
from ..redis.settings import Address
from .keys import Space
from .translation import answers, loading_commands, lone_answer, missing_scripts, pack

__all__ = ["Asking", "Question", "askings_of"]

NONE: Final[list[Any]] = []
"""No replies yet: most askings never have more than one, and that one is a number."""


@lru_cache(256)
def _expected(member: str, run: str) -> bytes:
    """What the mark of a node must say, as an argument."""
    mark = f"{member}/{run}".encode()
    return b"$%d\r\n%b\r\n" % (len(mark), mark)


class Question:
    """A batch as all nodes are asked it that are asked the same."""

    __slots__ = (
        "_after",
        "_before",
        "_number",
        "_packed",
        "_told",
        "batch",
        "behind_until",
        "member",
        "space",
        "wanted",
    )

    def __init__(self, space: Space, batch: Batch, member: str, behind_until: float | None) -> None:
        self.space = space
        self.batch = batch
        self.member = member
        self.behind_until = behind_until
        self._number = 0
        self._told: tuple[Any, ...] | None = None
        self._packed = packed = pack(space, batch)
        if len(packed) == 1:
            self._before, self._after, self.wanted = packed[0]
        else:
            self._before, self._after = b"", None
            self.wanted = sum([each.replies for each in packed])
            """So many replies are to come."""

    def payload(self, run: str) -> bytes:
        """For a server in this life of it."""
        if self._after is not None:
            return b"".join((self._before, _expected(self.member, run), self._after))
        return self._before or self.part(range(len(self._packed)), run)

    def numbered(self, number: int) -> tuple[Any, ...]:
        """What it means that a number answers it. Nodes mostly answer the same: then it is made once."""
        told = self._told
        if told is None or number != self._number:
            self._told = told = lone_answer(self.batch[0][1], number)
            self._number = number
        return told

    def part(self, places: Iterable[int], run: str) -> bytes:
        """Some of it."""
        expected = _expected(self.member, run)
        return b"".join([self._packed[place].bytes_for(expected) for place in places])


class Asking:
    """One node's part of a question, until it is answered or there will be no answer."""

    __slots__ = ("_again", "_loads", "node", "question", "replies", "result", "sent_at", "wanted")

    def __init__(self, question: Question, node: int) -> None:
        self.node = node
        self.question = question
        self.replies = NONE
        self.wanted = question.wanted
        self.sent_at = 0.0
        """0: it was not."""
        self.result: tuple[Any, ...] | Troubled | None = None
        self._loads = 0
        self._again: list[int] = NONE

    def heard(self, reply: Any) -> bool:
        """The next reply; whether all are here."""
        if self.replies is NONE:
            self.replies = []
        self.replies.append(reply)
        return len(self.replies) == self.wanted

    def mended(self, run: str) -> bytes | None:
        """All replies are here. The server forgot our scripts: what to send once more; None: it did not."""
        if self._loads:
            fresh = self.replies[len(self.replies) - len(self._again) :]
            self.replies = self.replies[: self._loads]
            for place, reply in zip(self._again, fresh, strict=True):
                self.replies[place] = reply
            return None
        self._again = missing_scripts(self.replies)
        if not self._again:
            return None
        self._loads = len(self.replies)
        # Only scripts are missed, and each of those is one command: places of replies are places of questions
        # unless a greeting stands among them, which it never does.
        payload, count = loading_commands()
        self.wanted = self._loads + count + len(self._again)
        return payload + self.question.part(self._again, run)

    def answered(self, address: Address) -> None:
        question = self.question
        self.result = answers(question.space, question.batch, self.replies, address)


def askings_of(space: Space, op: Fan) -> Iterator[Asking]:
    """One for each node, made when it is to be sent; what is the same for several is packed once."""
    question: Question | None = None
    for node, batch in op.asks:
        if question is None or batch is not question.batch:
            question = Question(space, batch, op.member, op.behind_until)
        yield Asking(question, node)
