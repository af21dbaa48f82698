"""The scripts do what the rules do: every reply, every record, every wake-up, how long it is kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from engines.redis.twins import (
    Translation,
    compare,
    crowded_deeds,
    deeds_of,
    passing_deeds,
    random_deeds,
    scripts_with,
    shortest,
)
from rules.moves import KINDS, Move, moves
from support.servers import shared_redis
from support.thorough import examples


@pytest.fixture(scope="module")
def translation() -> Iterator[Translation]:
    translation = Translation(shared_redis(), scripts_with())
    yield translation
    translation.close()


@pytest.mark.parametrize("kind", KINDS)
def test_short_sequences(kind: str, translation: Translation) -> None:
    @settings(max_examples=examples(100))
    @given(moves(kind))
    def check(sequence: list[Move]) -> None:
        compare(translation, deeds_of(sequence))

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_crowd(kind: str, translation: Translation) -> None:
    compare(translation, crowded_deeds(kind))


def test_from_hand_to_hand(translation: Translation) -> None:
    @settings(max_examples=examples(100), phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        compare(translation, passing_deeds(seed))

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_long_sequences_and_several_names(kind: str, translation: Translation) -> None:
    @settings(max_examples=examples(150), phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        deeds = random_deeds(kind, seed)
        try:
            compare(translation, deeds)
        except AssertionError:
            compare(translation, shortest(translation, deeds))
            raise

    check()
