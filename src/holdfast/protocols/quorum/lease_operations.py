"""Renewal, release and handover of what a majority granted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...core.effects import Notify, OutcomeUnknown, TransientError
from ...rules import node
from ...rules.node import Applied, Lost, Unready, View
from ...rules.requests import (
    Absent,
    Adopt,
    Done,
    Export,
    Gone,
    Granted,
    Queued,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Withdraw,
    Withdrawn,
)
from .effects import Answers, Batch
from .membership import join, restore_unready_if_due, too_few_nodes
from .repair import ask_all_nodes, nodes_lacking, repair_nodes
from .state import Attempt, Quorum, column
from .tally import applied_by_all, is_release_decided, majority, still_held, why_lost
from .views import holders_of, seen_claims

__all__ = ["adopt", "export", "release", "renew", "renew_batch", "withdraw"]

RENEWALS_MAX: Final = 200
"""How many names are renewed in one round. Each round has the same short time limit."""

DONE: Final = Done()
GONE: Final = Gone("expired")
ABSENT: Final = Lost("expired")
"""The answer of a node that never had the claim."""


# --- renewing -----------------------------------------------------------------------------------


async def renew(quorum: Quorum, name: str, ask: Renew) -> Reply:
    (reply,) = await renew_batch(quorum, ((name, ask),), awaits_all=False)
    if isinstance(reply, Absent):
        raise OutcomeUnknown("too few nodes answered to tell whether it was renewed")
    return reply


async def renew_batch(
    quorum: Quorum, steps: Sequence[tuple[str, Request]], awaits_all: bool = True
) -> list[Reply]:
    """Renew on all nodes at once, in rounds. Absent: the outcome is unknown, ask again.

    ``awaits_all``: nodes that lack a claim of the majority are repaired (``repair.py``).

    Nodes store no waiters, so there is nothing to refresh: a waiter polls. A watcher is notified.
    """
    replies: list[Reply] = [Absent()] * len(steps)
    renewals: list[tuple[int, Attempt, Renew]] = []
    for index, (_, ask) in enumerate(steps):
        if isinstance(ask, Refresh):
            replies[index] = refresh(quorum, ask)
        elif isinstance(ask, Renew):
            attempt = quorum.attempts.get(ask.nonce)
            if attempt is None or not attempt.token:
                replies[index] = GONE
            else:
                renewals.append((index, attempt, ask))
    is_answered = not renewals
    for start in range(0, len(renewals), RENEWALS_MAX):
        some = renewals[start : start + RENEWALS_MAX]
        is_answered = await _renew_some(quorum, some, replies, awaits_all) or is_answered
    if not is_answered:
        raise OutcomeUnknown("too few nodes answered to renew anything")
    return replies


def refresh(quorum: Quorum, ask: Refresh) -> Reply:
    if ask.nonce in quorum.watching:
        return Absent()
    return Queued(0, quorum.retry_seconds, ())


async def _renew_some(
    quorum: Quorum, renewals: list[tuple[int, Attempt, Renew]], replies: list[Reply], awaits_all: bool
) -> bool:
    """Whether a majority answered."""
    await join(quorum)
    await restore_unready_if_due(quorum)
    batch: Batch = tuple(
        [
            (attempt.name, node.Renew(attempt.owner, quorum.node_ttl_us(ask.ttl)))
            for _, attempt, ask in renewals
        ]
    )

    def is_clear(answers: Answers) -> bool:
        return len(answers) >= quorum.majority and all(
            still_held(column(answers, i), quorum.size) is not None for i in range(len(renewals))
        )

    if awaits_all:
        answers = await ask_all_nodes(quorum, batch, is_clear, min([ask.ttl for _, _, ask in renewals]))
    else:
        answers = await quorum.ask(batch, is_clear)
    quorum.unready.update(each for each, answer in answers.items() if _is_unready(answer))
    lacking: dict[int, list[Attempt]] = {}
    for i, (index, attempt, ask) in enumerate(renewals):
        node_replies = column(answers, i)
        kept = still_held(node_replies, quorum.size)
        if kept:
            attempt.ttl = ask.ttl
            replies[index] = Done()
            for each in nodes_lacking(node_replies, quorum.nodes) if awaits_all else ():
                lacking.setdefault(each, []).append(attempt)
        elif kept is False:
            replies[index] = Gone(*why_lost(node_replies.values()))
    if lacking:
        await repair_nodes(quorum, lacking)
    return sum(1 for answer in answers.values() if not isinstance(answer, TransientError)) >= quorum.majority


def _is_unready(answer: tuple[Any, ...] | TransientError) -> bool:
    return not isinstance(answer, TransientError) and isinstance(answer[0], Unready)


# --- release ------------------------------------------------------------------------------------


async def release(quorum: Quorum, name: str, ask: Release) -> Reply:
    """Release on all nodes. Done as soon as no majority can have the claim any more."""
    attempt = quorum.attempts.get(ask.nonce)
    if attempt is None or not attempt.owner:
        return GONE
    node_replies = await _release_everywhere(quorum, attempt)
    quorum.forget(attempt)
    if quorum.waiting:
        await _wake_next(quorum, name)
    if node_replies is None:
        return DONE
    lost = [reply.__class__ for reply in node_replies.values()].count(Lost)
    if quorum.size - lost >= quorum.majority:  # a silent node may have had it
        return DONE
    return Gone(*why_lost(node_replies.values()))


async def withdraw(quorum: Quorum, name: str, ask: Withdraw) -> Reply:
    """Remove everything of the attempt. Waits for all nodes, up to the time limit of one round."""
    attempt = quorum.attempts.get(ask.nonce)
    if attempt is None:
        return Withdrawn((), 0.0)
    if attempt.owner:
        await _release_everywhere(quorum, attempt, awaits_all=True)
    quorum.forget(attempt)
    await _wake_next(quorum, name)
    return Withdrawn(attempt.holders, 0.0)


async def _release_everywhere(
    quorum: Quorum, attempt: Attempt, awaits_all: bool = False
) -> dict[int, Any] | None:
    """The answers of the nodes; None: a majority released it, and no node answered anything else."""
    attempt.is_released = True  # before reading which nodes have nothing of it: see repair_nodes
    if not quorum.set_id:
        await join(quorum)
    batch: Batch = (quorum.release_of(attempt),)
    size, needed = quorum.size, quorum.majority
    behind_until = quorum.now() + max(attempt.ttl, 1.0)
    absent: dict[int, Any] = {}
    if attempt.absent:
        absent = dict.fromkeys(attempt.absent, ABSENT)
        least = size - len(absent) if awaits_all else needed - len(absent)
    else:
        least = size if awaits_all else needed

    kept = 0

    def enough(answers: Answers) -> bool:
        nonlocal kept
        if len(answers) < least:
            return False
        if not absent and applied_by_all(answers):  # nearly always; ``least`` makes them a majority
            kept = len(answers)
            return True
        return _is_released(_merged_replies(absent, answers), size)

    if absent:
        asks = dict.fromkeys(quorum.nodes_to_release(attempt), batch)
        answers = await quorum.ask_each(asks, enough, handoff_until=behind_until)
    else:
        answers = await quorum.ask(batch, enough, behind_until)
        if kept == len(answers) > 0:  # no more answers than ``enough`` has judged
            return None
    node_replies = _merged_replies(absent, answers)
    if not is_release_decided(node_replies, size):
        # Also where all nodes refused: hinted handoff may have released it by the next call.
        raise OutcomeUnknown("too few nodes answered to tell whether it was released")
    return node_replies


def _merged_replies(absent: dict[int, Any], answers: Answers) -> dict[int, Any]:
    return column(answers, 0) | absent if absent else column(answers, 0)


def _is_released(node_replies: dict[int, Any], size: int) -> bool:
    classes = [reply.__class__ for reply in node_replies.values()]
    return classes.count(Applied) >= majority(size) or classes.count(Lost) > size - majority(size)


async def _wake_next(quorum: Quorum, name: str) -> None:
    """Notify a waiter of this client, which need not wait for its next poll."""
    waiter = quorum.next_waiter(name)
    if waiter is not None:
        await Notify(waiter)


# --- handover -----------------------------------------------------------------------------------


async def export(quorum: Quorum, name: str, ask: Export) -> Reply:
    attempt = quorum.attempts.get(ask.nonce)
    if attempt is None or not attempt.token:
        return GONE
    node_replies = await _ask_holder(quorum, name, node.Export(attempt.owner, attempt.token, ask.seal))
    kept = still_held(node_replies, quorum.size)
    if kept is None:
        raise OutcomeUnknown("too few nodes answered to tell whether it was exported")
    if kept:
        quorum.forget(attempt)
        return Done()
    return Gone(*why_lost(node_replies.values()))


async def adopt(quorum: Quorum, name: str, ask: Adopt) -> Reply:
    """Find the claim that was exported under this nonce, adopt it on a majority, and renew it there. Without
    the renewal a node that missed a change of the ttl would keep the claim for another time than the client
    relies on."""
    inspected_at = quorum.now()
    views = await _ask_holder(quorum, name, node.Inspect())
    found = [reply for reply in views.values() if isinstance(reply, View)]
    if len(found) < quorum.majority:
        raise await too_few_nodes(quorum, views, len(found))
    seen = seen_claims(found, quorum.size, quorum.size - len(found))
    own_claims = [each for each in seen if each.owner.rpartition(".")[0] == ask.nonce]
    if not own_claims:
        return Gone("stolen" if seen else "expired")
    claim = own_claims[0]
    (holder,) = holders_of((claim,), quorum.stretch)
    for request in (
        node.Adopt(claim.owner, ask.client, ask.owner, ask.seal),
        node.Renew(claim.owner, quorum.node_ttl_us(holder.ttl)),
    ):
        node_replies = await _ask_holder(quorum, name, request)
        kept = still_held(node_replies, quorum.size)
        if kept is None:
            raise OutcomeUnknown("too few nodes answered to tell whether it was adopted")
        if not kept:
            return Gone(*why_lost(node_replies.values()))
    attempt = quorum.attempt(name, ask.nonce)
    attempt.owner, attempt.token, attempt.ttl = claim.owner, claim.token, holder.ttl
    attempt.terms = (claim.claim.ttl, 0, ask.client, ask.owner, claim.claim.metadata, (), "", 0)
    lasts = None if holder.until is None else max(holder.until, 0.0)
    if lasts is not None:
        attempt.held_until = inspected_at + lasts
    return Granted(claim.token, (), "lock", "exclusive", holder.ttl, lasts, holder.metadata)


async def _ask_holder(quorum: Quorum, name: str, request: node.NodeRequest) -> dict[int, Any]:
    await join(quorum)
    batch: Batch = ((name, request),)
    answers = await quorum.ask(batch, lambda answers: len(answers) >= quorum.size)
    return column(answers, 0)
