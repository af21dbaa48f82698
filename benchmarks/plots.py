"""Results as pictures, PNG and SVG. Needs matplotlib; without it there are tables alone."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .results import Metric, Result, Row
from .tables import shown

__all__ = ["can_draw", "draw"]

COLOURS: Mapping[str, str] = {"subject": "#1f6f8b", "peer": "#c8843c", "raw": "#8a8f98"}

MANY_SERIES = 6
"""More lines have their legend beside the panels."""

WIDE_SPAN = 20.0
"""Where the largest value is so many times the smallest, the axis is logarithmic."""


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(result: Result, folder: Path, group: str) -> None:
    """``<key>.png`` and ``<key>.svg``."""
    import matplotlib as mpl

    mpl.use("Agg")
    # The same numbers give the same file, so that a new run is a small difference.
    mpl.rcParams.update({"svg.hashsalt": "holdfast", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    metrics = [result.metric(key) for key in result.plotted]
    height = 3.4 if result.x_title else 1.0 + 0.3 * len(result.rows)
    figure, panels = pyplot.subplots(
        1,
        len(metrics),
        figsize=(10 if len(metrics) > 1 else 7, height),
        sharey=not result.x_title,
        squeeze=False,
    )
    for panel, metric in zip(panels[0], metrics, strict=True):
        (lines if result.x_title else bars)(panel, result, metric)
    figure.suptitle(f"{group}: {result.title[:1].lower()}{result.title[1:]}")
    figure.tight_layout()
    figure.savefig(folder / f"{result.key}.png", dpi=110, metadata={"Software": None})
    figure.savefig(folder / f"{result.key}.svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
    tidy(folder / f"{result.key}.svg")


def bars(panel: Any, result: Result, metric: Metric) -> None:
    """One bar a row, with its quartiles and its value."""
    rows = [row for row in reversed(result.rows) if result.summary(row, metric) is not None]
    summaries = [summary for row in rows if (summary := result.summary(row, metric)) is not None]
    if not rows:
        return
    values = [summary.value for summary in summaries]
    below = [0.0 if each.low is None else max(0.0, each.value - each.low) for each in summaries]
    above = [0.0 if each.high is None else max(0.0, each.high - each.value) for each in summaries]
    panel.barh(
        [row.label for row in rows],
        values,
        xerr=[below, above],
        color=[COLOURS[row.role] for row in rows],
        error_kw={"elinewidth": 1, "ecolor": "#333333"},
    )
    for position, (value, more) in enumerate(zip(values, above, strict=True)):
        panel.annotate(
            shown(value, metric.unit),
            (value + more, position),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    if is_wide(values):
        panel.set_xscale("log")
    panel.set_xlim(*axis_ends(values, above))
    panel.xaxis.set_major_formatter(lambda value, _: shown(value, metric.unit) if value else "0")
    panel.tick_params(axis="x", labelsize=7)
    panel.set_xlabel(metric.title)
    panel.spines[["top", "right"]].set_visible(False)


def lines(panel: Any, result: Result, metric: Metric) -> None:
    """One line a series, over what grows."""
    series: dict[str, list[Row]] = {}
    for row in result.rows:
        series.setdefault(row.series, []).append(row)
    everything: list[float] = []
    # Many: the second half, which does the same another way, has the colours of the first.
    half = -(-len(series) // 2) if len(series) > MANY_SERIES else len(series)
    for number, (label, rows) in enumerate(series.items()):
        points = [
            (row.x, summary)
            for row in rows
            if row.x is not None and (summary := result.summary(row, metric)) is not None
        ]
        places = [x for x, _ in points]
        values = [summary.value for _, summary in points]
        everything += values
        (line,) = panel.plot(
            places,
            values,
            marker="o",
            label=label,
            color=f"C{number % half}",
            ls="-" if number < half else "--",
        )
        low = [each.value if each.low is None else each.low for _, each in points]
        high = [each.value if each.high is None else each.high for _, each in points]
        panel.fill_between(places, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    panel.set_xscale("symlog", linthresh=10)
    grown = sorted({row.x for row in result.rows if row.x is not None})
    panel.set_xticks(grown, [f"{x:,.0f}" for x in grown], minor=False)
    panel.xaxis.set_minor_locator(no_ticks())
    panel.set_xlabel(result.x_title)
    if is_wide(everything):
        panel.set_yscale("log")
    else:
        panel.set_ylim(bottom=0)
    panel.yaxis.set_major_formatter(lambda value, _: shown(value, metric.unit) if value else "0")
    panel.set_ylabel(metric.title)
    if half == len(series):
        panel.legend(frameon=False)
    elif metric.key == result.plotted[-1]:
        panel.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    panel.spines[["top", "right"]].set_visible(False)


def no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def is_wide(values: Sequence[float]) -> bool:
    positive = [value for value in values if value > 0]
    return len(positive) == len(values) > 0 and max(positive) / min(positive) > WIDE_SPAN


def axis_ends(values: Sequence[float], above: Sequence[float]) -> tuple[float | None, float | None]:
    """Room for the number behind the longest bar; a logarithmic axis begins well below the shortest."""
    longest = max((value + more for value, more in zip(values, above, strict=True)), default=0.0)
    if longest <= 0 or not math.isfinite(longest):
        return None, None
    return (min(values) / 3, longest * 6) if is_wide(values) else (0.0, longest * 1.25)


def tidy(path: Path) -> None:
    """matplotlib leaves spaces at the ends of lines, which this project's files do not have."""
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
