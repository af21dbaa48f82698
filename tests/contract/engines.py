"""A fresh engine for each test, by URL scheme: an engine with a line here is held to the contract."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

__all__ = ["DRIVERS", "FRESH_URL", "Driver"]

Driver = Literal["threads", "asyncio"]
DRIVERS: Final[tuple[Driver, ...]] = ("threads", "asyncio")

FRESH_URL: Final[Mapping[str, Callable[[Path], str]]] = {
    "memory": lambda folder: f"memory://{secrets.token_hex(8)}",
    "sqlite": lambda folder: f"sqlite:///{folder}/locks.db",
}
"""Scheme → a URL that nobody has used before; ``folder`` is the test's own."""
