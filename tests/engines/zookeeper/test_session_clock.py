"""Since when a session can be relied on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engines.zookeeper.session import CONFIRMATION_LAG, SessionClock

pytestmark = pytest.mark.timeless


def test_a_connection_counts_at_once() -> None:
    clock = SessionClock()
    clock.connected(100.0, 10.0)
    assert (clock.base, clock.age(103.0)) == (100.0, 3.0)


def test_a_keep_alive_counts_when_a_later_one_was_confirmed() -> None:
    """Before that it may have died with the server that received it."""
    clock = SessionClock()
    clock.connected(100.0, 10.0)
    clock.sent(103.0)
    clock.wrote(103.0)
    assert clock.base == 100.0
    clock.sent(104.0)
    clock.wrote(104.0)
    assert clock.base == 100.0, "too soon after it"
    clock.wrote(106.0)
    assert clock.base == 103.0
    clock.wrote(106.6)
    assert clock.base == 104.0
    assert clock.last == 106.6


def test_what_only_asked_counts_too_once_it_is_confirmed() -> None:
    clock = SessionClock()
    clock.connected(100.0, 10.0)
    for at in (103.0, 106.0, 109.0):
        clock.sent(at)
        assert clock.base == 100.0
    clock.sent(112.0)
    clock.wrote(112.0)
    assert clock.base == 109.0
    assert clock.last == 112.0, "nobody waited for the others"


def test_another_connection_forgets_what_was_sent_over_the_last() -> None:
    clock = SessionClock()
    clock.connected(100.0, 10.0)
    clock.sent(103.0)
    clock.connected(104.0, 10.0)
    clock.sent(109.0)
    clock.wrote(109.0)
    assert clock.base == 104.0
    clock.wrote(112.0)
    assert clock.base == 109.0


@given(st.lists(st.tuples(st.floats(min_value=0.0, max_value=3.0), st.booleans()), max_size=60))
def test_what_counts_was_sent_and_confirmed(steps: list[tuple[float, bool]]) -> None:
    clock = SessionClock()
    now = 100.0
    clock.connected(now, 10.0)
    sent = [now]
    for step, writes in steps:
        now += step
        before = clock.base
        clock.sent(now)
        sent.append(now)
        if writes:
            clock.wrote(now)
        assert clock.base in sent
        assert before <= clock.base <= max(now - 10.0 * CONFIRMATION_LAG, 100.0)
        assert writes or clock.base == before


@given(st.floats(min_value=0.001, max_value=1.0))
def test_a_session_that_writes_often_is_relied_on_for_three_quarters_at_least(step: float) -> None:
    clock = SessionClock()
    now = 100.0
    clock.connected(now, 10.0)
    for _ in range(40):
        now += step
        clock.sent(now)
        clock.wrote(now)
    assert clock.age(now) <= 10.0 * CONFIRMATION_LAG + 2 * max(step, 10.0 / 64)
