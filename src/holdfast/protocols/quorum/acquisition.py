"""Acquiring names on a majority of the nodes, each with a token that the majority issued.

One round is enough where all nodes answer the same number, which they do unless the numbers of another client
are ahead of the local clock. Otherwise a second round, the stamp, follows. The check of the clock comes last:
a grant that took longer than its lease lasts is none. Every attempt that fails is released on every node that
may have it.
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
"""How often an attempt is repeated at once where clients that came at the same moment split the nodes."""

SPLIT_SECONDS: Final = 0.02

_new: Final = tuple.__new__

ABSENT_REPLIES: Final = (HeldByOther, node.Lost, ClockSkewed, Unready, TokensExhausted, NotApplied)
"""Answers to Acquire after which the node has nothing of the attempt."""


class Acquisition:
    """One name in one round."""

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
        """The name of this try on the nodes."""
        self.ttl = ttl
        self.index = 0
        """The place of the name in the batch of the round."""
        self.sent = 0.0
        """The time before its first request was sent."""
        self.replies: Answers = {}
        """What the nodes answered to the round."""
        self.verdict: Verdict = FAILED
        self.answers_judged = 0
        """How many answers the verdict is based on."""
        self.is_unanimous = False
        """Whether all of these answers issued the same number to this attempt."""

    @property
    def name(self) -> str:
        return self.attempt.name

    @property
    def answers(self) -> dict[int, Any]:
        """What the nodes answered to this name."""
        return column(self.replies, self.index)

    def seen_claims(self, size: int) -> list[SeenClaim]:
        """The attempts that have the name, as far as the answers show."""
        shown = [reply for reply in self.answers.values() if reply.__class__ in (HeldByOther, Issued)]
        return seen_claims(shown, size, size - len(shown))


async def acquire(quorum: Quorum, name: str, ask: Acquire) -> Reply:
    """One name: granted, or the time of the next try with nothing left behind on the nodes."""
    attempt = quorum.attempt(name, ask.nonce)
    for again in range(SPLIT_RETRIES + 1):
        acquisition = _new_acquisition(quorum, attempt, ask)
        await run_round(quorum, [acquisition])
        if acquisition.verdict.__class__ is not Counted:
            (acquisition,) = await _retry_after_correction(quorum, [acquisition], ((attempt, ask),))
        if acquisition.verdict.__class__ is Counted:
            return _granted(quorum, acquisition, ask)
        seen = acquisition.seen_claims(quorum.size)
        if seen or again == SPLIT_RETRIES:
            break
        await Pause(SPLIT_SECONDS * await Random())
    attempt.holders = holders_of(seen, quorum.stretch)
    if any(reply.__class__ is TokensExhausted for reply in acquisition.answers.values()):
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
    """Several names in one round. Names behind the first one that is not granted are released."""
    wanted = [(quorum.attempt(name, ask.nonce), ask) for name, ask in asks]
    acquisitions = await run_round(
        quorum, [_new_acquisition(quorum, attempt, ask) for attempt, ask in wanted]
    )
    if not all(acquisition.verdict.__class__ is Counted for acquisition in acquisitions):
        acquisitions = await _retry_after_correction(quorum, acquisitions, wanted)
    replies: list[Reply] = []
    refused = False
    for acquisition, (attempt, ask) in zip(acquisitions, wanted, strict=True):
        if refused and stop_when_refused:
            if acquisition.verdict.__class__ is Counted:
                await release_failed(quorum, (acquisition,))
            quorum.forget(attempt)
        elif acquisition.verdict.__class__ is Counted:
            replies.append(_granted(quorum, acquisition, ask))
        else:
            refused = True
            replies.append(Busy(holders_of(acquisition.seen_claims(quorum.size), quorum.stretch), 0.0))
            quorum.forget(attempt)
    return replies


def _granted(quorum: Quorum, acquisition: Acquisition, ask: Acquire) -> Granted:
    attempt = acquisition.attempt
    attempt.token = token = acquisition.verdict.token  # type: ignore[union-attr]  # the callers have checked
    if ask.max_hold is not None:
        attempt.held_until = acquisition.sent + ask.max_hold
    if quorum.waiting:
        quorum.remove_waiter(attempt)
    return _new(Granted, (token, (), "lock", "exclusive", ask.ttl, ask.max_hold, ask.metadata, 0.0))


async def _retry_after_correction(
    quorum: Quorum, acquisitions: list[Acquisition], wanted: Sequence[tuple[Attempt, Acquire]]
) -> list[Acquisition]:
    """Not all names were granted. Another round follows where the first one showed a cause that can be
    corrected."""
    if await _correct_cause(quorum, acquisitions):
        acquisitions = await _retry_failed(quorum, acquisitions, wanted)
    if not all(is_answered(acquisition.answers, quorum.size) for acquisition in acquisitions):
        for acquisition in acquisitions:
            if acquisition.verdict.__class__ is Counted:
                await release_failed(quorum, (acquisition,))
            if not quorum.is_waiting(acquisition.attempt):
                quorum.forget(acquisition.attempt)
        note_node_replies(quorum, acquisitions[0].answers)
        raise NotApplied(describe_shortfall(quorum, len(_participating(acquisitions[0]))))
    return acquisitions


async def _retry_failed(
    quorum: Quorum, acquisitions: list[Acquisition], wanted: Sequence[tuple[Attempt, Acquire]]
) -> list[Acquisition]:
    """Another round for the names that failed. Granted names are not requested again: under a new owner the
    nodes would answer that they are taken, by this very client."""
    again = [
        _new_acquisition(quorum, *each)
        for each, acquisition in zip(wanted, acquisitions, strict=True)
        if acquisition.verdict.__class__ is not Counted
    ]
    repeated = iter(await run_round(quorum, again))
    acquisitions = [each if each.verdict.__class__ is Counted else next(repeated) for each in acquisitions]
    now = quorum.now()
    late = [
        each
        for each in acquisitions
        if each.verdict.__class__ is Counted and now >= quorum.valid_until(each.sent, each.ttl)
    ]
    if late:  # they were in time in the first round, and are not any more
        await release_failed(quorum, late)
    for acquisition in late:
        acquisition.verdict = FAILED
    return acquisitions


def _participating(acquisition: Acquisition) -> list[Any]:
    return [
        reply
        for reply in acquisition.answers.values()
        if reply.__class__ in (Issued, HeldByOther, TokensExhausted)
    ]


def _new_acquisition(quorum: Quorum, attempt: Attempt, ask: Acquire) -> Acquisition:
    metadata = json.dumps(dict(ask.metadata), separators=(",", ":")) if ask.metadata else ""
    attempt.ttl = ttl = ask.ttl
    owner = attempt.begin(quorum.next_try())
    max_hold = 0 if ask.max_hold is None else quorum.node_ttl_us(ask.max_hold)
    attempt.terms = (quorum.node_ttl_us(ttl), max_hold, ask.client, ask.owner, metadata, (), "", 0)
    return Acquisition(attempt, owner, ttl)


async def run_round(quorum: Quorum, acquisitions: list[Acquisition]) -> list[Acquisition]:
    """Ask all nodes, stamp where their numbers differ, check the clock, release what failed."""
    if not quorum.set_id:
        await join(quorum)
    if quorum.unready:
        await restore_unready_if_due(quorum)
    sent = quorum.now()
    hint = quorum.hint(quorum.wall_us())
    asks: list[tuple[str, node.Acquire]] = []
    for acquisition in acquisitions:
        acquisition.index = len(asks)
        asks.append(
            (
                acquisition.attempt.name,
                _new(node.Acquire, (acquisition.owner, hint, *acquisition.attempt.terms)),
            )
        )
    answers = await quorum.ask(tuple(asks), _enough_to_judge(quorum, acquisitions))
    to_stamp = []
    for acquisition in acquisitions:
        acquisition.sent, acquisition.replies = sent, answers
        if acquisition.answers_judged != len(answers) or acquisition.verdict is FAILED:
            acquisition.is_unanimous = False
            acquisition.verdict = after_acquire(acquisition.answers, quorum.size, final=True) or FAILED
        _learn_from_answers(quorum, acquisition)
        if acquisition.verdict.__class__ is ToStamp:
            to_stamp.append(acquisition)
    if to_stamp:
        await _stamp(quorum, to_stamp)
    now = quorum.now()
    failed = []
    for acquisition in acquisitions:
        if now >= quorum.valid_until(acquisition.sent, acquisition.ttl):
            acquisition.verdict = FAILED
        if acquisition.verdict.__class__ is not Counted:
            failed.append(acquisition)
    if failed:
        await release_failed(quorum, failed)
    return acquisitions


def _enough_to_judge(quorum: Quorum, acquisitions: Sequence[Acquisition]) -> Callable[[Answers], bool]:
    """The verdict on the way is kept in the acquisition: most often no more answers come."""
    size, needed = quorum.size, quorum.majority

    def is_clear(acquisition: Acquisition, answers: dict[int, Any]) -> bool:
        """A failed attempt needs more: is the name held, or do too few nodes take part?"""
        verdict = after_acquire(answers, size)
        if verdict is None:
            return False
        acquisition.verdict, acquisition.answers_judged, acquisition.is_unanimous = (
            verdict,
            len(answers),
            False,
        )
        return verdict is not FAILED or is_answered(answers, size) is not None

    def enough(answers: Answers) -> bool:
        if len(answers) < needed:
            return False
        if len(acquisitions) == 1:  # nearly always
            acquisition = acquisitions[0]
            number = issued_by_all(answers)
            if number is None:
                return is_clear(acquisition, column(answers, 0))
            acquisition.verdict, acquisition.answers_judged, acquisition.is_unanimous = (
                _new(Counted, (number,)),
                len(answers),
                True,
            )
            return True
        return all(
            is_clear(acquisition, column(answers, index)) for index, acquisition in enumerate(acquisitions)
        )

    return enough


def _learn_from_answers(quorum: Quorum, acquisition: Acquisition) -> None:
    """Note numbers and unready nodes, and the nodes where nothing of this attempt is or can still arrive."""
    if acquisition.is_unanimous:
        quorum.note_number(acquisition.verdict.token)  # type: ignore[union-attr]  # a unanimous verdict is Counted
        return
    absent = []
    for each, reply in acquisition.answers.items():
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
        acquisition.attempt.absent = frozenset(absent)


async def _stamp(quorum: Quorum, acquisitions: list[Acquisition]) -> None:
    """Have a majority issue the largest number. It counts only once they have confirmed it."""
    asks: dict[int, list[int]] = {}
    for index, acquisition in enumerate(acquisitions):
        if isinstance(acquisition.verdict, ToStamp):
            for each in acquisition.verdict.nodes:
                asks.setdefault(each, []).append(index)
    verdicts = [acquisition.verdict for acquisition in acquisitions]

    def judge(index: int, answers: Answers, final: bool) -> Verdict | None:
        verdict = verdicts[index]
        if not isinstance(verdict, ToStamp):
            return verdict
        known = acquisitions[index].answers
        issued = [n for n, r in known.items() if r.__class__ is Issued and r.number == verdict.number]
        stamped = {
            n: answer if isinstance(answer, TransientError) else answer[asks[n].index(index)]
            for n, answer in answers.items()
            if index in asks[n]
        }
        return after_stamp(verdict.number, issued, stamped, quorum.size, final)

    def enough(answers: Answers) -> bool:
        return all(judge(index, answers, False) is not None for index in range(len(acquisitions)))

    batches: dict[int, Batch] = {}
    for each, indices in asks.items():
        batches[each] = tuple(
            [(acquisitions[i].name, node.Stamp(acquisitions[i].owner, _number(verdicts[i]))) for i in indices]
        )
    answers = await quorum.ask_each(batches, enough)
    for index, acquisition in enumerate(acquisitions):
        acquisition.verdict = judge(index, answers, True) or FAILED


def _number(verdict: Verdict) -> int:
    return verdict.number if isinstance(verdict, ToStamp) else 0


async def release_failed(quorum: Quorum, acquisitions: Sequence[Acquisition]) -> None:
    """Release attempts that were not granted, without waiting, on every node that may have them. A node that
    has not answered may still get the request."""
    asks: dict[int, list[tuple[str, node.Release]]] = {}
    longest = 0.0
    for acquisition in acquisitions:
        release = quorum.release_of(acquisition.attempt)
        for each in quorum.nodes_to_release(acquisition.attempt):
            asks.setdefault(each, []).append(release)
        longest = max(longest, acquisition.attempt.terms[0] / 1e6)
    if asks:
        batches: dict[int, Batch] = {each: tuple(releases) for each, releases in asks.items()}
        await quorum.ask_each(batches, lambda answers: True, handoff_until=quorum.now() + longest)
    for acquisition in acquisitions:
        acquisition.attempt.owner = ""
        acquisition.attempt.token = 0


# --- correcting a failed round ------------------------------------------------------------------


async def _correct_cause(quorum: Quorum, acquisitions: list[Acquisition]) -> bool:
    """Correct what made the round fail. Whether another round can succeed at once."""
    replies = acquisitions[0].answers
    skewed = [reply.now for reply in replies.values() if reply.__class__ is ClockSkewed]
    if len(skewed) >= quorum.majority:
        # Most clocks differ from the local one, and nodes compare hints with their own clocks.
        quorum.offset = sorted(skewed)[len(skewed) // 2] - quorum.wall_us()
        return True
    if (
        all(is_answered(acquisition.answers, quorum.size) for acquisition in acquisitions)
        and not quorum.is_restore_due()
    ):
        return False  # the other nodes are not needed, and were restored lately
    return bool(quorum.unready) and await restore_unready(quorum)
