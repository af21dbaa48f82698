"""The effects of the quorum protocol beyond ``core.effects``: requests to several nodes, and random
numbers."""

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
"""Node → its answers, or the error: NotApplied (nothing happened there) or OutcomeUnknown (it may have). A
node that is missing has not answered, and may still execute the request."""


class Broadcast(NamedTuple):
    """Ask several nodes at once. Returns as soon as ``enough`` is true, or when the time is up."""

    asks: tuple[tuple[int, Batch], ...]
    enough: Callable[[Answers], bool]
    """Called after every answer, and at once where no node is left to wait for."""
    seconds: float
    member: str
    """``set/size``: the mark of a node must be this and the run id of its server."""
    handoff_until: float | None = None
    """Hinted handoff: send the request again, in the background, to nodes that did not get it, until this
    moment."""

    def __await__(self) -> Generator[Broadcast, Answers, Answers]:
        return (yield self)


class Random:
    """A random number between 0 and 1, so that two clients that collide do not collide again."""

    __slots__ = ()

    def __await__(self) -> Generator[Random, float, float]:
        return (yield self)


QuorumOp = Broadcast | Random | Nonce | Pause | Notify
QuorumCoroutine = Coroutine[QuorumOp, Any, T]
