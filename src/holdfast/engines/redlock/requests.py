"""What is asked of nodes and what came back: a question for several of them, and each node's part of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ...core.effects import TransientError
from ...protocols.quorum import Answers, Broadcast
from ...protocols.quorum.effects import Batch
from ..redis.config import Address
from .codec import PACKERS, answers, loading_commands, lone_answer, missing_scripts, pack
from .keys import Space

__all__ = ["Asking", "Question", "expected", "questions_of"]


@lru_cache(256)
def expected(member: str, run: str) -> bytes:
    """What the mark of a node must say, as an argument."""
    mark = f"{member}/{run}".encode()
    return b"$%d\r\n%b\r\n" % (len(mark), mark)


class Question:
    """A batch as all nodes are asked it that are asked the same, and what they answered."""

    __slots__ = (
        "_packed",
        "after",
        "answers",
        "batch",
        "before",
        "behind_until",
        "member",
        "number",
        "sent_at",
        "space",
        "told",
        "usual",
        "usually",
        "wanted",
    )

    def __init__(self, space: Space, op: Broadcast, batch: Batch, answers: Answers, now: float) -> None:
        self.space = space
        self.batch = batch
        self.member = op.member
        self.behind_until = op.behind_until
        self.answers = answers
        """Whoever asked looks here. What comes later than it waited for comes here too."""
        self.sent_at = now
        if len(batch) == 1:  # nearly always
            name, ask = batch[0]
            packed = PACKERS[ask.__class__](space, name, ask)
            self._packed = [packed]
            self.before, self.after, self.wanted, self.number, self.usual, self.usually = packed
            """``usual``: the reply of most nodes, as it comes, and what it means; None: it is not known."""
        else:
            self._packed = pack(space, batch)
            self.before, self.after, self.number, self.usual, self.usually = b"", None, 0, None, ()
            self.wanted = sum([each.replies for each in self._packed])
        self.told = self.usually
        """What it means that this number answers it. Nodes mostly answer the same: then it is made once."""

    def payload(self, run: str) -> bytes:
        """For a server in this life of it."""
        if self.after is not None:
            return b"".join((self.before, expected(self.member, run), self.after))
        return self.before or self.part(range(len(self._packed)), run)

    def numbered(self, node: int, number: int) -> None:
        """A node answered with a number, and nothing else was asked of it."""
        if number != self.number or not self.told:
            self.told = lone_answer(self.batch[0][1], number)
            self.number = number
        self.answers[node] = self.told

    def part(self, places: Iterable[int], run: str) -> bytes:
        """Some of it."""
        mark = expected(self.member, run)
        return b"".join([self._packed[place].bytes_for(mark) for place in places])


class Asking:
    """One node's part of a question that needs a closer look than a number does."""

    __slots__ = ("_again", "_loads", "node", "question", "replies", "wanted")

    usual = None
    """Nor does it go by the bytes of a reply."""

    def __init__(self, question: Question, node: int) -> None:
        self.node = node
        self.question = question
        self.replies: list[Any] = []
        self.wanted = question.wanted
        self._loads = 0
        self._again: list[int] = []

    @property
    def result(self) -> tuple[Any, ...] | TransientError | None:
        return self.question.answers.get(self.node)

    @result.setter
    def result(self, result: tuple[Any, ...] | TransientError) -> None:
        self.question.answers[self.node] = result

    @property
    def sent_at(self) -> float:
        return self.question.sent_at

    def heard(self, reply: Any) -> bool:
        """The next reply; whether all are here."""
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


def questions_of(space: Space, op: Broadcast, answers: Answers, now: float) -> list[tuple[int, Question]]:
    """For each node what it is asked; what is the same for several is packed once."""
    asked = []
    question: Question | None = None
    for node, batch in op.asks:
        if question is None or batch is not question.batch:
            question = Question(space, op, batch, answers, now)
        asked.append((node, question))
    return asked
