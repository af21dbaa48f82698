"""Read repair at each renewal: nodes that lack a claim of the majority get it.

Such a node was not reached by the acquire, or was away for longer than the ttl, or lost its data and
rejoined. Without repair a claim that is held for long would be on fewer and fewer nodes, until the failure of
one node ends it.

A repair is no grant: the token stays the number that the majority issued. It does not extend the lease
either: a renewal counts only if it is answered before the last one has expired, and until then no other
attempt can have had a majority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

from ...rules import node
from ...rules.node import Lost
from .effects import Answers, Batch
from .state import Attempt, Quorum

__all__ = ["ask_all_nodes", "nodes_lacking", "repair_nodes"]

WAIT_SECONDS: Final = 0.05
WAIT_PART: Final = 1 / 20
"""How long a renewal waits for nodes beyond a majority, as a time and as a part of the ttl: the smaller
one."""

UNRESPONSIVE_SECONDS: Final = 10.0
"""How long no renewal waits for a node after a renewal has waited for it in vain."""


async def ask_all_nodes(
    quorum: Quorum, batch: Batch, is_clear: Callable[[Answers], bool], shortest_ttl: float
) -> Answers:
    """Wait for all nodes for a short time, then for a majority."""
    now = quorum.now()
    awaited = [each for each in quorum.nodes if quorum.unresponsive.get(each, 0.0) <= now]

    def enough(answers: Answers) -> bool:
        return all(each in answers for each in awaited) and is_clear(answers)

    seconds = min(quorum.node_seconds, WAIT_SECONDS, shortest_ttl * WAIT_PART)
    answers = await quorum.ask(batch, enough)._replace(seconds=seconds)
    for each in awaited:
        if each in answers:
            quorum.unresponsive.pop(each, None)
        else:
            quorum.unresponsive[each] = now + UNRESPONSIVE_SECONDS
    if seconds == quorum.node_seconds or is_clear(answers):
        return answers
    return await quorum.ask(batch, is_clear)


def nodes_lacking(replies: Mapping[int, Any], nodes: Sequence[int]) -> list[int]:
    """The nodes without the claim, and those that have not answered: a repair does not change a node that has
    it.

    A node where the lock was broken is left alone.
    """
    return [
        each
        for each in nodes
        if each not in replies or (replies[each].__class__ is Lost and replies[each].reason != "broken")
    ]


async def repair_nodes(quorum: Quorum, lacking: Mapping[int, Sequence[Attempt]]) -> None:
    """Send the claims, without waiting. The next renewal shows which nodes have them."""
    hint, now = quorum.hint(quorum.wall_us()), quorum.now()
    asks: dict[int, Batch] = {}
    for each, attempts in lacking.items():
        for attempt in attempts:
            attempt.absent -= {each}
        # ``absent`` changes first: a release that starts now includes this node. One that started before is
        # skipped.
        claims = [(a.name, _claim_of(quorum, a, hint, now)) for a in attempts if not a.is_released]
        if claims:
            asks[each] = tuple(claims)
    if asks:
        await quorum.ask_each(asks, lambda answers: True)


def _claim_of(quorum: Quorum, attempt: Attempt, hint: int, now: float) -> node.Acquire:
    _, _, client, label, metadata, *_ = attempt.terms
    max_hold = 0 if attempt.held_until == inf else max(quorum.node_ttl_us(attempt.held_until - now), 1)
    ttl = quorum.node_ttl_us(attempt.ttl)
    return node.Acquire(attempt.owner, hint, ttl, max_hold, client, label, metadata, token=attempt.token)
