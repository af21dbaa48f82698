"""What the quorum protocol awaits beyond ``core.ops``: several nodes at once, and chance."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, NamedTuple, TypeVar

from ...core.effects import Nonce, Notify, Pause, TransientError
from ...rules.node import NodeReply, NodeRequest
from ...rules.node.membership import (
    Admit,
    DescribeNode,
    FencePage,
    ListFences,
    Marked,
    NodeDescription,
    Prime,
    RaiseFences,
    Rejoin,
    Start,
    Trust,
)
from ...rules.node.values import List, NamePage

__all__ = ["Answers", "Batch", "Broadcast", "QuorumCoroutine", "QuorumOp", "Random"]

T = TypeVar("T")

NodeQuestion = (
    NodeRequest | List | DescribeNode | Prime | Start | Trust | Rejoin | Admit | ListFences | RaiseFences
)
NodeAnswer = NodeReply | NamePage | NodeDescription | Marked | FencePage

Batch = tuple[tuple[str, NodeQuestion], ...]
"""Questions about names for one node, answered in their order. The name is empty where none is meant."""

Answers = dict[int, tuple[Any, ...] | TransientError]
"""Node → its answers, or why there are none: Refused (nothing happened there) or Unknown (it may have). A
node that is not in it has not answered: it may yet do what it was asked."""


class Broadcast(NamedTuple):
    """Ask several nodes at once; go on as soon as ``enough`` says so, or when the time is up."""

    asks: tuple[tuple[int, Batch], ...]
    enough: Callable[[Answers], bool]
    """Asked after every answer, and at once where there is nobody left to wait for."""
    seconds: float
    member: str
    """``set/size``: with the run of the server at the other end, what a node's mark must say."""
    handoff_until: float | None = None
    """Go on telling those who have not heard it, behind the caller's back, until this moment."""

    def __await__(self) -> Generator[Broadcast, Answers, Answers]:
        return (yield self)


class Random:
    """A number between 0 and 1, so that two who collide do not collide again."""

    __slots__ = ()

    def __await__(self) -> Generator[Random, float, float]:
        return (yield self)


QuorumOp = Broadcast | Random | Nonce | Pause | Notify
QuorumCoroutine = Coroutine[QuorumOp, Any, T]
