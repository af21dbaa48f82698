"""Durations in URLs and options of engines: seconds, text with units, or a timedelta."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Final

__all__ = ["seconds_in"]

UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
"""From the largest to the smallest, as they are written: ``1h30m``."""

_TEXT: Final = re.compile("".join(rf"(?:([0-9.]+){unit})?" for unit in UNITS), re.ASCII)


def seconds_in(value: object) -> float:
    """How long that is; not a number (NaN) if it is no duration."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        found = _TEXT.fullmatch(value.strip().lower()) if isinstance(value, str) and value.strip() else None
        if found is None:
            return float(value)
        return sum(
            float(part) * size for part, size in zip(found.groups(), UNITS.values(), strict=True) if part
        )
    except (ValueError, OverflowError):
        return math.nan
