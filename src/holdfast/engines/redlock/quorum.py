"""What the adapters for threads and for asyncio share: the state of the quorum, and what takes no time."""

from __future__ import annotations

import itertools
import random
import secrets
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ...core.effects import Nonce, Notify
from ...engine_api import AdapterContext
from ...protocols.quorum import Answers, Broadcast, Quorum, Random
from ...protocols.quorum.effects import Batch
from ...runtime.clock import boottime, wall_us
from .config import RedlockConfig
from .requests import NodeRequest

__all__ = [
    "CLOSE_SECONDS",
    "LINGER_SECONDS",
    "RETRY_SECONDS",
    "RETRY_SECONDS_MAX",
    "HintedHandoff",
    "immediate_effects",
    "quorum_of",
    "source_of",
]

LINGER_SECONDS: Final = 60.0
"""A request can sit in the buffers of a stopped server and be carried out when nobody waits for it."""

RETRY_SECONDS: Final = 0.01
RETRY_SECONDS_MAX: Final = 0.3
"""How soon nodes are told again what they have not heard: ever later while none of them hears it."""

CLOSE_SECONDS: Final = 0.2
"""How long a client that is closed still tries to tell nodes what they have not heard."""


class _Hint(NamedTuple):
    """What a node is still to be told, until a moment of the local clock."""

    number: int
    node: int
    batch: Batch
    member: str
    until: float


class HintedHandoff:
    """All that nodes are still to be told. Threads share it."""

    __slots__ = ("_hints", "_numbers")

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._hints: dict[int, _Hint] = {}

    def add(self, question: NodeRequest, node: int) -> bool:
        """A node has not heard this. Whether it is to be told again."""
        if question.handoff_until is None:
            return False
        number = next(self._numbers)
        self._hints[number] = _Hint(number, node, question.batch, question.member, question.handoff_until)
        return True

    def next_broadcast(self, seconds: float) -> tuple[Broadcast, dict[int, list[int]]] | None:
        """A question that tells all nodes what they have not heard, and what it settles; None: nothing."""
        now = boottime()
        asks: dict[int, list[tuple[str, Any]]] = {}
        settles: dict[int, list[int]] = {}
        member = ""
        for debt in list(self._hints.values()):
            if debt.until <= now:
                self._hints.pop(debt.number, None)
                continue
            asks.setdefault(debt.node, []).extend(debt.batch)
            settles.setdefault(debt.node, []).append(debt.number)
            member = debt.member
        if not asks:
            return None
        told = tuple([(node, tuple(batch)) for node, batch in asks.items()])
        return Broadcast(told, lambda answers: False, seconds, member), settles

    def settle(self, answers: Answers, settles: dict[int, list[int]], pause: float) -> float:
        """Forget what was heard; how long to pause before the next round, after a pause so long."""
        heard = [node for node, answer in answers.items() if isinstance(answer, tuple)]
        for node in heard:
            for number in settles[node]:
                self._hints.pop(number, None)
        return RETRY_SECONDS if heard else min(pause * 2, RETRY_SECONDS_MAX)


def quorum_of(settings: RedlockConfig, hooks: AdapterContext) -> Quorum:
    return Quorum(
        client=hooks.client,
        labels=settings.labels,
        node_seconds=settings.node_seconds,
        drift=settings.drift,
        retry_seconds=settings.retry_seconds,
        jitter_seconds=settings.jitter_seconds,
        linger=LINGER_SECONDS,
        now=boottime,
        wall_us=wall_us,
        initialises=settings.initialises,
    )


def source_of(quorum: Quorum, namespace: str) -> str:
    """Tokens of two sets of nodes, or of two namespaces, do not compare."""
    return f"redlock:{quorum.set_id}/{namespace}"


def immediate_effects(hooks: AdapterContext) -> dict[type, Callable[[Any], Any]]:
    """The operations that neither block nor suspend."""
    return {
        Random: lambda op: random.random(),
        Nonce: lambda op: secrets.token_hex(8),
        Notify: lambda op: hooks.post(op.nonce),
    }
