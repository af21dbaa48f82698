"""Waiting for a condition by polling."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from .errors import ServerFailed

__all__ = ["POLL_SECONDS", "until"]

POLL_SECONDS: Final = 0.01

T = TypeVar("T")


def until(condition: Callable[[], T | None], complaint: str, timeout: float) -> T:
    """Poll until the result is true, and return it. The time limit only serves to report an error."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise ServerFailed(f"{complaint} within {timeout} s")
        time.sleep(POLL_SECONDS)
    return result
