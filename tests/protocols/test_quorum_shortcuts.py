"""What is decided at a glance where all nodes say the same is what counting them one by one decides."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from holdfast.core.effects import NotApplied, OutcomeUnknown
from holdfast.protocols.quorum import Answers
from holdfast.protocols.quorum.state import column
from holdfast.protocols.quorum.tally import (
    Counted,
    after_acquire,
    applied_by_all,
    is_release_decided,
    issued_by_all,
    majority,
)
from holdfast.rules.node import Applied, ClockSkewed, Issued, Lost, TokensExhausted

SAME = (Issued(7),)
ANSWERS: tuple[Any, ...] = (
    None,  # no answer
    SAME,
    (Issued(7),),  # another object that says the same
    (Issued(8),),
    (ClockSkewed(7),),  # as equal to the first as two tuples can be
    (Applied(),),
    (Lost("expired"),),
    (TokensExhausted(),),
    NotApplied("no"),
    OutcomeUnknown("?"),
)


def all_answers(size: int) -> list[Answers]:
    return [
        {node: answer for node, answer in enumerate(told) if answer is not None}
        for told in product(ANSWERS, repeat=size)
    ]


@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_number_that_all_have_issued_is_the_token_if_they_are_a_majority(size: int) -> None:
    for answers in all_answers(size):
        number = issued_by_all(answers)
        told = column(answers, 0)
        agree = all(type(reply) is Issued for reply in told.values()) and len(set(told.values())) == 1
        assert (number is not None) == agree
        if number is not None and len(answers) >= majority(size):
            assert after_acquire(told, size) == after_acquire(told, size, final=True) == Counted(number)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_what_all_have_given_back_is_given_back_if_they_are_a_majority(size: int) -> None:
    for answers in all_answers(size):
        told = column(answers, 0)
        kept = applied_by_all(answers)
        assert kept == (bool(told) and all(type(reply) is Applied for reply in told.values()))
        if kept:
            assert is_release_decided(told, size) == (len(answers) >= majority(size))
