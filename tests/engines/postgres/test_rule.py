"""The translation of the rules answers, stores and wakes exactly as the rules do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engines.postgres.twin import Rule, Twin, install_rule, play_in_order, quiet_moves
from holdfast.rules.record import MAX_TOKEN
from holdfast.rules.requests import (
    Acquire,
    Adopt,
    Break,
    Downgrade,
    Inspect,
    Refresh,
    Release,
    Renew,
    Request,
    SetValue,
    Watch,
    Withdraw,
)
from rules.moves import KINDS, Move, acquires, handover_moves, long_moves, moves
from support.servers import shared_postgresql
from support.thorough import examples


@pytest.fixture(scope="module")
def rule() -> Iterator[Rule]:
    schema = f"twin_{secrets.token_hex(4)}"
    with psycopg.connect(shared_postgresql().url, autocommit=True) as connection:
        install_rule(connection, schema)
        yield Rule(connection, schema)


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_the_same(rule: Rule, kind: str) -> None:
    @settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(moves(kind))
    def check(sequence: list[Move]) -> None:
        Twin(rule).play(sequence)

    check()


def test_every_step_of_a_hand_over_is_the_same(rule: Rule) -> None:
    Twin(rule).play(handover_moves())


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_long_sequences_is_the_same(rule: Rule, kind: str) -> None:
    @settings(max_examples=examples(15), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        Twin(rule).play(quiet_moves(kind, seed))
        Twin(rule).play(long_moves(kind, seed))

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_the_same_as_one_after_another(rule: Rule, kind: str) -> None:
    @settings(max_examples=examples(15), deadline=None)
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
        twin.renew_batch([Renew(n, 7.25) if n in holding else Refresh(n) for n in nonces], 0)

    check()


def test_a_batch_of_late_watchers(rule: Rule) -> None:
    twin = Twin(rule)
    for number in range(3):
        twin.step(Watch(f"w{number}", "w"), 0)
        twin.now += 1.0
    twin.now += 3.0
    twin.renew_batch([Refresh("w0"), Refresh("w1"), Refresh("w2")], 0)


@settings(max_examples=examples(25), deadline=None)
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


AWKWARD = "a\0b\"c\\d\n'e{},[]é☃𝄞\ud800%s$1"


def asking(nonce: str, kind: str = "lock", mode: str = "exclusive", **changes: object) -> Acquire:
    asked = Acquire(nonce, nonce[0], f"host/1/{nonce}", kind, mode, 30.0, wait=False)
    return asked._replace(**changes)  # type: ignore[arg-type]  # fields by their names


def test_the_last_token(rule: Rule) -> None:
    twin = Twin(rule)
    twin.step(asking("a0"), MAX_TOKEN - 2)
    twin.step(Release("a0"), 0)
    twin.step(asking("a1"), MAX_TOKEN)
    twin.step(asking("a1"), 0)
    assert twin.record.token == MAX_TOKEN - 1
    twin.step(Break(None, "no"), 0)
    twin.step(Release("a1"), 0)
    twin.step(asking("a2"), 0)
    assert twin.record.token == MAX_TOKEN - 1


@pytest.mark.parametrize("wall_us", [MAX_TOKEN, MAX_TOKEN - 1])
def test_the_last_token_of_a_new_name(rule: Rule, wall_us: int) -> None:
    twin = Twin(rule)
    twin.step(asking("a0"), wall_us)
    twin.step(asking("b0", wait=True), wall_us)


def test_the_last_token_of_a_writer(rule: Rule) -> None:
    twin = Twin(rule)
    twin.step(asking("a0", "rwlock", "write"), MAX_TOKEN - 1)
    twin.step(Downgrade("a0", "ar"), 0)


def test_any_text_comes_back_as_it_was(rule: Rule) -> None:
    twin = Twin(rule)
    twin.step(asking("a0", owner=AWKWARD, metadata={AWKWARD[:9]: AWKWARD[:9], "": ""}), 0)
    twin.step(asking("b0", owner=AWKWARD, wait=True), 0)
    twin.step(asking("c0"), 0)
    twin.step(Inspect(), 0)
    twin.step(Break(None, AWKWARD), 0)
    twin.step(Renew("a0", 1.0), 0)
    twin.step(SetValue("b0", bytes(range(256)), 1.0), 0)


@pytest.mark.parametrize("nonce", ["", "\0", "é", "\ud800", "'; --", "x" * 10_000])
def test_a_name_of_an_attempt_that_is_not_ours_is_just_not_there(rule: Rule, nonce: str) -> None:
    """A text was passed to ``adopt`` that was never exported."""
    twin = Twin(rule)
    twin.step(asking("a0"), 0)
    for request in (
        Adopt(nonce, "b", "host/1/b", "seal"),
        Release(nonce),
        Renew(nonce, 1.0),
        Withdraw(nonce),
    ):
        twin.step(request, 0)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.floats(0.01, 3e7),
    st.none() | st.floats(0.01, 3e7),
    st.floats(0, 3e9),
    st.lists(st.floats(0, 40), max_size=5),
)
def test_times_are_the_same_to_the_last_bit(
    rule: Rule, ttl: float, max_hold: float | None, now: float, pauses: list[float]
) -> None:
    twin = Twin(rule)
    twin.now = now
    twin.step(asking("a0", ttl=ttl, max_hold=max_hold), 7)
    twin.step(asking("b0", ttl=ttl, wait=True), 7)
    for pause in pauses:
        twin.now += pause
        twin.step(Renew("a0", ttl), 7)
        twin.step(asking("b0", ttl=ttl, wait=True), 7)
        twin.step(asking("c0", ttl=ttl, max_hold=max_hold), 7)
