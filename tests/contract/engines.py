"""An engine for each test, by URL scheme: an engine with a line here is held to the contract.

An engine with a server gives the URL of one that all tests of the process share (``support.servers``). What
keeps tests apart is the namespace, a fresh one each.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import pytest
from _pytest.mark import ParameterSet

__all__ = ["DRIVERS", "FRESH_URL", "Driver", "each_engine", "fresh_namespace"]

Driver = Literal["threads", "asyncio"]
DRIVERS: Final[tuple[Driver, ...]] = ("threads", "asyncio")

FRESH_URL: Final[Mapping[str, Callable[[Path], str]]] = {
    "memory": lambda folder: f"memory://{secrets.token_hex(8)}",
    "sqlite": lambda folder: f"sqlite:///{folder}/locks.db",
}
"""Scheme → a URL; ``folder`` is the test's own."""


def fresh_namespace() -> str:
    """One that nobody has used before."""
    return f"test-{secrets.token_hex(6)}"


def each_engine() -> list[ParameterSet]:
    """The schemes as parameters; ``HOLDFAST_TEST_ENGINES`` chooses among them by their mark."""
    return [pytest.param(scheme, marks=pytest.mark.engine(scheme), id=scheme) for scheme in FRESH_URL]
