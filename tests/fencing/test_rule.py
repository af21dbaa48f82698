"""The fencing rule by itself: its table row by row, and the properties that follow from it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fencing.rule import Accept, Advance, Decision, Mark, Refuse, Why, after, decide, moved

S, T = "source-s", "source-t"

OLDER, OTHER_GRANT, OTHER_SOURCE = Refuse(Why.OLDER), Refuse(Why.OTHER_GRANT), Refuse(Why.OTHER_SOURCE)


def full(token: int, nonce: str = "a", source: str = S) -> Mark:
    return Mark(token, source, nonce)


def bare(token: int) -> Mark:
    return Mark(token)


TABLE: list[tuple[str, Mark | None, Mark, Decision]] = [
    ("first, full", None, full(5), Advance(full(5))),
    ("first, bare", None, bare(5), Advance(bare(5))),
    ("first, zero", None, bare(0), Advance(bare(0))),
    ("newer", full(5), full(6, "b"), Advance(full(6, "b"))),
    ("older", full(5), full(4, "b"), OLDER),
    ("older, even with the same nonce", full(5), full(4), OLDER),
    ("the same grant", full(5), full(5), Accept()),
    ("the same number, another grant", full(5), full(5, "b"), OTHER_GRANT),
    ("another source, newer", full(5), full(6, source=T), OTHER_SOURCE),
    ("another source, older", full(5), full(4, source=T), OTHER_SOURCE),
    ("another source, equal in all else", full(5), full(5, source=T), OTHER_SOURCE),
    ("bare on full, newer: the source is kept", full(5), bare(6), Advance(Mark(6, S))),
    ("bare on full, equal", full(5), bare(5), Accept()),
    ("bare on full, older", full(5), bare(4), OLDER),
    ("full on bare, newer", bare(5), full(6), Advance(full(6))),
    ("full on bare, equal: the grant is now known", bare(5), full(5), Advance(full(5))),
    ("full on bare, older", bare(5), full(4), OLDER),
    ("bare on bare, newer", bare(5), bare(6), Advance(bare(6))),
    ("bare on bare, equal", bare(5), bare(5), Accept()),
    ("bare on bare, older", bare(5), bare(4), OLDER),
    ("only the nonce unknown, equal", Mark(5, S), full(5, "b"), Advance(full(5, "b"))),
    ("only the nonce unknown, another source", Mark(5, S), full(6, source=T), OTHER_SOURCE),
    ("a peer of the newest", Mark(5, S, "a", (3,)), full(3, "b"), Accept()),
    ("a bare peer of the newest", Mark(5, S, "a", (3,)), bare(3), Accept()),
    ("older and no peer", Mark(5, S, "a", (3,)), full(4, "b"), OLDER),
    ("a peer's number of another source", Mark(5, S, "a", (3,)), full(3, "b", T), OTHER_SOURCE),
    ("newer: its peers replace the others", Mark(5, S, "a", (3,)), full(6, "b"), Advance(full(6, "b"))),
    ("equal: the peers stay", Mark(5, S, "a", (3,)), full(5), Accept()),
    (
        "equal to a bare one: its peers come with it",
        bare(5),
        Mark(5, S, "a", (3,)),
        Advance(Mark(5, S, "a", (3,))),
    ),
]


@pytest.mark.parametrize(
    ("stored", "presented", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_table(stored: Mark | None, presented: Mark, expected: Decision) -> None:
    assert decide(stored, presented) == expected


def test_after_a_bare_number_got_its_grant_another_grant_is_refused() -> None:
    stored = run([bare(5), full(5, "a")])
    assert decide(stored, full(5, "b")) == OTHER_GRANT


def test_a_bare_number_never_opens_the_door_to_another_source() -> None:
    stored = run([full(5), bare(6)])
    assert decide(stored, full(7, source=T)) == OTHER_SOURCE
    assert decide(stored, full(7)) == Advance(full(7))


def test_moving_starts_the_new_source_at_zero_and_shuts_out_the_old() -> None:
    stored = moved(full(1000), T)
    assert decide(stored, full(1001)) == OTHER_SOURCE
    assert decide(stored, full(1, source=T)) == Advance(full(1, source=T))


def test_moving_to_the_source_that_has_it_does_not_let_stale_holders_back_in() -> None:
    stored = moved(full(1000), S)
    assert decide(stored, full(999, "old")) == OLDER


def test_moving_what_nobody_has_used_yet_names_the_source() -> None:
    assert decide(moved(None, T), full(1)) == OTHER_SOURCE


def run(presented: Iterable[Mark], stored: Mark | None = None) -> Mark | None:
    for mark in presented:
        stored = after(stored, decide(stored, mark))
    return stored


def passed(decision: Decision) -> bool:
    return not isinstance(decision, Refuse)


# Small numbers and few names, so that equal tokens, other nonces and other sources meet often.
tokens = st.integers(min_value=0, max_value=6)
fulls = st.builds(Mark, tokens, st.sampled_from([S, T]), st.sampled_from(["a", "b", "c"]))
bares = st.builds(Mark, tokens)
peers = st.lists(tokens, max_size=3, unique=True).map(sorted).map(tuple)
shared = st.builds(Mark, tokens, st.just(S), st.sampled_from(["a", "b", "c"]), peers)
anything = st.one_of(fulls, bares, shared)
without_peers = st.one_of(fulls, bares)


@given(st.lists(anything))
def test_the_stored_token_never_falls_and_the_source_never_changes(marks: list[Mark]) -> None:
    stored: Mark | None = None
    for mark in marks:
        previous, stored = stored, after(stored, decide(stored, mark))
        assert stored is not None
        if previous is not None:
            assert stored.token >= previous.token
            assert stored.source == previous.source or not previous.source


@given(st.lists(anything), anything)
def test_presenting_again_changes_nothing(marks: list[Mark], mark: Mark) -> None:
    stored = run(marks)
    first = decide(stored, mark)
    expected: Decision = Accept() if passed(first) else first
    assert decide(after(stored, first), mark) == expected


@given(st.lists(without_peers))
def test_no_two_nonces_of_one_token_both_pass(marks: list[Mark]) -> None:
    stored: Mark | None = None
    nonce_of: dict[int, str] = {}
    for mark in marks:
        decision = decide(stored, mark)
        if passed(decision) and mark.nonce:
            assert nonce_of.setdefault(mark.token, mark.nonce) == mark.nonce
        stored = after(stored, decision)


@given(st.lists(without_peers), without_peers, st.lists(without_peers))
def test_what_was_refused_stays_refused(before: list[Mark], mark: Mark, later: list[Mark]) -> None:
    stored = run(before)
    if not passed(decide(stored, mark)):
        assert not passed(decide(run(later, stored), mark))


@given(st.data())
def test_grants_of_one_source_leave_the_same_newest_in_any_order(data: st.DataObject) -> None:
    numbers = data.draw(st.lists(tokens, unique=True))
    grants = [full(number, f"nonce-{number}") for number in numbers]
    repeated = grants + data.draw(st.lists(st.sampled_from(grants))) if grants else []
    assert run(data.draw(st.permutations(repeated))) == max(grants, key=lambda mark: mark.token, default=None)


@given(st.data())
def test_bare_numbers_among_them_do_not_change_which_number_is_newest(data: st.DataObject) -> None:
    grants = [full(number, f"nonce-{number}") for number in data.draw(st.lists(tokens, unique=True))]
    marks = grants + data.draw(st.lists(bares))
    newest = run(data.draw(st.permutations(marks)))
    assert (newest.token if newest else None) == max((mark.token for mark in marks), default=None)


@given(st.data())
def test_every_live_permit_of_a_semaphore_passes_whatever_order_they_come_in(data: st.DataObject) -> None:
    """A truthful history: each grant's peers are those live at its moment. No live one is ever refused."""
    live: list[Mark] = []
    stored: Mark | None = None
    for number in range(1, 12):
        for ended in data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []:
            live.remove(ended)
        live.append(Mark(number, S, f"nonce-{number}", tuple(mark.token for mark in live)))
        for mark in data.draw(st.lists(st.sampled_from(live))):
            decision = decide(stored, mark)
            assert passed(decision), (stored, mark)
            stored = after(stored, decision)
