"""The translation of the rules answers, stores and wakes exactly as the rules do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engines.postgres.twin import Rule, Twin, install_rule, play_in_order
from holdfast.rules.requests import Acquire, Refresh, Renew, Request
from rules.moves import KINDS, Move, acquires, long_moves, moves
from support.servers import shared_postgresql


@pytest.fixture(scope="module")
def rule() -> Iterator[Rule]:
    schema = f"twin_{secrets.token_hex(4)}"
    with psycopg.connect(shared_postgresql().url, autocommit=True) as connection:
        install_rule(connection, schema)
        yield Rule(connection, schema)


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_the_same(rule: Rule, kind: str) -> None:
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(moves(kind))
    def check(sequence: list[Move]) -> None:
        Twin(rule).play(sequence)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_long_sequences_is_the_same(rule: Rule, kind: str) -> None:
    @settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        Twin(rule).play(long_moves(kind, seed))

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_the_same_as_one_after_another(rule: Rule, kind: str) -> None:
    @settings(max_examples=40, deadline=None)
    @given(
        st.integers(0, 2**32),
        st.lists(
            st.sampled_from([f"{c}{n}" for c in "abc" for n in range(3)] + ["w1", "w2"]),
            min_size=1,
            unique=True,
        ),
        st.floats(0, 6),
    )
    def check(seed: int, nonces: list[str], pause: float) -> None:
        twin = Twin(rule)
        twin.play(long_moves(kind, seed, 25))
        twin.now += pause
        holding = {holder.nonce for holder in twin.record.holders}
        twin.tend([Renew(n, 7.25) if n in holding else Refresh(n) for n in nonces], 0)

    check()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("xyz"), acquires("lock")), min_size=1, max_size=5),
    st.booleans(),
    st.floats(0, 20),
)
def test_several_names_are_the_same_as_one_after_another(
    rule: Rule, steps: list[tuple[str, Acquire]], stop: bool, pause: float
) -> None:
    prefix = rule.new_name()
    names = [f"{prefix}/{letter}" for letter in "xyz"]
    asked: list[tuple[str, Request]] = [(f"{prefix}/{letter}", request) for letter, request in steps]
    play_in_order(rule, names, asked, 1000.0, stop)
    play_in_order(rule, names, asked[::-1], 1000.0 + pause, stop)
