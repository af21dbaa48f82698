"""Durations in URLs and in options of engines."""

from __future__ import annotations

from datetime import timedelta
from math import isnan

import pytest

from holdfast.core.durations import seconds_in

pytestmark = pytest.mark.timeless


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (2, 2.0),
        (0.25, 0.25),
        ("2", 2.0),
        (" 0.25 ", 0.25),
        ("500ms", 0.5),
        ("90s", 90.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1m0.5S", 60.5),
        ("2d", 172800.0),
        (timedelta(minutes=1, milliseconds=5), 60.005),
    ],
)
def test_what_is_a_duration(value: object, seconds: float) -> None:
    assert seconds_in(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", [None, True, "", " ", "soon", "s", "30m1h", "1s1s", "1..5s", "nan", "1 h", 10**400, b"5s"]
)
def test_what_is_none(value: object) -> None:
    assert isnan(seconds_in(value))
