"""Renewing, giving back and handing over what a majority granted."""

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
"""So many names are renewed in one round: each round has the same short time."""

DONE: Final = Done()
GONE: Final = Gone("expired")
ABSENT: Final = Lost("expired")
"""What a node would say that never had it."""


# --- renewing -----------------------------------------------------------------------------------


async def renew(quorum: Quorum, name: str, ask: Renew) -> Reply:
    (reply,) = await renew_batch(quorum, ((name, ask),), awaits_all=False)
    if isinstance(reply, Absent):
        raise OutcomeUnknown("too few nodes answered to tell whether it was renewed")
    return reply


async def renew_batch(
    quorum: Quorum, steps: Sequence[tuple[str, Request]], awaits_all: bool = True
) -> list[Reply]:
    """Renew on all nodes at once, in rounds. Absent: nobody could tell, ask again.

    ``hears_all``: nodes that lack what a majority has are given it (``spreading.py``).

    Who waits is stored nowhere, so there is nothing to refresh: it will look by itself. Who watches is told
    to look.
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
    heard = not renewals
    for start in range(0, len(renewals), RENEWALS_MAX):
        some = renewals[start : start + RENEWALS_MAX]
        heard = await _renew_some(quorum, some, replies, awaits_all) or heard
    if not heard:
        raise OutcomeUnknown("too few nodes answered to renew anything")
    return replies


def refresh(quorum: Quorum, ask: Refresh) -> Reply:
    if ask.nonce in quorum.watching:
        return Absent()
    return Queued(0, quorum.retry_seconds, ())


async def _renew_some(
    quorum: Quorum, renewals: list[tuple[int, Attempt, Renew]], replies: list[Reply], awaits_all: bool
) -> bool:
    """Whether a majority answered at all."""
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
        told = column(answers, i)
        kept = still_held(told, quorum.size)
        if kept:
            attempt.ttl = ask.ttl
            replies[index] = Done()
            for each in nodes_lacking(told, quorum.nodes) if awaits_all else ():
                lacking.setdefault(each, []).append(attempt)
        elif kept is False:
            replies[index] = Gone(*why_lost(told.values()))
    if lacking:
        await repair_nodes(quorum, lacking)
    return sum(1 for answer in answers.values() if not isinstance(answer, TransientError)) >= quorum.majority


def _is_unready(answer: tuple[Any, ...] | TransientError) -> bool:
    return not isinstance(answer, TransientError) and isinstance(answer[0], Unready)


# --- giving back --------------------------------------------------------------------------------


async def release(quorum: Quorum, name: str, ask: Release) -> Reply:
    """Give it back on all nodes; done as soon as no majority can have it any more."""
    attempt = quorum.attempts.get(ask.nonce)
    if attempt is None or not attempt.owner:
        return GONE
    told = await _release_everywhere(quorum, attempt)
    quorum.forget(attempt)
    if quorum.waiting:
        await _wake_next(quorum, name)
    if told is None:
        return DONE
    lost = [reply.__class__ for reply in told.values()].count(Lost)
    if quorum.size - lost >= quorum.majority:  # who is silent may have had it
        return DONE
    return Gone(*why_lost(told.values()))


async def withdraw(quorum: Quorum, name: str, ask: Withdraw) -> Reply:
    """Nothing of the attempt stays behind, wherever it had come to: every node is heard, if it answers in the
    time of one round."""
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
    """What the nodes said; None: a majority had it, and nobody said anything else."""
    attempt.is_released = True  # before it is looked at who has nothing of it
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
        if not absent and applied_by_all(answers):  # nearly always, and then they are a majority
            kept = len(answers)
            return True
        return _is_released(_merged_replies(absent, answers), size)

    if absent:
        asks = dict.fromkeys(quorum.nodes_to_release(attempt), batch)
        answers = await quorum.ask_each(asks, enough, handoff_until=behind_until)
    else:
        answers = await quorum.ask(batch, enough, behind_until)
        if kept == len(answers) > 0:  # no more came than was judged on the way
            return None
    told = _merged_replies(absent, answers)
    if not is_release_decided(told, size):
        # Also where all refused: they are told behind our back, and may have it given back by the next time.
        raise OutcomeUnknown("too few nodes answered to tell whether it was given back")
    return told


def _merged_replies(absent: dict[int, Any], answers: Answers) -> dict[int, Any]:
    return column(answers, 0) | absent if absent else column(answers, 0)


def _is_released(told: dict[int, Any], size: int) -> bool:
    classes = [reply.__class__ for reply in told.values()]
    return classes.count(Applied) >= majority(size) or classes.count(Lost) > size - majority(size)


async def _wake_next(quorum: Quorum, name: str) -> None:
    """One who waits for it in this very client need not wait until it would look by itself."""
    waiter = quorum.next_waiter(name)
    if waiter is not None:
        await Notify(waiter)


# --- handing over -------------------------------------------------------------------------------


async def export(quorum: Quorum, name: str, ask: Export) -> Reply:
    attempt = quorum.attempts.get(ask.nonce)
    if attempt is None or not attempt.token:
        return GONE
    told = await _ask_holder(quorum, name, node.Export(attempt.owner, attempt.token, ask.seal))
    kept = still_held(told, quorum.size)
    if kept is None:
        raise OutcomeUnknown("too few nodes answered to tell whether it was exported")
    if kept:
        quorum.forget(attempt)
        return Done()
    return Gone(*why_lost(told.values()))


async def adopt(quorum: Quorum, name: str, ask: Adopt) -> Reply:
    """Find the claim that was exported under this nonce, take it over on a majority, and renew it there:
    nodes that missed a change of its ttl would keep it for another time than we rely on."""
    looked_at = quorum.now()
    views = await _ask_holder(quorum, name, node.Inspect())
    heard = [reply for reply in views.values() if isinstance(reply, View)]
    if len(heard) < quorum.majority:
        raise await too_few_nodes(quorum, views, len(heard))
    seen = seen_claims(heard, quorum.size, quorum.size - len(heard))
    ours = [each for each in seen if each.owner.rpartition(".")[0] == ask.nonce]
    if not ours:
        return Gone("stolen" if seen else "expired")
    found = ours[0]
    (holder,) = holders_of((found,), quorum.stretch)
    for request in (
        node.Adopt(found.owner, ask.client, ask.owner, ask.seal),
        node.Renew(found.owner, quorum.node_ttl_us(holder.ttl)),
    ):
        told = await _ask_holder(quorum, name, request)
        kept = still_held(told, quorum.size)
        if kept is None:
            raise OutcomeUnknown("too few nodes answered to tell whether it was adopted")
        if not kept:
            return Gone(*why_lost(told.values()))
    attempt = quorum.attempt(name, ask.nonce)
    attempt.owner, attempt.token, attempt.ttl = found.owner, found.token, holder.ttl
    attempt.terms = (found.claim.ttl, 0, ask.client, ask.owner, found.claim.metadata, (), "", 0)
    lasts = None if holder.until is None else max(holder.until, 0.0)
    if lasts is not None:
        attempt.held_until = looked_at + lasts
    return Granted(found.token, (), "lock", "exclusive", holder.ttl, lasts, holder.metadata)


async def _ask_holder(quorum: Quorum, name: str, request: node.NodeRequest) -> dict[int, Any]:
    await join(quorum)
    batch: Batch = ((name, request),)
    answers = await quorum.ask(batch, lambda told: len(told) >= quorum.size)
    return column(answers, 0)
