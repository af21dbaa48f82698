"""Waiting for conditions. The only sleeps of the test suite live here.

A test that sleeps a fixed time is either slow or flaky, and on a loaded machine both. A test says
what it waits for; the time limit is there for the failure message only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.01


class TimedOut(AssertionError):
    """The condition did not come true in time. An AssertionError, so that pytest reports a failure."""


def wait_until(predicate: Callable[[], T], timeout: float = 10.0, message: str = "") -> T:
    """Call ``predicate`` until it returns something true, and return that.

    An AssertionError from the predicate counts as "not yet"; at the end of the time it is the cause
    of the ``TimedOut``, so that a predicate may be a function full of asserts.
    """
    deadline = time.monotonic() + timeout
    while True:
        last = time.monotonic() >= deadline
        failure: AssertionError | None = None
        try:
            result = predicate()
        except AssertionError as error:
            failure = error
        else:
            if result:
                return result
        if last:
            raise TimedOut(_complaint(predicate, timeout, message)) from failure
        time.sleep(POLL_SECONDS)


async def async_wait_until(predicate: Callable[[], T], timeout: float = 10.0, message: str = "") -> T:
    """The same inside an event loop: the loop runs between two looks."""
    deadline = time.monotonic() + timeout
    while True:
        last = time.monotonic() >= deadline
        failure: AssertionError | None = None
        try:
            result = predicate()
        except AssertionError as error:
            failure = error
        else:
            if result:
                return result
        if last:
            raise TimedOut(_complaint(predicate, timeout, message)) from failure
        await asyncio.sleep(POLL_SECONDS)


def stays_true(predicate: Callable[[], object], seconds: float, message: str = "") -> None:
    """Assert that ``predicate`` is true now and at every look for ``seconds``.

    The one wait that must last its full time: nothing announces that something does *not* happen.
    Keep it short, and prefer an event that would follow the thing that must not happen.
    """
    deadline = time.monotonic() + seconds
    while True:
        last = time.monotonic() >= deadline
        if not predicate():
            raise AssertionError(message or f"{_name_of(predicate)} did not stay true for {seconds} s")
        if last:
            return
        time.sleep(POLL_SECONDS)


def _complaint(predicate: Callable[[], object], timeout: float, message: str) -> str:
    return f"{message or _name_of(predicate) + ' did not come true'} (waited {timeout} s)"


def _name_of(predicate: Callable[[], object]) -> str:
    return getattr(predicate, "__qualname__", repr(predicate))
