"""What the answers of a majority mean. Pure: every client and the model check run the same functions.

A number is a token where a majority of the nodes issued that same number to this attempt. No node issues a
number twice, so no two attempts can have the same token. Two majorities share a node, whose numbers only
grow, so the later attempt has the larger token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ...rules.node import Applied, HeldByOther, Issued, Lost, TokensExhausted

__all__ = [
    "FAILED",
    "Counted",
    "Failed",
    "ToStamp",
    "Verdict",
    "after_acquire",
    "after_stamp",
    "applied_by_all",
    "is_answered",
    "is_release_decided",
    "issued_by_all",
    "majority",
    "still_held",
    "why_lost",
]


def majority(size: int) -> int:
    return size // 2 + 1


class Counted(NamedTuple):
    """A majority issued this number to the attempt: it is the token."""

    token: int


class ToStamp(NamedTuple):
    """A majority issued different numbers: have these nodes issue the largest, too."""

    number: int
    nodes: tuple[int, ...]


class Failed(NamedTuple):
    """The attempt has no majority."""


Verdict = Counted | ToStamp | Failed
FAILED: Final = Failed()


def issued_by_all(answers: Mapping[int, Any]) -> int | None:
    """The number that all answers to a single Acquire have; None: they differ. Nearly always they agree.

    An engine mostly uses one answer object for all nodes. It is checked once.
    """
    known: Any = None
    for answer in answers.values():
        if answer is not known:
            if answer.__class__ is not tuple or answer[0].__class__ is not Issued:
                return None
            if known is not None and answer[0].number != known[0].number:
                return None
            known = answer
    return None if known is None else known[0].number


def applied_by_all(answers: Mapping[int, Any]) -> bool:
    """Whether all answers to a single question are Applied, as they nearly always are."""
    known: Any = None
    for answer in answers.values():
        if answer is not known:
            if answer.__class__ is not tuple or answer[0].__class__ is not Applied:
                return False
            known = answer
    return known is not None


def after_acquire(answers: Mapping[int, Any], size: int, final: bool = False) -> Verdict | None:
    """The verdict on the answers to Acquire; None: wait for more. ``final``: there are no more."""
    numbers = {node: reply.number for node, reply in answers.items() if reply.__class__ is Issued}
    needed = majority(size)
    if len(numbers) >= needed:
        token = _agreed(numbers.values(), needed)
        if token is not None:
            return Counted(token)
        largest = max(numbers.values())
        # Also nodes that have not answered: they may have the claim by the time the stamp arrives.
        others = (
            n for n in range(size) if numbers.get(n, 0) < largest and (n in numbers or n not in answers)
        )
        return ToStamp(largest, tuple(others))
    return FAILED if final or len(answers) - len(numbers) > size - needed else None


def is_answered(answers: Mapping[int, Any], size: int) -> bool | None:
    """Whether a majority takes part, whichever attempt has the name; None: undecided."""
    takes_part = sum(
        1 for reply in answers.values() if reply.__class__ in (Issued, HeldByOther, TokensExhausted)
    )
    if takes_part >= majority(size):
        return True
    return False if len(answers) - takes_part > size - majority(size) else None


def after_stamp(
    number: int, issued: Iterable[int], answers: Mapping[int, Any], size: int, final: bool = False
) -> Counted | Failed | None:
    """The verdict on the answers to Stamp. ``issued``: the nodes that had issued this number before."""
    at_it = set(issued)
    refused = 0
    for node, reply in answers.items():
        if reply.__class__ is Issued and reply.number == number:
            at_it.add(node)
        elif node not in at_it:
            refused += 1
    needed = majority(size)
    if len(at_it) >= needed:
        return Counted(number)
    return FAILED if final or refused > size - needed else None


def _agreed(numbers: Iterable[int], needed: int) -> int | None:
    """The number that ``needed`` nodes issued. There is one at most."""
    count: dict[int, int] = {}
    for number in numbers:
        count[number] = times = count.get(number, 0) + 1
        if times >= needed:
            return number
    return None


def still_held(answers: Mapping[int, Any], size: int) -> bool | None:
    """Whether a majority still has the claim; None: undecided."""
    kept = sum(1 for reply in answers.values() if reply.__class__ is Applied)
    lost = sum(1 for reply in answers.values() if reply.__class__ is Lost)
    if kept >= majority(size):
        return True
    return False if lost > size - majority(size) else None


def is_release_decided(answers: Mapping[int, Any], size: int) -> bool:
    """Whether so many have answered, with either result, that no majority can have the claim any more."""
    classes = [reply.__class__ for reply in answers.values()]
    return classes.count(Applied) + classes.count(Lost) >= majority(size)


def why_lost(replies: Iterable[Any]) -> tuple[str, str]:
    """The reason and its note. A break or another holder takes precedence over expiry."""
    reasons = {reply.reason: reply.note for reply in replies if reply.__class__ is Lost}
    for reason in ("broken", "stolen"):
        if reason in reasons:
            return reason, reasons[reason]
    return "expired", ""
