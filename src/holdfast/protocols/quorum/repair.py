"""Giving what a majority has to nodes that lack it, at each renewal.

One was not reached when the name was taken, or was away for longer than the ttl, or forgot and rejoined. Left
alone, what is held for long would be on ever fewer nodes, until the failure of a single one ends it.

This is no grant: the token stays what the majority issued. Nor does it stretch what is relied on: a renewal
counts only where it is answered before the last one ran out, and until then no other attempt can have had a
majority.
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
"""So long a renewal waits for nodes beyond a majority, and for such a part of the ttl, at most."""

UNRESPONSIVE_SECONDS: Final = 10.0
"""So long no renewal waits for a node that kept one waiting in vain."""


async def ask_all_nodes(
    quorum: Quorum, batch: Batch, is_clear: Callable[[Answers], bool], shortest_ttl: float
) -> Answers:
    """Hear all nodes, if that takes no time to speak of; else a majority, as everyone does."""
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


def nodes_lacking(told: Mapping[int, Any], nodes: Sequence[int]) -> list[int]:
    """The nodes without it, and those that have said nothing: one that has it is not changed by being asked.

    Where it was broken, somebody wanted it so.
    """
    return [
        each
        for each in nodes
        if each not in told or (told[each].__class__ is Lost and told[each].reason != "broken")
    ]


async def repair_nodes(quorum: Quorum, lacking: Mapping[int, Sequence[Attempt]]) -> None:
    """Give it to them. Nobody waits for that: the next renewal finds it there or not."""
    hint, now = quorum.hint(quorum.wall_us()), quorum.now()
    asks: dict[int, Batch] = {}
    for each, attempts in lacking.items():
        for attempt in attempts:
            attempt.absent -= {each}
        # Now that whoever ends it will tell this node, too: it must not have begun to before that.
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
