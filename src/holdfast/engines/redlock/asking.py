"""One node's part of a question to several: what is sent, what came back, what it amounts to."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...core.ops import Troubled
from ...protocols.quorum import Fan
from ...protocols.quorum.ops import Batch
from ..redis.settings import Address
from .keys import Space
from .translation import Packed, answers, loading_commands, missing_scripts, pack

__all__ = ["Asking", "askings_of"]


@lru_cache(256)
def _expected(member: str, run: str) -> bytes:
    """What the mark of a node must say, as an argument."""
    mark = f"{member}/{run}".encode()
    return b"$%d\r\n%b\r\n" % (len(mark), mark)


class Asking:
    """A batch for one node, until it is answered or there will be no answer."""

    __slots__ = (
        "_again",
        "_loads",
        "_packed",
        "_space",
        "batch",
        "behind_until",
        "member",
        "node",
        "replies",
        "result",
        "sent_at",
        "wanted",
    )

    def __init__(
        self,
        space: Space,
        node: int,
        batch: Batch,
        packed: list[Packed],
        member: str,
        behind_until: float | None,
    ) -> None:
        self.node = node
        self.batch = batch
        self.member = member
        self.behind_until = behind_until
        self.replies: list[Any] = []
        self.wanted = 0
        """So many replies are to come."""
        self.sent_at = 0.0
        """0: it was not."""
        self.result: tuple[Any, ...] | Troubled | None = None
        self._space = space
        self._packed = packed
        self._again: list[int] = []
        self._loads = 0

    def payload(self, run: str) -> bytes:
        """For a server in this life of it."""
        expected = _expected(self.member, run)
        packed = self._packed
        if len(packed) == 1:
            self.wanted = packed[0].replies
            return packed[0].bytes_for(expected)
        self.wanted = sum([each.replies for each in packed])
        return b"".join([each.bytes_for(expected) for each in packed])

    def mended(self, run: str) -> bytes | None:
        """All replies are here. The server forgot our scripts: what to send once more; None: it did not."""
        if self.wanted == 1 and self.replies[0].__class__ is int:
            return None
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
        expected = _expected(self.member, run)
        # Only scripts are missed, and each of those is one command: places of replies are places of questions
        # unless a greeting stands among them, which it never does.
        payload, count = loading_commands()
        self.wanted = self._loads + count + len(self._again)
        return payload + b"".join([self._packed[place].bytes_for(expected) for place in self._again])

    def answered(self, address: Address) -> None:
        self.result = answers(self._space, self.batch, self.replies, address)


def askings_of(space: Space, op: Fan) -> list[Asking]:
    """One for each node; what is the same for several is packed once."""
    packed: dict[int, list[Packed]] = {}
    found = []
    for node, batch in op.asks:
        key = id(batch if len(batch) > 1 else batch[0][1])
        each = packed.get(key)
        if each is None:
            each = packed[key] = pack(space, batch)
        found.append(Asking(space, node, batch, each, op.member, op.behind_until))
    return found
