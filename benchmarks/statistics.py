"""Numbers out of samples: quantiles, medians with quartiles, and ratios of slices that ran side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Summary", "paired_ratio", "quantile", "summarise"]


@dataclass(frozen=True, slots=True)
class Summary:
    """A value with its spread. ``low`` and ``high`` are quartiles; None: the value stands alone."""

    value: float
    low: float | None
    high: float | None
    count: int

    def over(self, base: Summary) -> Summary | None:
        """The ratio of two values whose samples cannot be paired."""
        return None if base.value == 0 else Summary(self.value / base.value, None, None, self.count)


def quantile(samples: Sequence[float], fraction: float) -> float:
    """The value below which ``fraction`` of the samples lie, interpolated linearly."""
    if not samples:
        raise ValueError("no samples: there is no quantile of nothing")
    ordered = sorted(samples)
    position = (len(ordered) - 1) * fraction
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarise(samples: Sequence[float], fraction: float = 0.5) -> Summary:
    """A quantile of the samples; the median comes with its quartiles."""
    value = quantile(samples, fraction)
    if fraction != 0.5:
        return Summary(value, None, None, len(samples))
    return Summary(value, quantile(samples, 0.25), quantile(samples, 0.75), len(samples))


def paired_ratio(slices: Sequence[float], base_slices: Sequence[float]) -> Summary | None:
    """The median of the ratios within each round: what slows a whole round down cancels out."""
    ratios = [ours / base for ours, base in zip(slices, base_slices, strict=False) if base]
    return summarise(ratios) if ratios else None
