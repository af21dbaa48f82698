"""The properties see: each rule that is broken on purpose is caught by them."""

from __future__ import annotations

import pytest

from holdfast.rules.transitions import apply
from rules.judge import Judge, Rule
from rules.moves import KINDS, long_moves, play
from rules.mutants import MUTANTS

SEEDS = 300


def is_caught(rule: Rule, seeds: int = SEEDS) -> bool:
    for seed in range(seeds):
        for kind in KINDS:
            try:
                play(Judge(rule), long_moves(kind, seed))
            except (AssertionError, LookupError):
                return True
    return False


@pytest.mark.parametrize("name", MUTANTS)
def test_the_properties_catch(name: str) -> None:
    assert is_caught(MUTANTS[name]), f"nothing noticed that {MUTANTS[name].__doc__ or name}"


def test_the_shipped_rules_pass_the_same_sequences() -> None:
    assert not is_caught(apply, seeds=60)
