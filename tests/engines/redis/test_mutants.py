"""The comparison sees: each script that is broken on purpose is noticed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engines.redis.mutants import MUTANTS, Mutant
from engines.redis.twins import (
    Deed,
    Translation,
    crowded_deeds,
    differs,
    passing_deeds,
    random_deeds,
    scripts_with,
)
from holdfast.engines.redis.scripts import NAMES, assemble
from rules.moves import KINDS
from support.servers import shared_redis

SEEDS = range(100)
FIRST = 5
PASSING = 20
"""So many suffice for most."""


def is_noticed(translation: Translation) -> bool:
    return any(differs(translation, deeds) for deeds in sequences())


def sequences() -> Iterator[list[Deed]]:
    yield from (random_deeds(kind, seed) for seed in SEEDS[:FIRST] for kind in KINDS)
    yield crowded_deeds("lock")
    yield from (passing_deeds(seed) for seed in SEEDS[:PASSING])
    yield from (random_deeds(kind, seed) for seed in SEEDS[FIRST:] for kind in KINDS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what.replace(" ", "-"))
def test_noticed(mutant: Mutant) -> None:
    assert any(mutant.text in assemble(name) for name in NAMES), "no script has that line any more"
    translation = Translation(shared_redis(), scripts_with(mutant.change()))
    try:
        assert is_noticed(translation), f"nothing noticed that {mutant.what}"
    finally:
        translation.close()
