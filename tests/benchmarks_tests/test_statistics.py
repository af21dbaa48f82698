"""The numbers of the reports are computed as they say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import FIGURES
from benchmarks.measures.contending import Contended
from benchmarks.measures.waiters import handoffs
from benchmarks.results import Metric, Result, Row, Unit
from benchmarks.statistics import paired_ratio, quantile, summarise
from benchmarks.tables import shown
from benchmarks.targets import Outcome, compare

numbers = st.floats(min_value=1e-9, max_value=1e9)


@pytest.mark.parametrize(
    ("samples", "fraction", "expected"),
    [
        ([5.0], 0.99, 5.0),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.5, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 2.5),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.25, 2.0),
        ([3.0, 1.0, 2.0], 1.0, 3.0),
        ([3.0, 1.0, 2.0], 0.0, 1.0),
    ],
)
def test_quantiles(samples: list[float], fraction: float, expected: float) -> None:
    assert quantile(samples, fraction) == expected


def test_there_is_no_quantile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)


@given(st.lists(numbers, min_size=1))
def test_a_median_lies_between_its_quartiles(samples: list[float]) -> None:
    summary = summarise(samples)
    assert summary.low is not None
    assert summary.high is not None
    assert summary.low <= summary.value * (1 + 1e-12)
    assert summary.value <= summary.high * (1 + 1e-12)


def test_what_slows_a_whole_round_down_cancels_out() -> None:
    """The second round was ten times slower for all contestants."""
    ratio = paired_ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0])
    assert ratio is not None
    assert (ratio.low, ratio.value, ratio.high) == (2.0, 2.0, 2.0)
    assert paired_ratio([1.0], [0.0]) is None


def test_a_result_compares_with_its_base() -> None:
    metrics = (Metric("rate", "rate", "per second"), Metric("p99", "p99", "seconds", 0.99, "latency"))
    base, ours = Row("base", "base", "raw", "base"), Row("ours", "ours", "subject", "base")
    for row, factor in ((base, 1.0), (ours, 0.5)):
        row.add(rate=10 * factor)
        row.add(rate=20 * factor)
        row.extend("latency", [0.1 * factor, 0.2 * factor])
    result = Result("x", "X", "how", metrics, [base, ours], ("rate",))
    ratios = [result.ratio(ours, metric) for metric in metrics]
    assert [ratio.value for ratio in ratios if ratio is not None] == pytest.approx([0.5, 0.5])
    values = result.as_json()["rows"][1]["metrics"]
    assert values["rate"]["value"] == 7.5
    assert values["rate"]["ratio"]["value"] == 0.5


def test_a_hand_off_goes_to_another_process_that_already_waited() -> None:
    first = Contended([0.0, 3.1, 9.0], [0.0, 3.2, 9.5], [1.0, 4.0, 9.6], 9.2, 0.0)
    second = Contended([0.5, 5.0], [1.2, 5.1], [3.0, 6.0], 9.2, 0.0)
    # 1.0 → 1.2 went to a waiter; the next two came after the release; the last grant after the slice.
    latencies, grants = handoffs([first, second], counted_seconds=9.2)
    assert latencies == pytest.approx([0.2])
    assert grants == 4
    assert handoffs([first, second], counted_seconds=7.0) == ([], 2)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0305, "seconds", "30.5 ms"),
        (2.5e-7, "seconds", "250 ns"),
        (0.005, "share of a core", "0.5 %"),
        (12345.6, "per second", "12,346"),
        (0.35, "factor", "0.35"),
    ],
)
def test_values_are_shown_in_fitting_units(value: float, unit: Unit, text: str) -> None:
    assert shown(value, unit) == text


def test_figures_are_reached_missed_or_unmeasured() -> None:
    target = FIGURES["sqlite"][0]
    assert Outcome(target, 0.35).verdict == "reached"
    assert Outcome(target, 0.34).verdict == "not reached"
    assert {outcome.verdict for outcome in compare([target], {})} == {"not measured"}
