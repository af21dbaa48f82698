"""Taking names on a majority of the nodes, each with a token that the majority issued.

One round where all nodes answer the same number, which they do unless somebody else's numbers are ahead of
our clock; a second one, the stamp, where they do not. Then, last of all, a look at the clock: a grant that
took longer than it lasts is none. Whatever fails is released on every node that may have it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...core.effects import NotApplied, Pause, TransientError
from ...rules import node
from ...rules.node import ClockSkewed, HeldByOther, Issued, TokensExhausted, Unready
from ...rules.requests import Acquire, Busy, Exhausted, Granted, Queued, Reply
from .effects import Answers, Batch, Random
from .membership import describe_shortfall, join, note_node_replies, restore_unready, restore_unready_if_due
from .state import Attempt, Quorum, column
from .tally import (
    FAILED,
    Counted,
    ToStamp,
    Verdict,
    after_acquire,
    after_stamp,
    is_answered,
    issued_by_all,
)
from .views import SeenClaim, holders_of, seen_claims, soonest_end

__all__ = ["Acquisition", "acquire", "acquire_in_order", "release_failed", "run_round"]

SPLIT_RETRIES: Final = 2
"""How often one who came at the same moment as others, so that nobody has a majority, tries again at once."""

SPLIT_SECONDS: Final = 0.02

_new: Final = tuple.__new__

ABSENT_REPLIES: Final = (HeldByOther, node.Lost, ClockSkewed, Unready, TokensExhausted, NotApplied)
"""Answers to Acquire that say: nothing of this attempt is here."""


class Acquisition:
    """One name of a round."""

    __slots__ = (
        "answers_judged",
        "attempt",
        "index",
        "is_unanimous",
        "owner",
        "replies",
        "sent",
        "ttl",
        "verdict",
    )

    def __init__(self, attempt: Attempt, owner: str, ttl: float) -> None:
        self.attempt = attempt
        self.owner = owner
        """By which this try is known to nodes."""
        self.ttl = ttl
        self.index = 0
        """Which of the round it is."""
        self.sent = 0.0
        """Before its first request was sent."""
        self.replies: Answers = {}
        """What the nodes answered to the round."""
        self.verdict: Verdict = FAILED
        self.answers_judged = 0
        """By how many answers."""
        self.is_unanimous = False
        """Whether all of these said the same: it is ours, with this number."""

    @property
    def name(self) -> str:
        return self.attempt.name

    @property
    def answers(self) -> dict[int, Any]:
        """What the nodes answered to this name."""
        return column(self.replies, self.index)

    def seen_claims(self, size: int) -> list[SeenClaim]:
        """Who has it, as far as the answers tell."""
        heard = [reply for reply in self.answers.values() if reply.__class__ in (HeldByOther, Issued)]
        return seen_claims(heard, size, size - len(heard))


async def acquire(quorum: Quorum, name: str, ask: Acquire) -> Reply:
    """One name: granted, or, with nothing left behind on the nodes, when to try again."""
    attempt = quorum.attempt(name, ask.nonce)
    for again in range(SPLIT_RETRIES + 1):
        taking = _new_acquisition(quorum, attempt, ask)
        await run_round(quorum, [taking])
        if taking.verdict.__class__ is not Counted:
            (taking,) = await _retry_after_correction(quorum, [taking], ((attempt, ask),))
        if taking.verdict.__class__ is Counted:
            return _granted(quorum, taking, ask)
        seen = taking.seen_claims(quorum.size)
        if seen or again == SPLIT_RETRIES:
            break
        await Pause(SPLIT_SECONDS * await Random())
    attempt.holders = holders_of(seen, quorum.stretch)
    if any(reply.__class__ is TokensExhausted for reply in taking.answers.values()):
        quorum.forget(attempt)
        return Exhausted()
    if not ask.wait:
        quorum.forget(attempt)
        return Busy(attempt.holders, 0.0)
    quorum.add_waiter(attempt)
    return Queued(0, quorum.poll_after(attempt.tries, soonest_end(seen), await Random()), ())


async def acquire_in_order(
    quorum: Quorum, asks: Sequence[tuple[str, Acquire]], stop_when_refused: bool
) -> list[Reply]:
    """Several names in one round; those behind the first that is not granted are given back."""
    wanted = [(quorum.attempt(name, ask.nonce), ask) for name, ask in asks]
    takings = await run_round(quorum, [_new_acquisition(quorum, attempt, ask) for attempt, ask in wanted])
    if not all(taking.verdict.__class__ is Counted for taking in takings):
        takings = await _retry_after_correction(quorum, takings, wanted)
    replies: list[Reply] = []
    refused = False
    for taking, (attempt, ask) in zip(takings, wanted, strict=True):
        if refused and stop_when_refused:
            if taking.verdict.__class__ is Counted:
                await release_failed(quorum, (taking,))
            quorum.forget(attempt)
        elif taking.verdict.__class__ is Counted:
            replies.append(_granted(quorum, taking, ask))
        else:
            refused = True
            replies.append(Busy(holders_of(taking.seen_claims(quorum.size), quorum.stretch), 0.0))
            quorum.forget(attempt)
    return replies


def _granted(quorum: Quorum, taking: Acquisition, ask: Acquire) -> Granted:
    attempt = taking.attempt
    attempt.token = token = taking.verdict.token  # type: ignore[union-attr]  # the callers have looked
    if ask.max_hold is not None:
        attempt.held_until = taking.sent + ask.max_hold
    if quorum.waiting:
        quorum.remove_waiter(attempt)
    return _new(Granted, (token, (), "lock", "exclusive", ask.ttl, ask.max_hold, ask.metadata, 0.0))


async def _retry_after_correction(
    quorum: Quorum, takings: list[Acquisition], wanted: Sequence[tuple[Attempt, Acquire]]
) -> list[Acquisition]:
    """Not all of a round is ours: another one, where the first taught us what was wrong with it."""
    if await _correct_cause(quorum, takings):
        takings = await _retry_failed(quorum, takings, wanted)
    if not all(is_answered(taking.answers, quorum.size) for taking in takings):
        for taking in takings:
            if taking.verdict.__class__ is Counted:
                await release_failed(quorum, (taking,))
            if not quorum.is_waiting(taking.attempt):
                quorum.forget(taking.attempt)
        note_node_replies(quorum, takings[0].answers)
        raise NotApplied(describe_shortfall(quorum, len(_participating(takings[0]))))
    return takings


async def _retry_failed(
    quorum: Quorum, takings: list[Acquisition], wanted: Sequence[tuple[Attempt, Acquire]]
) -> list[Acquisition]:
    """Another round for the names that failed. Those that are ours stay ours: asked for once more, under
    another owner, they would be found taken, by nobody but ourselves."""
    again = [
        _new_acquisition(quorum, *each)
        for each, taking in zip(wanted, takings, strict=True)
        if taking.verdict.__class__ is not Counted
    ]
    retaken = iter(await run_round(quorum, again))
    takings = [each if each.verdict.__class__ is Counted else next(retaken) for each in takings]
    now = quorum.now()
    late = [
        each
        for each in takings
        if each.verdict.__class__ is Counted and now >= quorum.valid_until(each.sent, each.ttl)
    ]
    if late:  # they were in time, and are not any more
        await release_failed(quorum, late)
    for taking in late:
        taking.verdict = FAILED
    return takings


def _participating(taking: Acquisition) -> list[Any]:
    return [
        reply
        for reply in taking.answers.values()
        if reply.__class__ in (Issued, HeldByOther, TokensExhausted)
    ]


def _new_acquisition(quorum: Quorum, attempt: Attempt, ask: Acquire) -> Acquisition:
    metadata = json.dumps(dict(ask.metadata), separators=(",", ":")) if ask.metadata else ""
    attempt.ttl = ttl = ask.ttl
    owner = attempt.begin(quorum.next_try())
    max_hold = 0 if ask.max_hold is None else quorum.node_ttl_us(ask.max_hold)
    attempt.terms = (quorum.node_ttl_us(ttl), max_hold, ask.client, ask.owner, metadata, (), "", 0)
    return Acquisition(attempt, owner, ttl)


async def run_round(quorum: Quorum, takings: list[Acquisition]) -> list[Acquisition]:
    """Ask all nodes, stamp where they differ, look at the clock, let go of what failed."""
    if not quorum.set_id:
        await join(quorum)
    if quorum.unready:
        await restore_unready_if_due(quorum)
    sent = quorum.now()
    hint = quorum.hint(quorum.wall_us())
    asks: list[tuple[str, node.Acquire]] = []
    for taking in takings:
        taking.index = len(asks)
        asks.append((taking.attempt.name, _new(node.Acquire, (taking.owner, hint, *taking.attempt.terms))))
    answers = await quorum.ask(tuple(asks), _enough_to_judge(quorum, takings))
    to_stamp = []
    for taking in takings:
        taking.sent, taking.replies = sent, answers
        if taking.answers_judged != len(answers) or taking.verdict is FAILED:
            taking.is_unanimous = False
            taking.verdict = after_acquire(taking.answers, quorum.size, final=True) or FAILED
        _learn_from_answers(quorum, taking)
        if taking.verdict.__class__ is ToStamp:
            to_stamp.append(taking)
    if to_stamp:
        await _stamp(quorum, to_stamp)
    now = quorum.now()
    failed = []
    for taking in takings:
        if now >= quorum.valid_until(taking.sent, taking.ttl):
            taking.verdict = FAILED
        if taking.verdict.__class__ is not Counted:
            failed.append(taking)
    if failed:
        await release_failed(quorum, failed)
    return takings


def _enough_to_judge(quorum: Quorum, takings: Sequence[Acquisition]) -> Callable[[Answers], bool]:
    """What was judged on the way stays with the taking: more often than not no more answers come."""
    size, needed = quorum.size, quorum.majority

    def is_clear(taking: Acquisition, answers: dict[int, Any]) -> bool:
        """One who cannot have it wants to know whether somebody has it, or too few nodes take part."""
        verdict = after_acquire(answers, size)
        if verdict is None:
            return False
        taking.verdict, taking.answers_judged, taking.is_unanimous = verdict, len(answers), False
        return verdict is not FAILED or is_answered(answers, size) is not None

    def enough(answers: Answers) -> bool:
        if len(answers) < needed:
            return False
        if len(takings) == 1:  # nearly always
            taking = takings[0]
            number = issued_by_all(answers)
            if number is None:
                return is_clear(taking, column(answers, 0))
            taking.verdict, taking.answers_judged, taking.is_unanimous = (
                _new(Counted, (number,)),
                len(answers),
                True,
            )
            return True
        return all(is_clear(taking, column(answers, index)) for index, taking in enumerate(takings))

    return enough


def _learn_from_answers(quorum: Quorum, taking: Acquisition) -> None:
    """What the answers teach beyond this attempt, and where nothing of it is or can arrive any more."""
    if taking.is_unanimous:
        quorum.note_number(taking.verdict.token)  # type: ignore[union-attr]  # one that is plain is counted
        return
    absent = []
    for each, reply in taking.answers.items():
        kind = reply.__class__
        if kind is Issued:
            if reply.number > quorum.largest_seen:
                quorum.note_number(reply.number)
            continue
        if kind is HeldByOther:
            quorum.note_number(reply.claim.number)
        elif kind is Unready:
            quorum.unready.add(each)
        if isinstance(reply, ABSENT_REPLIES):
            absent.append(each)
    if absent:
        taking.attempt.absent = frozenset(absent)


async def _stamp(quorum: Quorum, takings: list[Acquisition]) -> None:
    """Have a majority issue the largest of the numbers we got. Counted only once they have said so."""
    asks: dict[int, list[int]] = {}
    for index, taking in enumerate(takings):
        if isinstance(taking.verdict, ToStamp):
            for each in taking.verdict.nodes:
                asks.setdefault(each, []).append(index)
    verdicts = [taking.verdict for taking in takings]

    def judge(index: int, answers: Answers, final: bool) -> Verdict | None:
        verdict = verdicts[index]
        if not isinstance(verdict, ToStamp):
            return verdict
        known = takings[index].answers
        issued = [n for n, r in known.items() if r.__class__ is Issued and r.number == verdict.number]
        told = {
            n: answer if isinstance(answer, TransientError) else answer[asks[n].index(index)]
            for n, answer in answers.items()
            if index in asks[n]
        }
        return after_stamp(verdict.number, issued, told, quorum.size, final)

    def enough(answers: Answers) -> bool:
        return all(judge(index, answers, False) is not None for index in range(len(takings)))

    batches: dict[int, Batch] = {}
    for each, indices in asks.items():
        batches[each] = tuple(
            [(takings[i].name, node.Stamp(takings[i].owner, _number(verdicts[i]))) for i in indices]
        )
    answers = await quorum.ask_each(batches, enough)
    for index, taking in enumerate(takings):
        taking.verdict = judge(index, answers, True) or FAILED


def _number(verdict: Verdict) -> int:
    return verdict.number if isinstance(verdict, ToStamp) else 0


async def release_failed(quorum: Quorum, takings: Sequence[Acquisition]) -> None:
    """Release what was not granted, on every node that may have it, also on those that never answered: what
    they were asked may have yet to arrive. Nobody waits for that."""
    asks: dict[int, list[tuple[str, node.Release]]] = {}
    longest = 0.0
    for taking in takings:
        release = quorum.release_of(taking.attempt)
        for each in quorum.nodes_to_release(taking.attempt):
            asks.setdefault(each, []).append(release)
        longest = max(longest, taking.attempt.terms[0] / 1e6)
    if asks:
        batches: dict[int, Batch] = {each: tuple(releases) for each, releases in asks.items()}
        await quorum.ask_each(batches, lambda answers: True, handoff_until=quorum.now() + longest)
    for taking in takings:
        taking.attempt.owner = ""
        taking.attempt.token = 0


# --- learning from what went wrong --------------------------------------------------------------


async def _correct_cause(quorum: Quorum, takings: list[Acquisition]) -> bool:
    """Whether another round, at once, can do what this one, of which something failed, could not."""
    replies = takings[0].answers
    skewed = [reply.now for reply in replies.values() if reply.__class__ is ClockSkewed]
    if len(skewed) >= quorum.majority:
        # Most clocks differ from ours: theirs it is that numbers are measured by.
        quorum.offset = sorted(skewed)[len(skewed) // 2] - quorum.wall_us()
        return True
    if all(is_answered(taking.answers, quorum.size) for taking in takings) and not quorum.is_restore_due():
        return False  # nobody needs the others, who were looked after lately
    return bool(quorum.unready) and await restore_unready(quorum)
