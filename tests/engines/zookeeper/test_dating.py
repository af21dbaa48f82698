"""Since when a session can be relied on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.zookeeper.dating import LAG, Dating

pytestmark = pytest.mark.timeless


def test_a_connection_counts_at_once() -> None:
    dating = Dating()
    dating.connected(100.0, 10.0)
    assert (dating.base, dating.age(103.0)) == (100.0, 3.0)


def test_a_sign_of_life_counts_when_a_later_one_was_heard() -> None:
    """Before that it may have died with the server that heard it."""
    dating = Dating()
    dating.connected(100.0, 10.0)
    dating.sent(103.0)
    dating.wrote(103.0)
    assert dating.base == 100.0
    dating.sent(104.0)
    dating.wrote(104.0)
    assert dating.base == 100.0, "too soon after it"
    dating.wrote(106.0)
    assert dating.base == 103.0
    dating.wrote(106.6)
    assert dating.base == 104.0
    assert dating.last == 106.6


def test_what_only_asked_counts_too_once_it_is_confirmed() -> None:
    dating = Dating()
    dating.connected(100.0, 10.0)
    for at in (103.0, 106.0, 109.0):
        dating.sent(at)
        assert dating.base == 100.0
    dating.sent(112.0)
    dating.wrote(112.0)
    assert dating.base == 109.0
    assert dating.last == 112.0, "nobody waited for the others"


def test_another_connection_forgets_what_was_sent_over_the_last() -> None:
    dating = Dating()
    dating.connected(100.0, 10.0)
    dating.sent(103.0)
    dating.connected(104.0, 10.0)
    dating.sent(109.0)
    dating.wrote(109.0)
    assert dating.base == 104.0
    dating.wrote(112.0)
    assert dating.base == 109.0


@given(st.lists(st.tuples(st.floats(min_value=0.0, max_value=3.0), st.booleans()), max_size=60))
def test_what_counts_was_sent_and_confirmed(steps: list[tuple[float, bool]]) -> None:
    dating = Dating()
    now = 100.0
    dating.connected(now, 10.0)
    sent = [now]
    for step, writes in steps:
        now += step
        before = dating.base
        dating.sent(now)
        sent.append(now)
        if writes:
            dating.wrote(now)
        assert dating.base in sent
        assert before <= dating.base <= max(now - 10.0 * LAG, 100.0)
        assert writes or dating.base == before


@given(st.floats(min_value=0.001, max_value=1.0))
def test_who_writes_often_is_relied_on_for_three_quarters_at_least(step: float) -> None:
    dating = Dating()
    now = 100.0
    dating.connected(now, 10.0)
    for _ in range(40):
        now += step
        dating.sent(now)
        dating.wrote(now)
    assert dating.age(now) <= 10.0 * LAG + 2 * max(step, 10.0 / 64)
