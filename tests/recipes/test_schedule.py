"""When a job runs: one run for each firing, whichever server asks, and whatever became of the last run."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import Run, RunState
from holdfast.recipes.schedule import Skip, Start, Terms, decide, missed_by

HOUR = 3600.0
START = 1_800_000_000.0


def last(
    at: float = 0.0, state: RunState = "done", missed: int = 0, due: float | None = None, every: float = HOUR
) -> Run:
    return Run(
        started=START + at,
        ended=None,
        owner="host/1/main",
        state=state,
        due=START + (at if due is None else due),
        missed=missed,
        every=every,
    )


def runs(run: Run | None, at: float, terms: Terms) -> bool:
    return isinstance(decide(run, START + at, terms), Start)


def test_the_first_request_runs_and_sets_the_phase() -> None:
    assert decide(None, START, Terms(HOUR)) == Start(START)
    assert decide(None, START, Terms()) == Start(START)


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (-600, False),  # by a server whose clock is behind, or an engine's whose clock went back
        (0, False),
        (1800, False),
        (3239, False),
        (3241, True),  # a tenth of a period early
        (3600, True),
        (7199, True),
        (86_400, True),
    ],
)
def test_a_firing_has_a_window(at: float, expected: bool) -> None:
    assert runs(last(), at, Terms(HOUR)) is expected


def test_a_late_run_does_not_move_the_next_firing() -> None:
    late = last(at=HOUR + 1200, due=HOUR)
    assert decide(late, START + 2 * HOUR, Terms(HOUR)) == Start(START + 2 * HOUR)
    assert decide(late, START + HOUR + 1800, Terms(HOUR)) == Skip(
        "not due", "it has run for this period", START + 2 * HOUR
    )


@given(st.lists(st.floats(-0.249, 0.249), min_size=2, max_size=20), st.integers(1, 5))
def test_servers_whose_clocks_differ_run_each_firing_at_most_once(offsets: list[float], firings: int) -> None:
    run: Run | None = None
    started: list[int] = []
    requests = sorted((firing + offset, firing) for firing in range(firings) for offset in offsets)
    for at, firing in requests:
        step = decide(run, START + at * HOUR, Terms(HOUR))
        if isinstance(step, Start):
            started.append(firing)
            run = dataclasses.replace(last(at * HOUR), due=step.due)
    assert len(started) == len(set(started)), "a firing ran twice"
    assert max(offsets) - min(offsets) > 0.1 or len(started) == firings, "none was missed"


def test_at_least_bounds_the_time_between_two_starts() -> None:
    late = last(at=HOUR + 3000, due=HOUR)
    terms = Terms(HOUR, at_least=1800.0)
    assert not runs(late, 2 * HOUR, Terms(HOUR)), "within half a period it may be the same firing"
    assert runs(late, HOUR + 4800, Terms(HOUR))
    assert decide(late, START + 2 * HOUR, terms) == Skip(
        "too soon", "at_least has not passed since its last start", START + HOUR + 4800
    )
    assert runs(late, HOUR + 4800, terms)
    assert not runs(last(), 1799, Terms(at_least=1800.0))
    assert runs(last(), 1800, Terms(at_least=1800.0))


def test_without_a_period_it_runs_whenever_no_other_server_runs_it() -> None:
    assert runs(last(), 0.001, Terms())
    assert decide(last(), START + 5, Terms(catch_up=True)) == Start(START + 5)


@pytest.mark.parametrize("state", ["running", "crashed"])
def test_a_crashed_run_is_repeated_or_counts(state: RunState) -> None:
    crashed = last(state=state)
    assert decide(crashed, START + 60, Terms(HOUR, on_crash="rerun")) == Start(START, reruns=True)
    assert decide(crashed, START + 60, Terms(HOUR, at_least=600, on_crash="rerun")) == Start(
        START, reruns=True
    ), "at least once: at_least keeps finished runs apart"
    assert decide(crashed, START + 60, Terms(HOUR, on_crash="skip")) == Skip(
        "not due", "it began and crashed for this period", START + HOUR
    )
    assert runs(crashed, HOUR, Terms(HOUR, on_crash="skip"))
    assert decide(crashed, START + 3 * HOUR, Terms(HOUR)) == Start(START + 3 * HOUR, missed=2, reruns=True)
    assert decide(crashed, START + 9, Terms()) == Start(START + 9, reruns=True)


def test_a_failed_run_has_run() -> None:
    assert not runs(last(state="failed"), 60, Terms(HOUR))


def test_missed_firings_are_counted_until_a_run_makes_up_for_them() -> None:
    assert missed_by(last(), START + 2 * HOUR - 361) == 0, "the firing may still come late"
    assert missed_by(last(), START + 2 * HOUR) == 1
    assert decide(last(), START + 4 * HOUR, Terms(HOUR)) == Start(START + 4 * HOUR, missed=3)
    after = last(at=4 * HOUR, missed=3)
    assert missed_by(after, START + 6 * HOUR) == 4
    assert not runs(after, 4 * HOUR + 60, Terms(HOUR))
    assert decide(after, START + 4 * HOUR + 60, Terms(HOUR, catch_up=True)) == Start(
        START + 4 * HOUR, missed=3, settles=True
    )
    assert not runs(last(at=4 * HOUR), 4 * HOUR + 60, Terms(HOUR, catch_up=True)), "one makes up for all"
    assert decide(last(), START + 4 * HOUR, Terms(HOUR, catch_up=True)) == Start(
        START + 4 * HOUR, missed=3, settles=True
    )
    assert not runs(after, 4 * HOUR + 60, Terms(HOUR, at_least=600, catch_up=True))


def test_a_start_far_in_the_future_was_written_by_a_wrong_clock() -> None:
    assert not runs(last(), -HOUR + 1, Terms(HOUR))
    assert decide(last(missed=2), START - 24 * HOUR, Terms(HOUR)) == Start(START - 24 * HOUR, missed=2)


def test_a_period_that_was_changed_counts_from_the_last_firing() -> None:
    assert runs(last(every=24 * HOUR), HOUR, Terms(HOUR))
    assert not runs(last(every=HOUR), 2 * HOUR, Terms(24 * HOUR))
