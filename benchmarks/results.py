"""What a measurement yields: rows of samples, and the metrics that say how to read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .contestant import Role
from .statistics import Summary, paired_ratio, summarise

__all__ = ["Metric", "Result", "Row", "Unit"]

Unit = Literal["seconds", "per second", "share of a core", "share", "factor", "count"]

SIGNIFICANT_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Metric:
    """One column: the median over slices, one value each; with ``fraction``, that quantile of all samples."""

    key: str
    title: str
    unit: Unit
    fraction: float | None = None
    source: str = ""
    """The samples it is computed from; its own key unless said."""
    compared: bool = True
    """Whether the ratio to the base means something."""

    @property
    def samples_key(self) -> str:
        return self.source or self.key


@dataclass(slots=True)
class Row:
    """One line: a contestant, perhaps in one of several situations."""

    key: str
    label: str
    role: Role
    base: str
    """The key of the row that its ratios refer to; its own key: it is a base."""
    series: str = ""
    """Rows of one series are joined by a line in a plot over ``x``."""
    x: float | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """Whatever else is worth keeping in the JSON."""

    def add(self, **values: float) -> None:
        """One slice's values."""
        for key, value in values.items():
            self.samples.setdefault(key, []).append(value)

    def extend(self, key: str, values: list[float]) -> None:
        """Samples that are pooled over all slices."""
        self.samples.setdefault(key, []).extend(values)


@dataclass(slots=True)
class Result:
    """One table."""

    key: str
    title: str
    how: str
    """How it was measured, in the words of the report; its line breaks do not matter."""
    metrics: tuple[Metric, ...]
    rows: list[Row]
    plotted: tuple[str, ...]
    """The metrics that are drawn."""
    x_title: str = ""
    """What the rows' ``x`` counts; empty: bars instead of lines."""
    rounds: int = 0
    left_out: dict[str, str] = field(default_factory=dict)
    """Peers that did not do their job: label → what went wrong."""

    def row(self, key: str) -> Row | None:
        return next((row for row in self.rows if row.key == key and row.samples), None)

    def metric(self, key: str) -> Metric:
        return next(metric for metric in self.metrics if metric.key == key)

    def metrics_measured(self) -> list[Metric]:
        """Without those that no row has: what a server does not count, for one."""
        return [
            metric for metric in self.metrics if any(metric.samples_key in row.samples for row in self.rows)
        ]

    def summary(self, row: Row, metric: Metric) -> Summary | None:
        samples = row.samples.get(metric.samples_key)
        if not samples:
            return None
        return summarise(samples, 0.5 if metric.fraction is None else metric.fraction)

    def ratio(self, row: Row, metric: Metric, base_key: str | None = None) -> Summary | None:
        """This row's value over the base's: paired by round where there is one value per slice."""
        base = self.row(base_key or row.base)
        ours = self.summary(row, metric)
        if base is None or ours is None:
            return None
        key = metric.samples_key
        if metric.fraction is None:
            return paired_ratio(row.samples[key], base.samples.get(key, []))
        theirs = self.summary(base, metric)
        return None if theirs is None else ours.over(theirs)

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "how": " ".join(self.how.split()),
            "rounds": self.rounds,
            **({"left_out": self.left_out} if self.left_out else {}),
            "rows": [self._row_as_json(row) for row in self.rows],
        }

    def _row_as_json(self, row: Row) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for metric in self.metrics:
            summary = self.summary(row, metric)
            if summary is None:
                continue
            values[metric.key] = {"unit": metric.unit, **_summary_as_json(summary)}
            ratio = self.ratio(row, metric) if metric.compared else None
            if ratio is not None:
                values[metric.key]["ratio"] = _summary_as_json(ratio)
        return {
            "key": row.key,
            "label": row.label,
            "role": row.role,
            "base": row.base,
            "metrics": values,
            **({"x": row.x} if row.x is not None else {}),
            **({"details": row.details} if row.details else {}),
        }


def _summary_as_json(summary: Summary) -> Mapping[str, float | int]:
    spread = {} if summary.low is None or summary.high is None else {"low": summary.low, "high": summary.high}
    rounded = {key: _rounded(value) for key, value in {"value": summary.value, **spread}.items()}
    return {**rounded, "samples": summary.count}


def _rounded(value: float) -> float:
    """Digits beyond the fifth are noise, and make every new run a large difference."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value))))
