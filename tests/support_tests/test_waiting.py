"""The waiting helpers: a broken one would let every other test pass or hang for the wrong reason."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import TimedOut, async_wait_until, stays_true, wait_until


def counting_to(limit: int) -> Iterator[bool]:
    for count in range(limit + 1):
        yield count == limit
    while True:
        yield True


def test_returns_what_the_predicate_returned() -> None:
    results = iter([None, 0, "ready"])
    assert wait_until(lambda: next(results)) == "ready"


def test_looks_once_even_without_time() -> None:
    assert wait_until(lambda: "now", timeout=0) == "now"
    with pytest.raises(TimedOut):
        wait_until(lambda: False, timeout=0)


def test_the_message_says_what_was_waited_for() -> None:
    with pytest.raises(TimedOut, match=r"the lease was not lost \(waited 0\.02 s\)"):
        wait_until(lambda: False, timeout=0.02, message="the lease was not lost")


def test_an_assertion_is_not_yet_and_becomes_the_cause() -> None:
    def predicate() -> bool:
        raise AssertionError("holders are 2, not 1")

    with pytest.raises(TimedOut) as caught:
        wait_until(predicate, timeout=0.02)
    assert "holders are 2" in str(caught.value.__cause__)


def test_other_errors_are_not_waited_out() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0)


def test_the_loop_runs_between_two_looks() -> None:
    async def scenario() -> bool:
        done = asyncio.Event()
        asyncio.get_running_loop().call_soon(done.set)
        return await async_wait_until(done.is_set)

    assert asyncio.run(scenario())


def test_stays_true_notices_a_single_lapse() -> None:
    answers = counting_to(1)
    with pytest.raises(AssertionError, match="lapsed"):
        stays_true(lambda: not next(answers), seconds=5, message="lapsed")
    stays_true(lambda: True, seconds=0.02)


@given(st.integers(min_value=0, max_value=3))
def test_any_number_of_looks(looks: int) -> None:
    answers = counting_to(looks)
    assert wait_until(lambda: next(answers))
