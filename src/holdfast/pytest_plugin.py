"""The plugin for pytest: ``--holdfast-lockorder`` checks the order of locks in every test.

A contradiction is a warning of the test that completes it, with both stacks. To fail such tests:
``-W error::holdfast.lockorder.LockOrderWarning``. Orders are remembered over the whole run, since two tests
may take the same two locks in opposite orders.
"""

from __future__ import annotations

import contextlib
from typing import Any

__all__ = ["pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: Any) -> None:
    parser.getgroup("holdfast").addoption(
        "--holdfast-lockorder",
        action="store_true",
        default=False,
        help="warn when two locks of Holdfast are ever taken in opposite orders, though nothing hung",
    )


def pytest_configure(config: Any) -> None:
    if config.getoption("--holdfast-lockorder"):
        from . import lockorder

        watching = contextlib.ExitStack()
        watching.enter_context(lockorder.watch())
        config.add_cleanup(watching.close)
