"""Results as pictures, where what draws them is installed: it belongs to the benchmarks' own environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import plots
from benchmarks.contestant import Role
from benchmarks.results import Metric, Result, Row

pytestmark = pytest.mark.skipif(not plots.can_draw(), reason="matplotlib is installed for `make bench` alone")

METRICS = (Metric("rate", "Pairs", "per second"), Metric("longest", "Longest wait", "seconds", 0.99))


def rows(x: float | None, slower: float) -> list[Row]:
    """The subject, and a peer that is so many times slower."""
    contestants: list[tuple[str, Role, float]] = [("ours", "subject", 1.0), ("theirs", "peer", slower)]
    made = []
    for key, role, factor in contestants:
        row = Row(f"{key}-{x}", key.title(), role, f"theirs-{x}", key, x)
        for value in (90.0, 100.0, 120.0):
            row.add(rate=value / factor, longest=factor / value)
        made.append(row)
    return made


RESULTS = [
    pytest.param(Result("drawn", "Pairs", "How.", METRICS, rows(None, 2.0), ("rate",)), id="bars"),
    pytest.param(
        Result("drawn", "Pairs", "How.", METRICS, rows(None, 900.0), ("rate", "longest")), id="wide bars"
    ),
    pytest.param(
        Result(
            "drawn", "Pairs", "How.", METRICS, rows(1, 2.0) + rows(1000, 900.0), ("rate",), x_title="waiters"
        ),
        id="lines",
    ),
    pytest.param(Result("drawn", "Pairs", "How.", METRICS, [], ("rate",)), id="nothing measured"),
]


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_is_drawn_the_same_each_time(result: Result, tmp_path: Path) -> None:
    plots.draw(result, tmp_path, "Test")
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(first) == ["drawn.png", "drawn.svg"]
    text = first["drawn.svg"].decode()
    assert "Test: pairs" in text
    assert all(line == line.rstrip() for line in text.splitlines())
    if result.rows:
        assert "Ours" in text or "ours" in text
    plots.draw(result, tmp_path, "Test")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
